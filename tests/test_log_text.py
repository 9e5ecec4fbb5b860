"""From a program's bytes to the lines that a person sees."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.log_html import Mark, line_html, mark_html, text_html
from runs.log_text import LINE_MAX, Line, LineDecoder, Place, display_lines


def texts(data: bytes) -> list[str]:
    return [line.text for line in display_lines(data)]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"\n\n", ["", ""]),
        (b"dos\r\nlines\r\n", ["dos", "lines"]),
        (b"dos\r\r\n", ["dos"]),
        (b"10%\r50%\r100%\ndone\n", ["100%", "done"]),
        (b"10%\r50%\r", ["50%"]),
        (b"alpha\rbeta\rgamma\n", ["gamma"]),
        (b"\x1b[2K\x1b[1G10%\x1b[2K\x1b[1G20%\n", ["20%"]),
        (b"\x1b[?25l\x1b[3Ahidden cursor\x1b[K\n", ["hidden cursor"]),
        (b"\x1b]0;title\x07step\n", ["step"]),
        (b"\x1b]8;;http://example.invalid\x1b\\link\x1b]8;;\x1b\\\n", ["link"]),
        (b"\x1b]0;never ended\n", ["0;never ended"]),
        (b"\x1bPdevice string\x1b\\after\n", ["after"]),
        (b"nul\x00bell\x07\n", ["nul␀bell␇"]),
        (b"abc\b\bXY\n", ["aXY"]),
        (b"abc\b\n", ["abc"]),
        (b"spin |\b/\b-\b\n", ["spin -"]),
        (b"spin |\x1b[D/\x1b[1D-\n", ["spin -"]),
        (b"abc\x1b[2DX\n", ["aXc"]),
        (b"abc\x1b[2D\x1b[KX\n", ["aX"]),
        (b"100%\x1b[9D99%\n", ["99%"]),
        (b"foo\x1b[3Cbar\n", ["foo   bar"]),
        (b"Starting x\x1b[20G[ OK ]\n", ["Starting x         [ OK ]"]),
        (b"x\x1b[999999999Gy\n", ["x" + " " * 499 + "y"]),
        (b"10%\x1b[2Kdone\n", ["done"]),
        (b"10%\x1b[2K\n", [""]),
        (b"first frame\x1b[2J\x1b[Hnext\n", ["next"]),
        (b"kept\x1b[2J\x1b[H\n", ["kept"]),  # nothing is written in its place
        (b"10%\x1b[1;1Hdone\n", ["done"]),
        (b"\x1b[?1049hfull screen\x1b[?1049l\n", ["full screen"]),
        (b"\x1b(B\x1b[mtput\n", ["tput"]),
        ("日本\b\b語\n".encode(), ["日語"]),
        ("de\u0301f\b\bX\n".encode(), ["dXf"]),
        (b"100%\r\x1b[0m\n", ["100%"]),
        (b"100%\r\x1b[?25h\r\n", ["100%"]),
        (b"100%\r\x1b[K\n", [""]),
        (b"100%\r\x1b[31mfailed\n", ["failed"]),
        (b"step \x1b[3", ["step "]),
        (b"step \x1b]8;;http://exam", ["step "]),
        (b"step \x1b[3\n", ["step "]),
        (b"tab\tstays\n", ["tab\tstays"]),
        (b"latin1 \xe9 end\n", ["latin1 � end"]),
        ("€uro 🙂\n".encode(), ["€uro 🙂"]),
        (b"cut \xe2\x82", ["cut "]),
        (b"cut \xe2\x82\n", ["cut �"]),
    ],
)
def test_output_becomes_display_lines(data: bytes, lines: list[str]) -> None:
    assert texts(data) == lines


def test_each_line_knows_where_it_begins() -> None:
    lines = display_lines("é\n10%\r20%\nlast".encode(), start=1000)
    assert [(line.offset, line.number, line.complete) for line in lines] == [
        (1000, 1, True),
        (1003, 2, True),
        (1011, 3, False),
    ]


def test_a_line_that_is_too_long_is_cut_with_its_full_length_told() -> None:
    cut, after = display_lines(b"x" * 3_000_000 + b"\nnext line\n")
    assert (len(cut.text), cut.length, cut.cut_note) == (LINE_MAX, 3_000_000, "line cut: 16 KiB of 2.86 MiB shown")
    assert (after.text, after.cut_note) == ("next line", "")
    assert "line cut: 16 KiB of 2.86 MiB shown" in line_html(cut, 1)


def test_a_cut_falls_on_a_character_edge() -> None:
    (line,) = display_lines(("€" * 10_000).encode())
    assert line.text == "€" * (LINE_MAX // 3)


def test_a_cut_is_lifted_when_the_line_starts_over() -> None:
    (line,) = display_lines(b"x" * 100_000 + b"\rshort")
    assert (line.text, line.is_cut) == ("short", False)


_ALPHABET = [
    b"a",
    b"\n",
    b"\r",
    b"\r\n",
    b"\x1b[31m",
    b"\x1b",
    b"[0m",
    b"\r\x1b[0m",
    b"\x1b[?25h",
    b"\x1b[K",
    b"\x1b[2D",
    b"\x00",
    b"\b",
    b"\xe2\x82\xac",
    b"\xe2",
    b"\x82",
    b"\xff",
    b"word " * 9,
]
_output = st.lists(st.sampled_from(_ALPHABET), max_size=60).map(b"".join)


def fed_in_chunks(data: bytes, borders: list[int], line_max: int) -> list[Line]:
    decoder = LineDecoder(line_max=line_max)
    edges = [0, *sorted(border % (len(data) + 1) for border in borders), len(data)]
    lines = [line for start, end in itertools.pairwise(edges) for line in decoder.feed(data[start:end])]
    return [*lines, *filter(None, [decoder.partial()])]


@given(_output, st.lists(st.integers(0, 10_000), max_size=8), st.integers(4, 40))
def test_any_chunk_borders_give_the_same_lines(data: bytes, borders: list[int], line_max: int) -> None:
    expected = display_lines(data, line_max=line_max)
    lines = fed_in_chunks(data, borders, line_max)
    assert lines == expected
    assert [line.spans for line in lines] == [line.spans for line in expected]


@given(_output, st.integers(0, 10_000), st.integers(4, 40))
def test_a_decoder_resumed_at_any_place_goes_on_as_if_it_had_never_stopped(
    data: bytes, border: int, line_max: int
) -> None:
    border %= len(data) + 1
    first = LineDecoder(line_max=line_max)
    before = first.feed(data[:border])
    place = first.place
    head = data[place.segment : place.next][:line_max]
    second = LineDecoder.resumed(place, head, line_max)
    assert second.place == place
    assert second.partial() == first.partial()
    after = second.feed(data[border:])
    assert [*before, *after, *filter(None, [second.partial()])] == display_lines(data, line_max=line_max)


@given(st.binary(max_size=300))
def test_any_bytes_have_one_line_per_line_feed_and_inert_html(data: bytes) -> None:
    lines = display_lines(data)
    assert len(lines) in (data.count(b"\n"), data.count(b"\n") + 1)
    for line in lines:
        assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", line.text)
        assert not re.search(r"<(?!/?span|/?mark)", text_html(line))


def test_a_place_far_into_a_huge_line_needs_only_its_head_again() -> None:
    place = Place(line=10, segment=10, next=10 + 5_000_000, number=2)
    decoder = LineDecoder.resumed(place, b"h" * LINE_MAX)
    (line,) = decoder.feed(b"end\n")
    assert (line.offset, line.length, line.number) == (10, 5_000_003, 2)


def test_a_carriage_return_at_the_place_still_starts_a_long_line_over() -> None:
    first = LineDecoder(line_max=4)
    first.feed(b"a long line\r\r")
    second = LineDecoder.resumed(first.place, b"a lo", line_max=4)
    (line,) = second.feed(b"new\n")
    assert (line.text, line.is_cut) == ("new", False)


@pytest.mark.parametrize(
    ("codes", "classes"),
    [
        ("31", "a-fg1"),
        ("1;31", "a-bold a-fg1"),
        ("91;44", "a-fg9 a-bg4"),
        ("38;5;196", "a-fg9"),
        ("38;5;3", "a-fg3"),
        ("38;5;240", "a-fg8"),
        ("48;2;0;0;230", "a-bg4"),
        ("38:2:0:255:0", "a-fg10"),
        ("31;0", ""),
        ("", ""),
        ("31;39", ""),
        ("1;2;22;4", "a-underline"),
        ("38:2::255:0:0", "a-fg9"),
        ("4:3", "a-underline"),
        ("4;4:0", ""),
        ("58;2;1;4;9", ""),
        ("58:2::1:4:9;31", "a-fg1"),
        ("1;>4;2", ""),
        (">4;2", ""),
        ("?1", ""),
        ("999", ""),
        ("38;5", ""),
        ("9" * 5000, ""),
        ("38;2;" + "9" * 40 + ";0;0", "a-fg9"),
    ],
)
def test_colours_become_class_names(codes: str, classes: str) -> None:
    (line,) = display_lines(f"\x1b[{codes}mtext\x1b[0m".encode())
    assert [(span.text, span.classes) for span in line.spans] == [("text", classes)]


def test_a_colour_ends_with_its_line() -> None:
    first, second = display_lines(b"\x1b[31mred\nplain\n")
    assert (first.spans[0].classes, second.spans[0].classes) == ("a-fg1", "")


def test_markup_in_a_log_is_text() -> None:
    (line,) = display_lines(b'<script>alert(1)</script> &lt; "q" \x1b[31m<b>\x1b[0m')
    html = line_html(line, 1)
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp;lt; &quot;q&quot;" in html
    assert '<span class="a-fg1">&lt;b&gt;</span>' in html
    assert mark_html(Mark("<b>")) == '<li class="gap"><a></a><span>— &lt;b&gt; —</span></li>'


def test_text_that_would_run_backwards_is_made_visible() -> None:
    (line,) = display_lines("user \u202egnp.exe\u202c zero\u200bwidth".encode())
    assert text_html(line) == "user ⟨U+202E⟩gnp.exe⟨U+202C⟩ zero⟨U+200B⟩width"


@pytest.mark.parametrize("code", [0xAD, 0x180E, 0x200B, 0x2060, 0xFEFF, 0xFFF9])
def test_a_character_that_nobody_would_see_is_made_visible(code: int) -> None:
    (line,) = display_lines(f"er{chr(code)}ror".encode())
    assert text_html(line) == f"er⟨U+{code:04X}⟩ror"


def test_what_was_looked_for_is_marked() -> None:
    (line,) = display_lines(b"CUDA <cuda>")
    assert text_html(line, "cuda") == "<mark>CUDA</mark> &lt;<mark>cuda</mark>&gt;"
    assert text_html(line, "<") == "CUDA <mark>&lt;</mark>cuda&gt;"


def test_a_line_has_a_permanent_link() -> None:
    (line,) = display_lines(b"Traceback", start=90)
    assert line_html(line, 2).startswith('<li id="L2.90" class="error"><a href="#L2.90"')
