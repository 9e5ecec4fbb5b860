"""Events on their way to webhooks: claimed, sent, written down.

A webhook's claim makes one process at a time send for it, so its deliveries arrive in order. No transaction is open
while a receiver is waited for. A process that dies leaves its claim, which lapses, and its delivery, which is sent
again with the same id and the same events: at least once. The position moves only when a delivery has been taken.
"""

import json
import logging
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from django.conf import settings
from django.db import connections, transaction
from django.db.models import F
from django.utils import timezone

from astraconsole.json_bodies import moment
from astraconsole.sql import execute, fetch
from astraconsole.tenancy import audit
from astraconsole.tenancy.audit import Did, Kind
from runs import event_queries
from runs.event_positions import Position, parse_position
from runs.event_queries import Event, Wanted, event_document
from runs.models import Delivery, Webhook
from runs.services.webhooks import news_from, secret_of
from runs.units import format_duration
from runs.webhook_rules import Purpose, is_given_up, next_try
from runs.webhook_sending import SECONDS, Outcome, Reach, post, signature

BATCH = 100  # events of one delivery
PASSES = 50  # deliveries of one webhook in one task
AT_ONCE = 8  # webhooks that one process sends for: the slow ones must not hold up the others
TASK_SECONDS = 20
CLAIM = timedelta(seconds=SECONDS + 20)
EVERYTHING = Wanted()
log = logging.getLogger(__name__)
_at_work = threading.Lock()

# A webhook with something to do: enabled, not waiting for its next try, with events or a delivery; or a test or replay.
_DUE = """
    SELECT w.id FROM runs_webhook w WHERE (w.claimed_until IS NULL OR w.claimed_until < %(now)s) AND (
        EXISTS (SELECT FROM runs_delivery d WHERE d.webhook_id = w.id AND d.state = 'Waiting' AND d.purpose <> 'events')
        OR w.enabled AND (w.next_at IS NULL OR w.next_at <= %(now)s) AND (
            EXISTS (SELECT FROM runs_delivery d WHERE d.webhook_id = w.id AND d.state = 'Waiting')
            OR EXISTS (SELECT FROM runs_transition t WHERE t.workspace_id = w.workspace_id AND t.tx >= w.news_from)
            OR EXISTS (SELECT FROM tenancy_auditevent t WHERE t.workspace_id = w.workspace_id AND t.tx >= w.news_from)
            OR EXISTS (SELECT FROM machines_namespace n JOIN machines_machineevent t ON t.cluster_id = n.cluster_id
                WHERE n.workspace_id = w.workspace_id AND t.tx >= w.news_from)))
    ORDER BY w.id
"""


def deliver_all() -> None:
    """For every webhook that is due; nothing where this process is at it already."""
    if not _at_work.acquire(blocking=False):
        return
    try:
        due = fetch(_DUE, {"now": timezone.now()})
        if due:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webhooks") as pool:
                list(pool.map(_deliver_aside, (webhook_id for (webhook_id,) in due)))
    finally:
        _at_work.release()


def _deliver_aside(webhook_id: int) -> None:
    """On a thread: what fails for one webhook must not keep others from theirs."""
    try:
        deliver(webhook_id)
    except Exception:
        log.exception("webhook %s", webhook_id)
    finally:
        connections.close_all()


def deliver(webhook_id: int) -> None:
    """What there is for one webhook, as far as it takes it, unless another process sends for it."""
    deadline = monotonic() + TASK_SECONDS
    for _ in range(PASSES):
        mark = _claim(webhook_id, timezone.now())
        if mark is None:
            return
        more = False
        try:
            more = _deliver_one(Webhook.objects.select_related("workspace__organisation").get(claim=mark))
        finally:
            Webhook.objects.filter(claim=mark).update(claim=None, claimed_until=None)
        if not more or monotonic() > deadline:
            return


def _claim(webhook_id: int, now: datetime) -> uuid.UUID | None:
    mark = uuid.uuid4()
    taken = fetch(
        """
        UPDATE runs_webhook SET claim = %s, claimed_until = %s
        WHERE id = %s AND (claimed_until IS NULL OR claimed_until < %s) RETURNING id
        """,
        [mark, now + CLAIM, webhook_id, now],
    )
    return mark if taken else None


def _deliver_one(webhook: Webhook) -> bool:
    """One delivery; whether to look for another one at once."""
    delivery = _waiting(webhook)
    if not _may_go(webhook, delivery):
        return False
    if delivery is None:
        step = event_queries.read_on(webhook.workspace_id, EVERYTHING, parse_position(webhook.position, ""), BATCH)
        chosen = _chosen(webhook, step.items)
        if not chosen:
            _move(webhook, step.reached)
            return step.full
        delivery = Delivery.objects.create(
            webhook=webhook,
            purpose=Purpose.EVENTS,
            after=webhook.position,
            until=str(step.reached),
            events=len(chosen),
            created_at=timezone.now(),
        )
    else:
        chosen = _events_of(webhook, delivery)
    body = _body(webhook, delivery, chosen)
    at = timezone.now()
    outcome = post(webhook.url, body, _headers(webhook, delivery, body, at), Reach(settings.WEBHOOK_REACH))
    return _write_down(webhook, delivery, outcome, timezone.now())


def _waiting(webhook: Webhook) -> Delivery | None:
    """What was to be sent already: tests and replays first, since somebody looks at them."""
    waiting = list(webhook.deliveries.filter(state="Waiting").order_by("pk"))
    by_hand = [delivery for delivery in waiting if delivery.purpose != Purpose.EVENTS]
    return next(iter([*by_hand, *waiting]), None)


def _may_go(webhook: Webhook, delivery: Delivery | None) -> bool:
    """What somebody sends by hand goes at any time."""
    if delivery is not None and delivery.purpose != Purpose.EVENTS:
        return True
    return webhook.enabled and (webhook.next_at is None or webhook.next_at <= timezone.now())


def _chosen(webhook: Webhook, found: Sequence[Event]) -> list[Event]:
    return [event for event in found if not webhook.kinds or event.kind in webhook.kinds]


def _events_of(webhook: Webhook, delivery: Delivery) -> list[Event]:
    """As they are kept: those of runs that were removed for good meanwhile are missing."""
    if delivery.purpose == Purpose.TEST:
        return []
    after, until = parse_position(delivery.after, ""), parse_position(delivery.until, "")
    return _chosen(webhook, event_queries.between(webhook.workspace_id, EVERYTHING, after, until, BATCH))


def _body(webhook: Webhook, delivery: Delivery, chosen: Sequence[Event]) -> bytes:
    document: dict[str, Any] = {
        "id": str(delivery.uid),
        "purpose": delivery.purpose,
        "created_at": moment(delivery.created_at),
        "workspace": str(webhook.workspace),
        "items": [event_document(event) for event in chosen],
    }
    return json.dumps(document, ensure_ascii=False).encode()


def _headers(webhook: Webhook, delivery: Delivery, body: bytes, at: datetime) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "User-Agent": "astra-webhook/1",
        "X-Astra-Delivery": str(delivery.uid),
        "X-Astra-Attempt": str(delivery.attempts + 1),
        "X-Astra-Signature": signature(secret_of(webhook), int(at.timestamp()), body),
    }


@transaction.atomic
def _write_down(webhook: Webhook, delivery: Delivery, outcome: Outcome, now: datetime) -> bool:
    """Only while the claim is still ours: one that lapsed is another process's, whose outcome counts."""
    held = Webhook.objects.select_for_update(of=("self",)).filter(pk=webhook.pk, claim=webhook.claim)
    if held.first() is None:
        return False
    taken, by_hand = not outcome.error, delivery.purpose != Purpose.EVENTS
    Delivery.objects.filter(pk=delivery.pk).update(
        state="Delivered" if taken else "Failed" if by_hand else "Waiting",
        attempts=F("attempts") + 1,
        status=outcome.status,
        duration_ms=outcome.duration_ms,
        answer=outcome.answer,
        error=outcome.error[:500],
        tried_at=now,
    )
    if by_hand:
        return True
    if taken:
        _move(webhook, parse_position(delivery.until, ""))
        return True
    _note_failure(webhook, delivery.attempts + 1, outcome, now)
    return False


def _move(webhook: Webhook, reached: Position) -> None:
    """Everything up to there is sent, or is of no kind that was chosen."""
    columns = {"position": str(reached), "news_from": news_from(reached), "failing_since": None, "next_at": None}
    Webhook.objects.filter(pk=webhook.pk, claim=webhook.claim).update(**columns)


def _note_failure(webhook: Webhook, failures: int, outcome: Outcome, now: datetime) -> None:
    since = webhook.failing_since or now
    columns: dict[str, Any] = {"failing_since": since, "next_at": next_try(failures, now)}
    if is_given_up(since, now, settings.WEBHOOK_GIVE_UP_SECONDS):
        length = format_duration(int(settings.WEBHOOK_GIVE_UP_SECONDS))
        sentence = f"Disabled by the console: every try has failed for {length}, the last one with: {outcome.error}"
        columns |= {"enabled": False, "disabled_reason": sentence[:300], "next_at": None}
        audit.record_by(webhook.workspace, Kind.WEBHOOK, str(webhook), Did.DISABLED, sentence, "console", now)
    Webhook.objects.filter(pk=webhook.pk).update(**columns)


def forget_old(now: datetime) -> None:
    """Deliveries that are over and older than the log is kept."""
    before = now - timedelta(seconds=settings.WEBHOOK_LOG_SECONDS)
    execute("DELETE FROM runs_delivery WHERE created_at < %s AND state <> 'Waiting'", [before])
