"""Calls to the container engine: each may be repeated without harm, and waits for as long as the engine is away.

Whatever the engine answers is raised as `aiodocker.DockerError` with its status and its own words.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import aiodocker
import aiohttp

from machines.agent.runtimes import docker_request as request
from machines.agent.runtimes.base import RegistryLogin, RuntimeUnavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

STATS_SECONDS = 5.0
RETRY_SECONDS = 1.0  # between tries to reach an engine that is away
OUTPUT_BYTES = 2048  # of a command run inside a container: the end of what it printed
AWAY = 900  # aiodocker's status for an engine that cannot be reached
TROUBLE = (aiodocker.DockerError, aiohttp.ClientError, OSError)  # the last two: the connection broke
SOCKETS = ("/run/docker.sock", "/run/podman/podman.sock")


def find_engine() -> str | None:
    """The `unix://` URL of an engine that accepts connections: DOCKER_HOST's, Docker's, Podman's; or None."""
    named = os.environ.get("DOCKER_HOST")
    folder = os.environ.get("XDG_RUNTIME_DIR")
    sockets = (*SOCKETS, f"{folder}/podman/podman.sock") if folder else SOCKETS
    urls = [named] if named else [f"unix://{path}" for path in sockets]
    return next((url for url in urls if _accepts(url)), None)


def _accepts(url: str) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        try:
            connection.connect(url.removeprefix("unix://"))
        except OSError:
            return False
    return True


def is_away(error: Exception) -> bool:
    return not isinstance(error, aiodocker.DockerError) or error.status == AWAY


class Engine:
    """A connection to the engine behind a `unix://` URL. Containers are named by their attempt's uid."""

    def __init__(self, docker: aiodocker.Docker, session: aiohttp.ClientSession, *, podman: bool) -> None:
        self._docker = docker
        self._session = session
        self._podman = podman

    @classmethod
    async def connect(cls, url: str) -> "Engine":
        """Raises RuntimeUnavailable."""
        if not url.startswith("unix://"):
            raise RuntimeUnavailable(f"not a Unix socket on this machine: {url}")
        # No bound on connections: each container holds one for its output and one for its end.
        session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(url.removeprefix("unix://"), limit=0))
        docker = aiodocker.Docker(url, session=session)
        try:
            version = await docker.version()
        except TROUBLE as error:
            await docker.close()
            await session.close()
            raise RuntimeUnavailable(f"the container engine at {url} does not answer: {error}") from error
        podman = any("podman" in str(part.get("Name")).lower() for part in version.get("Components") or [])
        return cls(docker, session, podman=podman)

    async def close(self) -> None:
        await self._docker.close()
        await self._session.close()

    @property
    def log_driver(self) -> str:
        """Docker's json-file spoils bytes that are no UTF-8, its `local` keeps them; Podman's json-file keeps them."""
        return "json-file" if self._podman else "local"

    @property
    def keeps_entries(self) -> bool:
        """Whether following, and asking for the last entries, loses none. Podman only tells the whole log rightly."""
        return not self._podman

    # ---- images ----------------------------------------------------------------------------------------------------

    async def image(self, reference: str) -> dict[str, Any] | None:
        """What the engine knows of an image that it has."""
        try:
            return await self.patiently(lambda: self._docker.images.inspect(reference))
        except aiodocker.DockerError as error:
            if error.status == 404:
                return None
            raise

    async def pull(
        self, reference: str, on_progress: Callable[[str], None], login: RegistryLogin | None = None
    ) -> None:
        """`on_progress` hears `61 %`."""
        progress = request.PullProgress()
        auth = request.registry_auth(login) if login else None

        async def pull_once() -> None:
            finished = self._podman  # it has no closing words
            async for item in self._docker.images.pull(reference, auth=auth, stream=True):
                finished = finished or str(item.get("status")).startswith("Status: ")
                if news := progress.feed(item):
                    on_progress(news)
            if not finished:
                raise aiodocker.DockerError(AWAY, "it left in the middle of a pull")

        await self.patiently(pull_once)

    # ---- containers ------------------------------------------------------------------------------------------------

    async def create(self, attempt: str, body: dict[str, Any]) -> None:
        """One that exists already was made by an earlier try whose answer was lost."""
        name = request.container_name(attempt)
        try:
            await self.patiently(lambda: self._docker.containers.create(body, name=name))
        except aiodocker.DockerError:
            if await self.state(attempt) is None:
                raise

    async def start(self, attempt: str) -> None:
        await self.patiently(self._container(attempt).start)

    async def state(self, attempt: str) -> Mapping[str, Any] | None:
        """`State` of its inspection; None: there is no such container."""
        shown = await self._unless((404,), self._container(attempt).show)
        return None if shown is None else shown["State"]

    async def wait(self, attempt: str) -> None:
        """Until the main process has ended. One try: raises what TROUBLE lists."""
        await self._container(attempt).wait()

    async def until_ended(self, attempt: str) -> None:
        """Until the main process has ended, or the container no longer exists."""
        while True:
            try:
                await self.wait(attempt)
                return
            except TROUBLE as error:
                if not is_away(error):
                    return
                await asyncio.sleep(RETRY_SECONDS)

    async def signal(self, attempt: str, name: str) -> None:
        """To one that is gone or ended: nothing."""
        await self._unless((404, 409), lambda: self._container(attempt).kill(signal=name))

    async def run_inside(self, attempt: str, argv: Sequence[str]) -> tuple[int | None, bytes]:
        """A command beside the main process: its exit code and the end of what it printed. Cancelled, it is killed. One
        try: raises what TROUBLE lists."""
        command = await self._container(attempt).exec(argv)
        said = b""
        try:
            async with command.start(detach=False) as stream:
                while (message := await stream.read_out()) is not None:
                    said = (said + message.data)[-OUTPUT_BYTES:]
            return (await command.inspect())["ExitCode"], said
        except asyncio.CancelledError:
            await asyncio.shield(self._kill(command))
            raise

    async def _kill(self, command: Any) -> None:
        """The engine has no call for that: by its number, where the agent may."""
        with contextlib.suppress(*TROUBLE):
            found = await command.inspect()
            if found["Running"] and found["Pid"]:
                os.kill(found["Pid"], signal.SIGKILL)

    async def delete(self, attempt: str) -> None:
        """With all its processes and anonymous volumes; nothing there, or being removed: nothing."""
        await self._unless((404, 409), lambda: self._container(attempt).delete(force=True, v=True))

    async def stats(self, attempt: str) -> Mapping[str, Any] | None:
        """What its container uses just now, without waiting for a second look. One try; None: it does not tell."""
        path = f"{self._docker.api_version}/containers/{request.container_name(attempt)}/stats"
        params = {"stream": "false", "one-shot": "true"}
        patience = aiohttp.ClientTimeout(total=STATS_SECONDS)
        try:
            async with self._session.get(
                f"{self._docker.docker_host}/{path}", params=params, timeout=patience
            ) as response:
                return dict(await response.json()) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            log.debug("What the container of attempt %s uses is not known: %s", attempt, error)
            return None

    async def own(self, machine_id: str) -> dict[str, str]:
        """Attempt uid (or `docker_request.engine_key` of it) → state, of all containers that carry this machine's
        id."""
        filters = json.dumps({"label": [f"{request.LABEL}.machine={machine_id}"]})
        listed = await self.patiently(lambda: self._docker.containers.list(all=True, filters=filters))
        return {request.key_of(item["Labels"]): item["State"] for item in listed}

    async def output(self, attempt: str, *, follow: bool = False, tail: int | None = None) -> AsyncIterator[bytes]:
        """The framed log of both streams with time stamps: the last `tail` entries of what there is; followed, until
        the container ends or the engine leaves. One try: raises what TROUBLE lists."""
        path = f"{self._docker.api_version}/containers/{request.container_name(attempt)}/logs"
        params = {
            "stdout": "1",
            "stderr": "1",
            "timestamps": "1",
            "follow": str(int(follow)),
            "tail": str(tail or "all"),
        }
        forever = aiohttp.ClientTimeout()
        async with self._session.get(f"{self._docker.docker_host}/{path}", params=params, timeout=forever) as response:
            if response.status != 200:
                raise aiodocker.DockerError(response.status, await response.text())
            async for chunk in response.content.iter_any():
                yield chunk

    def _container(self, attempt: str) -> Any:
        return self._docker.containers.container(request.container_name(attempt))

    async def _unless(self, harmless: tuple[int, ...], call: Callable[[], Awaitable[T]]) -> T | None:
        """The call's answer; None where the engine refuses it with a harmless status."""
        try:
            return await self.patiently(call)
        except aiodocker.DockerError as error:
            if error.status not in harmless:
                raise
            return None

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while the engine is away."""
        while True:
            try:
                return await call()
            except TROUBLE as error:
                if not is_away(error):
                    raise
                log.warning("The container engine does not answer: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
