"""Webhooks of a workspace: what its admins set up. Sending is `runs.services.deliveries`' work."""

import secrets
import uuid
from collections.abc import Sequence
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.utils.crypto import salted_hmac

from astraconsole import events
from astraconsole.errors import Conflict, Detail, NotFound, ValidationError
from astraconsole.tenancy import audit
from astraconsole.tenancy.audit import Did, Kind
from astraconsole.tenancy.models import Workspace
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from runs import event_queries
from runs.event_positions import LAST, Position
from runs.event_queries import KINDS
from runs.models import Delivery, Webhook
from runs.webhook_rules import Purpose
from runs.webhook_sending import Reach, url_rule

WEBHOOKS_MAX = 20  # of one workspace
SECRET_PREFIX = "astra_hook_"


def secret_of(webhook: Webhook) -> str:
    """What its deliveries are signed with: made of the console's SECRET_KEY and the webhook's salt, stored nowhere."""
    made = salted_hmac("astra.webhook", f"{webhook.uid}:{webhook.salt}", algorithm="sha256")
    return SECRET_PREFIX + made.hexdigest()


def news_from(position: Position) -> int:
    """The first transaction of which something may stand after a position."""
    return position.tx + 1 if position.source == LAST else position.tx


@transaction.atomic
def create_webhook(access: Access, url: object, kinds: object, now: datetime) -> tuple[Webhook, str]:
    """The webhook, which hears of what happens from now on, and its secret: shown this once. Raises Forbidden,
    ValidationError, Conflict."""
    access.require(Action.MANAGE)
    url, kinds = _checked(url, kinds)
    Workspace.objects.select_for_update(no_key=True).get(pk=access.workspace.pk)
    if Webhook.objects.filter(workspace=access.workspace).count() >= WEBHOOKS_MAX:
        raise Conflict(f"the workspace has {WEBHOOKS_MAX} webhooks, the most it can have")
    position = event_queries.settled_end()
    webhook = Webhook.objects.create(
        workspace=access.workspace,
        url=url,
        kinds=kinds,
        salt=secrets.token_urlsafe(32),
        position=str(position),
        news_from=news_from(position),
        created_by=access.user,
        created_at=now,
    )
    audit.record(access, Kind.WEBHOOK, str(webhook), Did.ADDED, _told(kinds), now)
    return webhook, secret_of(webhook)


def _checked(url: object, kinds: object) -> tuple[str, list[str]]:
    """Raises ValidationError with every broken rule."""
    broken: list[Detail] = []
    text = url.strip() if isinstance(url, str) else url
    if rule := url_rule(text, Reach(settings.WEBHOOK_REACH)):
        broken.append({"field": "url", "rule": rule})
    if not isinstance(kinds, list) or not all(kind in KINDS for kind in kinds):
        broken.append({"field": "kinds", "rule": f"must be a list of {', '.join(KINDS)}; empty for all"})
    if broken:
        raise ValidationError(f"{broken[0]['field']} {broken[0]['rule']}", broken)
    return str(text), [kind for kind in KINDS if kind in kinds]  # type: ignore[operator]


def _told(kinds: Sequence[str]) -> str:
    """Without the address: its path may be somebody's secret."""
    return f"For events of {', '.join(kinds)}" if kinds else "For all events"


@transaction.atomic
def remove_webhook(access: Access, webhook: Webhook, now: datetime) -> None:
    """With its log of deliveries. Raises Forbidden."""
    access.require(Action.MANAGE)
    webhook.delete()
    audit.record(access, Kind.WEBHOOK, str(webhook), Did.REMOVED, "", now)


@transaction.atomic
def set_enabled(access: Access, webhook: Webhook, enabled: bool, now: datetime) -> None:
    """Enabled again it goes on where it stopped. Asking again changes nothing. Raises Forbidden."""
    access.require(Action.MANAGE)
    columns = {"enabled": enabled, "disabled_reason": "", "failing_since": None, "next_at": None}
    if Webhook.objects.filter(pk=webhook.pk, enabled=not enabled).update(**columns):
        audit.record(access, Kind.WEBHOOK, str(webhook), Did.ENABLED if enabled else Did.DISABLED, "", now)
        events.wake_webhooks()


@transaction.atomic
def renew_secret(access: Access, webhook: Webhook, now: datetime) -> str:
    """A new secret, shown this once; the earlier one signs nothing more. Raises Forbidden."""
    access.require(Action.MANAGE)
    webhook.salt = secrets.token_urlsafe(32)
    webhook.save(update_fields=["salt"])
    audit.record(access, Kind.WEBHOOK, str(webhook), Did.CHANGED, "A new secret", now)
    return secret_of(webhook)


@transaction.atomic
def send_test(access: Access, webhook: Webhook, now: datetime) -> Delivery:
    """A delivery without events, tried once, also to one that is disabled. Raises Forbidden."""
    access.require(Action.MANAGE)
    made = Delivery.objects.create(webhook=webhook, purpose=Purpose.TEST, created_at=now)
    events.wake_webhooks()
    return made


@transaction.atomic
def replay(access: Access, webhook: Webhook, delivery: Delivery, now: datetime) -> Delivery:
    """The same events once more, tried once, with an id of its own. Raises Forbidden, Conflict for a test."""
    access.require(Action.MANAGE)
    if delivery.purpose == Purpose.TEST:
        raise Conflict("a test has no events to send again: send another test")
    columns = {"after": delivery.after, "until": delivery.until, "events": delivery.events}
    made = Delivery.objects.create(webhook=webhook, purpose=Purpose.REPLAY, created_at=now, **columns)
    events.wake_webhooks()
    return made


# ---- reads -----------------------------------------------------------------------------------------------------------


def webhooks_of(access: Access) -> list[Webhook]:
    """Their addresses may hold secrets: for admins alone. Raises Forbidden."""
    access.require(Action.MANAGE)
    return list(Webhook.objects.filter(workspace=access.workspace).select_related("created_by").order_by("pk"))


def get_webhook(access: Access, uid: str) -> Webhook:
    """Raises Forbidden, NotFound."""
    access.require(Action.MANAGE)
    found = Webhook.objects.filter(workspace=access.workspace, uid=_uuid(uid)).select_related("created_by").first()
    if found is None:
        raise NotFound(f"there is no webhook {uid}")
    return found


def get_delivery(webhook: Webhook, uid: str) -> Delivery:
    """Raises NotFound."""
    found = webhook.deliveries.filter(uid=_uuid(uid)).first()
    if found is None:
        raise NotFound(f"there is no delivery {uid}")
    return found


def deliveries_of(webhook: Webhook, limit: int, before: int | None = None) -> list[Delivery]:
    """Newest first."""
    found = webhook.deliveries.order_by("-pk")
    return list((found if before is None else found.filter(pk__lt=before))[:limit])


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        return uuid.UUID(int=0)
