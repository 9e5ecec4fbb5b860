"""An attempt between its order and its start: it is prepared, and may wait for the others of its gang. A stop can come
at any moment of that."""

import asyncio
from collections.abc import Awaitable

from machines.agent.barrier import Barrier
from machines.agent.runtimes.base import CannotStart, Prepared
from machines.protocol import EndReason


class Launch:
    """Of one attempt. `barrier` is None where it waits for no others."""

    def __init__(self, barrier: bool) -> None:
        self.barrier = Barrier() if barrier else None
        self._preparing: asyncio.Future[Prepared] | None = None
        self._stopped = False

    async def prepare(self, work: Awaitable[Prepared]) -> Prepared:
        """The work's result; given up as soon as a stop is asked for. Raises CannotStart."""
        self._preparing = asyncio.ensure_future(work)
        try:
            await asyncio.wait([self._preparing])
        finally:
            self._preparing.cancel()
        if self._stopped:
            raise CannotStart(EndReason.STOPPED, "")
        return self._preparing.result()

    def stop(self) -> None:
        self._stopped = True
        if self._preparing is not None:
            self._preparing.cancel()
        if self.barrier is not None:
            self.barrier.stop()
