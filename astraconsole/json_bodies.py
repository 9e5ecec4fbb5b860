"""Bodies and parameters of the JSON API: read strictly, written plainly."""

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from astraconsole.errors import NOT_A_FIELD, Detail, MalformedBody, TooLarge, UnknownField, ValidationError

REASON_LENGTH = 300


def json_response(document: object, status: int = HTTPStatus.OK) -> HttpResponse:
    """A document of plain values as the answer."""
    return HttpResponse(msgspec.json.encode(document), status=status, content_type="application/json")


def moment(at: datetime | None) -> str | None:
    """UTC, six decimals: `2026-10-01T01:02:11.402117Z`."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if at is not None else None


def too_large() -> TooLarge:
    return TooLarge(f"the body is larger than {settings.DATA_UPLOAD_MAX_MEMORY_SIZE // 1024} KiB")


def read_json(request: HttpRequest, optional: bool = False) -> object:
    """The body, strictly: UTF-8, no NaN, no field twice, no text that is not Unicode. Raises MalformedBody, TooLarge.

    `optional`: no body is `{}`. Read up to the limit and not by Content-Length, which a chunked body does not have.
    """
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    body = request.read(limit + 1)
    if len(body) > limit:
        raise too_large()
    if optional and not body.strip():
        return {}
    return parse_json(body, "the body is not JSON that this API reads")


def parse_json(text: str | bytes, refusal: str) -> object:
    """One strict reading for every door. `refusal` begins the message of what it refuses. Raises MalformedBody."""
    try:
        text = text if isinstance(text, str) else text.decode()
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite)
        if "\\ud" in text.lower():  # half a surrogate pair can be spelled in JSON, and stored nowhere
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise MalformedBody(f"{refusal}: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise MalformedBody(f"{refusal}: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except ValueError as error:
        raise MalformedBody(f"{refusal}: {_one_line(error)}") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice} is there twice")
    return value


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


def _one_line(error: ValueError) -> str:
    if isinstance(error, UnicodeError):
        return "its text is not valid Unicode in UTF-8"
    return str(error).partition(";")[0]


def read_object(request: HttpRequest, known: Iterable[str], optional: bool = False) -> dict[str, Any]:
    """A body that is an object with none but the `known` fields. Raises as `read_json`, and UnknownField."""
    body = as_object(read_json(request, optional))
    if unknown := sorted(set(body) - set(known)):
        raise UnknownField.of(unknown, [{"field": name, "rule": NOT_A_FIELD} for name in unknown])
    return body


def as_object(body: object) -> dict[str, Any]:
    """Raises ValidationError."""
    if not isinstance(body, dict):
        raise ValidationError("the body must be an object", [{"field": "body", "rule": "must be an object"}])
    return body


def object_body(properties: dict[str, Any], required: Iterable[str]) -> dict[str, Any]:
    """What `read_object` reads, for the API's documentation. No `required` field: no body is good too."""
    needed = list(required)
    schema = {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
    return {"requestBody": {"required": bool(needed), "content": {"application/json": {"schema": schema}}}}


def read_reason(request: HttpRequest) -> str:
    """Of an optional body `{"reason": "…"}`. Raises MalformedBody, TooLarge, UnknownField, ValidationError."""
    reason = read_object(request, {"reason"}, optional=True).get("reason")
    return valid_reason("" if reason is None else reason)


def valid_reason(reason: object) -> str:
    """A person's own words, for every door. Raises ValidationError."""
    if not isinstance(reason, str) or len(reason) > REASON_LENGTH or "\0" in reason:
        rule = f"must be text of at most {REASON_LENGTH} characters"
        raise ValidationError.of([{"field": "reason", "rule": rule}])
    return reason.strip()


def reason_body() -> dict[str, Any]:
    """What `read_reason` reads, for the API's documentation."""
    return object_body({"reason": {"type": "string", "maxLength": REASON_LENGTH}}, ())


def refuse_unknown_parameters(request: HttpRequest, known: Iterable[str]) -> None:
    """A misspelt filter must not quietly select everything. Raises UnknownField."""
    unknown = sorted(set(request.GET) - set(known))
    if unknown:
        detail: list[Detail] = [{"field": name, "rule": "is not a parameter of this request"} for name in unknown]
        raise UnknownField(f"parameters this request does not know: {', '.join(unknown)}", detail)
