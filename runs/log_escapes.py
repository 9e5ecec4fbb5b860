"""The text of one line, terminal codes and all → what a terminal shows of it, in pieces of one style. Pure, and linear
in the length of the text.

What acts within the line acts: colours, backspaces, moves of the cursor along it, erasing. Writing at the first column
again starts the line over, as after a carriage return, so nothing is left of a longer text that was there. What would
act on other lines, on the window or its title is dropped.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple
from unicodedata import east_asian_width

from runs.log_style import PLAIN, Style

_COLUMNS_MAX = 500  # how far beyond its text the cursor may go in a line

_CODE = re.compile(
    r"\x1b\[(?P<parameters>[0-?]*)(?P<final>[ -/]*(?:[@-~]|\Z))"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, hyperlinks
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # other strings to the terminal
    r"|\x1b[ -/]*[0-~]"
    r"|\x1b"
    r"|\x08"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?)?\Z")
_MOVES = re.compile(r"\x08|\x1b\[[0-9;]*[CDEFGHJKaf`]")
_SPECIAL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SYMBOLS = (
    {code: 0x2400 + code for code in range(0x20) if code != 0x09}
    | {0x7F: 0x2421}
    | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
)
# What is drawn on the character before it.
_JOINS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u064b-\u065f\u1ab0-\u1aff\u1dc0-\u1dff"
    "\u200c\u200d\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f"
)
_GLYPH = re.compile(rf"[^{_JOINS}][{_JOINS}]*|[{_JOINS}]+")


class Piece(NamedTuple):
    text: str
    style: Style


def pieces_of(text: str, final: bool) -> list[Piece]:
    """Control characters as symbols. `final`: no more of the line will come; else a code that is cut off at its end is
    left out."""
    if _SPECIAL.search(text) is None:
        return [Piece(text, PLAIN)] if text else []
    if not final:
        text = _UNFINISHED.sub("", text)
    pieces = _moved(text) if _MOVES.search(text) else _coloured(text)
    return [
        Piece("".join(piece.text for piece in alike).translate(_SYMBOLS), style)
        for style, alike in groupby(pieces, key=lambda piece: piece.style)
    ]


def _coloured(text: str) -> list[Piece]:
    return [piece for piece, _ in _parts(text) if piece.text]


def _moved(text: str) -> list[Piece]:
    row = _Row()
    for piece, code in _parts(text):
        if piece.text:
            row.write(*piece)
        if code is None:
            break
        if code.group() == "\b":
            row.move(-1)
        elif code["final"] and _MOVES.fullmatch(code.group()):
            # Nine digits are beyond every line; Python refuses to read some thousands.
            row.apply(code["final"], *(int(part[:9] or 0) for part in code["parameters"].split(";")[:2]))
    return row.cells


def _parts(text: str) -> Iterator[tuple[Piece, re.Match[str] | None]]:
    """What stands before each code, in its style, and the code; none after the last."""
    style, at = PLAIN, 0
    for code in _CODE.finditer(text):
        yield Piece(text[at : code.start()], style), code
        at = code.end()
        if code["final"] == "m":
            style = style.changed(code["parameters"])
    yield Piece(text[at:], style), None


@dataclass
class _Row:
    """A cell for each column: what is wider than one column is followed by an empty cell."""

    cells: list[Piece] = field(default_factory=list)
    column: int = 0

    def write(self, text: str, style: Style) -> None:
        if self.column == 0:
            self.cells = []
        new = _cells(text, style)
        self.cells += [Piece(" ", PLAIN)] * (self.column - len(self.cells))
        self.cells[self.column : self.column + len(new)] = new
        self.column += len(new)

    def move(self, columns: int) -> None:
        self.go_to(self.column + columns)

    def go_to(self, column: int) -> None:
        self.column = max(min(column, max(len(self.cells), _COLUMNS_MAX)), 0)

    def apply(self, final: str, first: int, second: int = 0) -> None:
        match final:
            case "C" | "a":
                self.move(max(first, 1))
            case "D":
                self.move(-max(first, 1))
            case "G" | "`":
                self.go_to(first - 1)
            case "H" | "f":
                self.go_to(second - 1)
            case "E" | "F":
                self.go_to(0)
            case "J" if first > 1:  # a cleared screen: the line stays until something is written in its place
                self.go_to(0)
            case "J" | "K":
                self.erase(first)

    def erase(self, what: int) -> None:
        """0: from the cursor on. 2 and 3, and 1 with the cursor at the end: all; the next text begins at column 0."""
        if what == 0:
            del self.cells[self.column :]
        elif what > 1 or self.column >= len(self.cells):
            self.cells, self.column = [], 0


def _cells(text: str, style: Style) -> list[Piece]:
    if text.isascii():
        return [Piece(character, style) for character in text]
    cells = []
    for glyph in _GLYPH.findall(text):
        cells.append(Piece(glyph, style))
        if east_asian_width(glyph[0]) in "WF":
            cells.append(Piece("", style))
    return cells
