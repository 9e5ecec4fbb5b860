"""What a viewer of a worker's log sees: the last lines, the lines around a link, and what has come since.

A position is (attempt, byte offsets), so anybody may go on from it at any time: a websocket, a polling page, another
daphne. One pull protocol serves all of them: `advance` reads from a position to the end of what there is, across
restarts, and says where it stands then. It reads through a `Read`, which may be shared (see `runs.log_feed`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from astraconsole.errors import AstraError, ValidationError
from machines import protocol
from machines.protocol import ARCHIVE_LINES, LOG_CHUNK_BYTES
from runs.log_html import Mark
from runs.log_source import Followed, LogGone, Read, Source, Tail, ask, read_tail
from runs.log_text import LINE_MAX, Line, LineDecoder, Place
from runs.units import format_memory

SHOWN_LINES = 5000  # of a page
SHOWN_BYTES = 4 * 1024**2  # read for a page, at most
STEP_BYTES = 1024**2  # read by one step of a follower, at most
STEPS_MAX = 25  # of a follower within one look: 125,000 lines. Then it hurries
CONTEXT_BYTES = 64 * 1024  # shown before a linked line


@dataclass(frozen=True)
class Position:
    """As text, `attempt.line.segment.next.number.returns`: what a page hands back to go on."""

    attempt: int
    place: Place = field(default_factory=Place)

    def __str__(self) -> str:
        place = self.place
        parts = (self.attempt, place.line, place.segment, place.next, place.number, place.returns)
        return ".".join(map(str, parts))

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Raises ValidationError."""
        if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18}){5}", text, re.ASCII):
            raise cls._refusal()
        attempt, *parts = (int(part) for part in text.split("."))
        place = Place(*parts)
        if not place.line <= place.segment <= place.next - place.returns:
            raise cls._refusal()
        return cls(attempt, place)

    @staticmethod
    def _refusal() -> ValidationError:
        rule = "must be a position in this log"
        return ValidationError(f"from {rule}", [{"field": "from", "rule": rule}])


@dataclass(frozen=True)
class Item:
    """A line of an attempt, or what the console says in between."""

    attempt: int
    content: Line | Mark


Status: TypeAlias = Literal["live", "waiting", "reconnecting", "ended"]


@dataclass(frozen=True)
class Batch:
    """Items to show after those before. `position` is None where there is nothing to go on from yet."""

    items: list[Item]
    position: Position | None
    status: Status
    message: str = ""
    more: bool = False  # and can be read at once
    oldest: bool = False  # nothing before the items is kept


# ---- what a page shows first ----


async def last_lines(followed: Followed, number: int | None, timeout: float, lines: int = SHOWN_LINES) -> Batch:
    """The last lines of the newest attempt, or of attempt `number`. While the newest has printed nothing, those of the
    attempt before it stand above.

    A machine that does not answer is told inside the batch. Raises NotFound for an attempt that never was.
    """
    source = followed.newest if number is None else followed.source(number)
    if source is None:
        return _unplaced(followed)
    batch = await _last_lines_of(followed, source, timeout, lines)
    earlier = followed.sources[-2] if number is None and len(followed.sources) > 1 else None
    if batch.items or batch.status == "ended" or earlier is None:
        return batch
    before = await _last_lines_of(followed, earlier, timeout, lines)
    return replace(batch, items=[*before.items, _began(source)], oldest=before.oldest)


async def _last_lines_of(followed: Followed, source: Source, timeout: float, lines: int) -> Batch:
    try:
        tail = await read_tail(source, lines, SHOWN_BYTES, timeout)
    except AstraError as error:
        return _unread(followed, Position(source.number), error, [])
    decoder = LineDecoder(tail.start, number=int(tail.start == 0))
    items = [*_opening(tail), *_decoded(decoder, tail.data, source.number)]
    batch = Batch(items, Position(source.number, decoder.place), "live", oldest=tail.lost)
    return _closed(followed, tail.ended, batch)


async def lines_at(followed: Followed, number: int, offset: int, timeout: float) -> Batch:
    """The lines around a linked one: some before it, and those after it that one read brings."""
    source = followed.source(number)
    start = max(offset - CONTEXT_BYTES, 0)
    try:
        chunk = await ask(source, protocol.ReadLog(source.attempt.hex, start, LOG_CHUNK_BYTES), timeout)
    except AstraError as error:
        return _unread(followed, Position(number), error, [])
    skip = 0 if chunk.start == 0 else chunk.data.find(b"\n", 0, max(offset - chunk.start, 0)) + 1
    decoder = LineDecoder(chunk.start + skip, number=int(chunk.start == 0))
    shown = _decoded(decoder, chunk.data[skip:], number)
    at = sum(item.content.offset <= offset for item in shown if isinstance(item.content, Line))
    begin = max(at - SHOWN_LINES // 2, 0)
    oldest = begin == 0 and chunk.start > start
    opening = [Item(number, Mark(f"{format_memory(chunk.start)} before this not kept"))] if oldest else []
    items = [*opening, *shown[begin:][:SHOWN_LINES]]
    return Batch(items, Position(number, decoder.place), "ended", "the part around the linked line", oldest=oldest)


def _unplaced(followed: Followed) -> Batch:
    if followed.ended:
        return Batch([Item(0, _end_mark(followed))], None, "ended", waiting_sentence(followed))
    return Batch([], None, "waiting", waiting_sentence(followed))


def waiting_sentence(followed: Followed) -> str:
    """Of a worker that has no attempt."""
    where = "was never on a machine" if followed.ended else "is not on a machine yet"
    return f"{followed.name} {where}: {followed.reason}"


def _unread(followed: Followed, position: Position, error: AstraError, items: list[Item]) -> Batch:
    """No log where one was asked for: gone for good, not begun, or out of reach for now."""
    if not isinstance(error, LogGone):
        return Batch(items, position, "reconnecting", error.message)
    if not followed.source(position.attempt).over:
        return Batch(items, position, "live", "no output yet")
    return _closed(followed, True, Batch([*items, Item(position.attempt, Mark(error.message))], position, "live"))


def _opening(tail: Tail) -> Iterable[Item]:
    if tail.archived:
        yield Item(0, Mark(f"its container is gone: these are its last {ARCHIVE_LINES:,} lines"))
    if tail.lost:
        yield Item(0, Mark(f"{format_memory(tail.start)} before this not kept"))
    elif tail.mid_line:
        yield Item(0, Mark(f"a part line was cut at {format_memory(SHOWN_BYTES)}: its beginning is not shown"))
    elif tail.start > 0:
        yield Item(0, Mark(f"{format_memory(tail.start)} before this not shown"))


def _decoded(decoder: LineDecoder, data: bytes, number: int) -> list[Item]:
    """Completed lines, and the unfinished one last: it is shown again, under the same name, as it grows."""
    lines = decoder.feed(data)
    partial = decoder.partial()
    return [Item(number, line) for line in ([*lines, partial] if partial else lines)]


def _closed(followed: Followed, log_ended: bool, batch: Batch) -> Batch:
    """The batch with the worker's last word, once its newest log and the worker have both ended."""
    newest = batch.position is not None and followed.after(batch.position.attempt) is None
    if not (log_ended and followed.ended and newest):
        return batch
    return replace(batch, items=[*batch.items, Item(0, _end_mark(followed))], status="ended")


def _began(source: Source) -> Item:
    return Item(source.number, Mark(f"attempt {source.number} began", source.placed_at, f", on {source.machine_name}"))


def _end_mark(followed: Followed) -> Mark:
    return Mark(f"{followed.name}: {followed.state} — {followed.reason}", framed=False)


# ---- what has come since ----


class Step(NamedTuple):
    """Within one attempt. `more`: there is more to read now; `ended`: nothing more will come."""

    items: list[Item]
    place: Place
    more: bool
    ended: bool


async def advance(followed: Followed, position: Position | None, read: Read, hurry: bool = False) -> Batch:
    """What follows `position` (None: the first attempt's start): at most 5,000 lines and a little; `more` tells that
    there is more now. `hurry`: go on near the end and say what was left out, for a program that prints faster than
    anybody reads.

    A machine that does not answer makes the batch `reconnecting`, at the position reached; it raises nothing but
    NotFound for a position of an attempt that never was.
    """
    if position is None:
        if not followed.sources:
            return _unplaced(followed)
        position = Position(followed.sources[0].number)
    items: list[Item] = []
    while True:
        source, following = followed.source(position.attempt), followed.after(position.attempt)
        try:
            step = await _advance_one(source, position.place, read, SHOWN_LINES - len(items), hurry)
        except AstraError as error:
            if following is None:
                return _unread(followed, position, error, items)
            step = Step([Item(source.number, Mark(error.message))], position.place, False, True)  # go on without it
        items += step.items
        position = Position(source.number, step.place)
        if step.more:
            return Batch(items, position, "live", more=True)
        if following is None or not (step.ended or source.over):
            return _closed(followed, step.ended, Batch(items, position, "live"))
        items.append(_began(following))
        position = Position(following.number)


async def _advance_one(source: Source, place: Place, read: Read, lines: int, hurry: bool) -> Step:
    decoder, items = await _resumed(source, place, read), list[Item]()
    if hurry:
        decoder = await _hurried(source, decoder, read, items)
    bytes_read = 0
    while True:
        chunk = await read(source, decoder.place.next, LOG_CHUNK_BYTES)
        if chunk.start > decoder.place.next:
            items.append(Item(source.number, Mark(f"{format_memory(chunk.start - decoder.place.next)} not kept")))
            decoder = LineDecoder(chunk.start, number=0)
        data = _first_lines(chunk.data, max(lines - len(items), 1))
        items += [Item(source.number, line) for line in decoder.feed(data)]
        bytes_read += len(data)
        more = len(data) < len(chunk.data)
        if more or len(chunk.data) < LOG_CHUNK_BYTES:
            break
        if bytes_read >= STEP_BYTES:
            more = True
            break
    partial = decoder.partial()
    if partial is not None and not more and decoder.place != place:
        items.append(Item(source.number, partial))
    return Step(items, decoder.place, more, chunk.ended and not more)


def _first_lines(data: bytes, lines: int) -> bytes:
    """At most so many; all of it, with its unfinished line, where it holds no more."""
    if data.count(b"\n") <= lines:
        return data
    end = -1
    for _ in range(lines):
        end = data.find(b"\n", end + 1)
    return data[: end + 1]


async def _hurried(source: Source, decoder: LineDecoder, read: Read, items: list[Item]) -> LineDecoder:
    chunk = await read(source, -LOG_CHUNK_BYTES // 2, 1)
    skipped = chunk.start - decoder.place.next
    if skipped <= 0:
        return decoder
    items.append(Item(source.number, Mark(f"{format_memory(skipped)} not shown: printed faster than it can be")))
    return LineDecoder(chunk.start, number=0)


async def _resumed(source: Source, place: Place, read: Read) -> LineDecoder:
    """The decoder as it stood, from the head of its unfinished line."""
    wanted = min(place.next - place.segment, LINE_MAX)
    if wanted == 0:
        return LineDecoder.resumed(place, b"")
    chunk = await read(source, place.segment, wanted)
    if chunk.start != place.segment:  # its head is not kept any more
        return LineDecoder(place.next, number=place.number)
    return LineDecoder.resumed(place, chunk.data[:wanted])
