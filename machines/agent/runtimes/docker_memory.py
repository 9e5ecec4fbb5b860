"""Who was killed for memory: told by the kernel, since the engine's own flag may come late, or (Podman) never.

A container's memory group is gone as soon as the container is, so its kills are watched while it lives: by an eventfd
on cgroup v1, by polling `memory.events` for its change on cgroup v2. Both hang in one epoll. Where the agent may not
read the groups (another user's engine), nothing is watched and the engine's flag alone counts.
"""

import asyncio
import contextlib
import logging
import os
import re
import select
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)
CGROUP_ROOT = Path("/sys/fs/cgroup")
SETTLE_SECONDS = 0.1  # from the kernel's notice to the killed process being counted, or to the group's own end


@dataclass
class _Watched:
    counts: int  # file descriptor of the group's counters
    notices: int | None  # eventfd; v2 has none
    kills: int = 0
    noticed: int = 0  # v1: times the group ran out of memory, and once for its removal

    def read(self) -> bool:
        """Take in what the kernel says. False once the group is gone."""
        try:
            text = os.pread(self.counts, 4096, 0)
        except OSError:
            text = b""
        self.kills = max(self.kills, kills_in(text))
        if self.notices is not None:
            with contextlib.suppress(BlockingIOError):
                self.noticed += os.eventfd_read(self.notices)
        return bool(text)

    def close(self) -> None:
        os.close(self.counts)
        if self.notices is not None:
            os.close(self.notices)


def kills_in(text: bytes) -> int:
    """The count of `memory.events` (v2) or `memory.oom_control` (v1)."""
    found = re.search(rb"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def memory_group(cgroup_file: str, root: Path = CGROUP_ROOT) -> Path | None:
    """The folder of a process's memory group, from its /proc/<pid>/cgroup."""
    unified = None
    for line in cgroup_file.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return root / "memory" / path.lstrip("/")
        if not controllers:
            unified = root / path.lstrip("/")
    return unified


class MemoryWatch:
    """`on_kills(key, count)` is called when processes of a watched container were killed while it lives."""

    def __init__(self, on_kills: Callable[[str, int], None]) -> None:
        self._on_kills = on_kills
        self._watched: dict[str, _Watched] = {}
        self._epoll = select.epoll()
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._on_notice)

    def watch(self, key: str, pid: int) -> None:
        """`pid`: the container's main process. It may be gone already."""
        try:
            group = memory_group(Path(f"/proc/{pid}/cgroup").read_text())
            if group is not None:
                self._watched[key] = self._open(group)
        except OSError as error:
            log.debug("Memory kills of %s cannot be watched: %s", key, error)

    async def finish(self, key: str, *, killed: bool) -> bool:
        """End watching. Was the container, whose main process was `killed`, killed for memory?"""
        watched = self._watched.pop(key, None)
        if watched is None:
            return False
        removed = not watched.read()
        if (
            killed and removed and watched.noticed == 1
        ):  # out of memory, or just removed, which is noticed a little late
            await asyncio.sleep(SETTLE_SECONDS)
            watched.read()
        watched.close()
        return killed and (watched.kills > 0 or watched.noticed > removed)

    def kills(self, key: str) -> int | None:
        """Processes of it that were killed for memory so far; None: it is not watched."""
        watched = self._watched.get(key)
        if watched is None:
            return None
        watched.read()
        return watched.kills

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        for watched in self._watched.values():
            watched.close()
        self._watched.clear()
        self._epoll.close()

    def _open(self, group: Path) -> _Watched:
        control = group / "memory.oom_control"
        if not control.exists():
            counts = os.open(group / "memory.events", os.O_RDONLY | os.O_CLOEXEC)
            self._epoll.register(counts, select.EPOLLPRI)
            return _Watched(counts, None)
        counts = os.open(control, os.O_RDONLY | os.O_CLOEXEC)
        notices = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            (group / "cgroup.event_control").write_text(f"{notices} {counts}")
        except OSError:
            os.close(counts)
            os.close(notices)
            raise
        self._epoll.register(notices, select.EPOLLIN)
        return _Watched(counts, notices)

    def _on_notice(self) -> None:
        ready = {descriptor for descriptor, _ in self._epoll.poll(0)}
        for key, watched in self._watched.items():
            if watched.notices in ready or watched.counts in ready:
                watched.read()
                asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._tell, key)

    def _tell(self, key: str) -> None:
        watched = self._watched.get(key)
        if watched is not None and watched.read() and watched.kills:
            self._on_kills(key, watched.kills)
