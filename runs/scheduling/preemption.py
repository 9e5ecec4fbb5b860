"""Which runs give way so that one of strictly higher priority can start. Pure.

The fewest victims, and of those the youngest; whole runs; none that does not help. What is freed is claimed: see
`claims`. For one worker the answer is exact; for a gang each worker in turn has the fewest more give way, and victims
that others have made needless are spared at the end. A gang of very many has not every choice looked at.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from runs.scheduling.candidates import Candidates
from runs.scheduling.ledger import Ints, Mask, Take, lowest_bits
from runs.scheduling.subsets import fewest_covering
from runs.scheduling.victims import Victim, Victims

GAINS_PER_SEARCH = 20_000  # victims weighed against each other; then whoever helps is taken, the youngest first
GIVES_TO_SPARE = 4_000  # workers that are placed anew to see who was needless


class Found(NamedTuple):
    """Who gives way, and the room to claim: one for each worker that then fits, in the order they were asked in."""

    victims: list[Victim]
    rooms: list[Take]


class Bounds(NamedTuple):
    """`closed`: rows that may not be used; `distinct`: one worker on each row; `prefer`: rows claimed before."""

    closed: Collection[int] = ()
    distinct: bool = False
    prefer: Collection[int] = ()


def search(pool: Victims, wanted: Sequence[Candidates], priority: int, bounds: Bounds, whole: bool) -> Found | None:
    """Who must give way so that workers fit on these candidates: all of them (`whole`) or as many as can. None:
    nobody's giving way would help."""
    trial = _Trial(pool, bounds)
    fitting = 0
    for candidates in wanted:
        victims = trial.fewest(candidates, priority, len(wanted) - fitting)
        if victims is None:
            break
        trial.release(victims)
        trial.give(candidates)
        fitting += 1
    if not fitting or (whole and fitting < len(wanted)):
        return None
    return _spare_the_needless(pool, trial, wanted[:fitting], bounds)


def _spare_the_needless(pool: Victims, trial: "_Trial", wanted: Sequence[Candidates], bounds: Bounds) -> Found:
    victims, tries = trial.victims, GIVES_TO_SPARE // len(wanted)
    if len(victims) > 1:
        for victim in sorted(victims, key=lambda victim: victim.started_at)[:tries]:
            fewer = [other for other in victims if other is not victim]
            again = _Trial(pool, bounds)
            again.release(fewer)
            if all(again.give(candidates) for candidates in wanted):
                victims, trial = fewer, again
    return Found(victims, trial.rooms)


class _Trial:
    """Room as it would be if some gave way, while it is given to the workers of one run."""

    def __init__(self, pool: Victims, bounds: Bounds) -> None:
        self.pool, self.ledger, self.bounds = pool, pool.ledger, bounds
        self.victims: list[Victim] = []
        self.rooms: list[Take] = []
        self.spare = pool.spare.copy()
        self._weighed = 0
        # By row: promised GPUs that nobody held.
        self._given: Ints = np.zeros(len(self.ledger.machines), dtype=np.int64)
        self._prefer: Mask = np.zeros(len(self.ledger.machines), dtype=bool)
        self._prefer[list(bounds.prefer)] = True
        self._open: Mask = self.ledger.connected.copy()
        self._open[list(bounds.prefer)] = True  # what is claimed stays so while its machine is away for a moment
        self._open[list(bounds.closed)] = False

    def release(self, victims: Iterable[Victim]) -> None:
        for victim in victims:
            self.victims.append(victim)
            for room in victim.rooms.values():
                self.spare.add(room)

    def give(self, candidates: Candidates) -> bool:
        """Room for one worker, if there is some: preferred rows first, then where the fewest GPUs are left."""
        row = next(self._rows_with_room(candidates, in_order=True), None)
        if row is None:
            return False
        bits = lowest_bits(self.spare.free_gpus(row, candidates.place.kinds), candidates.ask.gpus)
        room = Take(row, *self.ledger.needs(candidates.ask, row), bits)
        self.spare.promise(room)
        self._given[row] += (bits & ~self.ledger.held[row] & ~self.spare.freed[row]).bit_count()
        self.rooms.append(room)
        if self.bounds.distinct:
            self._open[row] = False
        return True

    def fewest(self, candidates: Candidates, priority: int, wanted: int) -> list[Victim] | None:
        """Who must give way for one more worker; of as few, whoever makes room for most of the `wanted` ones to come.
        None: nobody's giving way would help."""
        if next(self._rows_with_room(candidates), None) is not None:
            return []
        may_go = self.pool.may_go(priority)
        may_go &= (candidates.place.open & self._open)[self.pool.row]
        one = self._one(candidates, may_go, wanted)
        return [one] if one is not None else self._several(candidates, may_go, priority)

    def _rows_with_room(self, candidates: Candidates, in_order: bool = False) -> Iterator[int]:
        """Without anybody else's giving way. `in_order`: the best first."""
        short = self._short(candidates)
        rows = np.flatnonzero(self._open & candidates.place.open & (short[0] <= 0) & (short[1] <= 0) & (short[2] <= 0))
        if in_order:
            rows = rows[np.lexsort((-short[0][rows], ~self._prefer[rows]))]
        return (row for row in map(int, rows) if self._fits(candidates, row))

    def _short(self, candidates: Candidates) -> tuple[Ints, Ints, Ints]:
        """By row, what at least is lacking: GPUs, cores, memory. Kinds of GPUs are not looked at."""
        ledger, need = self.ledger, candidates.need
        return (
            candidates.ask.gpus - (ledger.free_gpus_in_all + self.spare.gpus - self._given),
            need.cpu_milli - (ledger.free_cpu + self.spare.cpu_milli),
            need.memory_bytes - (ledger.free_memory + self.spare.memory_bytes),
        )

    def _one(self, candidates: Candidates, may_go: Mask, wanted: int) -> Victim | None:
        """The victim that alone makes room for most; of equal ones the youngest."""
        pool = self.pool
        gpus, cpu_milli, memory_bytes = (short[pool.row] for short in self._short(candidates))
        entries = may_go & (gpus <= pool.gpus) & (cpu_milli <= pool.cpu_milli) & (memory_bytes <= pool.memory_bytes)
        best, most, known = None, 0, {victim.run_id for victim in self.victims}
        for entry in np.flatnonzero(entries):
            victim = pool.youngest_first[pool.victim_of[entry]]
            if victim.run_id in known:
                continue
            known.add(victim.run_id)
            gain = sum(self._workers(candidates, room, wanted) for room in victim.rooms.values())
            self._weighed += 1
            if min(gain, wanted) > most:
                best, most = victim, min(gain, wanted)
                if most == wanted or self._weighed > GAINS_PER_SEARCH:
                    break
        return best

    def _several(self, candidates: Candidates, may_go: Mask, priority: int) -> list[Victim] | None:
        """The fewest that together free one machine's room; of equally few, those of whom the oldest is youngest."""
        best: list[Victim] | None = None
        best_rank: tuple[int, float] | None = None
        for at_least, row, victims in self._worth_a_look(candidates, may_go, priority):
            if best_rank is not None and (at_least, -victims[at_least - 1].started_at) >= best_rank:
                break
            usable = self.ledger.usable_gpus(row, candidates.place.kinds)
            amounts = [_amounts(victim.rooms[row], usable) for victim in victims]
            most = best_rank[0] if best_rank else len(victims)
            chosen = fewest_covering(amounts, self._lacking(candidates, row), most)
            if chosen is not None:
                rank = len(chosen), -min(victims[number].started_at for number in chosen)
                if best_rank is None or rank < best_rank:
                    best, best_rank = [victims[number] for number in chosen], rank
        return best

    def _worth_a_look(self, candidates: Candidates, may_go: Mask, priority: int) -> list[tuple[int, int, list[Victim]]]:
        """(at least so many must give way, row, who could, youngest first): the most promising rows first."""
        pool, count = self.pool, len(self.ledger.machines)
        rows = pool.row[may_go]
        short = self._short(candidates)
        enough = np.bincount(rows, minlength=count) >= 2
        at_least = np.full(count, 2, dtype=np.int64)
        for lacking, amounts, most in zip(
            short, (pool.gpus, pool.cpu_milli, pool.memory_bytes), (pool.most_gpus, pool.most_cpu, pool.most_memory),
            strict=True,
        ):  # fmt: skip
            enough &= np.bincount(rows, amounts[may_go], minlength=count) >= lacking
            at_least = np.maximum(at_least, -(-lacking // np.maximum(most, 1)))
        found = []
        for row in map(int, np.flatnonzero(enough)):
            victims = [one for one in pool.on_row[row] if self._may_go(one, priority)]
            if at_least[row] <= len(victims):
                found.append((int(at_least[row]), row, victims))
        return sorted(found, key=lambda one: (one[0], -one[2][one[0] - 1].started_at, one[1]))

    def _may_go(self, victim: Victim, priority: int) -> bool:
        return victim.priority < priority and victim.run_id not in self.pool.gone and victim not in self.victims

    def _fits(self, candidates: Candidates, row: int) -> bool:
        return all(amount <= 0 for amount in self._lacking(candidates, row))

    def _lacking(self, candidates: Candidates, row: int) -> tuple[int, int, int]:
        """What the machine lacks for one worker: GPUs, cores, memory; 0 or less where it has enough."""
        ask = candidates.ask
        cpu_milli, memory_bytes = self.spare.free(row)
        need_cpu, need_memory = self.ledger.needs(ask, row)
        gpus = self.spare.free_gpus(row, candidates.place.kinds).bit_count() if ask.gpus else 0
        return ask.gpus - gpus, need_cpu - cpu_milli, need_memory - memory_bytes

    def _workers(self, candidates: Candidates, room: Take, wanted: int) -> int:
        """How many workers the machine holds once this room is freed. It holds none now."""
        ask, row = candidates.ask, room.row
        if not (self._open[row] and candidates.place.open[row]):
            return 0
        cpu_milli, memory_bytes = self.spare.free(row)
        need_cpu, need_memory = self.ledger.needs(ask, row)
        limits = [1 if self.bounds.distinct else wanted]
        if ask.gpus:
            usable = self.ledger.usable_gpus(row, candidates.place.kinds)
            gpus = self.spare.free_gpus(row, candidates.place.kinds) | (room.gpu_bits & usable)
            limits.append(gpus.bit_count() // ask.gpus)
        if need_cpu:
            limits.append((cpu_milli + room.cpu_milli) // need_cpu)
        if need_memory:
            limits.append((memory_bytes + room.memory_bytes) // need_memory)
        return max(0, min(limits))


def _amounts(room: Take, usable: int) -> tuple[int, int, int]:
    return (room.gpu_bits & usable).bit_count(), room.cpu_milli, room.memory_bytes
