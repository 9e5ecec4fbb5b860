"""Every recorded log of the data folder, shown as its index says."""

import json

import pytest

from runs.log_errors import looks_like_error
from runs.log_html import text_html
from runs.log_text import LineDecoder, display_lines
from tests.conftest import TEST_DATA

pytestmark = pytest.mark.data
FOLDER = TEST_DATA / "logs"
FILES = sorted(path.name for path in FOLDER.glob("*.txt")) or ["none"]


def read(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_a_recorded_log_flags_exactly_its_error_lines(name: str) -> None:
    lines = display_lines(read(name))
    expected = json.loads((FOLDER / "expected_flags.json").read_text())[name]
    flagged = {number for number, line in enumerate(lines, 1) if looks_like_error(line.text)}
    assert flagged - set(expected["optional"]) == set(expected["flag"])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [1, 1023, 1024, 2047, 3071, 4095])
def test_a_recorded_log_reads_the_same_in_chunks_of_any_size(name: str, size: int) -> None:
    data = read(name)[-50_000:]
    decoder = LineDecoder()
    lines = [line for at in range(0, len(data), size) for line in decoder.feed(data[at : at + size])]
    assert [*lines, *filter(None, [decoder.partial()])] == display_lines(data)


@pytest.mark.parametrize("name", FILES)
def test_a_recorded_log_has_one_line_per_line_feed_and_holds_no_live_markup(name: str) -> None:
    data = read(name)
    lines = display_lines(data)
    assert len(lines) == data.count(b"\n") + bool(data and not data.endswith(b"\n"))
    for line in lines[:2000]:
        html = text_html(line)
        assert "<script" not in html
        assert "<img" not in html
        assert "\x1b" not in html
        assert "\u202e" not in html


def test_a_progress_bar_is_one_line_in_its_last_state() -> None:
    bar, after = display_lines(read("01_tqdm_cr.txt"))
    assert bar.text.startswith("Epoch 3:  100%|")
    assert after.text == "epoch 3 done"


def test_a_character_on_a_chunk_border_is_whole() -> None:
    (line,) = display_lines(read("31_utf8_split_across_chunks.txt"))
    assert "�" not in line.text
    assert len(line.text) >= 2000
