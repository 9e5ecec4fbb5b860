"""Bytes of a worker's output → the lines that a viewer shows. Pure.

Output is split at line feeds only. Within a line, a carriage return starts over, so a progress bar is one line that
holds its last state; `runs.log_escapes` does what else acts within it. Work on bytes until a line is looked at: then
every chunk border gives the same lines, and a line that nobody looks at costs nothing.
"""

import codecs
import re
from dataclasses import dataclass, field
from functools import cached_property

from runs.log_escapes import pieces_of
from runs.units import format_memory

LINE_MAX = 16 * 1024  # bytes of a line that are shown

# Codes that change colours and modes, the last one perhaps cut off.
_SHOWS_NOTHING = re.compile(rb"(?:\x1b\[[0-?]*[mhl])*(?:\x1b(?:\[[0-?]*)?)?")


@dataclass(frozen=True)
class Segment:
    """What stands after the last carriage return that something follows: `head` of its `length` bytes is kept."""

    start: int
    head: bytes = b""
    length: int = 0

    def extended(self, data: bytes, line_max: int) -> "Segment":
        room = max(line_max - len(self.head), 0)
        return Segment(self.start, self.head + data[:room], self.length + len(data))


@dataclass(frozen=True)
class Span:
    """Text in one style. `classes` are CSS class names, "" for none."""

    text: str
    classes: str


@dataclass(frozen=True)
class Line:
    """One display line. `offset` is where it begins in the attempt's output: its permanent name."""

    offset: int
    raw: bytes
    length: int  # of the whole, when `raw` is cut
    complete: bool = True  # a line feed has ended it
    number: int = field(default=0, compare=False)  # from 1; 0 where the output before it was not counted

    @property
    def is_cut(self) -> bool:
        return self.length > len(self.raw)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        final = self.complete and not self.is_cut
        return tuple(Span(text, style.classes) for text, style in pieces_of(_decoded(self.raw, final), final))

    @cached_property
    def text(self) -> str:
        """Without colours; control characters as symbols."""
        return "".join(span.text for span in self.spans)

    @property
    def cut_note(self) -> str:
        """How much of it is shown, "" when all is."""
        return f"line cut: {format_memory(len(self.raw))} of {format_memory(self.length)} shown" if self.is_cut else ""


@dataclass(frozen=True)
class Place:
    """Where a decoder stands: everything that another one needs to go on, with bytes re-read from `segment`."""

    line: int = 0  # where the unfinished line begins
    segment: int = 0  # where its shown segment begins
    next: int = 0  # the next byte to read
    number: int = 1  # of the unfinished line, from 1; 0: unknown
    returns: int = 0  # bytes right before `next` that show nothing: carriage returns and what only changes colours


class LineDecoder:
    """Feed it the output from `start` on, in chunks of any size."""

    def __init__(self, start: int = 0, number: int = 1, line_max: int = LINE_MAX) -> None:
        self._line_max = line_max
        self._line = self._next = start
        self._number = number
        self._shown = self._current = Segment(start)

    @classmethod
    def resumed(cls, place: Place, head: bytes, line_max: int = LINE_MAX) -> "LineDecoder":
        """At `place`, given the bytes from `place.segment` on: all up to `place.next`, or `line_max` of them."""
        decoder = cls(place.segment, place.number, line_max)
        length = place.next - place.segment - place.returns
        decoder._current = Segment(place.segment, head[: min(length, line_max)], length)
        if place.returns:
            decoder._shown = decoder._current
            # Empty where the head is cut: then nothing but returns follows.
            pending = head[length:].rpartition(b"\r")[2]
            decoder._current = Segment(place.next - len(pending), pending, len(pending))
        decoder._line, decoder._next = place.line, place.next
        return decoder

    @property
    def place(self) -> Place:
        segment = self._segment
        returns = self._next - segment.start - segment.length
        return Place(self._line, segment.start, self._next, self._number, returns)

    def feed(self, data: bytes) -> list[Line]:
        """The lines that are now complete."""
        *ended, rest = data.split(b"\n")
        lines = []
        for piece in ended:
            if self._next == self._line and len(piece) <= self._line_max and b"\r" not in piece:  # most lines
                lines.append(Line(self._line, piece, len(piece), True, self._number))
                self._next += len(piece)
                self._begin_line()
                continue
            self._extend(piece)
            lines.append(self._as_line(complete=True))
            self._begin_line()
        self._extend(rest)
        return lines

    def _begin_line(self) -> None:
        self._next += 1
        self._line = self._next
        self._number += bool(self._number)
        self._shown = self._current = Segment(self._line)

    def partial(self) -> Line | None:
        """The line that no line feed has ended yet."""
        return self._as_line(complete=False) if self._segment.length else None

    @property
    def _segment(self) -> Segment:
        shown, current = self._shown, self._current
        if not current.length or not shown.length:
            return current if current.length else shown
        short = self._next - shown.start <= self._line_max  # more than that a resumed decoder is not given
        return shown if short and _SHOWS_NOTHING.fullmatch(current.head) else current

    def _as_line(self, complete: bool) -> Line:
        segment = self._segment
        return Line(self._line, segment.head, segment.length, complete, self._number)

    def _extend(self, piece: bytes) -> None:
        parts = piece.split(b"\r")
        # The last part may be unfinished, so it does not count: from the last one before it that shows something on,
        # all earlier ones are written over. A progress bar has thousands of them.
        begin = next((at for at in range(len(parts) - 2, 0, -1) if not _SHOWS_NOTHING.fullmatch(parts[at])), 0)
        if begin:
            self._next += sum(map(len, parts[:begin])) + begin
            self._current = Segment(self._next)
        self._append(parts[begin])
        for part in parts[begin + 1 :]:
            if self._current.length:
                self._shown, self._current = self._segment, Segment(self._next)
            self._next += 1
            self._append(part)

    def _append(self, data: bytes) -> None:
        if data:
            current = self._current if self._current.length else Segment(self._next)
            self._current = current.extended(data, self._line_max)
            self._next += len(data)


def display_lines(data: bytes, start: int = 0, line_max: int = LINE_MAX) -> list[Line]:
    """All lines of `data`, the unfinished one included."""
    decoder = LineDecoder(start, line_max=line_max)
    lines = decoder.feed(data)
    partial = decoder.partial()
    return [*lines, partial] if partial else lines


def plain_text(output: str) -> str:
    """Output as it looks, without colours."""
    return "".join(f"{line.text}\n" for line in display_lines(output.encode()))


def _decoded(raw: bytes, final: bool) -> str:
    """UTF-8 with replacement characters; a character that the end cuts is left out unless it is the line's `final`."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw, final)


# ---- where characters begin and end ----


def first_character(data: bytes) -> int:
    """Past the rest of a character whose beginning was cut off."""
    begin = 0
    while begin < min(3, len(data)) and data[begin] & 0xC0 == 0x80:
        begin += 1
    return begin


def last_character(data: bytes) -> int:
    """Before a character whose rest is not there yet."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:])
    return len(data) - len(decoder.getstate()[0])
