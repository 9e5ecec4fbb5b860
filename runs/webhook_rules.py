"""When a webhook is tried again, and when it is given up. Pure."""

from datetime import datetime, timedelta
from enum import StrEnum

# After the first, second, … failure in a row; then always the last.
WAITS = (5, 15, 60, 300, 900, 1800, 3600)


class Purpose(StrEnum):
    """What a delivery is for. Tests and replays are tried once, out of the order."""

    EVENTS = "events"
    TEST = "test"
    REPLAY = "replay"


def next_try(failures: int, now: datetime) -> datetime:
    """`failures`: in a row, this one counted."""
    return now + timedelta(seconds=WAITS[min(failures, len(WAITS)) - 1])


def is_given_up(failing_since: datetime, now: datetime, give_up_seconds: float) -> bool:
    return now - failing_since >= timedelta(seconds=give_up_seconds)
