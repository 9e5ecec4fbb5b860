"""Output of each kind that programs print, made here at random, and what a viewer must show of it."""

import itertools
import random
from collections.abc import Callable

import pytest

from runs.log_errors import contains_error, looks_like_error
from runs.log_html import text_html
from runs.log_text import LINE_MAX, LineDecoder, display_lines

ESC = b"\x1b"


def progress_bars(draw: random.Random) -> tuple[bytes, list[str]]:
    """tqdm's, with and without a colour, a clearing of the line, or Windows' line ends."""
    output, shown = b"", []
    for number in range(draw.randint(1, 5)):
        steps, clear = draw.randint(2, 200), draw.choice([b"", ESC + b"[K", ESC + b"[2K"])
        colour, off = draw.choice([(b"", b""), (ESC + b"[32m", ESC + b"[0m")])
        for step in range(steps + 1):
            output += b"\r" + clear + colour + b"bar %d: %3d%%" % (number, 100 * step // steps) + off
        output += draw.choice([b"\n", b"\r\n"])
        shown.append(f"bar {number}: 100%")
    return output, shown


def titles_and_links(draw: random.Random) -> tuple[bytes, list[str]]:
    end = draw.choice([b"\x07", ESC + b"\\"])
    title = ESC + b"]%d;title <b>%d" % (draw.choice([0, 1, 2]), draw.randint(0, 9)) + end
    link = ESC + b"]8;;https://example.test/?a=1" + end + b"link" + ESC + b"]8;;" + end
    return title + b"step 1 " + link + b"\n" + ESC + b"P1$r0m" + ESC + b"\\" + b"step 2\n", ["step 1 link", "step 2"]


def reordering_characters(draw: random.Random) -> tuple[bytes, list[str]]:
    codes = draw.sample([0x202A, 0x202B, 0x202D, 0x202E, 0x2066, 0x2067, 0x2068, 0x200F, 0x061C], 4)
    text = "".join(f"a{chr(code)}b" for code in codes)
    return f"{text}\nafter\n".encode(), [text, "after"]


def old_mac_line_ends(draw: random.Random) -> tuple[bytes, list[str]]:
    words = [f"word {draw.randint(0, 99)}" for _ in range(draw.randint(2, 6))]
    return "\r".join(words).encode(), [words[-1]]


def interleaved_ranks(draw: random.Random) -> tuple[bytes, list[str]]:
    lines = [f"[rank{draw.randint(0, 3)}]: step {step}" for step in range(50)]
    return "".join(f"{line}\n" for line in lines).encode(), lines


def characters_of_all_lengths(draw: random.Random) -> tuple[bytes, list[str]]:
    text = "".join(draw.choice("aé€😀") for _ in range(1000))
    return f"{text}\n".encode(), [text]


def broken_characters(draw: random.Random) -> tuple[bytes, list[str]]:
    return b"a\xe2\x82\nb\xffc\n\xc3", ["a�", "b�c"]


def control_characters(draw: random.Random) -> tuple[bytes, list[str]]:
    code = draw.choice([0, 1, 7, 0x0B, 0x0C, 0x0E, 0x1F])
    return b"a" + bytes([code]) + b"b\n", [f"a{chr(0x2400 + code)}b"]


def backspaces(draw: random.Random) -> tuple[bytes, list[str]]:
    return b"".join(b"%c\x08" % draw.choice(b"|/-\\") for _ in range(50)) + b"done\n", ["done"]


KINDS: list[Callable[[random.Random], tuple[bytes, list[str]]]] = [
    progress_bars,
    titles_and_links,
    reordering_characters,
    old_mac_line_ends,
    interleaved_ranks,
    characters_of_all_lengths,
    broken_characters,
    control_characters,
    backspaces,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seed", range(5))
def test_each_kind_of_output_is_shown_as_it_looks_whatever_the_chunks(
    kind: Callable[[random.Random], tuple[bytes, list[str]]], seed: int
) -> None:
    draw = random.Random(seed)
    output, expected = kind(draw)
    lines = display_lines(output)
    assert [line.text for line in lines if line.text] == expected
    borders = sorted(draw.randint(0, len(output)) for _ in range(20))
    decoder = LineDecoder()
    chunked = [line for a, b in itertools.pairwise([0, *borders, len(output)]) for line in decoder.feed(output[a:b])]
    assert [*chunked, *filter(None, [decoder.partial()])] == lines
    for line in lines:
        html = text_html(line)
        assert "\x1b" not in html
        assert not any(chr(code) in html for code in [*range(0x202A, 0x202F), *range(0x2066, 0x206A)])


@pytest.mark.parametrize(
    "bait",
    [
        "error " * 20_000,
        "no " * 30_000 + "error",
        "error:" + " " * 100_000,
        "error: " + "0" * 100_000 + "x",
        "-" * 100_000 + "error",
        "a" * 100_000 + "Error",
        "\x1b[" + "9;" * 50_000 + "m",
        "\x1b]" + "x" * 100_000,
        "nccl " * 20_000 + "warn",
        "x" * 400_000 + "\b" * 400_000,
        "x" * 400_000 + "\x1b[399999G\x1b[Ky" * 20_000,
        "\x1b[500Cx\x1b[2K" * 60_000,
        "日\b\b" * 100_000,
        "\be" + "\u0301" * 300_000,
        "\x1b[31mx" * 100_000,
    ],
    ids=lambda bait: f"{bait[:12]!r}",
)
def test_lines_made_to_be_slow_to_read_are_read(bait: str) -> None:
    """In linear time: what backtracks does not come to an end here."""
    (line,) = display_lines(bait.encode(), line_max=len(bait) + 1)
    looks_like_error(line.text)
    assert contains_error(line.text) == ("rror" in bait)
    text_html(line, "rror")


def test_a_huge_line_is_told_by_its_length_and_the_next_is_whole() -> None:
    cut, after = display_lines(b"x" * 3_000_000 + b"\nnext line\n")
    assert (len(cut.text), cut.cut_note, after.text) == (LINE_MAX, "line cut: 16 KiB of 2.86 MiB shown", "next line")
