"""Host processes instead of containers, for machines without an engine and for people who trust each other.

The image is not used. Each attempt is a process in its own session, in its own working folder, started and watched by
the keeper; with cgroups where permitted. What cannot be honoured here is refused, never left out in silence.
"""

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from machines.agent.cgroups import MINIMUM_MEMORY_BYTES, Limits
from machines.agent.clock import now
from machines.agent.http_check import http_failure
from machines.agent.keeper_client import KeeperClient, KeeperUnavailable, WorkerUser
from machines.agent.keeper_link import Message
from machines.agent.probes import ProbeKind, exit_failure
from machines.agent.processes import born, marked_leaders, oom_kills, read_trace
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
    RuntimeUnavailable,
    at_once,
)
from machines.agent.usage import Usage, cgroup_usage, sessions_usage
from machines.orders import HttpCheck, Order, Probe
from machines.protocol import EndReason, Phase

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SIGKILLED = 137
MEMORY_LOOK_SECONDS = 2
KILL_LATER_SECONDS = 0.5  # a probe that takes too long: after the agent has given it up, and so says that


class Process:
    """An attempt whose end is not yet known."""

    def __init__(self, folder: AttemptFolder, spawn: Message | None, cgroups: Sequence[str]) -> None:
        self.folder = folder
        self.spawn = spawn  # to be sent again, should the keeper be killed before it started it
        self.cgroups = list(cgroups)
        self.running = spawn is None
        self.stop_grace: float | None = None
        self.facts: Message | None = None  # pid, born: from the keeper
        self.oom_before = 0
        self.oom_told = 0


class ProcessRuntime:
    name = "process"

    def __init__(self, keeper: KeeperClient) -> None:
        self.keeper = keeper
        self._processes: dict[str, Process] = {}
        self._probes: dict[int, asyncio.Future[Message]] = {}  # asked of the keeper, by number
        self._probe_numbers = itertools.count(1)
        self._emit: Listener
        self._watch: asyncio.Task[None]

    async def open(self, machine_id: str, emit: Listener) -> None:
        self._emit = emit
        try:
            await self.keeper.open()
        except KeeperUnavailable as error:
            raise RuntimeUnavailable(str(error)) from error
        self.keeper.on_replaced(self._keeper_replaced)
        self._watch = asyncio.create_task(self._watch_memory())

    def share_log(self, keep: int) -> int:
        return keep

    async def adopt(self, attempts: Sequence[Adoptable], known: Sequence[str], *, rebooted: bool) -> Sequence[str]:
        if rebooted:
            for item in attempts:
                self._end_of_earlier_boot(item)
            return []
        never: list[str] = []
        lost: list[str] = []
        for item in attempts:
            attempt, trace = item.order.attempt, read_trace(str(item.folder.exit))
            if not trace.tried:
                never.append(attempt)
                continue
            self._processes[attempt] = Process(item.folder, None, trace.cgroups)
            facts = self.keeper.live.get(attempt)
            if facts is None:
                lost.append(attempt)
            else:
                self._started(attempt, facts)
            self.keeper.listen(attempt, partial(self._on_keeper, attempt))
        self._take_over([attempt for attempt in lost if attempt in self._processes])
        return never

    async def start(
        self, order: Order, folder: AttemptFolder, prepared: Prepared = NOTHING_PREPARED, ready: Ready = at_once
    ) -> None:
        self._refuse(order, prepared)
        await ready()
        self._make_files(folder)
        cgroups = self._take_cgroup(order)
        spawn: Message = {
            "op": "spawn",
            "attempt": order.attempt,
            "argv": [order.command, *order.args] if order.command else order.args,
            "env": environment(order, self.keeper.user, folder.work) | dict(prepared.env),
            "cwd": str(prepared.workspace or folder.work),
            "working_dir": order.working_dir,
            "output": str(folder.output),
            "exit": str(folder.exit),
            "cgroups": cgroups,
        }
        self._processes[order.attempt] = Process(folder, spawn, cgroups)
        self.keeper.listen(order.attempt, partial(self._on_keeper, order.attempt))
        self.keeper.send(spawn)

    async def stop(self, attempt: str, grace_seconds: float) -> None:
        process = self._processes.get(attempt)
        if process is not None:
            process.stop_grace = grace_seconds
            self.keeper.send({"op": "stop", "attempt": attempt, "grace": grace_seconds})

    async def probe(self, order: Order, kind: ProbeKind, probe: Probe) -> str:
        """A command is started by the keeper: in the worker's environment and cgroup, as its user."""
        if isinstance(probe.check, HttpCheck):
            return await http_failure(probe.check)
        process = self._processes.get(order.attempt)
        if process is None:
            raise CannotProbe("it has ended")
        if not self.keeper.probes:
            raise CannotProbe("the keeper was started by an earlier version, and knows of no probes")
        number = next(self._probe_numbers)
        answer = self._probes[number] = asyncio.get_running_loop().create_future()
        message: Message = {
            "op": "probe",
            "attempt": order.attempt,
            "probe": number,
            "argv": probe.check.command,
            "env": environment(order, self.keeper.user, process.folder.work),
            "cwd": str(process.folder.work),
            "working_dir": order.working_dir,
            "timeout": probe.timeout_seconds + KILL_LATER_SECONDS,
        }
        self.keeper.send(message)
        try:
            told = await answer
        finally:
            del self._probes[number]
        return exit_failure(told["code"], told["output"].encode())

    async def remove(self, attempt: str) -> None:
        """Its folder is all there is, and the agent removes that."""

    async def usage(self, attempts: Sequence[str]) -> Mapping[str, Usage]:
        """By cgroup; without, by session, which costs a look at every process of the machine."""
        known = {uid: process for uid in attempts if (process := self._processes.get(uid)) is not None}
        found = {uid: cgroup_usage(each.cgroups, each.oom_before) for uid, each in known.items() if each.cgroups}
        leaders = {uid: int(each.facts["pid"]) for uid, each in known.items() if not each.cgroups and each.facts}
        return found | (await asyncio.to_thread(sessions_usage, leaders) if leaders else {})

    async def close(self) -> None:
        """The keeper is shared: its owner closes it."""
        self._watch.cancel()
        for attempt in self._processes:
            self.keeper.leave(attempt)
        self.keeper.off_replaced(self._keeper_replaced)

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _refuse(self, order: Order, prepared: Prepared) -> None:
        """Raises CannotStart for what this runtime cannot honour."""
        reason = refusal(order, self.keeper.user)
        if prepared.mounts:
            reason = "This machine runs host processes: it mounts nothing"
        if order.engine is not None:
            reason = "This machine runs host processes: it serves no models beside them"
        if reason:
            raise CannotStart(EndReason.REFUSED, reason)

    def _make_files(self, folder: AttemptFolder) -> None:
        """Owned by the worker's user where the keeper or the worker writes; the folder around them is the agent's."""
        user = self.keeper.user
        folder.work.mkdir(mode=0o700, exist_ok=True)
        for path in (folder.output, folder.exit):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600))
        if user.change:
            for path in (folder.work, folder.output, folder.exit):
                os.chown(path, user.uid, user.gid, follow_symlinks=False)

    def _take_cgroup(self, order: Order) -> list[str]:
        if self.keeper.cgroups is None:
            return []
        try:
            return self.keeper.cgroups.take(Limits(order.cpu_milli, order.memory_bytes, order.cpu_burst))
        except OSError as error:
            message = f"cannot make its cgroup: {error.strerror}: {error.filename}"
            raise CannotStart(EndReason.START_FAILED, message) from error

    # ---- what the keeper tells ---------------------------------------------------------------------------------------

    def _on_keeper(self, attempt: str, event: Message) -> None:
        if event["ev"] == "started":
            self._started(attempt, event)
        elif event["ev"] == "failed":
            self._not_started(attempt, event)
        elif event["ev"] == "exit":
            self._exited(attempt, event)
        elif event["ev"] == "probed" and (asked := self._probes.get(event["probe"])) is not None and not asked.done():
            asked.set_result(event)

    def _started(self, attempt: str, facts: Message) -> None:
        process = self._processes[attempt]
        process.running, process.spawn, process.facts = True, None, facts
        process.oom_before = read_trace(str(process.folder.exit)).oom_before if facts["cgroups"] else 0
        self._emit(Progress(attempt, Phase.RUNNING, facts["at"]))

    def _not_started(self, attempt: str, event: Message) -> None:
        if event["code"] is None:
            self._emit(Failed(attempt, event["at"], EndReason.START_FAILED, event["error"]))
        else:
            self._emit(Exited(attempt, event["at"], event["code"]))
        self._done(attempt)

    def _exited(self, attempt: str, event: Message) -> None:
        """The kernel kills for memory by SIGKILL; a kill beside a main process that went on is a warning only."""
        killed = event["oom"] > 0 and event["code"] == SIGKILLED
        self._tell_memory_kills(attempt, event["oom"] - killed)
        self._emit(Exited(attempt, event["at"], event["code"], oom_killed=killed))
        self._done(attempt)

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(MEMORY_LOOK_SECONDS)
            for attempt, process in list(self._processes.items()):
                if process.running and process.cgroups:
                    self._tell_memory_kills(attempt, oom_kills(process.cgroups) - process.oom_before)

    def _tell_memory_kills(self, attempt: str, count: int) -> None:
        if count > self._processes[attempt].oom_told:
            self._processes[attempt].oom_told = count
            self._emit(MemoryKills(attempt, count))

    def _done(self, attempt: str) -> None:
        """After the end was told, and so written down: only now may another attempt have its cgroup."""
        process = self._processes.pop(attempt)
        self.keeper.forget(attempt)
        if self.keeper.cgroups is not None:
            self.keeper.cgroups.give_back(process.cgroups)

    # ---- after another agent, or another keeper --------------------------------------------------------------------

    def _end_of_earlier_boot(self, item: Adoptable) -> None:
        end = read_trace(str(item.folder.exit)).end
        if end is None:
            self._emit(Failed(item.order.attempt, now(), EndReason.MACHINE_REBOOTED))
        else:
            killed = end.oom > 0 and end.code == SIGKILLED
            self._emit(Exited(item.order.attempt, end.at + item.clock_shift, end.code, oom_killed=killed))

    def _keeper_replaced(self) -> None:
        for asked in self._probes.values():
            if not asked.done():
                asked.set_exception(CannotProbe("the keeper was killed"))
        lost: list[str] = []
        for attempt, process in self._processes.items():
            if read_trace(str(process.folder.exit)).tried:
                lost.append(attempt)
            elif process.spawn is not None:
                self.keeper.send(process.spawn)
        self._take_over(lost)
        for attempt, process in self._processes.items():
            if process.stop_grace is not None:
                self.keeper.send({"op": "stop", "attempt": attempt, "grace": process.stop_grace})

    def _take_over(self, lost: Sequence[str]) -> None:
        """Have the new keeper watch what is left of these; their numbers are known, or found by the mark."""
        unknown = [attempt for attempt in lost if self._processes[attempt].facts is None]
        leaders = marked_leaders(unknown) if unknown else {}
        for attempt in lost:
            process = self._processes[attempt]
            pid = process.facts["pid"] if process.facts else leaders.get(attempt, -1)
            began = process.facts["born"] if process.facts else born(pid)
            exit_path = str(process.folder.exit)
            self.keeper.send({"op": "adopt", "attempt": attempt, "pid": pid, "born": began, "exit": exit_path})


def refusal(order: Order, user: WorkerUser) -> str:
    """Why this order cannot run as a host process; empty if it can."""
    if not order.command and not order.args:
        return "This machine runs host processes: there is no image whose command could be run, so give a command"
    if order.user is not None and order.user not in (user.name, str(user.uid), f"{user.uid}:{user.gid}"):
        return f"This machine runs host processes as {user.name} (uid {user.uid}): it cannot run one as {order.user}"
    if 0 < order.memory_bytes < MINIMUM_MEMORY_BYTES:
        return f"This machine gives a worker at least {MINIMUM_MEMORY_BYTES >> 20} MiB of memory"
    if order.shm_bytes is not None and order.shm_bytes > shared_memory_bytes():
        return f"This machine's shared memory has {shared_memory_bytes()} bytes, for all its host processes together"
    return ""


def shared_memory_bytes() -> int:
    try:
        facts = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return facts.f_blocks * facts.f_frsize


def environment(order: Order, user: WorkerUser, work: Path) -> dict[str, str]:
    """A clean one: nothing of the agent's. The order's own values win."""
    return {
        "PATH": DEFAULT_PATH,
        "HOME": str(work),
        "USER": user.name,
        "LOGNAME": user.name,
        "LANG": "C.UTF-8",
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in order.gpu_indexes),
        **order.env,
    }
