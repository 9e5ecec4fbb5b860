"""An attempt's output file: bounded reads by byte offset, its last lines, and dropping the oldest of too much.

Offsets count from the first byte ever written. The oldest bytes are dropped by punching a hole into the file: it keeps
its length, so offsets stay true for the writers (which only append) and for readers, and the first byte still there is
found by asking the file for its first data.
"""

import ctypes
import errno
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from machines.protocol import LOG_CHUNK_BYTES, LOG_TAIL_BYTES, LOG_TAIL_LINES

BLOCK_BYTES = 64 * 1024
LONGEST_CHARACTER = 4  # bytes, in UTF-8
PUNCH_BYTES = 1024 * 1024  # holes are made in steps of this
FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2

log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


@dataclass(frozen=True)
class Piece:
    """Bytes from `start` on; `whole`: they reach to the end of what there is now."""

    start: int
    data: bytes
    whole: bool

    @property
    def next(self) -> int:
        return self.start + len(self.data)


def read(path: Path, start: int, limit: int, kept_from: int = 0) -> Piece:
    """At most `limit` bytes (and LOG_CHUNK_BYTES) from `start`, or from the first byte still there if that is later
    (`kept_from` or later). A negative start counts from the end. Raises FileNotFoundError."""
    with open(path, "rb") as file:
        size, first = _extent(file.fileno(), kept_from)
        if start < 0:
            start += size
        start = min(max(start, first), size)
        return _piece(file.fileno(), start, min(limit, LOG_CHUNK_BYTES), size)


def read_tail(path: Path, lines: int, limit: int, kept_from: int = 0) -> Piece:
    """The last `lines` lines (the last may be unfinished) in at most `limit` bytes, from a line's start where one fits.
    One answer holds at most LOG_CHUNK_BYTES of them: the rest is read on from `next`. Raises FileNotFoundError."""
    with open(path, "rb") as file:
        size, first = _extent(file.fileno(), kept_from)
        start = _tail_start(file.fileno(), size, max(first, size - limit), lines)
        return _piece(file.fileno(), start, min(limit, LOG_CHUNK_BYTES), size)


def last_lines(path: Path) -> str:
    """A report's log_tail, cut on a character's edge; empty without output."""
    try:
        piece = read_tail(path, LOG_TAIL_LINES, LOG_TAIL_BYTES)
    except OSError:
        return ""
    data = piece.data
    for _ in range(LONGEST_CHARACTER - 1):
        if piece.start > 0 and data and data[0] & 0xC0 == 0x80:  # the rest of a character whose beginning was cut off
            data = data[1:]
    text = data.decode(errors="replace").replace("\0", "�")  # a database's text holds no NUL
    while len(text.encode()) > LOG_TAIL_BYTES:  # a replacement is longer than the byte it replaces
        text = text[len(text.encode()) - LOG_TAIL_BYTES :]
    return text


def archive(path: Path, lines: int) -> int:
    """Give all but the last `lines` lines back to the disk. Returns the offset of the first of them: a little before it
    may stay on the disk, in whole blocks. Without output 0."""
    start = 0
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return start
    try:
        size, first = _extent(descriptor, 0)
        start = _tail_start(descriptor, size, first, lines)
        if start > first:
            _punch(descriptor, start)
    except OSError as error:
        log.warning("%s is archived, and keeps more than it should: %s", path, error)
    finally:
        os.close(descriptor)
    return start


def drop_oldest(paths: Iterable[Path], keep: int) -> None:
    """Of files larger than `keep` bytes give the oldest back to the disk; a little more stays, until it is worth it."""
    for path in paths:
        _drop_oldest(path, keep)


def _drop_oldest(path: Path, keep: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return
    try:
        size = os.fstat(descriptor).st_size
        if size - keep < PUNCH_BYTES:
            return
        end = (size - keep) // PUNCH_BYTES * PUNCH_BYTES
        if _first_data(descriptor, size) < end:
            _punch(descriptor, end)
    except OSError as error:
        log.warning("%s keeps more than it should: %s", path, error)
    finally:
        os.close(descriptor)


def _extent(descriptor: int, kept_from: int) -> tuple[int, int]:
    """(length, first byte still there)"""
    size = os.fstat(descriptor).st_size
    return size, max(_first_data(descriptor, size), kept_from)


def _first_data(descriptor: int, size: int) -> int:
    if size == 0:
        return 0
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole
            return size
        return 0  # a file system that knows no holes: then none were made


def _punch(descriptor: int, end: int) -> None:
    if _libc.fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, end):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _piece(descriptor: int, start: int, limit: int, size: int) -> Piece:
    data = os.pread(descriptor, max(0, min(limit, size - start)), start)
    return Piece(start, data, start + len(data) >= size)


def _tail_start(descriptor: int, size: int, floor: int, lines: int) -> int:
    """Where the last `lines` lines begin, at `floor` or later; a line that the floor cuts is left out, unless alone."""
    wanted = lines + 1  # the newline before the first line wanted
    if size > floor and os.pread(descriptor, 1, size - 1) != b"\n":
        wanted -= 1  # the last line has no newline of its own
    position, first_newline = size, -1
    while position > floor:
        begin = max(floor, position - BLOCK_BYTES)
        block = os.pread(descriptor, position - begin, begin)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            wanted -= 1
            if wanted == 0:
                return begin + at + 1
            first_newline = begin + at
        position = begin
    starts_with_a_line = floor == 0 or os.pread(descriptor, 1, floor - 1) == b"\n"
    if starts_with_a_line or first_newline < 0 or first_newline + 1 >= size:
        return floor
    return first_newline + 1
