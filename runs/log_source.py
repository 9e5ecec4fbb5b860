"""Where the output of a worker is, and how it is asked for: attempts on machines, chunks, the last lines."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias
from uuid import UUID

from django.conf import settings

from astraconsole.errors import NotFound, TaskLogTimeout, TaskLogUnavailable
from machines import dispatch, protocol
from runs.models import Worker
from runs.state_machine import ENDED

CHUNK = 256 * 1024  # bytes of one answer of a machine


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
    worker = Worker.objects.filter(pk=worker_id, deleted=False).first()
    if worker is None:
        raise NotFound("this worker was deleted, and its log with it")
    attempts = worker.attempts.select_related("machine").order_by("number")
    sources = tuple(
        Source(
            attempt.uid,
            attempt.number,
            attempt.machine.uid,
            attempt.machine.name,
            attempt.placed_at,
            attempt.ended_at is not None or attempt.superseded_at is not None,
        )
        for attempt in attempts
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
        case protocol.Failure(code="not_found"):
            raise LogGone(f"machine {source.machine_name} has no log of attempt {source.number}")
        case protocol.Failure(code="deadline"):
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
    """At most `lines` lines and `most_bytes` bytes. Machines answer in chunks: earlier ones follow until enough."""
    chunk = await ask(source, protocol.TailLog(source.attempt.hex, lines, min(most_bytes, CHUNK)), timeout)
    start, data, lost = chunk.start, chunk.data, False
    while start > 0 and not lost and len(data) < most_bytes and _line_count(data) < lines:
        wanted = max(start - CHUNK, start + len(data) - most_bytes, 0)
        older = await ask(source, protocol.ReadLog(source.attempt.hex, wanted, start - wanted), timeout)
        lost = older.start > wanted
        if older.start >= start or not older.data:
            break
        start, data = older.start, older.data[: start - older.start] + data
    begin, mid_line = _begin(data, lines, most_bytes if start > 0 and not lost else len(data) + 1)
    return Tail(start + begin, data[begin:], chunk.ended, chunk.archived, lost and begin == 0, mid_line)


def _line_count(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n"))


def _begin(data: bytes, lines: int, most_bytes: int) -> tuple[int, bool]:
    """Where to begin so that `lines` lines are left; (place, whether that is in the middle of a line)."""
    at = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            break
    if at >= 0:
        return at + 1, False
    if len(data) < most_bytes:
        return 0, False
    first = data.find(b"\n")
    if 0 <= first < len(data) // 2:
        return first + 1, False
    begin = 0  # one line is most of it: show its end, from a character's first byte
    while begin < min(4, len(data)) and data[begin] & 0xC0 == 0x80:
        begin += 1
    return begin, True
