"""Where an attempt waits, all but started, until the console says that the others of its gang are ready too."""

import asyncio

from machines.agent.runtimes.base import CannotStart
from machines.protocol import EndReason


class Barrier:
    """Closed at first; opened once, or left by a stop."""

    def __init__(self) -> None:
        self._decided = asyncio.Event()
        self._stopped = False

    def open(self) -> None:
        self._decided.set()

    def stop(self) -> None:
        self._stopped = True
        self._decided.set()

    async def wait(self) -> None:
        """Raises CannotStart when the attempt was stopped before it could start."""
        await self._decided.wait()
        if self._stopped:
            raise CannotStart(EndReason.STOPPED, "")
