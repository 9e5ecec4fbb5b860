"""The JSON API of oneself: who a token speaks for, its end, and `astra login`."""

from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Router
from typing_extensions import TypedDict

from astraconsole.errors import Detail, ValidationError
from astraconsole.json_bodies import json_response, moment, object_body, read_object, refuse_unknown_parameters
from astraconsole.tenancy import device
from astraconsole.tenancy.queries import memberships_of
from astraconsole.tenancy.services import presented_token, revoke_token
from astraconsole.web import client_address

TEXT_LENGTH = 100

router = Router(tags=["Account"])


class TokenInUse(TypedDict):
    name: str
    prefix: str
    created_at: str


class WorkspaceOfPerson(TypedDict):
    organisation: str
    workspace: str
    role: str


class Person(TypedDict):
    """Whom the token speaks for. `workspaces`: in the order of the console."""

    username: str
    email: str
    token: TokenInUse
    workspaces: list[WorkspaceOfPerson]


class LoginBegun(TypedDict):
    """`device_code` is secret and goes back to `device/token`, every `interval` seconds; `user_code` is shown to the
    person, who approves it on the console's page `/device`."""

    device_code: str
    user_code: str
    expires_in: int
    interval: int


class LoginWaits(TypedDict):
    interval: int


class NewToken(TypedDict):
    token: str


@router.get("/whoami", response=Person)
def whoami(request: HttpRequest) -> HttpResponse:
    """Whom the token speaks for, and where they are a member."""
    refuse_unknown_parameters(request, ())
    user, token = request.auth, presented_token(request.headers.get("Authorization"))  # type: ignore[attr-defined]
    return json_response(
        {
            "username": user.username,
            "email": user.email,
            "token": {"name": token.name, "prefix": token.prefix, "created_at": moment(token.created_at)},
            "workspaces": [
                {
                    "organisation": membership.workspace.organisation.slug,
                    "workspace": membership.workspace.slug,
                    "role": membership.role,
                }
                for membership in memberships_of(user)
            ],
        }
    )


@router.delete("/token", response={204: None})
def end_token(request: HttpRequest) -> HttpResponse:
    """Revoke the token that this very request carries."""
    refuse_unknown_parameters(request, ())
    token = presented_token(request.headers.get("Authorization"))
    revoke_token(request.auth, token.pk, timezone.now())  # type: ignore[attr-defined]
    return HttpResponse(status=HTTPStatus.NO_CONTENT)


def _texts(*names: str) -> dict[str, Any]:
    """A body of texts, for the documentation; what reads it is `_read_texts`."""
    text = {"type": "string", "minLength": 1, "maxLength": TEXT_LENGTH}
    return object_body(dict.fromkeys(names, text), names)


@router.post("/device/code", auth=None, response={201: LoginBegun}, openapi_extra=_texts("host", "program"))
def begin_login(request: HttpRequest) -> HttpResponse:
    """Begin a login by code. No token is needed."""
    refuse_unknown_parameters(request, ())
    host, program = _read_texts(request, "host", "program")
    begun = device.begin(host, program, client_address(request), timezone.now())
    answer = {**begun._asdict(), "expires_in": int(device.LIFETIME.total_seconds()), "interval": device.POLL_SECONDS}
    return json_response(answer, HTTPStatus.CREATED)


@router.post("/device/token", auth=None, response={200: NewToken, 202: LoginWaits}, openapi_extra=_texts("device_code"))
def collect_token(request: HttpRequest) -> HttpResponse:
    """The API token, once, after the code was approved; 202 until then."""
    refuse_unknown_parameters(request, ())
    (device_code,) = _read_texts(request, "device_code")
    secret = device.collect(device_code, timezone.now())
    if secret is None:
        return json_response({"interval": device.POLL_SECONDS}, HTTPStatus.ACCEPTED)
    return json_response({"token": secret})


def _read_texts(request: HttpRequest, *names: str) -> list[str]:
    """Of a body with exactly these fields. Raises MalformedBody, TooLarge, UnknownField, ValidationError."""
    body = read_object(request, names)
    rule = f"must be text of 1 to {TEXT_LENGTH} printable characters"
    broken: list[Detail] = [{"field": name, "rule": rule} for name in names if not _is_text(body.get(name))]
    if broken:
        raise ValidationError.of(broken)
    return [body[name] for name in names]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and 1 <= len(value.strip()) <= len(value) <= TEXT_LENGTH
