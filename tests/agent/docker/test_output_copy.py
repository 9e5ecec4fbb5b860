"""The agent's copy of a container's output: exact, whatever breaks off and whatever the engine drops."""

import contextlib
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines.agent.runtimes.docker_log import (
    GAP_MARK,
    PIECE_BYTES,
    Cursor,
    Entry,
    FrameDecoder,
    OutputCopy,
    OutputNotWritten,
    Resume,
)


def frame(stream: int, time: bytes, data: bytes) -> bytes:
    content = time + b" " + data
    return struct.pack(">BxxxL", stream, len(content)) + content


def stamp(number: int) -> bytes:
    return b"2026-11-29T15:14:%02d.%09dZ" % divmod(number, 10)


lines = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=20).map(lambda line: line + b"\n")), max_size=20)


@given(lines, st.lists(st.integers(min_value=1, max_value=50), max_size=200))
def test_frames_are_taken_apart_however_they_arrive(items: list[tuple[int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(frame(number, stamp(at), line) for at, (number, line) in enumerate(items))
    decoder, entries, position = FrameDecoder(), [], 0
    for size in [*cuts, len(stream)]:
        entries += decoder.feed(stream[position : position + size])
        position += size
    assert entries == [Entry(stream_number, stamp(at), line) for at, (stream_number, line) in enumerate(items)]


def decoded(*frames: bytes) -> bytes:
    return b"".join(entry.data for entry in FrameDecoder().feed(b"".join(frames)))


def test_a_long_line_gets_back_the_newline_that_the_engine_forgot() -> None:
    piece, time, later = b"x" * PIECE_BYTES, stamp(1), stamp(2)
    assert decoded(frame(1, time, piece), frame(1, time, b"y"), frame(1, later, b"z\n")) == piece + b"y\nz\n"
    assert decoded(frame(1, time, piece), frame(1, time, b""), frame(1, later, b"z\n")) == piece + b"\nz\n"
    assert decoded(frame(1, time, piece), frame(1, time, b"y\n")) == piece + b"y\n"
    assert decoded(frame(1, time, piece), frame(2, time, b"y")) == piece + b"y"  # another stream's last words
    assert decoded(frame(1, time, b"no newline at the end")) == b"no newline at the end"


FILE_BYTES = st.sampled_from([0, 10**9])  # the engine may have begun a second file at any time, or at none


class Copy:
    """The agent's copy over several readings; each may break off anywhere, even between its two writes."""

    def __init__(self, file_bytes: int) -> None:
        self.data = b""
        self.cursor = Cursor()
        self.file_bytes = file_bytes

    def read(self, entries: list[Entry], moves_cursor: bool = True) -> None:
        resume = Resume(len(self.data), self.cursor, self.file_bytes)
        new = resume.take(entries)
        self.data += new
        if new and moves_cursor:
            self.cursor = Cursor.decode(resume.cursor.encode())


def joined(entries: list[Entry]) -> bytes:
    return b"".join(entry.data for entry in entries)


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """Entries in order of time, some at the same time; the first has a time of its own."""
    steps = draw(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=6)), max_size=30))
    entries, time = [Entry(1, stamp(0), b"first")], 1
    for step, data in steps:
        time += step
        entries.append(Entry(1, stamp(time), data))
    return entries


@given(logs(), st.data())
def test_a_copy_is_exact_whatever_readings_break_off_and_the_engine_drops(
    entries: list[Entry], data: st.DataObject
) -> None:
    copy, dropped = Copy(data.draw(FILE_BYTES)), 0
    for _ in range(data.draw(st.integers(0, 5))):
        end = data.draw(st.integers(dropped, len(entries)))
        copy.read(entries[dropped:end], moves_cursor=data.draw(st.booleans()))
        kept = [at for at, entry in enumerate(entries) if entry.time == copy.cursor.last] or [0]
        dropped = data.draw(st.integers(dropped, max(dropped, kept[0])))  # the newest known ones are still there
    copy.read(entries[dropped:])
    assert copy.data == joined(entries)


@given(logs(), st.data())
def test_what_the_engine_repeats_is_copied_once(entries: list[Entry], data: st.DataObject) -> None:
    copy, reading, at = Copy(file_bytes=0), [], 0
    while at < len(entries):
        end = data.draw(st.integers(at + 1, len(entries)))
        reading += entries[at:end]
        earlier = [number for number in range(end) if entries[number].time < entries[end - 1].time]
        at = data.draw(st.sampled_from(earlier)) if earlier and data.draw(st.booleans()) else end
        if len(reading) > 500:
            reading, at = reading + entries[at:], len(entries)
    copy.read(reading)
    assert copy.data == joined(entries)


@given(logs(), st.data())
def test_what_the_engine_dropped_before_it_was_copied_is_marked_and_nothing_else_is_missing(
    entries: list[Entry], data: st.DataObject
) -> None:
    seen = data.draw(st.integers(1, len(entries)))
    dropped = data.draw(st.integers(seen, len(entries)))
    copy = Copy(data.draw(FILE_BYTES))
    copy.read(entries[:seen])
    rest = [entry for entry in entries[dropped:] if entry.time > entries[seen - 1].time]
    copy.read(rest)
    lost = [entry for entry in entries[seen:dropped] if entry.time > entries[seen - 1].time]
    marked = GAP_MARK in copy.data
    assert copy.data == joined(entries[:seen]) + GAP_MARK * marked + joined(rest)
    assert marked or not (lost and rest)
    copy.read(rest)
    assert copy.data.count(GAP_MARK) == marked


def test_where_the_output_could_not_be_written_the_log_says_so(tmp_path: Path) -> None:
    copy = OutputCopy(tmp_path / "output.log")
    copy.add_line("step 1")
    copy.mark_lost("No space left on device")
    text = (tmp_path / "output.log").read_text()
    assert text == "step 1\n\n[output after this is lost: No space left on device]\n"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four pages, filled up by the file `output.log`."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)]
    subprocess.run(mount, check=True)
    try:
        with contextlib.suppress(OSError), open(tmp_path / "output.log", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 512)
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.engine  # needs root, as that
def test_on_a_full_disk_the_log_says_what_is_lost_in_place_of_its_last_bytes(full_disk: Path) -> None:
    copy, size = OutputCopy(full_disk / "output.log"), (full_disk / "output.log").stat().st_size
    with pytest.raises(OutputNotWritten, match=r"^No space left on device$"):
        copy.append(b"more\n" * 100, Cursor())
    copy.mark_lost("No space left on device")
    text = (full_disk / "output.log").read_text()
    assert len(text) == size
    assert text.endswith("xx\n[output after this is lost: No space left on device]\n")


def test_the_copy_on_the_disk_goes_on_where_it_was(tmp_path: Path) -> None:
    entries = [Entry(1, stamp(number), b"%d\n" % number) for number in range(10)]
    for end in (3, 3, 7, 10):
        copy = OutputCopy(tmp_path / "output.log")
        resume = copy.resume()
        copy.append(resume.take(entries[:end]), resume.cursor)
    assert (tmp_path / "output.log").read_bytes() == joined(entries)
    (tmp_path / "engine.cursor").write_bytes(b"spoilt")
    assert OutputCopy(tmp_path / "output.log").resume().take(entries) == b""
