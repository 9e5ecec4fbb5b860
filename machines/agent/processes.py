"""Processes and cgroups of a machine, through /proc and /sys, with the standard library alone: the keeper's tools."""

import contextlib
import ctypes
import errno
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MARK = "ASTRA_ATTEMPT_UID"  # in every worker's environment: finds descendants that left its session
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38


def read(path: str, limit: int = 65536) -> bytes:
    """A small file of /proc, /sys or our own; nothing if it cannot be read (any more)."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, limit)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def append(path: str, data: bytes) -> None:
    """To a file that exists, by one write: whole, or not at all. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        written = os.write(descriptor, data)
        if written < len(data):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


# ---- what happened to an attempt's process: its `exit` file ----------------------------------------------------------
# Made empty by the agent. `S`, the kills for memory so far in its cgroup, and the cgroup's folders, once a start is
# tried; then `E`, code, time, kills for memory. Each line is one append: a reader sees it whole or not at all.


@dataclass(frozen=True)
class End:
    """Exit code (null: unknown), when, and how many processes of it were killed for memory."""

    code: int | None
    at: float
    oom: int


@dataclass(frozen=True)
class Trace:
    """What is written down of an attempt's process."""

    tried: bool = False
    cgroups: tuple[str, ...] = ()
    oom_before: int = 0
    end: End | None = None


def tried_line(oom_before: int, cgroups: Sequence[str]) -> bytes:
    return "\t".join(["S", str(oom_before), *cgroups]).encode() + b"\n"


def end_line(end: End) -> bytes:
    code = "-" if end.code is None else end.code
    return f"E\t{code}\t{end.at}\t{end.oom}\n".encode()


def read_trace(path: str) -> Trace:
    """What the exit file says; of several ends the first (the one that was seen) counts."""
    trace = Trace()
    for line in read(path, 4096).split(b"\n")[:-1]:
        kind, *fields = line.decode(errors="replace").split("\t")
        with contextlib.suppress(ValueError, IndexError):  # the worker's user can write here: believe no shape
            if kind == "S":
                trace = Trace(True, tuple(fields[1:]), int(fields[0]))
            elif kind == "E" and trace.end is None:
                code = None if fields[0] == "-" else int(fields[0])
                trace = replace(trace, tried=True, end=End(code, float(fields[1]), int(fields[2])))
    return trace


# ---- processes -------------------------------------------------------------------------------------------------------


def stat_fields(pid: int) -> list[bytes]:
    """Of /proc/PID/stat what follows the name: state, ppid, pgrp, session, …, start time at 19; empty if gone."""
    return read(f"/proc/{pid}/stat", 1024).rpartition(b")")[2].split()


def born(pid: int) -> int:
    """When the process began, in clock ticks since boot: with its number it names one process for good. 0: gone."""
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def find_program(name: str, path: str) -> tuple[str, int]:
    """(the file to run, 0), or ("", 127) not found, ("", 126) found but not executable: as a shell tells them."""
    candidates = [name] if "/" in name else [f"{folder or '.'}/{name}" for folder in path.split(":")]
    found = [candidate for candidate in candidates if os.path.isfile(candidate)]
    for candidate in found:
        if os.access(candidate, os.X_OK):
            return candidate, 0
    return "", 126 if found or ("/" in name and os.path.exists(name)) else 127


def send_signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone; or another user's by now
        os.kill(pid, number)


def scan(leaders: dict[str, int]) -> dict[str, list[int]]:
    """Of each attempt (with its main process's number) the live processes: of its session, or orphaned and marked."""
    by_session = {pid: attempt for attempt, pid in leaders.items()}
    found: dict[str, list[int]] = {attempt: [] for attempt in leaders}
    me = os.getpid()
    for name in os.listdir("/proc"):
        fields = stat_fields(int(name)) if name.isdigit() else []
        if len(fields) < 4 or fields[0] in (b"Z", b"X"):
            continue
        attempt = by_session.get(int(fields[3]))
        if attempt is None and int(fields[1]) in (me, 1):
            attempt = marked(int(name))
        if attempt in found:
            found[attempt].append(int(name))
    return found


def marked_leaders(attempts: Collection[str]) -> dict[str, int]:
    """Main processes found by their mark alone: the keeper that started them was killed before it could say which."""
    found: dict[str, int] = {}
    for name in os.listdir("/proc"):
        fields = stat_fields(int(name)) if name.isdigit() else []
        if len(fields) > 3 and fields[0] not in (b"Z", b"X") and fields[3] == name.encode():
            attempt = marked(int(name))
            if attempt is not None and attempt in attempts:
                found[attempt] = int(name)
    return found


def marked(pid: int) -> str | None:
    for entry in read(f"/proc/{pid}/environ", 1 << 20).split(b"\0"):
        if entry.startswith(MARK.encode() + b"="):
            return entry.partition(b"=")[2].decode(errors="replace")
    return None


BACK_TO_DEFAULT = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD]


def start_process(program: str, message: Mapping[str, Any], output: int) -> int:
    """Of a message's argv, env and attempt; its number. Raises OSError with the kernel's reason, ValueError for what no
    kernel can be given."""
    return os.posix_spawn(
        program,
        message["argv"],
        {**message["env"], MARK: message["attempt"]},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=BACK_TO_DEFAULT,
    )


def wait_any() -> tuple[int, int] | None:
    """An ended child; None if there is none."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


# ---- cgroups ---------------------------------------------------------------------------------------------------------


def members(cgroup: str) -> list[int]:
    """All processes in it but the caller's own: the keeper passes through the cgroups of its workers."""
    pids = {int(pid) for pid in read(f"{cgroup}/cgroup.procs", 1 << 20).split()}
    return list(pids - {os.getpid()})


def oom_kills(cgroups: Sequence[str]) -> int:
    """How many processes the kernel has killed for memory in this cgroup since it was made."""
    for path in cgroups:
        for name in ("memory.events", "memory.oom_control"):  # v2, v1
            for line in read(f"{path}/{name}", 4096).splitlines():
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    return 0


# ---- the keeper's own ------------------------------------------------------------------------------------------------


class OomScore:
    """How ready the kernel is to kill this process for memory. Opened while still root: a process that gave up root may
    not open it. Anybody may raise it, and take that back."""

    def __init__(self) -> None:
        self._descriptor = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self._own = os.read(self._descriptor, 16).strip()

    def write(self, value: bytes) -> None:
        with contextlib.suppress(OSError):  # a kernel that does not allow it keeps its own order
            os.pwrite(self._descriptor, value, 0)

    def restore(self) -> None:
        self.write(self._own)


def become(uid: int, gid: int) -> None:
    """Give up root for good, and for all workers to come: they cannot gain it back through a set-uid program."""
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    prctl(PR_SET_NO_NEW_PRIVS)


def prctl(option: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")
