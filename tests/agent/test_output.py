"""Reading, cutting and trimming an attempt's output."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines.agent import output
from machines.protocol import LOG_CHUNK_BYTES, LOG_TAIL_BYTES


@pytest.fixture
def log(tmp_path):
    return tmp_path / "output.log"


def test_a_piece_begins_where_asked_and_says_where_the_next_one_does(log):
    log.write_bytes(b"0123456789")
    piece = output.read(log, 3, 4)
    assert (piece.start, piece.data, piece.next, piece.whole) == (3, b"3456", 7, False)


@pytest.mark.parametrize(
    ("start", "expected"), [(-3, (7, b"789")), (-99, (0, b"0123456789")), (10, (10, b"")), (99, (10, b""))]
)
def test_a_start_may_count_from_the_end_or_lie_beyond_it(log, start, expected):
    log.write_bytes(b"0123456789")
    piece = output.read(log, start, 100)
    assert ((piece.start, piece.data), piece.whole) == (expected, True)


def test_one_answer_is_bounded(log):
    log.write_bytes(b"x" * (LOG_CHUNK_BYTES + 1))
    piece = output.read(log, 0, 1 << 40)
    assert (len(piece.data), piece.whole) == (LOG_CHUNK_BYTES, False)


@pytest.mark.parametrize(
    ("data", "lines", "limit", "expected"),
    [
        (b"", 5, 100, b""),
        (b"a\nb\nc\n", 2, 100, b"b\nc\n"),
        (b"a\nb\nc", 2, 100, b"b\nc"),
        (b"a\nb\n", 5, 100, b"a\nb\n"),
        (b"a\n\n\n", 2, 100, b"\n\n"),
        (b"aaaa\nbbbb\ncccc\n", 3, 12, b"bbbb\ncccc\n"),  # a whole line rather than a part of one
        (b"aaaa\nbbbb\ncccc\n", 3, 10, b"bbbb\ncccc\n"),
        (b"aaaaaaaaaa", 3, 4, b"aaaa"),  # a part, where no line fits
        (b"aaaaaaaaaa\n", 3, 4, b"aaa\n"),
    ],
)
def test_the_last_lines(log, data, lines, limit, expected):
    log.write_bytes(data)
    assert output.read_tail(log, lines, limit).data == expected


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=40), st.integers(1, 50))
def test_the_last_lines_are_those_that_splitting_gives(tmp_path_factory, lines, wanted):
    log = tmp_path_factory.mktemp("log") / "output.log"
    log.write_bytes(b"".join(line + b"\n" for line in lines))
    assert output.read_tail(log, wanted, 1 << 20).data == b"".join(line + b"\n" for line in lines[-wanted:])


def test_a_tail_longer_than_one_answer_is_read_on(log):
    log.write_bytes(b"line\n" * 200_000)
    piece = output.read_tail(log, 150_000, 900 * 1024)
    assert (piece.start, len(piece.data), piece.whole) == (250_000, LOG_CHUNK_BYTES, False)
    assert output.read(log, piece.next, 10).data == (log.read_bytes())[piece.next : piece.next + 10]


def test_the_end_of_the_log_in_a_report_is_fifty_lines(log):
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    assert output.last_lines(log).splitlines() == [f"line {number}" for number in range(950, 1000)]


@pytest.mark.parametrize("character", ["é", "€", "😀"])
@pytest.mark.parametrize("shift", range(4))
def test_the_end_of_the_log_in_a_report_is_cut_on_a_characters_edge(log, character, shift):
    log.write_text("x" * shift + character * 20_000)
    text = output.last_lines(log)
    assert set(text) == {character}
    assert LOG_TAIL_BYTES - 4 < len(text.encode()) <= LOG_TAIL_BYTES


@given(st.binary(max_size=40_000))
def test_the_end_of_the_log_in_a_report_is_text_whatever_the_bytes(tmp_path_factory, data):
    log = tmp_path_factory.mktemp("log") / "output.log"
    log.write_bytes(data)
    text = output.last_lines(log)
    assert len(text.encode()) <= LOG_TAIL_BYTES
    assert "\0" not in text


def test_without_output_there_is_no_end_of_the_log(log):
    assert output.last_lines(log) == ""


def test_the_oldest_bytes_go_and_offsets_count_on(log):
    data = bytes(range(1, 251)) * 40_000  # 10 MB without a zero byte
    log.write_bytes(data)
    output.drop_oldest([log], 4_000_000)
    assert log.stat().st_size == len(data)
    assert log.stat().st_blocks * 512 < 6_000_000
    piece = output.read(log, 0, 1000)
    assert 4_000_000 <= len(data) - piece.start < 4_000_000 + 2 * output.PUNCH_BYTES
    assert piece.data == data[piece.start : piece.start + 1000]
    with log.open("ab") as file:
        file.write(b"more")
    assert output.read(log, len(data), 10).data == b"more"


def test_a_file_within_its_bound_is_left_alone(log):
    log.write_bytes(b"x" * 3_000_000)
    output.drop_oldest([log, log.with_name("missing")], 3_000_000)
    assert output.read(log, 0, 10).start == 0
