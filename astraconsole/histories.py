"""Histories in the JSON API, of runs, workers and machines: one shape for all."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Protocol

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from astraconsole.json_bodies import moment


class Moved(TypedDict):
    """One entry of a history, oldest first."""

    transition_at: str
    state: str
    reason: str
    actor: str


class Move(Protocol):
    """A row of a history, as the database holds it."""

    at: datetime
    state: str
    reason: str
    actor: str


def moves(history: Iterable[Move]) -> list[dict[str, Any]]:
    """Each a Moved."""
    return [
        {"transition_at": moment(move.at), "state": move.state, "reason": move.reason, "actor": move.actor}
        for move in history
    ]
