"""Whether workers that must run at once could, if the machines were empty. Pure.

Each may fit for itself, and still there is never room for all: five workers that take a machine each on a cluster of
four. Such a gang waits for machines, not for room, so it must neither be first in the queue nor have anybody give way.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec
import numpy as np

from runs.scheduling.candidates import Candidates
from runs.scheduling.feasible import count_gpus
from runs.scheduling.ledger import Ledger
from runs.scheduling.packing import Looks, in_turn, largest_first, pack
from runs.scheduling.places import Places
from runs.scheduling.types import Ask, Hold, MachineView, Numbers, Refusal, WaitingRun


class Whole:
    """What the machines of a pass hold at once when they are empty. For equal workers the answer is exact; different
    ones are put there as the planner would (see `packing`)."""

    def __init__(self, places: Places) -> None:
        self._places, ledger = places, places.ledger
        self._levels = {
            "never_gang": _Empty(tuple(_sound(machine) for machine in ledger.machines)),
            "unavailable_gang": _Empty(tuple(ledger.machines)),
        }

    def refuse(self, workers: Sequence[Ask]) -> Refusal | None:
        """Why these could not run at once: not even on all machines, ready and in good health (`never_gang`), or not
        on those that take work now (`unavailable_gang`). `workers`: the largest first."""
        for code, empty in self._levels.items():
            fit = empty.fit(workers)
            if fit < len(workers):
                differ = {"differ": 1} if any(ask != workers[0] for ask in workers) else {}
                return Refusal(code, {"workers": len(workers), "most": fit, **amounts_of(workers[fit]), **differ})
        return None

    def never(self, workers: Sequence[Ask]) -> Refusal | None:
        """Only what is plain without putting them anywhere: too many of one kind, or too much in all. Cheap, and of
        equal workers the whole answer."""
        sound, objects = self._levels["never_gang"], {id(ask): ask for ask in workers}
        counts = Counter[Ask]()  # equal asks may be objects of their own; to hash each worker's would cost too much
        for key, count in Counter(map(id, workers)).items():
            counts[objects[key]] += count
        fits = all(sound.fit([ask] * count) == count for ask, count in counts.items())
        if fits and (len(counts) == 1 or sound.has(workers)):
            return None
        return self.refuse(largest_first(workers))

    def refuse_distinct(self, one: Candidates, left: int, wanted: int, used: Collection[int]) -> Refusal | None:
        """The same of the `left` workers of a run of `wanted` that still need a machine each, none of the `used` rows:
        on those that take work now (`unavailable_machines`)."""
        ledger = one.ledger
        could = one.place.open & self._places.ever(one.need)
        if one.ask.gpus:
            could &= count_gpus(ledger.healthy_gpus, one.place.kinds) >= one.ask.gpus
        most = int(could.sum())
        if most - int(could[list(used)].sum()) >= left:
            return None
        return Refusal("unavailable_machines", {"wanted": wanted, "most": most})


def rows_of_distinct_runs(waiting: Iterable[WaitingRun], holds: Iterable[Hold], ledger: Ledger) -> dict[int, set[int]]:
    """For runs whose workers must each have a machine of their own: the rows they are on."""
    rows: dict[int, set[int]] = {run.id: set() for run in waiting if run.distinct_machines}
    if rows:
        for hold in holds:
            if hold.run_id in rows and hold.machine_id in ledger.row_of:
                rows[hold.run_id].add(ledger.row_of[hold.machine_id])
    return rows


def amounts_of(ask: Ask) -> Numbers:
    """What a worker waits for, as stored: it does not change while it waits."""
    if ask.node_fraction is not None:
        return {"gpus": ask.gpus, "node_fraction": ask.node_fraction}
    return {"gpus": ask.gpus, "cpu_milli": ask.cpu_milli, "memory_bytes": ask.memory_bytes}


def _sound(machine: MachineView) -> MachineView:
    gpus = machine.gpus
    if not all(gpu.healthy for gpu in gpus):
        gpus = tuple(msgspec.structs.replace(gpu, healthy=True) for gpu in gpus)
    elif machine.ready and not machine.cordoned:
        return machine
    return msgspec.structs.replace(machine, ready=True, cordoned=False, draining=False, gpus=gpus)


class _Empty:
    """Machines with nothing on them. Looked at only when a gang has found no room."""

    def __init__(self, machines: Sequence[MachineView]) -> None:
        self.machines = machines
        self._places: Places | None = None
        self._candidates: dict[Ask, Candidates] = {}
        self._equal: dict[Ask, int] = {}
        self._mixed: dict[tuple[Ask, ...], int] = {}
        self.looks = Looks()

    def fit(self, workers: Sequence[Ask]) -> int:
        """How many of these they hold at once, in this order."""
        first = workers[0]
        if all(ask is first or ask == first for ask in workers):
            if first not in self._equal:
                self._equal[first] = self._count(self._of(first))
            return min(len(workers), self._equal[first])
        key = tuple(workers)
        if key not in self._mixed:
            self._mixed[key] = self._try(workers)
        return self._mixed[key]

    def has(self, workers: Sequence[Ask]) -> bool:
        """Whether there is as much as they ask for together, wherever it is."""
        gpus = sum(len(machine.gpus) for machine in self.machines)
        cpu_milli = sum(machine.cpu_milli for machine in self.machines)
        memory_bytes = sum(machine.memory_bytes for machine in self.machines)
        return (
            sum(ask.gpus for ask in workers) <= gpus
            and sum(ask.cpu_milli for ask in workers) <= cpu_milli
            and sum(ask.memory_bytes for ask in workers) <= memory_bytes
        )

    def _of(self, ask: Ask) -> Candidates:
        if self._places is None:
            ledger = Ledger(self.machines, ())
            ledger.connected = np.ones(len(self.machines), dtype=bool)  # who is away for a moment comes back
            self._places = Places(ledger)
        if ask not in self._candidates:
            self._candidates[ask] = Candidates(self._places, ask)
        return self._candidates[ask]

    def _count(self, one: Candidates) -> int:
        ledger, ask = one.ledger, one.ask
        found = 0
        gpus = count_gpus(ledger.healthy_gpus, one.place.kinds) if ask.gpus else None
        for row in map(int, np.flatnonzero(one.room())):
            cpu_milli, memory_bytes = ledger.needs(ask, row)
            limits = [int(gpus[row]) // ask.gpus] if gpus is not None else []
            limits += [int(ledger.cpu_milli[row]) // cpu_milli] if cpu_milli else []
            limits += [int(ledger.memory_bytes[row]) // memory_bytes] if memory_bytes else []
            if not limits:
                return _WITHOUT_END
            found += min(limits)
        return found

    def _try(self, workers: Sequence[Ask]) -> int:
        fitting = len(in_turn(self._of(workers[0]).ledger, map(self._of, workers)))
        if fitting == len(workers) or not self.has(workers):
            return fitting
        packed = pack([self._of(ask) for ask in workers], self.looks)
        return fitting if packed is None else len(workers)


_WITHOUT_END = 2**31  # workers that ask for nothing
