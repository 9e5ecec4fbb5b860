"""A whole console in real processes, for end-to-end tests: `manage.py up` on a data folder of its own."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")


def eventually(ask: Callable[[], T | None], seconds: float = 30, every: float = 0.05) -> T:
    """The first truthy answer; AssertionError with the last one when the deadline passes."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s; the last answer was {answer!r}")
        time.sleep(every)
    return answer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Console:
    """A running console. `api` speaks the cluster view with the demo's token."""

    process: subprocess.Popen[str]
    data: Path
    ready: dict[str, str]
    api: httpx.Client
    output: Path
    names: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.ready["url"]

    def submit(self, name: str, *argv: str, **spec: Any) -> dict[str, Any]:
        template = spec.pop("task_template", {})
        body = {
            "metadata": {"name": name},
            "spec": {
                "task_template": {
                    "image": "localhost/busybox:test",
                    "command": argv[0],
                    "args": list(argv[1:]),
                    "requested_resources": {"cpu_cores": 0.1, "memory_bytes": 64 * 1024**2},
                    **template,
                },
                **spec,
            },
        }
        answer = self.api.post("jobs", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def run(self, name: str) -> dict[str, Any]:
        answer = self.api.get(f"jobs/{name}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def task(self, name: str) -> dict[str, Any]:
        answer = self.api.get(f"tasks/{name}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def logs(self, worker: str, tail: int = 10_000) -> str:
        answer = self.api.get(f"tasks/{worker}/logs", params={"tail": tail})
        assert answer.status_code == 200, answer.text
        return answer.json()["logs"]

    def wait_for(self, name: str, *states: str, seconds: float = 60) -> dict[str, Any]:
        """The run, once it is in one of `states`. Survives a console that is away meanwhile."""

        def ask() -> dict[str, Any] | None:
            try:
                answer = self.api.get(f"jobs/{name}")
            except httpx.TransportError:
                return None
            if answer.status_code != 200 or answer.json()["status"]["state"] not in states:
                return None
            return answer.json()

        return eventually(ask, seconds)

    def pid_of(self, fragment: str) -> int:
        """Of this console's only process whose command line holds `fragment`."""
        found = [pid for pid, line in processes_of(self.data, self.process.pid) if fragment in line]
        assert len(found) == 1, (fragment, processes_of(self.data, self.process.pid))
        return found[0]

    def stop(self, seconds: float = 60) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


def processes_of(data: Path, parent: int) -> list[tuple[int, str]]:
    """Every live process that was started by `parent` or whose command line or working folder names the data folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == parent:
            continue
        try:
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            cwd = os.readlink(entry / "cwd")
        except OSError:
            continue
        if status[0] not in "ZX" and (int(status[1]) == parent or str(data) in line or cwd.startswith(str(data))):
            found.append((int(entry.name), line))
    return found


def start_console(data: Path, *arguments: str, env: dict[str, str] | None = None, seconds: float = 120) -> Console:
    """`manage.py up` on a free port; returns when it is ready."""
    ready_file, output = data.with_suffix(".ready"), data.with_suffix(".out")
    ready_file.unlink(missing_ok=True)
    command = [sys.executable, "manage.py", "up", "--port", str(free_port()), "--data-dir", str(data)]
    with output.open("a") as out:
        process = subprocess.Popen(
            [*command, "--ready-file", str(ready_file), *arguments],
            cwd=ROOT,
            env=_clean_environment() | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            text=True,
        )

    def ready() -> dict[str, str] | None:
        assert process.poll() is None, output.read_text()
        return json.loads(ready_file.read_text()) if ready_file.exists() else None

    try:
        answer = eventually(ready, seconds)
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        raise
    place = f"orgs/{answer['organisation']}/workspaces/{answer['workspace']}/clusters/{answer['cluster']}"
    client = httpx.Client(
        base_url=f"{answer['url']}/api/v1/{place}/api/",
        headers={"Authorization": f"Bearer {answer['token']}"},
        timeout=30,
    )
    return Console(process, data, answer, client, output)


def _clean_environment() -> dict[str, str]:
    """Without the tests' own servers: the console starts its own."""
    return {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}


@contextmanager
def running_console(*arguments: str, env: dict[str, str] | None = None) -> Iterator[Console]:
    """A console on a new data folder; afterwards stopped, its folder removed, and nothing of it left running."""
    folder = Path(tempfile.mkdtemp(prefix="astra-e2e-"))
    folder.chmod(0o711)
    console = start_console(folder / "data", *arguments, env=env)
    try:
        yield console
    finally:
        console.api.close()
        if console.process.poll() is None:
            console.stop()
        left = processes_of(folder, console.process.pid)
        shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"left running: {left}"
