"""Hints to whoever watches, and wake-ups for workers: sent on commit, carrying ids; receivers read the database again.

Losing any of these costs latency, never truth. Group names are made here and nowhere else.
"""

import logging
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import redis
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import transaction
from redis.backoff import NoBackoff
from redis.retry import Retry

log = logging.getLogger(__name__)
# One retry at once for a connection that a restart of Redis has cut; a hint is not worth waiting longer.
_redis = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5, retry=Retry(NoBackoff(), 1))


def run_group(run_uid: UUID) -> str:
    return f"run.{run_uid.hex}"


def workspace_group(workspace_id: int) -> str:
    return f"workspace.{workspace_id}"


def machine_group(machine_uid: UUID) -> str:
    return f"machine.{machine_uid.hex}"


def cluster_group(cluster_id: int) -> str:
    return f"cluster.{cluster_id}"


def runs_changed(workspace_id: int, run_uids: Iterable[UUID]) -> None:
    """Tell the pages of these runs, and of their workspace, once the transaction has committed."""
    uids = list(run_uids)

    def send() -> None:
        for uid in uids:
            send_group(run_group(uid), {"type": "run.changed", "run": uid.hex})
        send_group(workspace_group(workspace_id), {"type": "runs.changed"})

    transaction.on_commit(send)


def wake(what: str, cluster_id: int) -> None:
    """On commit: count one wake of `what` ("schedule", "reports") for a cluster and see that a task will look.

    A wake that is lost (Redis away or flushed) is found by the periodic tick.
    """
    transaction.on_commit(lambda: wake_now(what, cluster_id))


def wake_now(what: str, cluster_id: int) -> None:
    raise NotImplementedError  # see docs/architecture.md; filled with runs.tasks


def machines_changed(cluster_id: int) -> None:
    """Tell the pages that show a cluster's machines, once the transaction has committed."""
    transaction.on_commit(lambda: send_group(cluster_group(cluster_id), {"type": "machines.changed"}))


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
