"""A console's websocket for agents, for tests: tells them what to do and keeps what they say."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from machines import protocol
from machines.orders import CredentialSource, Order, VolumeSource
from machines.protocol import (
    Acknowledge,
    Answer,
    Assignments,
    Call,
    DataState,
    DataStates,
    EndReason,
    Heartbeat,
    Hello,
    Phase,
    Reply,
    Report,
    Reports,
    Welcome,
)

CONSOLE = "c" * 32
WAIT_SECONDS = 30


class FakeConsole:
    """One cluster's console. Acknowledges reports unless `acknowledge` is false."""

    def __init__(self, uid: str = CONSOLE) -> None:
        self.uid = uid
        self.orders: list[Order] = []
        self.forget: list[str] = []
        self.waiting: list[str] = []
        self.volumes: list[VolumeSource] = []
        self.archive: list[str] = []
        self.credentials: list[CredentialSource] = []
        self.data: list[DataState] = []  # what the machine said last
        self.revision = 0
        self.acknowledge = True
        self.welcomes = True  # else hellos are heard, and what should follow is lost
        self.resend_seconds = 0.2
        self.log_keep_bytes = 1 << 30
        self.hellos: list[Hello] = []
        self.heartbeats: list[Heartbeat] = []
        self.reports: list[Report] = []
        self.tokens: list[str] = []
        self.code: dict[str, bytes] = {}  # by attempt, as addresses spell it
        self.connection: ServerConnection | None = None
        self.port = 0
        self._replies: dict[str, asyncio.Future[Answer]] = {}
        self._changed = asyncio.Condition()
        self._server: Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        self._server = await serve(
            self._serve, "127.0.0.1", self.port, compression=None, process_request=self._answer_plain
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    # ---- what it says

    async def assign(
        self,
        *orders: Order,
        forget: tuple[str, ...] = (),
        waiting: tuple[str, ...] = (),
        archive: tuple[str, ...] = (),
    ) -> None:
        """The full set from now on."""
        self.orders, self.forget, self.waiting = list(orders), list(forget), list(waiting)
        self.archive = list(archive)
        self.revision += 1
        if self.connection is not None:
            with contextlib.suppress(ConnectionClosed):
                await self._send_set()

    async def call(self, request: protocol.Request, deadline: float = 10) -> Answer:
        assert self.connection is not None
        number = str(len(self._replies))
        self._replies[number] = asyncio.get_running_loop().create_future()
        await self.connection.send(protocol.encode(Call(number, request, deadline)))
        return await asyncio.wait_for(self._replies[number], WAIT_SECONDS)

    async def cut(self) -> None:
        """The connection breaks, without a word."""
        assert self.connection is not None
        self.connection.transport.abort()
        self.connection = None

    # ---- what it heard

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(condition), WAIT_SECONDS)

    async def connected(self) -> None:
        await self.until(lambda: self.connection is not None)

    def newest(self, attempt: str) -> Report | None:
        return max((r for r in self.reports if r.attempt == attempt), key=lambda r: r.seq, default=None)

    async def reached(self, attempt: str, phase: Phase) -> Report:
        def there() -> bool:
            report = self.newest(attempt)
            return report is not None and phase in [age.phase for age in report.phases]

        await self.until(there)
        report = self.newest(attempt)
        assert report is not None
        return report

    async def waits(self, attempt: str, sentence: str) -> None:
        def said() -> bool:
            report = self.newest(attempt)
            return report is not None and report.waiting == sentence

        await self.until(said)

    async def ended(self, attempt: str) -> tuple[EndReason | None, int | None]:
        report = await self.reached(attempt, Phase.ENDED)
        return report.end_reason, report.exit_code

    # ---- the connection

    def _answer_plain(self, connection: ServerConnection, request: Request) -> Response | None:
        """What agents fetch without a websocket."""
        if request.path == "/agent/v1":
            return None
        self.tokens.append(request.headers["Authorization"])
        packed = self.code.get(request.path.removeprefix("/agent/v1/code/"))
        if packed is None:
            return connection.respond(404, "no such code")
        return Response(200, "OK", Headers({"Content-Length": str(len(packed))}), packed)

    async def _serve(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.tokens.append(connection.request.headers["Authorization"])
        try:
            async for frame in connection:
                assert isinstance(frame, bytes)
                await self._on(connection, protocol.decode_from_agent(frame))
        except ConnectionClosed:
            pass
        finally:
            if self.connection is connection:
                self.connection = None

    async def _on(self, connection: ServerConnection, message: protocol.FromAgent) -> None:
        match message:
            case Hello():
                self.hellos.append(message)
                self.connection = connection
                if self.welcomes:
                    welcome = Welcome(self.uid, "machine", 0.2, self.resend_seconds, self.log_keep_bytes)
                    await connection.send(protocol.encode(welcome))
                await self._send_set()
            case Heartbeat():
                self.heartbeats.append(message)
            case Reports(items):
                self.reports += items
                if self.acknowledge:
                    await connection.send(
                        protocol.encode(Acknowledge([(report.attempt, report.seq) for report in items]))
                    )
            case DataStates(items):
                self.data = items
            case Reply(call, answer):
                self._replies[call].set_result(answer)
        async with self._changed:
            self._changed.notify_all()

    async def _send_set(self) -> None:
        assert self.connection is not None
        told = Assignments(
            self.revision,
            self.orders,
            self.forget,
            self.waiting,
            archive=self.archive,
            credentials=self.credentials,
            volumes=self.volumes,
        )
        await self.connection.send(protocol.encode(told))


@asynccontextmanager
async def console() -> AsyncIterator[FakeConsole]:
    fake = FakeConsole()
    await fake.open()
    try:
        yield fake
    finally:
        await fake.close()
