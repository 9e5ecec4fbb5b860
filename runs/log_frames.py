"""What is sent to a page about a log: items as HTML, and where it stands."""

import json
from dataclasses import dataclass

from runs.log_errors import contains_error
from runs.log_follower import Batch, Item, Position, Status
from runs.log_html import Mark, line_html, mark_html
from runs.log_text import Line


@dataclass(frozen=True)
class Filter:
    """Lines that hold `find`, and with `errors` those that contain `error`. Marks always stay."""

    find: str = ""
    errors: bool = False

    def shows(self, item: Item) -> bool:
        if isinstance(item.content, Mark):
            return True
        text = item.content.text
        return (not self.errors or contains_error(text)) and self.find.lower() in text.lower()


@dataclass(frozen=True)
class Frame:
    """One batch, ready to send: `text` is JSON `{html, position, status, message}`."""

    text: str
    position: Position | None
    status: Status


def frame_of(batch: Batch) -> Frame:
    position = str(batch.position) if batch.position is not None else ""
    content = {"html": html_of(batch.items), "position": position, "status": batch.status, "message": batch.message}
    return Frame(json.dumps(content), batch.position, batch.status)


def html_of(items: list[Item], shown: Filter | None = None) -> str:
    """List items. What a filter drops is there but hidden, so that a page can change the filter by itself."""
    shown = shown or Filter()
    return "".join(
        line_html(item.content, item.attempt, shown.find, hidden=not shown.shows(item))
        if isinstance(item.content, Line)
        else mark_html(item.content)
        for item in items
    )


def text_of(items: list[Item], shown: Filter) -> str:
    """What is shown, as a text file."""
    parts = []
    for item in items:
        if isinstance(item.content, Mark):
            parts.append(f"{item.content.plain}\n")
        elif shown.shows(item):
            parts.append(f"{item.content.text}\n" if item.content.complete else item.content.text)
    return "".join(parts)
