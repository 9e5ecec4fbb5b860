"""Limits for host processes: cgroups that root prepares and the unprivileged keeper moves into. Versions 1 and 2.

Cgroups are used again by later attempts: making and removing one costs half as much as starting a process.
"""

import contextlib
import errno
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from machines.agent.processes import append

PERIOD_MICROSECONDS = 100_000
KEPT = 64  # empty cgroups kept for the next attempts
MINIMUM_MEMORY_BYTES = 16 << 20  # more than the keeper has: short of memory, the kernel picks the largest in a cgroup


class NoCgroups(Exception):
    """This agent may not set limits; the message says why."""


@dataclass(frozen=True)
class Limits:
    """0: no limit. With burst, cpu_milli is a share only, not a ceiling."""

    cpu_milli: int
    memory_bytes: int
    cpu_burst: bool = False


NO_LIMITS = Limits(0, 0)


@dataclass
class Cgroups:
    """The cgroups of one keeper: a folder in each hierarchy, in it the keeper's own and one per running attempt."""

    bases: list[Path]  # memory first: it tells members and kills
    version: int
    uid: int
    gid: int
    spare: list[str] | None = None  # where the keeper waits: the next attempt's
    _free: list[list[str]] = field(default_factory=list)
    _limits: dict[str, Limits] = field(default_factory=dict)  # by the first folder
    _name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    _count: int = 0

    @classmethod
    def around(cls, home: list[str], uid: int, gid: int) -> "Cgroups":
        """Those of a keeper that an earlier agent started, perhaps from within another cgroup."""
        return cls([Path(path).parent for path in home], 2 if len(home) == 1 else 1, uid, gid)

    @property
    def home(self) -> list[str]:
        return [str(base / "keeper") for base in self.bases]

    def take(self, limits: Limits) -> list[str]:
        """An empty cgroup with these limits: its folder in each hierarchy. Raises OSError."""
        paths = self.spare if self.spare and os.path.isdir(self.spare[0]) else self._empty()
        self.spare = None
        known = self._limits.pop(paths[0], None)
        if known != limits:
            for name, value in self._v1(limits) if self.version == 1 else self._v2(limits):
                self._set(paths, name, value)
        self._limits[paths[0]] = limits
        return paths

    def set_spare(self) -> list[str]:
        """Have one ready for the keeper to wait in. Raises OSError."""
        self.spare = self.spare or self._empty()
        return self.spare

    def give_back(self, paths: list[str]) -> None:
        """After the last process in it is gone. Some come from a file that the worker's user can write: only folders
        of ours are used again."""
        if [os.path.dirname(path) for path in paths] != [str(base) for base in self.bases]:
            return
        if len(self._free) < KEPT:
            self._free.append(paths)
            return
        self._limits.pop(paths[0], None)
        for path in paths:
            with contextlib.suppress(OSError):
                os.rmdir(path)

    def _empty(self) -> list[str]:
        while self._free:
            paths = self._free.pop()  # the one used last: most likely with the limits that are asked for next
            if os.path.isdir(paths[0]):  # nobody has cleaned it away
                return paths
        self._count += 1
        paths = [str(base / f"{self._name}-{self._count}") for base in self.bases]
        for path in paths:
            self._make(Path(path))
        self._limits[paths[0]] = NO_LIMITS
        return paths

    def remove_unused(self) -> None:
        """What earlier agents left: a cgroup with processes in it cannot be removed, so this asks nobody. The keeper's
        own stays, it may come back to it."""
        for base in self.bases:
            for path in base.iterdir():
                if path.is_dir() and str(path) not in self.home:
                    with contextlib.suppress(OSError):
                        path.rmdir()

    def remove(self) -> None:
        """All of it, after the keeper has left."""
        self.remove_unused()
        for path in (*map(Path, self.home), *self.bases):
            with contextlib.suppress(OSError):
                path.rmdir()

    def _make(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        os.chown(path / "cgroup.procs", self.uid, self.gid)

    def _set(self, paths: list[str], name: str, value: str) -> None:
        for path in paths:
            if os.path.exists(f"{path}/{name}"):
                try:
                    append(f"{path}/{name}", value.encode())
                except OSError as error:
                    if error.errno != errno.EINVAL:  # more than an outer cgroup allows: then that one is the limit
                        raise

    def _v1(self, limits: Limits) -> list[tuple[str, str]]:
        memory = str(limits.memory_bytes or -1)
        return [
            ("cpu.shares", str(max(2, limits.cpu_milli * 1024 // 1000) if limits.cpu_milli else 1024)),
            ("cpu.cfs_period_us", str(PERIOD_MICROSECONDS)),
            ("cpu.cfs_quota_us", str(self._quota(limits) or -1)),
            ("memory.memsw.limit_in_bytes", "-1"),  # never below the other, while either changes
            ("memory.limit_in_bytes", memory),
            ("memory.memsw.limit_in_bytes", memory),
        ]

    def _v2(self, limits: Limits) -> list[tuple[str, str]]:
        return [
            ("cpu.weight", str(min(10_000, max(1, limits.cpu_milli // 10)) if limits.cpu_milli else 100)),
            ("cpu.max", f"{self._quota(limits) or 'max'} {PERIOD_MICROSECONDS}"),
            ("memory.max", str(limits.memory_bytes or "max")),
            ("memory.swap.max", "0" if limits.memory_bytes else "max"),
        ]

    def _quota(self, limits: Limits) -> int:
        """Microseconds of computing in each period; 0: no ceiling."""
        if not limits.cpu_milli or limits.cpu_burst:
            return 0
        return max(1000, limits.cpu_milli * PERIOD_MICROSECONDS // 1000)


def prepare(name: str, uid: int, gid: int) -> Cgroups:
    """Make the folders that a keeper of this name uses. Raises NoCgroups."""
    mounts = _mounts()
    try:
        if "memory" in mounts and "cpu" in mounts:
            cgroups = Cgroups([_make_base(mounts[kind], kind, name) for kind in ("memory", "cpu")], 1, uid, gid)
        elif "" in mounts:
            cgroups = Cgroups([_make_base_v2(mounts[""], name, uid, gid)], 2, uid, gid)
        else:
            raise NoCgroups("no cgroups are mounted")
        for home in cgroups.home:
            cgroups._make(Path(home))
    except OSError as error:
        raise NoCgroups(f"{error.strerror}: {error.filename}") from error
    cgroups.remove_unused()
    return cgroups


def _mounts() -> dict[str, Path]:
    """Where each controller's hierarchy is mounted; version 2 under the empty name."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            found.setdefault("", Path(before.split()[4]))
        elif kind == "cgroup":
            for controller in options.rpartition(" ")[2].split(","):
                found.setdefault(controller, Path(before.split()[4]))
    return found


def _make_base(mount: Path, controller: str, name: str) -> Path:
    """Inside our own cgroup where it is visible, so that limits set on us hold for the workers too."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and (mount / path.lstrip("/")).is_dir():
            mount = mount / path.lstrip("/")
    base = mount / name
    base.mkdir(exist_ok=True)
    return base


def _make_base_v2(mount: Path, name: str, uid: int, gid: int) -> Path:
    """At the top: a cgroup that has processes of its own, as ours, cannot hand controllers down."""
    controllers = (mount / "cgroup.controllers").read_text().split()
    if not {"cpu", "memory"} <= set(controllers):
        raise NoCgroups(f"{mount} offers no cpu and memory control")
    append(str(mount / "cgroup.subtree_control"), b"+cpu +memory")
    base = mount / name
    base.mkdir(exist_ok=True)
    append(str(base / "cgroup.subtree_control"), b"+cpu +memory")
    os.chown(base / "cgroup.procs", uid, gid)  # moving between its children asks for it
    return base
