"""What is sent to a page about a log: items as HTML, and where it stands."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from runs.log_errors import contains_error
from runs.log_follower import Batch, Item, Position, Status
from runs.log_html import ALONE, Mark, Owner, line_html, mark_html
from runs.log_text import Line


@dataclass(frozen=True)
class Filter:
    """Lines that hold `find`, and with `errors` those that contain `error`, each with `context` lines on both sides.
    Marks always stay."""

    find: str = ""
    errors: bool = False
    context: int = 0

    def matches(self, item: Item) -> bool:
        if isinstance(item.content, Mark):
            return False
        text = item.content.text
        return (not self.errors or contains_error(text)) and self.find.lower() in text.lower()

    def kinds(self, items: Sequence[Item]) -> list[str]:
        """Of each item: "" it is shown, "context" it stands near one that is, "off" it is not shown."""
        if not self.find and not self.errors:
            return [""] * len(items)
        kinds = ["" if isinstance(item.content, Mark) or self.matches(item) else "off" for item in items]
        for index, item in enumerate(items):
            if kinds[index] == "" and isinstance(item.content, Line):
                for near in range(max(index - self.context, 0), min(index + self.context + 1, len(items))):
                    kinds[near] = kinds[near] and "context"
        return kinds


EVERYTHING = Filter()


@dataclass(frozen=True)
class Frame:
    """One batch, ready to send: `text` is JSON `{worker, html, position, status, message, more}`."""

    text: str
    position: Position | None
    status: Status
    more: bool


def frame_of(batch: Batch, worker: str, owner: Owner = ALONE) -> Frame:
    content = {
        "worker": worker,
        "html": html_of(batch.items, owner=owner),
        "position": str(batch.position or ""),
        "status": batch.status,
        "message": batch.message,
        "more": batch.more,
    }
    return Frame(json.dumps(content), batch.position, batch.status, batch.more)


def html_of(items: Sequence[Item], shown: Filter = EVERYTHING, owner: Owner = ALONE, linked: int | None = None) -> str:
    """List items. What a filter drops is there but not shown, so that a page can change the filter by itself. `linked`:
    the offset in the line that was asked for."""
    chosen = _line_at(items, linked)
    return "".join(
        line_html(
            item.content, item.attempt, owner, shown.find, [*([kind] if kind else []), *["linked"] * (item is chosen)]
        )
        if isinstance(item.content, Line)
        else mark_html(item.content, owner)
        for item, kind in zip(items, shown.kinds(items), strict=True)
    )


def _line_at(items: Sequence[Item], offset: int | None) -> Item | None:
    """The last line that begins at `offset` or before."""
    if offset is None:
        return None
    lines = [item for item in items if isinstance(item.content, Line) and item.content.offset <= offset]
    return lines[-1] if lines else None


def text_of(items: Sequence[Item], shown: Filter, rank: str = "") -> str:
    """What is shown, as a text file. `rank` is told before each line."""
    before = f"[{rank}] " if rank else ""
    parts = []
    for item, kind in zip(items, shown.kinds(items), strict=True):
        if isinstance(item.content, Mark):
            parts.append(f"{before}{item.content.plain}\n")
        elif kind != "off":
            unfinished = not item.content.complete and not rank
            parts.append(f"{before}{item.content.text}{'' if unfinished else chr(10)}")
    return "".join(parts)
