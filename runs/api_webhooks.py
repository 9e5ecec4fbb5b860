"""The JSON API of a workspace's webhooks, for its admins."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router, Schema
from pydantic import Field
from typing_extensions import TypedDict

from astraconsole.json_bodies import json_response, moment, object_body, read_object
from astraconsole.tenancy.api_access import WORKSPACE, access_of
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from runs.event_queries import KINDS
from runs.services import webhooks
from runs.webhook_sending import URL_LENGTH

if TYPE_CHECKING:
    from runs.models import Delivery, Webhook

WEBHOOKS = f"{WORKSPACE}/webhooks"
ONE = f"{WEBHOOKS}/{{webhook}}"
FIELDS = ("url", "kinds")

router = Router(tags=["Webhooks"])


class WebhookStatus(TypedDict):
    """`reached`: the position up to which events are sent; `failing_since`: null while tries succeed."""

    enabled: bool
    reached: str
    failing_since: str | None
    next_try_at: str | None
    disabled_reason: str


class WebhookDocument(TypedDict):
    id: str
    url: str
    kinds: list[str]
    created_at: str
    created_by: str | None
    status: WebhookStatus


class WebhookWithSecret(WebhookDocument):
    secret: str


class WebhookList(TypedDict):
    items: list[WebhookDocument]
    next: None


class DeliveryDocument(TypedDict):
    """`purpose`: events, test or replay; `state`: Waiting, Delivered, Failed. What follows is of the last try."""

    id: str
    purpose: str
    events: int
    state: str
    attempts: int
    created_at: str
    tried_at: str | None
    status: int | None
    duration_ms: int | None
    answer: str
    error: str


class DeliveryList(TypedDict):
    items: list[DeliveryDocument]
    next: str | None


class Paging(Schema):
    limit: int = Field(50, ge=1, le=500)
    after: int | None = Field(None, ge=1, le=2**63 - 1, description="`next` of the page before")


_BODY = object_body(
    {
        "url": {"type": "string", "maxLength": URL_LENGTH},
        "kinds": {"type": "array", "items": {"type": "string", "enum": list(KINDS)}, "description": "all without"},
    },
    ["url"],
)


@router.get(WEBHOOKS, response=WebhookList)
def list_webhooks(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """The workspace's webhooks, oldest first."""
    found = webhooks.webhooks_of(_access(request, org, ws))
    return json_response({"items": [_document(webhook) for webhook in found], "next": None})


@router.post(WEBHOOKS, response={201: WebhookWithSecret}, openapi_extra=_BODY)
def create(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """A webhook, which is sent what happens from now on. The answer has its secret, this once."""
    access = _access(request, org, ws)
    body = read_object(request, FIELDS)
    webhook, secret = webhooks.create_webhook(access, body.get("url"), body.get("kinds", []), timezone.now())
    return json_response({**_document(webhook), "secret": secret}, HTTPStatus.CREATED)


@router.get(ONE, response=WebhookDocument)
def get_webhook(request: HttpRequest, org: str, ws: str, webhook: str) -> HttpResponse:
    """One webhook, and how it is doing."""
    return json_response(_document(webhooks.get_webhook(_access(request, org, ws), webhook)))


@router.delete(ONE, response={204: None})
def remove(request: HttpRequest, org: str, ws: str, webhook: str) -> HttpResponse:
    """With its log of deliveries."""
    access = _access(request, org, ws)
    webhooks.remove_webhook(access, webhooks.get_webhook(access, webhook), timezone.now())
    return HttpResponse(status=HTTPStatus.NO_CONTENT)


@router.post(f"{ONE}/enable", response=WebhookDocument)
def enable(request: HttpRequest, org: str, ws: str, webhook: str) -> HttpResponse:
    """It goes on where it stopped."""
    return _set(request, org, ws, webhook, True)


@router.post(f"{ONE}/disable", response=WebhookDocument)
def disable(request: HttpRequest, org: str, ws: str, webhook: str) -> HttpResponse:
    return _set(request, org, ws, webhook, False)


@router.post(f"{ONE}/secret", response=WebhookWithSecret)
def renew_secret(request: HttpRequest, org: str, ws: str, webhook: str) -> HttpResponse:
    """A new secret, in the answer this once; the earlier one signs nothing more."""
    access = _access(request, org, ws)
    found = webhooks.get_webhook(access, webhook)
    return json_response({**_document(found), "secret": webhooks.renew_secret(access, found, timezone.now())})


@router.post(f"{ONE}/test", response={202: DeliveryDocument})
def send_test(request: HttpRequest, org: str, ws: str, webhook: str) -> HttpResponse:
    """Send a delivery without events, once; what came of it stands in the log."""
    access = _access(request, org, ws)
    made = webhooks.send_test(access, webhooks.get_webhook(access, webhook), timezone.now())
    return json_response(delivery_document(made), HTTPStatus.ACCEPTED)


@router.get(f"{ONE}/deliveries", response=DeliveryList)
def list_deliveries(request: HttpRequest, org: str, ws: str, webhook: str, page: Query[Paging]) -> HttpResponse:
    """Its log, newest first."""
    access = _access(request, org, ws, Paging.model_fields)
    found = webhooks.deliveries_of(webhooks.get_webhook(access, webhook), page.limit + 1, page.after)
    items = found[: page.limit]
    following = str(items[-1].pk) if len(found) > page.limit else None
    return json_response({"items": [delivery_document(delivery) for delivery in items], "next": following})


@router.post(f"{ONE}/deliveries/{{delivery}}/replay", response={202: DeliveryDocument})
def replay(request: HttpRequest, org: str, ws: str, webhook: str, delivery: str) -> HttpResponse:
    """Send the same events once more, as a new delivery."""
    access = _access(request, org, ws)
    found = webhooks.get_webhook(access, webhook)
    made = webhooks.replay(access, found, webhooks.get_delivery(found, delivery), timezone.now())
    return json_response(delivery_document(made), HTTPStatus.ACCEPTED)


def _set(request: HttpRequest, org: str, ws: str, webhook: str, enabled: bool) -> HttpResponse:
    access = _access(request, org, ws)
    webhooks.set_enabled(access, webhooks.get_webhook(access, webhook), enabled, timezone.now())
    return json_response(_document(webhooks.get_webhook(access, webhook)))


def _document(webhook: "Webhook") -> dict[str, Any]:
    return {
        "id": str(webhook.uid),
        "url": webhook.url,
        "kinds": webhook.kinds,
        "created_at": moment(webhook.created_at),
        "created_by": webhook.created_by.username if webhook.created_by else None,
        "status": {
            "enabled": webhook.enabled,
            "reached": webhook.position,
            "failing_since": moment(webhook.failing_since),
            "next_try_at": moment(webhook.next_at),
            "disabled_reason": webhook.disabled_reason,
        },
    }


def delivery_document(delivery: "Delivery") -> dict[str, Any]:
    return {
        "id": str(delivery.uid),
        "purpose": delivery.purpose,
        "events": delivery.events,
        "state": delivery.state,
        "attempts": delivery.attempts,
        "created_at": moment(delivery.created_at),
        "tried_at": moment(delivery.tried_at),
        "status": delivery.status,
        "duration_ms": delivery.duration_ms,
        "answer": delivery.answer,
        "error": delivery.error,
    }


def _access(request: HttpRequest, org: str, ws: str, parameters: Iterable[str] = ()) -> Access:
    return access_of(request, org, ws, Action.MANAGE, parameters)
