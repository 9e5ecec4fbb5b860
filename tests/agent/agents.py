"""A real agent in a process of its own, beside a console for tests."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machines.agent.cgroups import NoCgroups, prepare
from machines.agent.keeper_client import cgroup_name
from machines.orders import Order
from tests.agent.fake_console import FakeConsole

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 30


def order(*argv: str, **more: Any) -> Order:
    """One that runs `argv`."""
    uid = uuid.uuid4().hex
    names = {"worker_name": "run-0", "run_name": "run", "number": 1, "image": "", "stop_grace_seconds": 10.0}
    command = argv[0] if argv else None
    return Order(attempt=uid, worker=uid, run=uid, command=command, args=list(argv[1:]), **{**names, **more})


def script(text: str, *argv: str, **more: Any) -> Order:
    return order("/bin/sh", "-c", text, *argv, **more)


class Agent:
    """`astra-agent local` with one machine."""

    def __init__(self, folder: Path, console: FakeConsole, runtime: str = "process", **more: Any) -> None:
        self.folder = folder
        self.state = folder / "machine"
        self.config = folder / "agent.json"
        entry = {"console": console.url, "name": "machine", "state_dir": str(self.state), "runtime": runtime, **more}
        self.config.write_text(json.dumps([{"token": "secret-token", **entry}]))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, wrapper: tuple[str, ...] = ()) -> None:
        command = [*wrapper, sys.executable, "-m", "machines.agent.main", "local", "--config", str(self.config)]
        with open(self.folder / "agent.log", "ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def leave(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)

    def output(self, item: Order) -> bytes:
        return (self.state / "attempts" / item.attempt / "output.log").read_bytes()

    def keeper(self) -> int | None:
        """Its process number; None if none runs."""
        for pid in pids():
            words = arguments(pid)
            if str(self.folder / "keeper").encode() in words and b"keeper" in b" ".join(words):
                return pid
        return None

    def processes_of(self, item: Order) -> list[int]:
        """All that carry the attempt's mark, zombies aside."""
        mark = f"ASTRA_ATTEMPT_UID={item.attempt}".encode()
        return [pid for pid in pids() if mark in environment(pid)]

    def end(self) -> None:
        """After a test: the agent, its keeper and every worker."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        if (keeper := self.keeper()) is not None:
            os.kill(keeper, signal.SIGKILL)
        for pid in pids():
            for entry in environment(pid):
                if entry.startswith(b"HOME=" + str(self.folder).encode()):
                    os.kill(pid, signal.SIGKILL)
        self._remove_cgroups()

    def _remove_cgroups(self) -> None:
        """An agent that was killed leaves its cgroups to the next one."""
        with contextlib.suppress(NoCgroups):
            cgroups = prepare(cgroup_name(self.folder / "keeper"), 0, 0)
            deadline = time.monotonic() + WAIT_SECONDS
            while any(base.exists() for base in cgroups.bases) and time.monotonic() < deadline:
                cgroups.remove()
                time.sleep(0.01)


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


async def eventually(condition: Callable[[], Any]) -> Any:
    """The condition's first true value. A keeper or an agent does it; nobody tells us when."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)
    return value
