"""The engine that serves a model beside an attempt: a second container, on the machine's own network as the first is.

It is there before the attempt's container, and gone before the attempt's end is told. Its name and labels carry the
attempt's uid too, so a later agent finds it, and knows whose it was.
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import aiodocker

from machines.agent.http_check import HOST, http_failure
from machines.agent.runtimes import docker_request as request
from machines.agent.runtimes.base import (
    AttemptFolder,
    CannotStart,
    EngineEnded,
    Listener,
    Mount,
    Prepared,
    RegistryLogin,
    Waiting,
)
from machines.agent.runtimes.docker_engine import TROUBLE, Engine
from machines.agent.runtimes.docker_images import Image, provide_image
from machines.agent.runtimes.docker_log import FrameDecoder, OutputCopy
from machines.orders import EngineUse, HttpCheck, Order
from machines.protocol import EndReason

PORTS = range(10_000, 20_000)  # below those that systems give to connections, and that runs rendezvous at
PORT_FILE = "model-engine.port"  # of an attempt's folder
NO_LOGIN: RegistryLogin | None = None  # the image is the console owner's, not the run's
ASK_SECONDS = 0.5  # between questions whether it serves
ANSWER_SECONDS = 10.0
LAST_LINES = 40  # of its log: the attempt's own last lines have room beside them
LAST_BYTES = 12 * 1024


class ModelServer:
    """Of one attempt. `emit` hears what it waits for, and once that the engine has ended by itself."""

    def __init__(self, engine: Engine, order: Order, use: EngineUse, folder: AttemptFolder, emit: Listener) -> None:
        self._engine = engine
        self._order = order
        self._use = use
        self._folder = folder
        self._emit = emit
        self._key = request.engine_key(order.attempt)
        self.watcher: asyncio.Task[None] | None = None

    # ---- before the attempt's container ------------------------------------------------------------------------------

    async def provide(self) -> Image:
        """Raises CannotStart."""
        try:
            return await provide_image(self._engine, self._use.image, "IfNotPresent", NO_LOGIN, self._tell_of_pull)
        except CannotStart as error:
            raise self._cannot_start(f"its image {self._use.image} cannot be pulled: {error.message}") from error

    async def begin(self, image: Image, model: Mount, site: request.Site) -> int:
        """The port it is to listen at. One that an earlier agent began goes on. Raises CannotStart."""
        port = _kept_port(self._folder.root / PORT_FILE)
        body = request.engine_request(self._order, self._use, model, image=image.reference, port=port, site=site)
        try:
            await self._engine.create(self._key, body)
            await self._engine.start(self._key)
        except aiodocker.DockerError as error:
            raise self._cannot_start(error.message) from error
        return port

    async def serve(self, port: int) -> None:
        """Returns once it does. Raises CannotStart."""
        self._wait_for("")
        ending = asyncio.create_task(self._engine.until_ended(self._key))
        failure = ""
        try:
            async with asyncio.timeout(self._use.start_seconds):
                while (failure := await self._failure(port)) and not ending.done():
                    await asyncio.wait((ending,), timeout=ASK_SECONDS)
        except TimeoutError:
            await self._keep_last_words()
            text = f"The engine did not serve {self._name} within {self._use.start_seconds:g} seconds: {failure}"
            raise CannotStart(EndReason.ENGINE_ENDED, text) from None
        finally:
            ended = ending.done()
            ending.cancel()
        if ended:
            await self._keep_last_words()
            raise CannotStart(EndReason.ENGINE_ENDED, await self._why())

    def told_of(self, prepared: Prepared, port: int) -> Mapping[str, str]:
        """The attempt's prepared environment with the engine's address; what the run itself sets wins."""
        told = {"ASTRA_ENGINE_URL": f"http://{HOST}:{port}", "ASTRA_ENGINE_MODEL": self._name}
        return {**prepared.env, **{name: value for name, value in told.items() if name not in self._order.env}}

    # ---- beside it ---------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        self.watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        await self._engine.until_ended(self._key)
        self._emit(EngineEnded(self._order.attempt, await self._why()))

    async def end(self) -> str:
        """After the attempt's own container. Why it had ended before, by itself; empty: it had not. The end of its log
        is then in the attempt's."""
        if self.watcher is not None:
            self.watcher.cancel()
        state = await self._engine.state(self._key)
        why = ""
        if state is None or not state.get("Running"):
            why = await self._why()
            await self._keep_last_words()
        await self._engine.delete(self._key)
        return why

    # ---- helpers -----------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return self._use.model.name

    def _wait_for(self, more: str) -> None:
        self._emit(Waiting(self._order.attempt, f"Waiting for the engine to serve {self._name}{more}"))

    def _tell_of_pull(self, progress: str) -> None:
        self._wait_for(f": pulling its image {progress}".rstrip())

    def _cannot_start(self, why: str) -> CannotStart:
        return CannotStart(EndReason.ENGINE_ENDED, f"The engine could not start: {why}")

    async def _failure(self, port: int) -> str:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await http_failure(HttpCheck(port, self._use.health_path))
        except TimeoutError:
            return f"port {port}: no answer within {ANSWER_SECONDS:g} seconds"

    async def _why(self) -> str:
        state = await self._engine.state(self._key)
        if state is None:
            return "The engine ended: its container was removed"
        if state.get("OOMKilled"):
            return "The engine ended: OOMKilled: it exceeded its share of the memory"
        return f"The engine ended: Exited with code {state['ExitCode']}"

    async def _keep_last_words(self) -> None:
        with contextlib.suppress(*TROUBLE):
            words = await self._last_words()
            mark = b"[the end of the engine's log]\n" if words else b"[the engine printed nothing]\n"
            OutputCopy(self._folder.output).add(mark + words)

    async def _last_words(self) -> bytes:
        decoder, newest = FrameDecoder(), deque[bytes](maxlen=LAST_LINES)
        tail = LAST_LINES if self._engine.keeps_entries else None
        async for chunk in self._engine.output(self._key, tail=tail):
            newest.extend(entry.data for entry in decoder.feed(chunk))
        return b"".join(newest)[-LAST_BYTES:]


def _kept_port(path: Path) -> int:
    """A free one, written down: a later agent asks at the same."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(path.read_text())
    port = next(port for port in _in_turn(path.parent.name) if _is_free(port))
    new = path.with_name(f"{PORT_FILE}.new")
    new.write_text(str(port))
    new.rename(path)
    return port


def _in_turn(attempt: str) -> list[int]:
    """All of them, beginning elsewhere for each attempt: two that choose at once choose differently."""
    first = int(attempt, 16) % len(PORTS)
    return [*PORTS[first:], *PORTS[:first]]


def _is_free(port: int) -> bool:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("", port))
        except OSError:
            return False
    return True
