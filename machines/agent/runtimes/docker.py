"""Attempts as containers of a Docker Engine, or of Podman behind its compatible socket.

The container's name and labels carry the attempt's uid, so every step may be repeated: after a restart of the agent or
of the engine, what exists is found again and followed to its end. While the engine is away the runtime waits for it;
that changes nothing about an attempt.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    EngineEnded,
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
from machines.agent.runtimes.docker_engine import TROUBLE, Engine
from machines.agent.runtimes.docker_images import Image, provide_image
from machines.agent.runtimes.docker_log import OutputCopy
from machines.agent.runtimes.docker_memory import MemoryWatch
from machines.agent.runtimes.docker_model_server import ModelServer
from machines.agent.runtimes.docker_output import OutputFollower
from machines.agent.usage import Usage, engine_usage
from machines.orders import HttpCheck, Order, Probe
from machines.protocol import EndReason, Gpu, Phase

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
    server: ModelServer | None = None  # the engine beside it
    follower: asyncio.Task[None] | None = None
    stopper: asyncio.Task[None] | None = None

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        watcher = self.server.watcher if self.server is not None else None
        return [task for task in (self.follower, self.stopper, watcher) if task is not None]


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
            engine_state = found.pop(request.engine_key(uid), None)
            if state is not None and state != "created":
                attempt = self._remember(item.order, item.folder)
                self._follow(attempt, self._take_up(attempt, rebooted))
                continue
            if not item.running:
                missing.append(uid)  # containers that are there already are taken up by `start`
                continue
            if engine_state is not None:
                await self._engine.delete(request.engine_key(uid))
            if rebooted:
                self._emit(Failed(uid, clock.now(), EndReason.MACHINE_REBOOTED))
            else:
                self._emit(Exited(uid, clock.now(), None))
        for uid in found.keys() - set(known):
            self._in_background(self._clear_away(uid))
        return missing

    async def start(
        self, order: Order, folder: AttemptFolder, prepared: Prepared = NOTHING_PREPARED, ready: Ready = at_once
    ) -> None:
        attempt = self._remember(order, folder)
        try:
            prepared = await self._serve(attempt, prepared)
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
        await self._engine.delete(request.engine_key(attempt))

    async def usage(self, attempts: Sequence[str]) -> Mapping[str, Usage]:
        """As the engine tells it; kills for memory as the kernel does."""
        known = [uid for uid in attempts if uid in self._attempts]
        all_stats = await asyncio.gather(*(self._engine.stats(uid) for uid in known))
        found = zip(known, all_stats, strict=True)
        used = {uid: engine_usage(stats, self._memory.kills(uid)) for uid, stats in found if stats is not None}
        served = [uid for uid in used if self._attempts[uid].server is not None]
        beside = await asyncio.gather(*(self._engine.stats(request.engine_key(uid)) for uid in served))
        for uid, stats in zip(served, beside, strict=True):
            alone = used.pop(uid)
            if stats is not None:
                used[uid] = alone.with_engine(engine_usage(stats, None))
        return used

    async def close(self) -> None:
        tasks = [*self._cleaners, *(task for known in self._attempts.values() for task in known.tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._memory.close()
        await self._engine.close()

    # ---- starting --------------------------------------------------------------------------------------------------

    def _remember(self, order: Order, folder: AttemptFolder) -> _Attempt:
        attempt = self._attempts[order.attempt] = _Attempt(order.attempt, folder)
        if order.engine is not None:
            attempt.server = ModelServer(self._engine, order, order.engine, folder, self._emit)
        return attempt

    @property
    def _site(self) -> request.Site:
        log_files = request.LogFiles(self._engine.log_driver, self._log_file_bytes)
        return request.Site(self._machine_id, self._gpus, self._network, log_files)

    async def _serve(self, attempt: _Attempt, prepared: Prepared) -> Prepared:
        """Have the engine beside it serve. What a stop may break off is only what leaves nothing behind."""
        if attempt.server is None:
            return prepared
        assert prepared.served_model is not None  # what preparing an order with an engine is for
        image = await self._unless_stopped(attempt, attempt.server.provide())
        served_by = f"{image.reference}@{image.digest}"
        self._emit(Progress(attempt.uid, Phase.PREPARING, clock.now(), engine_image=served_by))
        port = await attempt.server.begin(image, prepared.served_model, self._site)
        await self._unless_stopped(attempt, attempt.server.serve(port))
        return replace(prepared, env=attempt.server.told_of(prepared, port))

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

    async def _provide_image(self, order: Order, login: RegistryLogin | None) -> Image:
        def tell(progress: str) -> None:
            self._emit(Progress(order.attempt, Phase.PULLING, clock.now(), pull_progress=progress))

        return await provide_image(self._engine, order.image, order.pull_policy, login, tell)

    async def _create(self, order: Order, prepared: Prepared, reference: str) -> None:
        body = request.container_request(order, prepared, image=reference, site=self._site)
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
        if attempt.server is not None:
            attempt.server.watch()

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
        event = await self._end(attempt, rebooted)
        if attempt.server is not None:
            event = await self._end_beside(attempt, attempt.server, event)
        self._emit(event)

    async def _end_beside(self, attempt: _Attempt, server: ModelServer, event: RuntimeEvent) -> RuntimeEvent:
        """The engine goes with its attempt. One that went first explains the attempt's failure."""
        why = await server.end()
        if not why or not isinstance(event, Exited) or event.exit_code == 0:
            return event
        self._emit(EngineEnded(attempt.uid, why))
        return replace(event, at=clock.now())

    async def _wait(self, attempt: _Attempt) -> None:
        await self._engine.until_ended(attempt.uid)
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
        """A leftover that belongs to no attempt: given time to end in order, unless it is an engine; then removed."""
        log.warning("The container of attempt %s is left over: it is stopped and removed", uid)
        if not request.is_engine_key(uid):
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


def _started_at(pid: int) -> float:
    """When a process began, on the machine's own clock; now, if it is gone."""
    ticks = born(pid)
    return min(clock.now(), ticks / os.sysconf("SC_CLK_TCK")) if ticks else clock.now()
