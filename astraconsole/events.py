"""Hints to whoever watches, and wake-ups for workers: sent on commit, carrying ids; receivers read the database again.

Losing any of these costs latency, never truth. Group names are made here and nowhere else.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from time import monotonic
from typing import Any
from uuid import UUID

import redis
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import transaction
from kombu.exceptions import OperationalError as BrokerError
from redis.backoff import NoBackoff
from redis.retry import Retry

from astraconsole.celery import app

log = logging.getLogger(__name__)
# One retry at once for a connection that a restart of Redis has cut; a hint is not worth waiting longer.
_redis = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5, retry=Retry(NoBackoff(), 1))
AWAY = (redis.RedisError, BrokerError, OSError)
WOKEN_TASKS = {
    "schedule": "runs.tasks.tick",
    "reports": "runs.tasks.apply_reports",
    "restarts": "runs.tasks.start_due_restarts",
}
QUEUED_SECONDS = 30  # after which a task that was lost with its worker no longer holds others back
RUN_SECONDS = 20


def run_group(run_uid: UUID) -> str:
    return f"run.{run_uid.hex}"


def workspace_group(workspace_id: int) -> str:
    return f"workspace.{workspace_id}"


def machine_group(machine_uid: UUID) -> str:
    return f"machine.{machine_uid.hex}"


def runs_changed(workspace_id: int, run_uids: Iterable[UUID]) -> None:
    """Tell the pages of these runs, and of their workspace, once the transaction has committed."""
    messages = [(run_group(uid), {"type": "run.changed", "run": uid.hex}) for uid in run_uids]
    messages.append((workspace_group(workspace_id), {"type": "runs.changed"}))
    transaction.on_commit(lambda: send_groups(messages))


def workspaces_changed(workspace_ids: Iterable[int]) -> None:
    """Tell the pages of these workspaces' lists, once the transaction has committed."""
    messages = [(workspace_group(workspace_id), {"type": "runs.changed"}) for workspace_id in workspace_ids]
    if messages:
        transaction.on_commit(lambda: send_groups(messages))


def send_group(group: str, message: dict[str, Any]) -> None:
    send_groups([(group, message)])


def send_groups(messages: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """From synchronous code: publish to groups of the channel layer, all in one round trip; never raises for Redis.

    The layer itself publishes one message a round trip, on an event loop, which costs a busy worker ten times as much;
    so what `RedisPubSubChannelLayer.group_send` writes is written here, and a test holds the two together.
    """
    layer = get_channel_layer()
    pipeline = _redis.pipeline(transaction=False)
    for group, message in messages:
        pipeline.publish(f"{settings.CHANNEL_PREFIX}__group__{group}", layer.serialize(message))
    try:
        pipeline.execute()
    except redis.RedisError as error:
        log.warning("Hints were not sent: %s", error)


def wake(what: str, cluster_id: int) -> None:
    """On commit: count one wake of `what` (of WOKEN_TASKS) for a cluster and see that a task will look.

    A wake that is lost (Redis away or flushed) is found by the periodic tick.
    """
    transaction.on_commit(lambda: wake_now(what, cluster_id))


def wake_now(what: str, cluster_id: int) -> None:
    """Count one wake; enqueue the task unless one is queued or at work, which will see the count. Never raises."""
    try:
        pipeline = _redis.pipeline(transaction=False)
        pipeline.incr(_counter(what, cluster_id))
        pipeline.set(_queued(what, cluster_id), 1, nx=True, ex=QUEUED_SECONDS)
        _, is_first = pipeline.execute()
        if is_first:
            app.send_task(WOKEN_TASKS[what], (cluster_id,), retry=False)
    except AWAY as error:
        log.warning("A wake for %s was not sent; the periodic tick will find it: %s", what, error)


def wake_webhooks() -> None:
    """On commit: have what waits for webhooks sent now, and not at the next tick."""
    transaction.on_commit(_enqueue_webhooks)


def _enqueue_webhooks() -> None:
    try:
        app.send_task("runs.tasks.deliver_webhooks", retry=False)
    except AWAY as error:
        log.warning("A wake for webhooks was not sent; the periodic tick will find it: %s", error)


def wake_at(what: str, times: Iterable[datetime]) -> None:
    """On commit: have the task of `what` ("restarts") look at each of these times, to the second."""
    seconds = {time.replace(microsecond=0) + timedelta(seconds=1) for time in times}
    if seconds:
        transaction.on_commit(lambda: _enqueue_at(what, seconds))


def _enqueue_at(what: str, times: Iterable[datetime]) -> None:
    try:
        for time in sorted(times):
            app.send_task(WOKEN_TASKS[what], eta=time, retry=False)
    except AWAY as error:
        log.warning("A wake for %s was not sent; the periodic tick will find it: %s", what, error)


def run_while_woken(what: str, cluster_id: int, run_once: Callable[[], bool]) -> None:
    """What a woken task does: run until no wake came during the last run. `run_once` says whether it left work over.

    The queued flag stays up meanwhile, so that wakes during a run only count. Past RUN_SECONDS the rest is left to a
    new task.
    """
    deadline = monotonic() + RUN_SECONDS
    while True:
        seen = _wakes(what, cluster_id)
        left_over = run_once()
        if not left_over and _wakes(what, cluster_id) == seen:
            _forget_queued(what, cluster_id)
            if _wakes(what, cluster_id) == seen or not _claim_queued(what, cluster_id):
                return
        if monotonic() > deadline:
            _forget_queued(what, cluster_id)
            wake_now(what, cluster_id)
            return


def _counter(what: str, cluster_id: int) -> str:
    return f"astra:wakes:{what}:{cluster_id}"


def _queued(what: str, cluster_id: int) -> str:
    return f"astra:queued:{what}:{cluster_id}"


def _wakes(what: str, cluster_id: int) -> bytes | None:
    try:
        return _redis.get(_counter(what, cluster_id))
    except redis.RedisError:
        return None


def _forget_queued(what: str, cluster_id: int) -> None:
    with suppress(redis.RedisError):
        _redis.delete(_queued(what, cluster_id))


def _claim_queued(what: str, cluster_id: int) -> bool:
    """Whether a wake that came at the last moment is ours to run: nobody else has queued a task for it."""
    try:
        return bool(_redis.set(_queued(what, cluster_id), 1, nx=True, ex=QUEUED_SECONDS))
    except redis.RedisError:
        return False
