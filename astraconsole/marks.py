"""How a state looks: its tone (a colour of the stylesheet) and a mark whose shape differs too. Pure data."""

from typing import NamedTuple


class Mark(NamedTuple):
    """`tone`: run | busy | wait | again | fail | done | off. `icon`: a shape of SHAPES, or a name of heroicons."""

    tone: str
    icon: str


STATES: dict[str, Mark] = {
    # runs and workers
    "Pending": Mark("wait", "ring"),
    "Preparing": Mark("busy", "arc"),
    "Pulling": Mark("busy", "arc"),
    "Starting": Mark("busy", "arc"),
    "Running": Mark("run", "dot"),
    "Restarting": Mark("again", "arrow-path"),
    "Completed": Mark("done", "check"),
    "Failed": Mark("fail", "x-mark"),
    "Cancelled": Mark("off", "no-symbol"),
    "Deleted": Mark("off", "trash"),
    # machines
    "Joining": Mark("wait", "ring"),
    "Ready": Mark("run", "dot"),
    "Cordoned": Mark("wait", "pause"),
    "Draining": Mark("busy", "arrow-right-start-on-rectangle"),
    "Drained": Mark("wait", "pause"),
    "Lost": Mark("fail", "signal-slash"),
    "Stopping": Mark("off", "ring"),
    "Removed": Mark("off", "no-symbol"),
    # schedules, and what came of a time
    "Enabled": Mark("run", "dot"),
    "Disabled": Mark("off", "pause"),
    "Started": Mark("done", "check"),
    "Skipped": Mark("off", "no-symbol"),
    # what people do
    "Added": Mark("done", "plus"),
    "Replaced": Mark("busy", "arrow-path"),
    "Changed": Mark("busy", "pencil"),
    # webhooks
    "Failing": Mark("again", "arrow-path"),
    "Delivered": Mark("done", "check"),
    # what machines hold
    "Synced": Mark("run", "check"),
    "Waiting": Mark("wait", "ring"),
    "Filling": Mark("busy", "arc"),
}
UNKNOWN = Mark("off", "ring")

_ATTRIBUTES = 'viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="2" aria-hidden="true"'
_SVG = '<svg class="mark {0}" ' + _ATTRIBUTES + ">{1}</svg>"
SHAPES: dict[str, str] = {
    "dot": _SVG.format("dot", '<circle cx="8" cy="8" r="5" fill="currentColor" stroke="none"/>'),
    "ring": _SVG.format("ring", '<circle cx="8" cy="8" r="5" stroke-dasharray="3 2.24"/>'),
    "arc": _SVG.format("arc", '<path d="M8 3a5 5 0 1 1-5 5"/>'),
}


def mark_of(state: str) -> Mark:
    return STATES.get(state, UNKNOWN)
