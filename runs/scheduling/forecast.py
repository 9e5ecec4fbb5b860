"""When a run would start, and the words for it. Pure.

The estimate plays the queue in virtual time, strictly in order, as if all that runs used its whole time limit: what
ends sooner, and what may go ahead meanwhile, only make it earlier. So it is a latest time, not a promise of one.
"""

import heapq
from collections.abc import Iterable, Sequence

from runs.scheduling.candidates import Candidates
from runs.scheduling.explain import sentence
from runs.scheduling.ledger import Ledger, Take, bits_of
from runs.scheduling.ordering import Shares, in_order
from runs.scheduling.packing import largest_first
from runs.scheduling.places import Places
from runs.scheduling.types import Ask, Placement, Refusal, Snapshot, WaitingRun
from runs.scheduling.victims import ends_soon
from runs.scheduling.whole import Whole
from runs.units import counted

STOP_SECONDS = 30.0
MACHINES_NAMED = 3
ASSUMPTION = "if all use their limits"


def starts_by(snapshot: Snapshot, now: float, run_id: int) -> float | None:
    """When this waiting run starts at the latest; None where something before it has no time limit, or it cannot run.
    Unix seconds; `now` where there is room already."""
    world = _World(snapshot, now)
    queue: list[WaitingRun] = []
    for run in in_order(snapshot.waiting, Shares(snapshot.machines, snapshot.namespaces, snapshot.holds)):
        queue.append(run)
        if run.id == run_id:
            break
    for run in queue:
        if not world.can_hold(run):
            continue
        if not world.start(run):
            return None
    return world.now if world.started else None


class _World:
    """The cluster from now on: what is free, and what ends when."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self.now = now
        self.started = False  # whether the last run that was given to `start` has
        self.ledger = Ledger(snapshot.machines, snapshot.holds)
        self.places = Places(self.ledger)
        self.whole = Whole(self.places)
        self._candidates: dict[int, Candidates] = {}
        self._ends: list[tuple[float, int, Take]] = []
        self._count = 0  # in which order they were told
        for hold in snapshot.holds:
            row = self.ledger.row_of.get(hold.machine_id)
            until = now + STOP_SECONDS if ends_soon(hold, now) else hold.ends_by
            if row is not None and until is not None:
                room = Take(row, hold.cpu_milli, hold.memory_bytes, bits_of(hold.gpu_indexes))
                self._end(max(now, until), room)

    def can_hold(self, run: WaitingRun) -> bool:
        self.started = False
        if not run.workers or not all(self._of(worker.ask).is_open for worker in run.workers):
            return False
        return not run.gang or self.whole.refuse(largest_first([worker.ask for worker in run.workers])) is None

    def start(self, run: WaitingRun) -> bool:
        """Wait until the run fits, and start it; False: that never comes."""
        rooms: list[Take] = []
        used: set[int] = set()
        asks = largest_first([worker.ask for worker in run.workers[: run.parallelism]])
        while asks:
            room = self._room(asks[0], used if run.distinct_machines else ())
            if room is not None:
                self.ledger.keep(room)
                rooms.append(room)
                used.add(room.row)
                asks.pop(0)
            elif not self._wait():
                return False
        if run.time_limit is not None:
            for room in rooms:
                self._end(self.now + run.time_limit, room)
        self.started = True
        return True

    def _end(self, at: float, room: Take) -> None:
        self._count += 1
        heapq.heappush(self._ends, (at, self._count, room))

    def _wait(self) -> bool:
        """Until the next end."""
        if not self._ends:
            return False
        self.now, _, room = heapq.heappop(self._ends)
        self.ledger.give_back(room)
        while self._ends and self._ends[0][0] <= self.now:
            self.ledger.give_back(heapq.heappop(self._ends)[2])
        return True

    def _of(self, ask: Ask) -> Candidates:
        candidates = self._candidates.get(id(ask))
        if candidates is None:
            candidates = self._candidates[id(ask)] = Candidates(self.places, ask)
        return candidates

    def _room(self, ask: Ask, without: Iterable[int]) -> Take | None:
        candidates = self._of(ask)
        row = candidates.best(list(without), as_known=False)
        return None if row is None else self.ledger.choose(row, candidates.ask, candidates.place.kinds)


# ---- words -----------------------------------------------------------------------------------------------------------


def at_once(placements: Sequence[Placement], names: dict[int, str], of: int = 0) -> str:
    """`starts at once on gpu-07 and gpu-08`, `starts at once with 3 of 5 workers on gpu-07`. `names`: of machines, by
    id. `of`: how many workers the run has if only some of them start, else 0."""
    machines = list(dict.fromkeys(names[placed.machine_id] for placed in placements))
    starts = f"starts at once with {len(placements)} of {of} workers" if of else "starts at once"
    if len(machines) > MACHINES_NAMED:
        return f"{starts} on {len(machines)} machines"
    *first, last = machines
    return f"{starts} on {', '.join(first)} and {last}" if first else f"{starts} on {last}"


def never(refusal: Refusal) -> str:
    """`can never run: no machine has 9 GPUs; the most is 8`."""
    reason = sentence(refusal.code, refusal.numbers)
    head, _, rest = reason.partition(": ")
    return f"can never run: {rest if head in ('No machine fits', 'Cannot plan workers') else reason}"


def later(seconds: float | None, ahead: int, away: bool = False) -> str:
    """`about 3 h, behind 4 runs, if all use their limits`. `seconds`: None where nothing says when. `away`: whether a
    machine is not connected."""
    behind = f"behind {counted(ahead, 'run')}" if ahead else "next"
    if seconds is None:
        why = "a machine is not connected" if away else "work without a time limit is before it"
        return f"{behind}; nothing says when, since {why}"
    return f"{about(seconds)}, {behind}, {ASSUMPTION}"


def about(seconds: float) -> str:
    """`about 3 h`: one or two digits say enough about a guess."""
    for unit, name, up_to in ((60, "min", 90 * 60), (3600, "h", 48 * 3600)):
        if seconds < up_to:
            return f"about {max(1, round(seconds / unit))} {name}"
    return f"about {round(seconds / 86400)} days"
