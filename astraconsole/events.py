"""Hints to whoever watches, and wake-ups for workers: sent on commit, carrying ids; receivers read the database again.

Losing any of these costs latency, never truth. Group names are made here and nowhere else.
"""

import asyncio
import logging
import threading
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import redis
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import transaction

log = logging.getLogger(__name__)
_redis = redis.Redis.from_url(settings.REDIS_URL)
_loop_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


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


def send_group(group: str, message: dict[str, Any]) -> None:
    """From synchronous code: hand a message to the channel layer, without waiting for it."""
    future = asyncio.run_coroutine_threadsafe(get_channel_layer().group_send(group, message), _publisher_loop())
    future.add_done_callback(_log_failure)


def _publisher_loop() -> asyncio.AbstractEventLoop:
    """One loop per process for publishing: the layer keeps its connections per loop."""
    global _loop
    with _loop_lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="publisher", daemon=True).start()
        return _loop


def _log_failure(future: Any) -> None:
    if (error := future.exception()) is not None:
        log.warning("A hint was not sent: %s", error)
