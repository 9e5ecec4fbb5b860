"""What may lie between an agent and the console: a cable that can be cut, and a line that loses and muddles messages.

Each runs on a loop and a thread of its own, since the tests of this folder are not asynchronous.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from machines import protocol
from machines.agent.connection import websocket_url

LATEST_SECONDS = 1.5  # of a message that is delayed
FATES = {"dropped": 0.15, "duplicated": 0.15, "delayed": 0.25}  # of each message: the rest arrives as it should
TOLD_ONCE = (protocol.Hello, protocol.Welcome, protocol.Goodbye)  # a connection begins and ends with these


class Cable:
    """A TCP proxy. `cut`: connections end, and new ones are refused. `silence`: they stand, and nothing comes through.
    `mend`: as before; what was held arrives."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname, parts.port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self.url = ""

    async def open(self) -> None:
        self._flows = asyncio.Event()
        self._flows.set()
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        self._end_all()

    def cut(self) -> None:
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._end_all)

    def silence(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.clear)

    def mend(self) -> None:
        self._is_cut = False
        self._loop.call_soon_threadsafe(self._flows.set)

    def _end_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            there_reader, there = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there}
        await first_of(self._pump(reader, there), self._pump(there_reader, writer))
        for each in (writer, there):
            self._writers.discard(each)
            each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()


class Line:
    """A websocket proxy that knows the frames: by a seed, each message is dropped, doubled, delayed (and so overtaken
    by later ones) or passed on."""

    def __init__(self, target: str, seed: int) -> None:
        self._target = websocket_url(target)
        self._random = random.Random(seed)
        self.told: Counter[str] = Counter()  # what became of messages
        self.muddles = True
        self.url = ""

    async def open(self) -> None:
        self._server = await serve(self._serve, "127.0.0.1", 0, compression=None, max_size=None)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, agent: ServerConnection) -> None:
        assert agent.request is not None
        headers = {"Authorization": agent.request.headers["Authorization"]}
        try:
            async with connect(
                self._target, additional_headers=headers, compression=None, max_size=None, proxy=None
            ) as console:
                await first_of(
                    self._pump(agent, console.send, protocol.decode_from_agent),
                    self._pump(console, agent.send, protocol.decode_to_agent),
                )
        except (OSError, InvalidHandshake, ConnectionClosed):
            pass

    async def _pump(
        self,
        source: "ServerConnection | connect",
        send: Callable[[bytes], Awaitable[None]],
        decode: Callable[[bytes], object],
    ) -> None:
        late: set[asyncio.Task[None]] = set()
        try:
            async for frame in source:
                delays = [0.0] if isinstance(decode(frame), TOLD_ONCE) or not self.muddles else self._delays()
                for delay in delays:
                    if delay:
                        late.add(asyncio.create_task(_later(delay, send, frame)))
                    else:
                        await send(frame)
        except ConnectionClosed:
            pass
        finally:
            for task in late:
                task.cancel()

    def _delays(self) -> list[float]:
        """Of each copy that is to arrive."""
        fate = self._random.choices([*FATES, "passed on"], [*FATES.values(), 1 - sum(FATES.values())])[0]
        self.told[fate] += 1
        late = self._random.uniform(0.01, LATEST_SECONDS)
        return {"dropped": [], "duplicated": [0.0, late], "delayed": [late], "passed on": [0.0]}[fate]


async def _later(delay: float, send: Callable[[bytes], Awaitable[None]], frame: bytes) -> None:
    await asyncio.sleep(delay)
    with suppress(ConnectionClosed):
        await send(frame)


async def first_of(*works: Awaitable[None]) -> None:
    """Until one of them is over; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def laid(*wires: Cable | Line) -> Iterator[None]:
    """Open them on a thread of their own; close them at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Awaitable[None]) -> None:
        asyncio.run_coroutine_threadsafe(_awaited(work), loop).result(30)

    for wire in wires:
        run(wire.open())
    try:
        yield
    finally:
        for wire in wires:
            run(wire.close())
        run(_cancel_all())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
