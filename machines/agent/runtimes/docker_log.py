"""The agent's own copy of a container's output: exact to the byte across restarts of the agent and of the engine.

The engine's log is read from its start each time, and what the copy holds already is skipped by count. Only when the
engine has dropped its oldest part does a count no longer tell the place: then the cursor does, which remembers the
time stamp of the newest entry copied.
"""

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct(">BxxxL")  # stream, length
PIECE_BYTES = 16 * 1024  # of a long line, as Docker cuts it
CURSOR_BYTES = 160  # written over in place, at once
SECOND = len("2026-11-29T15:14:41")  # of a time stamp


class Entry(NamedTuple):
    """One piece that the engine logged: a line, or a part of a long one."""

    time: bytes  # RFC 3339, as the engine writes it
    data: bytes


class FrameDecoder:
    """Takes apart the engine's log stream: both streams of the container, in frames, with time stamps.

    Docker logs a long line in pieces that share one time stamp; its `local` driver forgets the newline after the last.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._open_lines: dict[int, bytes] = {}  # stream → time stamp of a line of which more pieces follow

    def feed(self, chunk: bytes) -> list[Entry]:
        buffer, position, entries = self._rest + chunk, 0, []
        while len(buffer) - position >= _HEADER.size:
            stream, length = _HEADER.unpack_from(buffer, position)
            end = position + _HEADER.size + length
            if end > len(buffer):
                break
            time, _, data = buffer[position + _HEADER.size : end].partition(b" ")
            entries.append(Entry(time, self._mended(stream, time, data)))
            position = end
        self._rest = buffer[position:]
        return entries

    def _mended(self, stream: int, time: bytes, data: bytes) -> bytes:
        if data.endswith(b"\n"):
            self._open_lines.pop(stream, None)
        elif len(data) == PIECE_BYTES:
            self._open_lines[stream] = time
        elif self._open_lines.pop(stream, None) == time:
            return data + b"\n"
        return data


@dataclass
class Cursor:
    """How far the copy is, in terms of the engine's log."""

    first: bytes = b""  # time stamp of the very first entry
    last: bytes = b""  # of the newest copied one
    repeats: int = 0  # how many copied entries carry `last`
    offset: int = 0  # the copy's size right after the newest

    def advance(self, entry: Entry) -> None:
        self.first = self.first or entry.time
        self.repeats = self.repeats + 1 if entry.time == self.last else 1
        self.last = entry.time
        self.offset += len(entry.data)

    def encode(self) -> bytes:
        return b"%s %s %d %d\n" % (self.first, self.last, self.repeats, self.offset)

    @classmethod
    def decode(cls, text: bytes) -> "Cursor":
        """Raises ValueError."""
        first, last, repeats, offset = text.split()
        return cls(first, last, int(repeats), int(offset))


class Resume:
    """One reading of the engine's log from its start: passes on only what the copy does not have. Pure."""

    def __init__(self, have: int, cursor: Cursor) -> None:
        self._have = have
        self._old = cursor
        self._begun = False
        self._searching = False  # for the newest copied entry
        self._matches = 0
        self.cursor = Cursor()

    def take(self, entries: Iterable[Entry]) -> bytes:
        """The bytes to append to the copy."""
        return b"".join(self._one(entry) for entry in entries)

    def _one(self, entry: Entry) -> bytes:
        if not self._begun:
            self._begin(entry)
        if self._searching and not self._is_beyond(entry):
            return b""
        self._searching = False
        known = min(max(self._have - self.cursor.offset, 0), len(entry.data))
        self.cursor.advance(entry)
        return entry.data[known:]

    def _begin(self, entry: Entry) -> None:
        self._begun = True
        if self._old.first in (b"", entry.time):
            return  # the engine's log is whole: counting tells the place
        self.cursor = replace(self._old)
        self._searching = entry.time <= self._old.last
        if not self._searching:
            self._lose()

    def _is_beyond(self, entry: Entry) -> bool:
        """Whether the newest copied entry has gone by. Entries of the two streams may stand a little out of order."""
        if self._matches == self._old.repeats:
            return True
        if entry.time[:SECOND] > self._old.last[:SECOND]:
            self._lose()
            return True
        self._matches += entry.time == self._old.last
        return False

    def _lose(self) -> None:
        """The engine has dropped the newest copied entry and perhaps more: all that comes is new."""
        self.cursor.offset = self._have


class OutputNotWritten(Exception):
    """The copy cannot be written; the message says why."""


class OutputCopy:
    """An attempt's output file and the cursor beside it."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._cursor_path = output.with_name("engine.cursor")

    def resume(self) -> Resume:
        have = self._output.stat().st_size if self._output.exists() else 0
        return Resume(have, self._cursor())

    def append(self, data: bytes, cursor: Cursor) -> None:
        """Raises OutputNotWritten. The file first: what was written without moving the cursor is skipped by count."""
        try:
            self._write(data)
            descriptor = os.open(self._cursor_path, os.O_WRONLY | os.O_CREAT, 0o600)
            with open(descriptor, "wb", buffering=0) as file:
                file.write(cursor.encode().ljust(CURSOR_BYTES))
        except OSError as error:
            raise OutputNotWritten(str(error)) from error

    def add_line(self, text: str) -> None:
        """A line that is not the container's own."""
        self._write(f"{text}\n".encode())

    def _write(self, data: bytes) -> None:
        if data:
            with open(self._output, "ab") as file:
                file.write(data)

    def _cursor(self) -> Cursor:
        try:
            return Cursor.decode(self._cursor_path.read_bytes())
        except (FileNotFoundError, ValueError):
            return Cursor()
