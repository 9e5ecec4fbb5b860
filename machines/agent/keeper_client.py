"""The agent's end of the keeper: find the one that runs or start one, and start another should it be killed."""

import asyncio
import contextlib
import hashlib
import logging
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import machines
from machines.agent.cgroups import Cgroups, NoCgroups, prepare
from machines.agent.keeper import SOCKET
from machines.agent.keeper_link import Message, encode, take_frame

WORKER_USER = "astra-worker"  # whom workers run as when the agent is root, if such a user exists; else:
WORKER_UID = 61_000  # of no person and no service; its name is WORKER_USER all the same
START_SECONDS = 15
RETRY_SECONDS = 2
LEAVE_SECONDS = 2
START_CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from machines.agent.keeper import main; main()"

log = logging.getLogger(__name__)


class KeeperUnavailable(Exception):
    """No keeper could be started; the message is one clear line."""


@dataclass(frozen=True)
class WorkerUser:
    """Whom host processes run as. `change`: the agent is root and the keeper becomes this user."""

    name: str
    uid: int
    gid: int
    change: bool

    @classmethod
    def choose(cls) -> "WorkerUser":
        """Ourselves; as root somebody who can read nothing of the console's, not even through its services' user."""
        if os.geteuid() != 0:
            with contextlib.suppress(KeyError):
                return cls(pwd.getpwuid(os.geteuid()).pw_name, os.geteuid(), os.getegid(), False)
            return cls(str(os.geteuid()), os.geteuid(), os.getegid(), False)
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(WORKER_USER)
            return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, True)
        return cls(WORKER_USER, WORKER_UID, WORKER_UID, True)


def cgroup_name(keeper_folder: Path) -> str:
    """The same for every agent that uses this keeper, and nobody else's."""
    return "astra-" + hashlib.sha256(str(keeper_folder.resolve()).encode()).hexdigest()[:12]


class KeeperClient:
    """One keeper, shared by the machines of this agent. Messages are gathered within a turn of the event loop."""

    def __init__(self, folder: Path, *, limits: bool = True) -> None:
        self.folder = folder
        self._limits = limits
        self.user = WorkerUser.choose()
        self.cgroups: Cgroups | None = None
        self.live: dict[str, Message] = {}  # when this keeper was reached
        self.keeper_pid = 0
        self.probes = False  # whether it knows of them: it may be older than this agent
        self._listeners: dict[str, Callable[[Message], None] | None] = {}  # of attempts not yet ended
        self._replaced: list[Callable[[], None]] = []
        self._outgoing: list[Message] = []
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._incoming = bytearray()
        self._unclaimed: dict[str, list[Message]] = {}

    async def open(self) -> None:
        """Raises KeeperUnavailable."""
        async with self._opening:
            if self._task is not None:
                return
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._limits:
                self._prepare_cgroups()
            reader = await self._reach()
            self._task = asyncio.create_task(self._listen(reader))
            self._flush()

    def on_replaced(self, callback: Callable[[], None]) -> None:
        """Called after another keeper had to be started: it knows nothing of earlier workers."""
        self._replaced.append(callback)

    def off_replaced(self, callback: Callable[[], None]) -> None:
        self._replaced.remove(callback)

    def listen(self, attempt: str, callback: Callable[[Message], None]) -> None:
        self._listeners[attempt] = callback
        for event in self._unclaimed.pop(attempt, []):
            callback(event)

    def leave(self, attempt: str) -> None:
        """Keep what is told of it for the next listener."""
        self._listeners[attempt] = None

    def forget(self, attempt: str) -> None:
        """It has ended."""
        self._listeners.pop(attempt, None)

    def send(self, message: Message) -> None:
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(message)

    async def close(self) -> None:
        """Leave it alone with its workers; without any it leaves as well."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._writer is not None:
            self._flush()
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        if self._process is not None and not self._listeners:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, LEAVE_SECONDS)
                if self.cgroups is not None:
                    self.cgroups.remove()

    def _flush(self) -> None:
        self._give_spare()
        if self._writer is not None and self._outgoing:
            self._writer.write(encode(self._outgoing))
        self._outgoing.clear()

    def _give_spare(self) -> None:
        """The cgroup where the keeper waited has become a worker's."""
        if self.cgroups is not None and self.cgroups.spare is None:
            with contextlib.suppress(OSError):  # then it waits in its own
                self._outgoing.append({"op": "wait", "cgroups": self.cgroups.set_spare()})

    def _prepare_cgroups(self) -> None:
        try:
            self.cgroups = prepare(cgroup_name(self.folder), self.user.uid, self.user.gid)
        except NoCgroups as error:
            log.warning("CPU and memory limits of workers are not enforced: no cgroups (%s)", error)

    # ---- listening ---------------------------------------------------------------------------------------------------

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                while True:
                    for event in await self._frame(reader):
                        self._dispatch(event)
            except (OSError, EOFError):
                log.warning("the keeper was killed: its workers are watched by another, which cannot learn exit codes")
            reader = await self._replace()
            for callback in self._replaced:
                callback()

    async def _replace(self) -> asyncio.StreamReader:
        self._writer = None
        while True:
            try:
                return await self._reach()
            except KeeperUnavailable as error:
                log.error("%s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _frame(self, reader: asyncio.StreamReader) -> list[Message]:
        while (frame := take_frame(self._incoming)) is None:
            data = await reader.read(1 << 20)
            if not data:
                raise EOFError
            self._incoming += data
        return frame

    def _dispatch(self, event: Message) -> None:
        callback = self._listeners.get(event["attempt"])
        if callback is None:  # of a machine that is still taking up what an earlier agent left
            self._unclaimed.setdefault(event["attempt"], []).append(event)
        else:
            callback(event)

    # ---- reaching it -------------------------------------------------------------------------------------------------

    async def _reach(self) -> asyncio.StreamReader:
        """Connect to the keeper that runs, or start one; its greeting says whom it has. Raises KeeperUnavailable."""
        for started in (False, True, True):  # twice: the one found, or started, may just be leaving
            if started:
                self._start()
            try:
                return await asyncio.wait_for(self._connect(wait=started), START_SECONDS)
            except (OSError, EOFError, TimeoutError) as error:
                log.debug("no keeper answers: %s", error)
        raise KeeperUnavailable(f"the keeper does not start: see {self.folder / 'keeper.log'}")

    def _start(self) -> None:
        root = Path(machines.__path__[0]).resolve().parent
        identity = [str(self.user.uid), str(self.user.gid)] if self.user.change else ["-1", "-1"]
        home = self.cgroups.home if self.cgroups else []
        command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", START_CODE, str(root), str(self.folder.resolve())]
        with open(self.folder / "keeper.log", "ab") as output:
            self._process = subprocess.Popen(
                [*command, *identity, *home],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env={},  # the agent's may hold credentials, and workers run as the keeper's user
                start_new_session=True,
            )

    async def _connect(self, *, wait: bool) -> asyncio.StreamReader:
        connection = await self._wait_for_socket() if wait else self._socket()
        reader, self._writer = await asyncio.open_unix_connection(sock=connection)
        self._incoming.clear()
        greeting, *events = await self._frame(reader)
        self.keeper_pid = greeting["keeper"]
        self.probes = greeting.get("probes", False)
        self.live = {facts["attempt"]: facts for facts in greeting["attempts"]}
        for event in events:
            self._dispatch(event)
        self._use_cgroups_of(greeting["home"])
        return reader

    def _use_cgroups_of(self, home: list[str]) -> None:
        if self.cgroups is None:
            return
        if not home:
            log.warning("CPU and memory limits of new workers are not enforced: the keeper was started without cgroups")
            self.cgroups = None
        elif home != self.cgroups.home:
            self.cgroups.remove()
            self.cgroups = Cgroups.around(home, self.user.uid, self.user.gid)
        else:
            self.cgroups.spare = None

    async def _wait_for_socket(self) -> socket.socket:
        assert self._process is not None
        while True:
            try:
                return self._socket()
            except OSError:
                if self._process.poll() is not None:
                    raise
                await asyncio.sleep(0.005)

    def _socket(self) -> socket.socket:
        """Connected, by way of the folder's descriptor: a socket's path is limited to 107 bytes."""
        descriptor = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(f"/proc/self/fd/{descriptor}/{SOCKET}")
        except OSError:
            connection.close()
            raise
        finally:
            os.close(descriptor)
        return connection
