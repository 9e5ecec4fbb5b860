"""Who is looked at first: priority, then gangs that lost their place, then weighted fair share, then submission time.
Pure."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from runs.scheduling.types import Hold, MachineView, NamespaceView, Placement, WaitingRun


class Totals(NamedTuple):
    gpus: int
    cpu_milli: int
    memory_bytes: int

    @classmethod
    def of(cls, machines: Iterable[MachineView]) -> "Totals":
        """All that the cluster has (at least 1 of each, so that shares are defined)."""
        machines = list(machines)
        return cls(
            max(1, sum(len(machine.gpus) for machine in machines)),
            max(1, sum(machine.cpu_milli for machine in machines)),
            max(1, sum(machine.memory_bytes for machine in machines)),
        )


class Use:
    """What a namespace holds now. `runs`: ids of the runs that hold something."""

    __slots__ = ("cpu_milli", "gpus", "memory_bytes", "runs")

    def __init__(self) -> None:
        self.gpus = 0
        self.cpu_milli = 0
        self.memory_bytes = 0
        self.runs: set[int] = set()

    def add(self, run_id: int, gpus: int, cpu_milli: int, memory_bytes: int) -> None:
        self.gpus += gpus
        self.cpu_milli += cpu_milli
        self.memory_bytes += memory_bytes
        self.runs.add(run_id)


class Shares:
    """The namespaces' use, kept current while a pass grants. What a lost machine holds is not in use: its workers are
    started elsewhere."""

    def __init__(
        self, machines: Iterable[MachineView], namespaces: Iterable[NamespaceView], holds: Iterable[Hold]
    ) -> None:
        machines = list(machines)
        self.totals = Totals.of(machines)
        ready = {machine.id for machine in machines if machine.ready}
        self.namespaces = {namespace.id: namespace for namespace in namespaces}
        self._shares: dict[int, float] = {}  # of namespaces that were granted nothing since
        self.use: dict[int, Use] = {namespace_id: Use() for namespace_id in self.namespaces}
        for hold in holds:
            if hold.namespace_id in self.use and hold.machine_id in ready:
                gpus = len(hold.gpu_indexes)
                self.use[hold.namespace_id].add(hold.run_id, gpus, hold.cpu_milli, hold.memory_bytes)

    def grant(self, placement: Placement) -> None:
        self._shares.pop(placement.namespace_id, None)
        self.use[placement.namespace_id].add(
            placement.run_id, len(placement.gpu_indexes), placement.cpu_milli, placement.memory_bytes
        )

    def share(self, namespace_id: int) -> float:
        """The dominant share (of GPUs, cores or memory, whichever is largest) over the weight."""
        share = self._shares.get(namespace_id)
        if share is None:
            use, all_ = self.use[namespace_id], self.totals
            dominant = max(use.gpus / all_.gpus, use.cpu_milli / all_.cpu_milli, use.memory_bytes / all_.memory_bytes)
            share = self._shares[namespace_id] = dominant / self.namespaces[namespace_id].weight
        return share


def in_order(waiting: Iterable[WaitingRun], shares: Shares) -> Iterator[WaitingRun]:
    """Runs, best first. Shares are read anew for each: grant what a run got before asking for the next."""
    ordered = sorted(waiting, key=lambda run: (-run.priority, run.namespace_id, run.queued_at, run.id))
    for _, group in groupby(ordered, key=lambda run: run.priority):
        equals = list(group)
        again = sorted((run for run in equals if run.again), key=lambda run: (run.queued_at, run.id))
        yield from again
        yield from _by_fair_share([run for run in equals if not run.again] if again else equals, shares)


def _by_fair_share(runs: Iterable[WaitingRun], shares: Shares) -> Iterator[WaitingRun]:
    """`runs`: grouped by namespace, oldest first within each."""
    queues = [list(group) for _, group in groupby(runs, key=lambda run: run.namespace_id)]
    if len(queues) <= 1:
        yield from (run for queue in queues for run in queue)
        return
    heads = [_head(queue, 0, shares) for queue in queues]
    heapq.heapify(heads)
    while heads:
        _, _, _, position, queue = heapq.heappop(heads)
        yield queue[position]
        if position + 1 < len(queue):
            heapq.heappush(heads, _head(queue, position + 1, shares))


def _head(queue: list[WaitingRun], position: int, shares: Shares) -> tuple[float, float, int, int, list[WaitingRun]]:
    run = queue[position]
    return shares.share(run.namespace_id), run.queued_at, run.id, position, queue
