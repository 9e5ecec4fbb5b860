"""The machine's outbound websocket to its console: kept up, with growing pauses between tries."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from machines import protocol
from machines.protocol import Close, FromAgent, Goodbye, Hello, ToAgent, Welcome

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 10
LONGEST_LOCAL_PAUSE_SECONDS = 1  # to a console on this machine, which may be just starting
SLOW_PAUSE_SECONDS = 30  # where trying again soon cannot help: replaced, wrong version
STEADY_SECONDS = 30  # a connection that lasted so long was a good one: begin with short pauses again
OPEN_SECONDS = 10
WELCOME_SECONDS = 30  # a console that has not answered a hello by then has not heard it
PING_SECONDS = 10
PONG_SECONDS = 20
SLOW_CODES = {Close.VERSION, Close.REPLACED, Close.MALFORMED, Close.NO_HELLO}

log = logging.getLogger(__name__)


class Machine(Protocol):
    """Whose connection it is."""

    name: str

    def hello(self, local_address: str) -> Hello:
        """`local_address`: this machine's end of the connection."""
        ...

    def on_message(self, message: ToAgent) -> None: ...

    def on_disconnected(self) -> None: ...


class MachineRemoved(Exception):
    """The console removed this machine from its cluster."""


class Connection:
    """`token` is asked for at each try, since joining again may have replaced it."""

    def __init__(self, console: str, token: Callable[[], str], machine: Machine) -> None:
        self.url = websocket_url(console)
        self._token = token
        self._machine = machine
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._socket: ClientConnection | None = None
        self._goodbye: Goodbye | None = None

    def send(self, message: FromAgent) -> None:
        """Nothing is kept for a later connection: what matters is repeated by its owner."""
        if self._socket is not None:
            self._outgoing.put_nowait(protocol.encode(message))

    def leave(self, slowly: bool = True) -> None:
        """Close, and try again later."""
        if self._socket is not None:
            self._goodbye = Goodbye(Close.REPLACED if slowly else Close.TRY_AGAIN, "")
            self._socket.transport.abort()

    async def run(self) -> None:
        """Until cancelled. Raises MachineRemoved."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            began = clock()
            try:
                await self._converse()
            except (OSError, InvalidHandshake, TimeoutError, ConnectionClosed) as error:
                self._say(error, failures)
            finally:
                self._close()
            if self._goodbye is not None and self._goodbye.code == Close.REMOVED:
                raise MachineRemoved(self._goodbye.reason)
            failures = 1 if clock() - began > STEADY_SECONDS else failures + 1
            await asyncio.sleep(self._pause(failures))

    async def _converse(self) -> None:
        self._goodbye = None
        headers = {"Authorization": f"Bearer {self._token()}"}
        async with connect(
            self.url,
            additional_headers=headers,
            compression=None,
            max_size=protocol.MAX_BYTES_TO_AGENT,
            open_timeout=OPEN_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PONG_SECONDS,
            close_timeout=1,
            proxy=None if is_local(self.url) else True,
        ) as socket:
            self._socket = socket
            await socket.send(protocol.encode(self._machine.hello(str(socket.local_address[0]))))
            writer = asyncio.create_task(self._write(socket))
            try:
                async with asyncio.timeout(WELCOME_SECONDS):
                    while not isinstance(self._receive(await socket.recv()), Welcome):
                        pass
                async for frame in socket:
                    self._receive(frame)
            finally:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, socket: ClientConnection) -> None:
        while True:
            await socket.send(await self._outgoing.get())

    def _receive(self, frame: str | bytes) -> ToAgent | None:
        try:
            message = protocol.decode_to_agent(frame if isinstance(frame, bytes) else frame.encode())
        except msgspec.DecodeError as error:  # of a newer console, say: what is not understood is left out
            log.warning("%s: a message of the console is not understood: %s", self._machine.name, error)
            return None
        if isinstance(message, Goodbye):
            self._goodbye = message
            log.warning("%s: the console closes the connection: %s", self._machine.name, message.reason)
        else:
            self._machine.on_message(message)
        return message

    def _close(self) -> None:
        if self._socket is not None:
            self._machine.on_disconnected()
        self._socket = None
        self._outgoing = asyncio.Queue()

    def _say(self, error: Exception, failures: int) -> None:
        """Once in full, then quietly: a console may be away for days."""
        level = logging.WARNING if failures == 0 else logging.DEBUG
        if isinstance(error, InvalidStatus) and error.response.status_code in (401, 403):
            log.log(level, "%s: the console refuses this machine's token", self._machine.name)
        else:
            log.log(level, "%s: no connection to %s: %s", self._machine.name, self.url, error or type(error).__name__)

    def _pause(self, failures: int) -> float:
        """Seconds; spread, so that a thousand machines do not come back in the same moment."""
        if self._goodbye is not None and self._goodbye.code == Close.HELLO_AGAIN:
            return 0
        if self._goodbye is not None and self._goodbye.code in SLOW_CODES:
            return SLOW_PAUSE_SECONDS * random.uniform(0.5, 1)
        longest = LONGEST_LOCAL_PAUSE_SECONDS if is_local(self.url) else LONGEST_PAUSE_SECONDS
        pause: float = min(longest, FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10))
        return pause * random.uniform(0.5, 1)


def websocket_url(console: str) -> str:
    """Of a console's address, with or without a path before it."""
    parts = urlsplit(console)
    scheme = {"https": "wss", "wss": "wss"}.get(parts.scheme, "ws")
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + "/agent/v1", "", ""))


def is_local(url: str) -> bool:
    return (urlsplit(url).hostname or "") in ("localhost", "127.0.0.1", "::1")
