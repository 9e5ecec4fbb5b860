"""What attempts use of the machine, from cgroups (versions 1 and 2) or from /proc. Standard library alone."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from machines.agent.processes import members, oom_kills, read, scan, stat_fields

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Usage:
    """Since the attempt began, or just now. None: not knowable here, which is not nothing."""

    cpu_seconds: float | None = None  # only differences mean something
    memory_bytes: int | None = None
    oom_kills: int | None = None
    received_bytes: int | None = None
    transmitted_bytes: int | None = None

    def with_engine(self, engine: "Usage") -> "Usage":
        """With what the engine beside it uses of the same request: cores and memory."""
        cpu = None if self.cpu_seconds is None else self.cpu_seconds + (engine.cpu_seconds or 0)
        memory = None if self.memory_bytes is None else self.memory_bytes + (engine.memory_bytes or 0)
        return replace(self, cpu_seconds=cpu, memory_bytes=memory)


def cgroup_usage(cgroups: Sequence[str], oom_before: int = 0) -> Usage:
    """Of a host process's own cgroup: its folder in each hierarchy, that of memory first. `oom_before`: kills that an
    earlier attempt in the same cgroup had. A process shares the host's network: its part of it is not knowable."""
    memory = _number(f"{cgroups[0]}/memory.current", f"{cgroups[0]}/memory.usage_in_bytes")
    return Usage(_cpu_seconds(cgroups), memory, oom_kills(cgroups) - oom_before)


def _cpu_seconds(cgroups: Sequence[str]) -> float | None:
    for folder in cgroups:
        for line in read(f"{folder}/cpu.stat").splitlines():
            if line.startswith(b"usage_usec "):
                return int(line.split()[1]) / 1e6
        if (nanoseconds := _number(f"{folder}/cpuacct.usage")) is not None:
            return nanoseconds / 1e9
    return processes_usage(members(cgroups[0])).cpu_seconds  # v1 with cpuacct in a hierarchy of its own


def _number(*paths: str) -> int | None:
    """In the first of these files that there is."""
    for path in paths:
        if (text := read(path, 64).strip()).isdigit():
            return int(text)
    return None


def processes_usage(pids: Iterable[int]) -> Usage:
    """Sums over live processes: what those that ended used counts where their parent is among them."""
    ticks = pages = found = 0
    for pid in pids:
        fields = stat_fields(pid)
        if len(fields) > 21:
            found += 1
            ticks += sum(map(int, fields[11:15]))
            pages += int(fields[21])
    return Usage(ticks / TICKS, pages * PAGE) if found else Usage()


def sessions_usage(leaders: Mapping[str, int]) -> dict[str, Usage]:
    """Without cgroups: of each attempt (with its main process's number) the processes of its session."""
    return {attempt: processes_usage(pids) for attempt, pids in scan(dict(leaders)).items()}


def engine_usage(stats: Mapping[str, object], oom: int | None) -> Usage:
    """Of a container, as the engine's `stats` tells it. With the host's network it has no `networks`: left out."""
    cpu = _at(stats, "cpu_stats", "cpu_usage", "total_usage")
    networks = stats.get("networks")
    known = isinstance(networks, Mapping) and bool(networks)
    return Usage(
        cpu_seconds=None if cpu is None else cpu / 1e9,
        memory_bytes=_at(stats, "memory_stats", "usage"),
        oom_kills=oom,
        received_bytes=_summed(networks, "rx_bytes") if known else None,
        transmitted_bytes=_summed(networks, "tx_bytes") if known else None,
    )


def _at(document: object, *path: str) -> int | None:
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, int) and document >= 0 else None


def _summed(networks: object, name: str) -> int:
    assert isinstance(networks, Mapping)
    return sum(_at(network, name) or 0 for network in networks.values())
