"""What this machine holds of credentials, drives and models, or tries to get: told to the console as a whole."""

import asyncio
from collections.abc import Callable

import msgspec

from machines.orders import DataKind
from machines.protocol import DATA_STATES_MAX, MAX_BYTES_FROM_AGENT, DataState, DataStates, encode

SPACING_SECONDS = 1.0  # between two messages
SHORT_MESSAGE = 100  # characters


class DataBoard:
    """`send` may drop what it is given: while there is no connection, say. `tell` makes that good."""

    def __init__(self, send: Callable[[DataStates], None]) -> None:
        self._send = send
        self._items: dict[tuple[DataKind, str], DataState] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._told_at = float("-inf")

    def put(self, item: DataState) -> None:
        if self._items.get((item.kind, item.uid)) != item:
            self._items[item.kind, item.uid] = item
            self._plan()

    def keep_only(self, kind: DataKind, uids: set[str]) -> None:
        """What else there is of this kind is of no interest any more."""
        gone = [key for key in self._items if key[0] == kind and key[1] not in uids]
        for key in gone:
            del self._items[key]
        if gone:
            self._plan()

    def tell(self) -> None:
        """All of it, now: a console has just welcomed this machine."""
        self._told_at = asyncio.get_running_loop().time()
        self._send(in_one_frame(list(self._items.values())))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _plan(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._told_at + SPACING_SECONDS), self._tell_change)

    def _tell_change(self) -> None:
        self._timer = None
        self.tell()


def in_one_frame(items: list[DataState]) -> DataStates:
    """As many as a message takes; with their messages cut short, where these would make the frame too large."""
    told = DataStates(items[:DATA_STATES_MAX])
    if len(encode(told)) <= MAX_BYTES_FROM_AGENT:
        return told
    return DataStates([msgspec.structs.replace(item, message=item.message[:SHORT_MESSAGE]) for item in told.items])
