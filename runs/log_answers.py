"""What the API answers about a log: its last lines as text, and its bytes from a position on."""

from contextlib import suppress
from typing import NamedTuple

from asgiref.sync import async_to_sync
from django.conf import settings

from astraconsole.errors import AstraError, TaskNotPlaced, ValidationError
from machines.protocol import LOG_CHUNK_BYTES, LogChunk
from runs import log_source
from runs.log_follower import waiting_sentence
from runs.log_source import Followed, LogGone, Source, Tail
from runs.log_text import display_lines, first_character, last_character
from runs.models import Worker
from runs.units import format_memory

LINES_DEFAULT, LINES_MAX = 1000, 10_000
BYTES_MAX = 900 * 1024
BYTES_MIN = 4  # the longest character: less might never get past one


class TailText(NamedTuple):
    text: str
    archived: bool  # its container no longer exists
    cut: str  # what is missing before it of the lines that were asked for, "" for nothing


class Slice(NamedTuple):
    """Bytes of attempt `source` from `chunk.start` on. `asked`: where they were to begin, null where that was counted
    from the end; where it is less, the bytes between are not kept."""

    followed: Followed
    source: Source
    asked: int | None
    chunk: LogChunk

    @property
    def gap(self) -> int:
        """Bytes that were asked for and are not kept."""
        return 0 if self.asked is None else max(self.chunk.start - self.asked, 0)

    def as_text(self) -> tuple[LogChunk, str]:
        """The chunk cut to whole characters, and its text. What is no UTF-8 becomes replacement characters; a character
        whose rest is not there yet is left for the next read."""
        chunk = self.chunk
        begin = 0 if chunk.start == self.asked else first_character(chunk.data)
        end = len(chunk.data) if chunk.ended else last_character(chunk.data)
        data = chunk.data[begin:end]
        cut = LogChunk(chunk.start + begin, data, chunk.start + end, chunk.ended, chunk.archived)
        return cut, data.decode(errors="replace")


def tail_text(worker: Worker, lines: int, attempt: int | None = None) -> TailText:
    """The end of a log: at most `lines` lines and 900 KiB, progress bars collapsed, without colours. Without `attempt`
    the newest one that has printed anything.

    Raises ValidationError, TaskNotPlaced, TaskLogUnavailable, TaskLogTimeout, NotFound.
    """
    followed = _placed(worker)
    _, tail = async_to_sync(_read_tail)(followed, attempt, _checked("tail", lines, 1, LINES_MAX), BYTES_MAX)
    shown = display_lines(tail.data, tail.start, line_max=BYTES_MAX)
    text = "".join(f"{line.text}\n" if line.complete else line.text for line in shown)
    return TailText(_last_bytes(text, BYTES_MAX), tail.archived, _cut(tail, len(shown) < lines))


def read_slice(worker: Worker, attempt: int | None, start: int, limit: int) -> Slice:
    """At most `limit` bytes from byte `start` on (from the end, where negative). Without `attempt`: the newest.

    Raises as `tail_text` does. An attempt that has printed nothing yet is an empty slice, not an error.
    """
    followed = _placed(worker)
    source = _chosen(followed, attempt)
    limit = _checked("limit", limit, BYTES_MIN, BYTES_MAX)
    chunk = async_to_sync(_read)(source, start, limit)
    return Slice(followed, source, start if start >= 0 else None, chunk)


def read_slice_of_tail(worker: Worker, attempt: int | None, lines: int, limit: int) -> Slice:
    """Where to begin to follow: the slice that holds the last `lines` lines, or those of them that fit into `limit`."""
    followed = _placed(worker)
    limit = _checked("limit", limit, BYTES_MIN, BYTES_MAX)
    source, tail = async_to_sync(_read_tail)(followed, attempt, _checked("tail", lines, 1, LINES_MAX), limit)
    chunk = LogChunk(tail.start, tail.data, tail.start + len(tail.data), tail.ended, tail.archived)
    return Slice(followed, source, None, chunk)


def _placed(worker: Worker) -> Followed:
    followed = log_source.look(worker.pk)
    if followed.newest is None:
        raise TaskNotPlaced(waiting_sentence(followed))
    return followed


def _chosen(followed: Followed, attempt: int | None) -> Source:
    return followed.sources[-1] if attempt is None else followed.source(attempt)


def _checked(field: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        rule = f"must be from {least} to {most}"
        raise ValidationError(f"{field} {rule}", [{"field": field, "rule": rule}])
    return value


async def _read(source: Source, start: int, limit: int) -> LogChunk:
    """As many of a machine's answers as `limit` asks for, in one."""
    chunk = await _one(source, start, min(limit, LOG_CHUNK_BYTES))
    first, parts = chunk, [chunk.data]
    left = limit - len(chunk.data)
    while left > 0 and len(chunk.data) == LOG_CHUNK_BYTES:
        chunk = await _one(source, chunk.next, min(left, LOG_CHUNK_BYTES))
        parts.append(chunk.data)
        left -= len(chunk.data)
    return LogChunk(first.start, b"".join(parts), chunk.next, chunk.ended, chunk.archived)


async def _one(source: Source, start: int, limit: int) -> LogChunk:
    try:
        return await log_source.read(source, start, limit)
    except LogGone:
        if source.over:
            raise
        return LogChunk(0, b"", 0, ended=False)  # its machine has not heard of it yet


async def _read_tail(followed: Followed, attempt: int | None, lines: int, most: int) -> tuple[Source, Tail]:
    source = _chosen(followed, attempt)
    tail = await _one_tail(source, lines, most)
    if attempt is None and not tail.data and not tail.ended and len(followed.sources) > 1:
        earlier = followed.sources[-2]  # a container that is still to come does not replace what the one before printed
        with suppress(AstraError):
            return earlier, await _one_tail(earlier, lines, most)
    return source, tail


async def _one_tail(source: Source, lines: int, most: int) -> Tail:
    try:
        return await log_source.read_tail(source, lines, most, settings.CALL_TIMEOUT_SECONDS)
    except LogGone:
        if source.over:
            raise
        return Tail(0, b"", ended=False, archived=False, lost=False, mid_line=False)


def _cut(tail: Tail, fewer: bool) -> str:
    if tail.mid_line:
        return "a part line was cut at 900 KiB"
    if tail.lost:
        return f"{format_memory(tail.start)} before this not kept"
    return f"cut at 900 KiB: {format_memory(tail.start)} before this not shown" if fewer and tail.start else ""


def _last_bytes(text: str, most: int) -> str:
    data = text.encode()
    return text if len(data) <= most else data[-most:].decode(errors="ignore")
