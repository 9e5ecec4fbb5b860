"""What machines report, until it is in the database: one bounded Redis stream for each cluster.

Losing it costs latency only, since agents repeat a report until it is acknowledged; so Redis may be flushed at any
moment, and where the stream is full its oldest entries go. It is drained by one process at a time, always from its
start: apply a batch, commit, delete it from the stream, acknowledge, look again.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec
import redis
import redis.asyncio
from django.conf import settings
from django.db import OperationalError, transaction
from django.utils import timezone

from astraconsole import events
from astraconsole.sql import prepared
from machines import dispatch, protocol, streams
from machines.models import Machine, SetAsideReport

log = logging.getLogger(__name__)
_redis = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=30)

BATCH = 500
MAX_ENTRIES = 10_000  # of a stream; agents repeat what was dropped
MAX_SET_ASIDE = 1_000  # kept of each cluster, the newest
DRAIN_SECONDS = 20  # then another task goes on, so that none of them is endless
TRIES_ALONE = 3  # of a report whose database error may pass (a deadlock, say)


@dataclass(frozen=True)
class Entry:
    """One report of a machine, or (`hello`) the uids of the attempts that it said it knows when it connected."""

    id: str  # in the stream
    machine_id: int
    machine_uid: UUID
    received_at: datetime  # the console's clock
    report: protocol.Report | None = None
    hello: list[str] | None = None


Acknowledgement: TypeAlias = tuple[UUID, UUID, int]  # machine uid, attempt uid, sequence
Fields: TypeAlias = dict[bytes, bytes]
Apply: TypeAlias = Callable[[Sequence[Entry], datetime], Iterable[Acknowledgement]]

_hello = msgspec.msgpack.Decoder(list[str])


def stream(cluster_id: int) -> str:
    return f"{settings.CHANNEL_PREFIX}:inbox:{cluster_id}"


class Said(NamedTuple):
    """What one frame of a machine held for the inbox."""

    cluster_id: int
    machine_id: int
    machine_uid: UUID
    received_at: datetime
    reports: Sequence[protocol.Report] = ()
    hello: list[str] | None = None


async def append(client: redis.asyncio.Redis, said: Iterable[Said]) -> None:
    """Put it at the streams' ends, in one round trip. Wake a drain afterwards. Raises RedisError."""
    async with client.pipeline(transaction=False) as pipeline:
        for one in said:
            head = _head(one.machine_id, one.machine_uid, one.received_at)
            if one.hello is not None:
                _xadd(pipeline, one.cluster_id, {**head, b"hello": msgspec.msgpack.encode(one.hello)})
            for report in one.reports:
                _xadd(pipeline, one.cluster_id, {**head, b"report": protocol.encode(report)})
        await pipeline.execute()


def _head(machine_id: int, machine_uid: UUID, received_at: datetime) -> dict[bytes, object]:
    return {b"machine": machine_id, b"uid": machine_uid.bytes, b"at": repr(received_at.timestamp())}


def lengths(cluster_ids: Iterable[int]) -> dict[int, int]:
    """Entries that wait, by cluster. Raises RedisError."""
    return streams.lengths(_redis, stream, cluster_ids)


def put_back(item: SetAsideReport) -> None:
    """Give a report that was set aside another chance, and wake a drain for it."""
    assert item.machine is not None
    head = _head(item.machine.pk, item.machine.uid, item.received_at)
    _xadd(_redis, item.cluster_id, {**head, b"hello" if item.attempt is None else b"report": bytes(item.payload)})
    item.delete()
    events.wake("reports", item.cluster_id)


def _xadd(client: Any, cluster_id: int, fields: dict[bytes, object]) -> None:
    client.xadd(stream(cluster_id), fields, maxlen=MAX_ENTRIES, approximate=True)


# ---- draining --------------------------------------------------------------------------------------------------------


def drain(cluster_id: int, apply: Apply) -> int:
    """Apply what the cluster's machines reported, until nothing is left; returns how many entries there were.

    Leaves at once where another process is at it: that one looks again before it leaves. `apply(entries, now)` raises
    to change nothing, may be given an entry twice, and returns what to acknowledge; of an attempt's reports in a batch
    it is given the newest only. What it cannot apply even alone is set aside. Raises DatabaseError, RedisError: then
    everything not yet committed is still there for the next drain.
    """
    until = time.monotonic() + DRAIN_SECONDS
    done = 0
    while _redis.xlen(stream(cluster_id)):  # also after the last batch, with the lock given back: nobody else would
        if time.monotonic() > until:
            events.wake_now("reports", cluster_id)
            break
        entries = _drain_batch(cluster_id, apply)
        if entries is None:
            break
        done += entries
    return done


def _drain_batch(cluster_id: int, apply: Apply) -> int | None:
    """How many entries were done; None: another process is at it."""
    with transaction.atomic():
        if not _lock(cluster_id):
            return None
        batch = _redis.xrange(stream(cluster_id), count=BATCH)
        acknowledgements = _apply_batch(cluster_id, batch, apply)
    if batch:
        _redis.xdel(stream(cluster_id), *(id for id, _ in batch))
        dispatch.acknowledge(acknowledgements)
    return len(batch)


def _lock(cluster_id: int) -> bool:
    """Held to the transaction's end, so neither a crash nor a connection pooler can keep it."""
    with prepared() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(hashtext('inbox'), %s)", [cluster_id])
        return bool(cursor.fetchone()[0])


def _apply_batch(cluster_id: int, batch: Iterable[tuple[bytes, Fields]], apply: Apply) -> list[Acknowledgement]:
    entries = []
    for id, fields in batch:
        try:
            entries.append(_entry(id, fields))
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            _keep(cluster_id, error, payload=msgspec.msgpack.encode(fields), received_at=timezone.now())
    return _apply(cluster_id, _newest(entries), apply)


def _entry(id: bytes, fields: Fields) -> Entry:
    head = (
        id.decode(),
        int(fields[b"machine"]),
        UUID(bytes=fields[b"uid"]),
        datetime.fromtimestamp(float(fields[b"at"]), UTC),
    )
    if b"hello" in fields:
        return Entry(*head, hello=_hello.decode(fields[b"hello"]))
    return Entry(*head, report=_storable(protocol.decode_report(fields[b"report"])))


def _storable(report: protocol.Report) -> protocol.Report:
    """PostgreSQL's text holds no NUL; a program's output may. (The protocol refuses it in a report's other texts.)"""
    texts = {name: getattr(report, name) for name in ("message", "log_tail", "image_digest", "pull_progress")}
    return msgspec.structs.replace(report, **{name: text.replace("\0", "\ufffd") for name, text in texts.items()})


def _newest(entries: Sequence[Entry]) -> list[Entry]:
    """Without the reports that a later one of the same attempt and machine replaces, in order."""
    newest: dict[tuple[int, str], int] = {}
    for entry in entries:
        if entry.report is not None:
            key = (entry.machine_id, entry.report.attempt)
            newest[key] = max(newest.get(key, 0), entry.report.seq)
    kept, seen = [], set()
    for entry in entries:
        if entry.report is not None:
            key = (entry.machine_id, entry.report.attempt)
            if entry.report.seq < newest[key] or key in seen:
                continue
            seen.add(key)
        kept.append(entry)
    return kept


def _apply(cluster_id: int, entries: Sequence[Entry], apply: Apply) -> list[Acknowledgement]:
    """Halves what fails, until what fails is alone."""
    if not entries:
        return []
    try:
        return _try(entries, apply)
    except Exception as error:
        if len(entries) == 1:
            return _apply_alone(cluster_id, entries[0], apply, error)
        log.warning("A batch of %s reports could not be applied; it is halved: %s", len(entries), error)
    middle = len(entries) // 2
    return _apply(cluster_id, entries[:middle], apply) + _apply(cluster_id, entries[middle:], apply)


def _try(entries: Sequence[Entry], apply: Apply) -> list[Acknowledgement]:
    with transaction.atomic():
        return list(apply(entries, timezone.now()))


def _apply_alone(cluster_id: int, entry: Entry, apply: Apply, error: Exception) -> list[Acknowledgement]:
    for _ in range(TRIES_ALONE - 1):
        if not isinstance(error, OperationalError):
            break
        try:
            return _try([entry], apply)
        except Exception as again:
            error = again
    return _set_aside(cluster_id, entry, error)


def _set_aside(cluster_id: int, entry: Entry, error: Exception) -> list[Acknowledgement]:
    report = entry.report
    _keep(
        cluster_id,
        error,
        payload=msgspec.msgpack.encode(entry.hello) if report is None else protocol.encode(report),
        machine=Machine.objects.filter(pk=entry.machine_id).first(),
        attempt=None if report is None else UUID(report.attempt),
        seq=None if report is None else report.seq,
        received_at=entry.received_at,
    )
    return [] if report is None else [(entry.machine_uid, UUID(report.attempt), report.seq)]


def _keep(cluster_id: int, error: Exception, **columns: Any) -> None:
    log.error("A report was set aside: %s", error, exc_info=error)
    words = f"{type(error).__name__}: {error}".replace("\0", "\ufffd")
    SetAsideReport.objects.create(cluster_id=cluster_id, error=words, set_aside_at=timezone.now(), **columns)
    newest_first = SetAsideReport.objects.filter(cluster_id=cluster_id).order_by("-id")
    too_many = list(newest_first.values_list("pk", flat=True)[MAX_SET_ASIDE:])
    SetAsideReport.objects.filter(pk__in=too_many).delete()
