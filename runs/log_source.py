"""Where the output of a worker is, and how it is asked for: attempts on machines, chunks, the last lines."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias
from uuid import UUID

from django.conf import settings
from django.db.models import Prefetch

from astraconsole.errors import NotFound, TaskLogTimeout, TaskLogUnavailable
from machines import dispatch, protocol
from machines.protocol import LOG_CHUNK_BYTES
from runs.log_text import first_character
from runs.models import Attempt, Worker
from runs.state_machine import ENDED


class LogGone(TaskLogUnavailable):
    """The machine has no such log (any more)."""


@dataclass(frozen=True)
class Source:
    """One attempt, and where its output is."""

    attempt: UUID
    number: int
    machine: UUID
    machine_name: str
    placed_at: datetime
    over: bool  # nothing that it prints counts any more


@dataclass(frozen=True)
class Followed:
    """What following needs to know about a worker, read anew for each look. `sources` by number."""

    id: int
    name: str
    state: str
    reason: str
    sources: tuple[Source, ...]

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def newest(self) -> Source | None:
        return self.sources[-1] if self.sources else None

    def source(self, number: int) -> Source:
        """Raises NotFound for an attempt that never was."""
        for source in self.sources:
            if source.number == number:
                return source
        raise NotFound(f"{self.name} has no attempt {number}")

    def after(self, number: int) -> Source | None:
        return next((source for source in self.sources if source.number > number), None)


def look(worker_id: int) -> Followed:
    """Two queries. Raises NotFound for a worker whose run was deleted."""
    return look_at([worker_id])[0]


def look_at(worker_ids: Sequence[int]) -> list[Followed]:
    """In the order of the ids. Two queries. Raises NotFound for a worker whose run was deleted."""
    attempts = Attempt.objects.select_related("machine").order_by("number")
    rows = Worker.objects.filter(pk__in=worker_ids, deleted=False).prefetch_related(Prefetch("attempts", attempts))
    found = {worker.pk: worker for worker in rows}
    if len(found) < len(set(worker_ids)):
        raise NotFound("this worker was deleted, and its log with it")
    return [_followed(found[worker_id]) for worker_id in worker_ids]


def _followed(worker: Worker) -> Followed:
    sources = tuple(
        Source(
            attempt.uid,
            attempt.number,
            attempt.machine.uid,
            attempt.machine.name,
            attempt.placed_at,
            attempt.ended_at is not None or attempt.superseded_at is not None,
        )
        for attempt in worker.attempts.all()
    )
    return Followed(worker.pk, worker.name, worker.state, worker.reason, sources)


# ---- asking ----

Read: TypeAlias = Callable[[Source, int, int], Awaitable[protocol.LogChunk]]


async def read(source: Source, start: int, limit: int) -> protocol.LogChunk:
    """Ask the machine. Raises TaskLogUnavailable, LogGone, TaskLogTimeout."""
    return await ask(source, protocol.ReadLog(source.attempt.hex, start, limit), settings.CALL_TIMEOUT_SECONDS)


async def ask(source: Source, request: protocol.Request, timeout: float) -> protocol.LogChunk:
    try:
        answer = await dispatch.call(source.machine, request, timeout)
    except dispatch.Unreachable as error:
        raise TaskLogUnavailable(f"machine {source.machine_name} is out of reach: {error}") from error
    except dispatch.CallTimeout as error:
        raise TaskLogTimeout(f"machine {source.machine_name}: {error}") from error
    match answer:
        case protocol.LogChunk():
            return answer
        case protocol.Failure(code=protocol.FailureCode.NOT_FOUND):
            raise LogGone(f"machine {source.machine_name} has no log of attempt {source.number}")
        case protocol.Failure(code=protocol.FailureCode.DEADLINE):
            raise TaskLogTimeout(f"machine {source.machine_name} did not read the log in time")
        case _:
            raise TaskLogUnavailable(f"machine {source.machine_name} could not read the log: {answer.message}")


class Tail(NamedTuple):
    """The last bytes of an attempt's output, from a line's start unless `mid_line`. `lost`: older ones are not kept."""

    start: int
    data: bytes
    ended: bool
    archived: bool
    lost: bool
    mid_line: bool


async def read_tail(source: Source, lines: int, most_bytes: int, timeout: float) -> Tail:
    """At most `lines` lines and `most_bytes` bytes. A machine answers with their beginning: the rest is read on."""
    attempt = source.attempt.hex
    chunk = await ask(source, protocol.TailLog(attempt, lines, most_bytes), timeout)
    start, archived, parts = chunk.start, chunk.archived, [chunk.data]
    # Not for ever: it may grow as fast as it is read.
    while len(chunk.data) == LOG_CHUNK_BYTES and sum(map(len, parts)) < 2 * most_bytes:
        chunk = await ask(source, protocol.ReadLog(attempt, chunk.next, LOG_CHUNK_BYTES), timeout)
        parts.append(chunk.data)
    data = b"".join(parts)
    lost = mid_line = False
    if start > 0 and _line_count(data) < lines:  # either bytes were the limit, or this is all there is
        oldest = await ask(source, protocol.ReadLog(attempt, 0, 1), timeout)
        lost = oldest.start > start + len(data) - most_bytes
        mid_line = not lost and b"\n" not in data[:-1]
    begin = _begin(data, lines, most_bytes) or (first_character(data) if mid_line else 0)
    return Tail(start + begin, data[begin:], chunk.ended, archived, lost and begin == 0, mid_line)


def _line_count(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n"))


def _begin(data: bytes, lines: int, most_bytes: int) -> int:
    """Where the last `lines` lines begin that fit: the output may have grown while it was read."""
    at = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            break
    begin = at + 1
    if len(data) - begin > most_bytes:
        begin = data.find(b"\n", len(data) - most_bytes - 1, len(data) - 1) + 1 or len(data) - most_bytes
    return begin
