"""Terminal colours as CSS class names: `a-bold`, `a-fg1` … `a-fg15`, `a-bg1` …. Pure."""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

_COLOURS = re.compile(r"[0-9;:]{0,100}")  # others, and longer ones, are no colour

# What a terminal shows for its sixteen colours: others are drawn as the nearest of these.
_PALETTE = (
    *((0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205), (0, 205, 205), (229, 229, 229)),
    *((127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0), (92, 92, 255), (255, 0, 255), (0, 255, 255)),
    (255, 255, 255),
)
_ON = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "reverse", 9: "strike"}
_OFF = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("reverse",), 29: ("strike",)}


@dataclass(frozen=True)
class Style:
    marks: frozenset[str] = frozenset()
    foreground: int | None = None
    background: int | None = None

    @property
    def classes(self) -> str:
        names = [f"a-{mark}" for mark in sorted(self.marks)]
        if self.foreground is not None:
            names.append(f"a-fg{self.foreground}")
        if self.background is not None:
            names.append(f"a-bg{self.background}")
        return " ".join(names)

    def changed(self, parameters: str) -> "Style":
        """After `ESC [ parameters m`. What is not known changes nothing."""
        return _changed(self, parameters) if _COLOURS.fullmatch(parameters) else self

    def _simple(self, code: int) -> "Style":
        if code == 0:
            return PLAIN
        if code in _ON:
            return replace(self, marks=self.marks | {_ON[code]})
        if code in _OFF:
            return replace(self, marks=self.marks - set(_OFF[code]))
        if code in (39, 49):
            return self._coloured(code == 49, None)
        for first, offset, is_background in ((30, 0, False), (40, 0, True), (90, 8, False), (100, 8, True)):
            if first <= code < first + 8:
                return self._coloured(is_background, code - first + offset)
        return self

    def _coloured(self, is_background: bool, colour: int | None) -> "Style":
        return replace(self, background=colour) if is_background else replace(self, foreground=colour)


PLAIN = Style()


@lru_cache(4096)
def _changed(style: Style, parameters: str) -> Style:
    fields = parameters.split(";")
    index = 0
    while index < len(fields):
        code, *details = (int(part or 0) for part in fields[index].split(":"))
        if code in (38, 48, 58):
            following = [int(part) if part.isdigit() else 0 for part in fields[index + 1 :]]
            colour, used = (_extended_colour(_without_space(details)), 0) if details else _taken(following)
            style = style._coloured(code == 48, colour) if code != 58 else style  # 58: of the underline
            index += used
        elif details == [0]:  # 4:0, no underline
            style = style._simple(code + 20)
        else:
            style = style._simple(code)
        index += 1
    return style


def _taken(codes: list[int]) -> tuple[int | None, int]:
    """(colour, codes used) of `5;n` or `2;r;g;b`, which more codes may follow."""
    used = {5: 2, 2: 4}.get(codes[0] if codes else 0, len(codes))
    return _extended_colour(codes[:used]), used


def _without_space(details: list[int]) -> list[int]:
    """`2:r:g:b` of `2:<colour space>:r:g:b`."""
    return [details[0], *details[2:5]] if details[0] == 2 and len(details) > 4 else details


def _extended_colour(codes: list[int]) -> int | None:
    match codes:
        case [5, number]:
            return _of_256(number)
        case [2, red, green, blue]:
            return _nearest(red, green, blue)
        case _:
            return None


def _of_256(number: int) -> int | None:
    if number < 16:
        return number
    if number < 232:
        red, green, blue = ((number - 16) // step % 6 for step in (36, 6, 1))
        return _nearest(*(40 * level + 55 if level else 0 for level in (red, green, blue)))
    if number < 256:
        return _nearest(*[10 * (number - 232) + 8] * 3)
    return None


def _nearest(red: int, green: int, blue: int) -> int:
    wanted = (red, green, blue)
    return min(range(16), key=lambda index: sum((a - b) ** 2 for a, b in zip(_PALETTE[index], wanted, strict=True)))
