"""Attempts as containers of a Docker Engine, or of Podman behind its compatible socket.

The container's name and labels carry the attempt's uid, so every step may be repeated: after a restart of the agent or
of the engine, what exists is found again and followed to its end. While the engine is away the runtime waits for it;
that changes nothing about an attempt.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiodocker

from machines.agent import clock
from machines.agent.http_check import http_failure
from machines.agent.probes import ProbeKind, exit_failure
from machines.agent.processes import born
from machines.agent.runtimes import docker_request as request
from machines.agent.runtimes.base import (
    NOTHING_PREPARED,
    Adoptable,
    AttemptFolder,
    CannotProbe,
    CannotStart,
    Exited,
    Failed,
    Listener,
    MemoryKills,
    Prepared,
    Progress,
    Ready,
    RegistryLogin,
    RuntimeEvent,
    at_once,
)
from machines.agent.runtimes.docker_engine import RETRY_SECONDS, TROUBLE, Engine, is_away
from machines.agent.runtimes.docker_log import OutputCopy
from machines.agent.runtimes.docker_memory import MemoryWatch
from machines.agent.runtimes.docker_output import OutputFollower
from machines.agent.usage import Usage, engine_usage
from machines.images import image_reference
from machines.protocol import EndReason, Gpu, HttpCheck, Order, Phase, Probe

log = logging.getLogger(__name__)
T = TypeVar("T")

LEFTOVER_GRACE_SECONDS = 30.0
COMMAND_CODES = (126, 127)  # not executable, not found
SIGKILL_CODE = 137
REBOOT_CODES = (137, 143, 255)  # what an engine notes of containers that a reboot took with it


@dataclass
class _Attempt:
    """What the runtime knows of one attempt between `start` or `adopt` and `remove`."""

    uid: str
    folder: AttemptFolder
    stop_asked: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)  # its container runs, or never will
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # no process is left
    terminated: bool = False  # SIGTERM was sent
    follower: asyncio.Task[None] | None = None
    stopper: asyncio.Task[None] | None = None

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self.follower, self.stopper) if task is not None]


class DockerRuntime:
    """`url`: a `unix://` socket on this machine. `network`: with `host`, workers on several machines reach each other
    at full speed without any set-up of the engine's."""

    name = "docker"

    def __init__(self, url: str, gpus: Iterable[Gpu] = (), network: str = "host") -> None:
        self._url = url
        self._gpus = {gpu.index: gpu for gpu in gpus}
        self._network = network
        self._attempts: dict[str, _Attempt] = {}
        self._cleaners: set[asyncio.Task[None]] = set()
        self._log_file_bytes = request.LOG_FILE_BYTES

    def share_log(self, keep: int) -> int:
        self._log_file_bytes = request.log_file_bytes(keep)
        return max(keep - request.LOG_FILES * self._log_file_bytes, 0)

    # ---- the agent's calls -----------------------------------------------------------------------------------------

    async def open(self, machine_id: str, emit: Listener) -> None:
        self._engine = await Engine.connect(self._url)
        self._machine_id = machine_id
        self._emit: Listener = emit
        self._memory = MemoryWatch(lambda uid, count: emit(MemoryKills(uid, count)))

    async def adopt(self, attempts: Sequence[Adoptable], known: Sequence[str], *, rebooted: bool) -> Sequence[str]:
        found = await self._engine.own(self._machine_id)
        missing = []
        for item in attempts:
            uid = item.order.attempt
            state = found.pop(uid, None)
            if state is not None and state != "created":
                attempt = self._remember(uid, item.folder)
                self._follow(attempt, self._take_up(attempt, rebooted))
            elif not item.running:
                missing.append(uid)  # a container made and never started is taken up by `start`
            elif rebooted:
                self._emit(Failed(uid, clock.now(), EndReason.MACHINE_REBOOTED))
            else:
                self._emit(Exited(uid, clock.now(), None))
        for uid in found.keys() - set(known):
            self._in_background(self._clear_away(uid))
        return missing

    async def start(
        self, order: Order, folder: AttemptFolder, prepared: Prepared = NOTHING_PREPARED, ready: Ready = at_once
    ) -> None:
        attempt = self._remember(order.attempt, folder)
        try:
            image = await self._unless_stopped(attempt, self._provide_image(order, prepared.login))
            await ready()
            self._emit(Progress(attempt.uid, Phase.STARTING, clock.now(), image_digest=image.digest))
            OutputCopy(folder.output).expect(self._log_file_bytes)
            await self._create(order, prepared, image.reference)
            if attempt.stop_asked.is_set():
                await self._engine.delete(attempt.uid)
                raise CannotStart(EndReason.STOPPED, "")
            await self._run(attempt)
        except BaseException:
            attempt.gone.set()
            raise
        finally:
            attempt.begun.set()
        self._follow(attempt, self._see_it_end(attempt))

    async def stop(self, attempt: str, grace_seconds: float) -> None:
        known = self._attempts.get(attempt)
        if known is None or known.gone.is_set():
            return
        known.stop_asked.set()
        if known.stopper is not None:
            known.stopper.cancel()  # the newer grace counts
        known.stopper = asyncio.create_task(self._stop(known, grace_seconds))

    async def probe(self, order: Order, kind: ProbeKind, probe: Probe) -> str:
        """A command runs as the container's user, in its working directory and environment."""
        if isinstance(probe.check, HttpCheck):
            return await http_failure(probe.check)
        try:
            return exit_failure(*await self._engine.run_inside(order.attempt, probe.check.command))
        except TROUBLE as error:
            raise CannotProbe(str(error)) from error

    async def remove(self, attempt: str) -> None:
        known = self._attempts.pop(attempt, None)
        for task in known.tasks if known else ():
            task.cancel()
        await self._engine.delete(attempt)

    async def usage(self, attempts: Sequence[str]) -> Mapping[str, Usage]:
        """As the engine tells it; kills for memory as the kernel does."""
        known = [uid for uid in attempts if uid in self._attempts]
        all_stats = await asyncio.gather(*(self._engine.stats(uid) for uid in known))
        found = zip(known, all_stats, strict=True)
        return {uid: engine_usage(stats, self._memory.kills(uid)) for uid, stats in found if stats is not None}

    async def close(self) -> None:
        tasks = [*self._cleaners, *(task for known in self._attempts.values() for task in known.tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._memory.close()
        await self._engine.close()

    # ---- starting --------------------------------------------------------------------------------------------------

    def _remember(self, uid: str, folder: AttemptFolder) -> _Attempt:
        attempt = self._attempts[uid] = _Attempt(uid, folder)
        return attempt

    async def _unless_stopped(self, attempt: _Attempt, work: Coroutine[Any, Any, T]) -> T:
        """The work's result; given up, with CannotStart, as soon as a stop is asked for."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(attempt.stop_asked.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise CannotStart(EndReason.STOPPED, "")
            return task.result()
        finally:
            stop.cancel()
            task.cancel()

    async def _provide_image(self, order: Order, login: RegistryLogin | None) -> "_Image":
        """Have the image on the machine, as the pull policy says."""
        try:
            reference = image_reference(order.image)
        except ValueError as error:
            raise CannotStart(EndReason.IMAGE_PULL, f"{error}: {order.image}") from error
        image = None
        if order.pull_policy != "Always":
            image = await self._engine.image(reference)
        if image is None:
            await self._pull(order, reference, login)
            image = await self._engine.image(reference)
        if image is None:
            raise CannotStart(EndReason.IMAGE_PULL, f"{reference} was pulled, and is no longer there")
        return _Image(reference, request.image_digest(image, reference))

    async def _pull(self, order: Order, reference: str, login: RegistryLogin | None) -> None:
        if order.pull_policy == "None":
            message = f"Image {order.image} is not present and the pull policy is None"
            raise CannotStart(EndReason.IMAGE_MISSING, message)

        def tell(progress: str) -> None:
            self._emit(Progress(order.attempt, Phase.PULLING, clock.now(), pull_progress=progress))

        tell("")
        try:
            await self._engine.pull(reference, tell, login)
        except aiodocker.DockerError as error:
            kind = request.pull_failure(error.message, reference)
            message = request.with_login(error.message, kind, login)
            raise CannotStart(EndReason.IMAGE_PULL, message, pull_failure=kind) from error

    async def _create(self, order: Order, prepared: Prepared, reference: str) -> None:
        body = request.container_request(
            order,
            prepared,
            machine_id=self._machine_id,
            image=reference,
            gpus=self._gpus,
            network=self._network,
            log=request.LogFiles(self._engine.log_driver, self._log_file_bytes),
        )
        try:
            await self._engine.create(order.attempt, body)
        except aiodocker.DockerError as error:
            raise CannotStart(EndReason.START_FAILED, error.message) from error

    async def _run(self, attempt: _Attempt) -> None:
        try:
            await self._engine.start(attempt.uid)
        except aiodocker.DockerError as error:
            state = await self._engine.state(attempt.uid) or {}
            await self._engine.delete(attempt.uid)
            code = state.get("ExitCode")
            if code not in COMMAND_CODES and (code := request.command_code(error.message)) is None:
                raise CannotStart(EndReason.START_FAILED, error.message) from error
            OutputCopy(attempt.folder.output).add_line(error.message)  # as a shell would: the log says why
            raise CannotStart(EndReason.EXITED, error.message, code) from error
        await self._note_running(attempt)

    async def _note_running(self, attempt: _Attempt) -> None:
        """One that has ended meanwhile did run."""
        state = await self._engine.state(attempt.uid) or {}
        pid = state.get("Pid", 0)
        self._memory.watch(attempt.uid, pid)
        self._emit(Progress(attempt.uid, Phase.RUNNING, _started_at(pid)))

    # ---- following to the end --------------------------------------------------------------------------------------

    def _follow(self, attempt: _Attempt, work: Coroutine[Any, Any, None]) -> None:
        def check(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("Attempt %s can no longer be followed", attempt.uid, exc_info=error)
                self._emit(Exited(attempt.uid, clock.now(), None))

        attempt.follower = asyncio.create_task(work)
        attempt.follower.add_done_callback(check)

    async def _take_up(self, attempt: _Attempt, rebooted: bool) -> None:
        attempt.begun.set()
        state = await self._engine.state(attempt.uid) or {}
        if state.get("Running"):
            await self._note_running(attempt)
        await self._see_it_end(attempt, rebooted)

    async def _see_it_end(self, attempt: _Attempt, rebooted: bool = False) -> None:
        end = asyncio.create_task(self._wait(attempt))
        try:
            await OutputFollower(self._engine, attempt.uid, attempt.folder.output).follow(end)
        finally:
            end.cancel()
        self._emit(await self._end(attempt, rebooted))

    async def _wait(self, attempt: _Attempt) -> None:
        """Until the container's main process has ended, or the container no longer exists."""
        while True:
            try:
                await self._engine.wait(attempt.uid)
                break
            except TROUBLE as error:
                if not is_away(error):
                    break
                await asyncio.sleep(RETRY_SECONDS)
        attempt.gone.set()

    async def _end(self, attempt: _Attempt, rebooted: bool) -> RuntimeEvent:
        at = clock.now()
        state = await self._engine.state(attempt.uid)
        code = int(state["ExitCode"]) if state else None  # removed by somebody else: nobody saw its code
        killed = code == SIGKILL_CODE and not attempt.terminated
        for_memory = await self._memory.finish(attempt.uid, killed=killed)
        if rebooted and code in REBOOT_CODES:
            return Failed(attempt.uid, at, EndReason.MACHINE_REBOOTED)
        flagged = bool(state and state.get("OOMKilled"))
        return Exited(attempt.uid, at, code, oom_killed=killed and (for_memory or flagged))

    # ---- stopping and removing -------------------------------------------------------------------------------------

    async def _stop(self, attempt: _Attempt, grace_seconds: float) -> None:
        await attempt.begun.wait()
        if not attempt.terminated and not attempt.gone.is_set():
            attempt.terminated = True
            await self._engine.signal(attempt.uid, "SIGTERM")
        try:
            await asyncio.wait_for(attempt.gone.wait(), grace_seconds)
        except TimeoutError:
            await self._engine.signal(attempt.uid, "SIGKILL")

    async def _clear_away(self, uid: str) -> None:
        """A leftover that belongs to no attempt: given time to end in order, then removed."""
        log.warning("The container of attempt %s is left over: it is stopped and removed", uid)
        await self._engine.signal(uid, "SIGTERM")
        try:
            await asyncio.wait_for(self._engine.wait(uid), LEFTOVER_GRACE_SECONDS)
        except TROUBLE as error:
            log.info("The leftover of attempt %s did not end by itself: %s", uid, error)
        await self._engine.delete(uid)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._cleaners.add(task)
        task.add_done_callback(self._cleaners.discard)


@dataclass(frozen=True)
class _Image:
    reference: str
    digest: str


def _started_at(pid: int) -> float:
    """When a process began, on the machine's own clock; now, if it is gone."""
    ticks = born(pid)
    return min(clock.now(), ticks / os.sysconf("SC_CLK_TCK")) if ticks else clock.now()
