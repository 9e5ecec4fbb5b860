"""Terminal colours as CSS class names: `a-bold`, `a-fg1` … `a-fg15`, `a-bg1` …. Pure."""

from dataclasses import dataclass, replace

_PARAMETERS_MAX = 100  # characters; longer ones are no colour

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
        if len(parameters) > _PARAMETERS_MAX:
            return self
        codes = [
            int(part) if part.isascii() and part.isdigit() else 0 for part in parameters.replace(":", ";").split(";")
        ]
        style, index = self, 0
        while index < len(codes):
            if codes[index] in (38, 48):
                colour, used = _extended_colour(codes[index + 1 :])
                style = style._coloured(codes[index] == 48, colour)
                index += used
            else:
                style = style._simple(codes[index])
            index += 1
        return style

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


def _extended_colour(codes: list[int]) -> tuple[int | None, int]:
    """(colour, codes used) of `5;n` or `2;r;g;b`."""
    if len(codes) >= 2 and codes[0] == 5:
        return _of_256(codes[1]), 2
    if len(codes) >= 4 and codes[0] == 2:
        return _nearest(codes[1], codes[2], codes[3]), 4
    return None, len(codes)


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
