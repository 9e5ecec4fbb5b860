"""Lines of a log as inert HTML. Pure: everything that a program printed is escaped, and nothing of it can act on the
page: no markup, no link, no text that runs backwards over its neighbours.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from runs.log_errors import looks_like_error
from runs.log_text import Line, display_lines

LONG = 2000  # characters; such a line scrolls by itself

# Characters that reorder, join or hide text: shown by their code. Joiners of scripts and emoji stay.
_INVISIBLE = [
    *(0xAD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180E, 0x200B, 0x200E, 0x200F, 0x2028, 0x2029, 0x3164),
    *(0xFEFF, 0xFFA0, *range(0x202A, 0x202F), *range(0x2060, 0x2070), *range(0xFFF9, 0xFFFC)),
]
_SHOWN = {code: f"⟨U+{code:04X}⟩" for code in _INVISIBLE}


@dataclass(frozen=True)
class Mark:
    """What the console itself says inside a log: a gap, a new attempt, the end. `at` is told after the text."""

    text: str
    at: datetime | None = None
    after: str = ""  # what follows the time
    framed: bool = True

    @property
    def plain(self) -> str:
        time = f" {self.at.astimezone(UTC):%H:%M:%S} UTC" if self.at else ""
        return self._framed(f"{self.text}{time}{self.after}")

    @property
    def html(self) -> str:
        time = ""
        if self.at is not None:
            utc = self.at.astimezone(UTC)
            shown = f"{utc:%H:%M:%S} UTC"
            time = f' <time datetime="{utc.isoformat()}" data-as="at" title="{utc:%Y-%m-%d} {shown}">{shown}</time>'
        return self._framed(f"{escape(self.text)}{time}{escape(self.after)}")

    def _framed(self, text: str) -> str:
        return f"— {text} —" if self.framed else text


@dataclass(frozen=True)
class Owner:
    """Whose lines these are. `link`: what comes before `attempt=…` in an address that shows one of them; empty where
    the page makes that address. `rank` is told before each line where several workers are shown together."""

    link: str = ""
    rank: str = ""

    def id_of(self, attempt: int, offset: int) -> str:
        return f"L{self.rank + ':' if self.rank else ''}{attempt}.{offset}"

    def address_of(self, attempt: int, offset: int) -> str:
        place = f"{escape(self.link)}attempt={attempt}&amp;at={offset}" if self.link else ""
        return f"{place}#L{attempt}.{offset}"

    @property
    def html(self) -> str:
        return f'<b class="who w{_hue(self.rank)}">[{escape(self.rank)}]</b> ' if self.rank else ""


ALONE = Owner()
HUES = 8


def _hue(rank: str) -> int:
    return sum(ord(character) for character in rank) % HUES


def line_html(line: Line, attempt: int, owner: Owner = ALONE, find: str = "", kinds: Iterable[str] = ()) -> str:
    """A list item. Its id, `L<attempt>.<offset>`, is the line's permanent name. `kinds`: further classes."""
    name = owner.id_of(attempt, line.offset)
    classes = ["error"] * looks_like_error(line.text) + ["long"] * (len(line.text) > LONG) + [*kinds]
    attributes = f' class="{" ".join(classes)}"' if classes else ""
    note = f' <small class="faint">… {escape(line.cut_note)}</small>' if line.is_cut else ""
    link = f'<a href="{owner.address_of(attempt, line.offset)}">{line.number or "·"}</a>'
    return f'<li id="{name}"{attributes}>{link}<span>{owner.html}{text_html(line, find)}{note}</span></li>'


def tail_html(output: str) -> str:
    """The last lines of a failure, to stand in a `pre`."""
    lines = [(text_html(line), looks_like_error(line.text)) for line in display_lines(output.encode())]
    return "".join(f'<span class="error">{html}</span>\n' if is_error else f"{html}\n" for html, is_error in lines)


def mark_html(mark: Mark, owner: Owner = ALONE) -> str:
    return f'<li class="gap"><a></a><span>{owner.html}{mark.html}</span></li>'


def text_html(line: Line, find: str = "") -> str:
    """The text of a line with its colours, and what was looked for marked."""
    wanted = re.compile(re.escape(find), re.IGNORECASE) if find else None
    parts = []
    for span in line.spans:
        html = _marked(span.text.translate(_SHOWN), wanted)
        parts.append(f'<span class="{span.classes}">{html}</span>' if span.classes else html)
    return "".join(parts)


def _marked(text: str, wanted: re.Pattern[str] | None) -> str:
    if wanted is None:
        return escape(text)
    parts, at = [], 0
    for match in wanted.finditer(text):
        parts += [escape(text[at : match.start()]), "<mark>", escape(match.group()), "</mark>"]
        at = match.end()
    return "".join([*parts, escape(text[at:])])
