"""The logs of several workers of a run as one. Logs carry no time: at first each worker's last lines stand together, by
rank; what follows comes in the order of its arrival, whole looks at a time.
"""

import asyncio
from collections.abc import Mapping, Sequence

from astraconsole.errors import ValidationError
from runs import log_source
from runs.log_follower import SHOWN_LINES, Batch, Position, advance, last_lines
from runs.log_source import Followed

TOGETHER_MAX = 64  # workers shown as one log: each costs its machine a read every few seconds
LINES_MIN = 50  # of each at first


async def last_lines_of_all(followed: Sequence[Followed], timeout: float) -> list[Batch]:
    """The 5,000 lines of a page, divided among the workers."""
    lines = max(SHOWN_LINES // max(len(followed), 1), LINES_MIN)
    return await asyncio.gather(*(last_lines(each, None, timeout, lines) for each in followed))


async def advance_all(
    followed: Sequence[Followed], positions: Mapping[str, Position | None], hurry: bool
) -> list[Batch]:
    """What has come since, of each."""
    return await asyncio.gather(*(advance(each, positions[each.name], log_source.read, hurry) for each in followed))


def parse_positions(text: str) -> dict[str, Position | None]:
    """Of `worker~position,worker~position`: where a page has each worker's log; without a position, from the start.
    Raises ValidationError."""
    pairs = [entry.partition("~") for entry in text.split(",")] if text else []
    if not 1 <= len(pairs) <= TOGETHER_MAX:
        rule = f"must name 1 to {TOGETHER_MAX} workers"
        raise ValidationError(f"from {rule}", [{"field": "from", "rule": rule}])
    return {name: Position.parse(position) if position else None for name, _, position in pairs}
