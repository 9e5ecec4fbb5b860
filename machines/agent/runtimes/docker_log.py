"""The agent's own copy of a container's output: exact to the byte across restarts of the agent and of the engine.

The engine's log is read from its start each time, and what the copy holds already is skipped by count. Only when the
engine has dropped its oldest part does a count no longer tell the place: then the cursor does, which remembers the
time stamp of the newest entry copied. Docker before version 23 also repeats entries, or ends a reading early, around
the moment at which it drops some: the same search for the newest copied entry mends both.
"""

import contextlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from machines.agent.runtimes import docker_request

_HEADER = struct.Struct(">BxxxL")  # stream, length
PIECE_BYTES = 16 * 1024  # of a long line, as Docker cuts it
ENTRY_OVERHEAD_BYTES = 64  # in the engine's files, beside the data: at most
CURSOR_BYTES = 160  # written over in place, at once
SECOND = len("2026-11-29T15:14:41")  # of a time stamp


class Entry(NamedTuple):
    """One piece that the engine logged: a line, or a part of a long one."""

    stream: int
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
            entries.append(Entry(stream, time, self._mended(stream, time, data)))
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
    entries: int = 0  # copied in all

    def advance(self, entries: Sequence[Entry]) -> None:
        last = entries[-1].time
        same = next((at for at, entry in enumerate(reversed(entries)) if entry.time != last), None)
        if same is None:  # all of them
            same = len(entries) + (self.repeats if last == self.last else 0)
        self.first = self.first or entries[0].time
        self.last, self.repeats = last, same
        self.offset += sum(len(entry.data) for entry in entries)
        self.entries += len(entries)

    def encode(self) -> bytes:
        return b"%s %s %d %d %d\n" % (self.first, self.last, self.repeats, self.offset, self.entries)

    @classmethod
    def decode(cls, text: bytes) -> "Cursor":
        """Raises ValueError."""
        first, last, repeats, offset, entries = text.split()
        return cls(first, last, int(repeats), int(offset), int(entries))


class Resume:
    """One reading of the engine's log from its start: passes on only what the copy does not have. Pure."""

    def __init__(self, have: int, cursor: Cursor, file_bytes: int) -> None:
        self._have = have
        self._file_bytes = file_bytes
        self._sought = cursor  # the newest copied entry, while searching for it
        self._searching: bool | None = None  # unknown before the first entry
        self._matches = 0
        self._mark = b""  # to be put before the next bytes
        self._latest: dict[int, bytes] = {}  # stream → time stamp; never goes back within one
        self.cursor = Cursor()

    def take(self, entries: Sequence[Entry]) -> bytes:
        """The bytes to append to the copy."""
        settled = self._searching is False and self.cursor.offset >= self._have
        if settled and entries and not self._is_long:
            self.cursor.advance(entries)
            return b"".join(entry.data for entry in entries)
        return b"".join(self._one(entry) for entry in entries)

    @property
    def _is_long(self) -> bool:
        """So long that the engine may have dropped some of it, and repeat itself about it."""
        return self.cursor.offset + self.cursor.entries * ENTRY_OVERHEAD_BYTES >= self._file_bytes

    def is_reached_from(self, entry: Entry) -> bool:
        """Whether a reading may begin with this entry, which is not the engine's first."""
        return self._sought.first not in (b"", entry.time) and entry.time < self._sought.last

    def _one(self, entry: Entry) -> bytes:
        if self._searching is None:
            self._begin(entry)
        elif self._is_long and entry.time < self._latest.get(entry.stream, b""):
            self._search(self._sought if self._searching else self.cursor)  # the engine repeats itself
        self._latest[entry.stream] = entry.time
        if self._searching and not self._is_beyond(entry):
            return b""
        self._searching = False
        mark, self._mark = self._mark, b""
        self.cursor.offset += len(mark)
        known = min(max(self._have - self.cursor.offset, 0), len(entry.data))
        self.cursor.advance((entry,))
        return mark + entry.data[known:]

    def _begin(self, entry: Entry) -> None:
        self._searching = False
        if self._sought.first in (b"", entry.time):
            return  # the engine's log is whole: counting tells the place
        self._search(self._sought)
        if entry.time > self._sought.last:
            self._lose()

    def _search(self, newest: Cursor) -> None:
        self.cursor, self._sought = replace(newest), newest
        self._searching, self._matches = True, 0

    def _is_beyond(self, entry: Entry) -> bool:
        """Whether the newest copied entry has gone by. Entries of the two streams may stand a little out of order."""
        if self._matches == self._sought.repeats:
            return True
        if entry.time[:SECOND] > self._sought.last[:SECOND]:
            self._lose()
            return True
        self._matches += entry.time == self._sought.last
        return False

    def _lose(self) -> None:
        """The engine has dropped the newest copied entry and perhaps more: all that comes is new, after a mark."""
        self._mark = GAP_MARK
        self.cursor.offset = max(self.cursor.offset, self._have)
        self._matches = self._sought.repeats


GAP_MARK = b"\n[some output before this may be missing: it was not copied before the engine dropped it]\n"


class OutputNotWritten(Exception):
    """The copy cannot be written; the message says why."""


class OutputCopy:
    """An attempt's output file and the cursor beside it."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._cursor_path = output.with_name("engine.cursor")
        self._file_bytes_path = output.with_name("engine.file-bytes")

    def expect(self, file_bytes: int) -> None:
        """Of the files in which the engine is going to keep the output. Raises OSError."""
        self._file_bytes_path.write_text(str(file_bytes))

    def resume(self) -> Resume:
        have = self._output.stat().st_size if self._output.exists() else 0
        return Resume(have, self._cursor(), self._file_bytes())

    def append(self, data: bytes, cursor: Cursor) -> None:
        """Raises OutputNotWritten. The file first: what was written without moving the cursor is skipped by count.
        Nothing new does not move it: read again from the start, it would go back."""
        if not data:
            return
        try:
            self._write(data)
            descriptor = os.open(self._cursor_path, os.O_WRONLY | os.O_CREAT, 0o600)
            with open(descriptor, "wb", buffering=0) as file:
                file.write(cursor.encode().ljust(CURSOR_BYTES))
        except OSError as error:
            raise OutputNotWritten(error.strerror or str(error)) from error

    def add_line(self, text: str) -> None:
        """A line that is not the container's own."""
        self.add(f"{text}\n".encode())

    def add(self, data: bytes) -> None:
        """Bytes that are not the container's own: before its first or after its last. Raises OSError."""
        self._write(data)

    def mark_lost(self, why: str) -> None:
        """Say that what followed could not be written. On a full disk in place of the last bytes: that needs no
        room."""
        mark = f"\n[output after this is lost: {why}]\n".encode()
        try:
            self._write(mark)
        except OSError:
            with contextlib.suppress(OSError), open(self._output, "r+b") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - len(mark)))
                file.write(mark[-size:] if size else b"")

    def _write(self, data: bytes) -> None:
        with open(self._output, "ab") as file:
            file.write(data)

    def _file_bytes(self) -> int:
        try:
            return int(self._file_bytes_path.read_text())
        except (FileNotFoundError, ValueError):
            return docker_request.LOG_FILE_BYTES

    def _cursor(self) -> Cursor:
        try:
            return Cursor.decode(self._cursor_path.read_bytes())
        except (FileNotFoundError, ValueError):
            return Cursor()
