"""Child processes of a local console: started, kept alive, stopped in order. Standard library only; Linux."""

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
RESTART_MIN_SECONDS, RESTART_MAX_SECONDS = 0.2, 5.0
STEADY_SECONDS = 30.0  # alive this long: the next restart is quick again
LOG_ROTATE_BYTES = 10 * 1024 * 1024
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Child:
    """One process: ended by `stop_signal`, and by the kernel with that signal should its parent die first.

    Start it from the main thread only: the kernel's signal follows the thread that made the process.
    """

    name: str
    command: Sequence[str]
    log: Path
    stop_signal: signal.Signals = signal.SIGTERM
    cwd: Path | None = None
    env: Mapping[str, str] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restart_delay: float = RESTART_MIN_SECONDS

    def start(self) -> None:
        _rotate(self.log)
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.cwd, env=self.env,
                start_new_session=True, preexec_fn=_die_with_parent(self.stop_signal), **self.options,
            )  # fmt: skip
        self.started_at = time.monotonic()

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, seconds: float = 20) -> None:
        """Ask, wait, then kill. Does nothing when it has ended."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def keep_alive(children: Sequence[Child], say: Callable[[str], None]) -> None:
    """Restart what has ended, each after its own delay, which doubles while it keeps ending."""
    for child in children:
        if child.running():
            if time.monotonic() - child.started_at > STEADY_SECONDS:
                child.restart_delay = RESTART_MIN_SECONDS
        elif time.monotonic() - child.started_at > child.restart_delay:
            code = None if child.process is None else child.process.returncode
            say(f"{child.name} ended with code {code}: started again (see {child.log})")
            child.restart_delay = min(child.restart_delay * 2, RESTART_MAX_SECONDS)
            child.start()


def record(path: Path, children: Sequence[Child]) -> None:
    """Note who was started, so that the next start can end what a killed parent left behind."""
    rows = [
        (child.process.pid, _start_ticks(child.process.pid), child.stop_signal) for child in children if child.process
    ]
    partial = path.with_suffix(".new")
    partial.write_text(json.dumps(rows))
    partial.replace(path)


def end_recorded(path: Path, seconds: float = 20) -> None:
    """End the recorded processes that still live (same pid and same start time), newest first, and wait for them."""
    if not path.exists():
        return
    for pid, ticks, stop_signal in reversed(json.loads(path.read_text())):
        if _start_ticks(pid) == ticks:
            _end(pid, ticks, stop_signal, seconds)
    path.unlink()


def _end(pid: int, ticks: int, stop_signal: int, seconds: float) -> None:
    os.kill(pid, stop_signal)
    deadline = time.monotonic() + seconds
    while _start_ticks(pid) == ticks:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            deadline += seconds
        time.sleep(0.02)


def _start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None when there is none, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _die_with_parent(stop_signal: signal.Signals) -> Callable[[], None]:
    parent = os.getpid()

    def prepare() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, stop_signal)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return prepare


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_ROTATE_BYTES:
        log.replace(log.with_suffix(".log.old"))
