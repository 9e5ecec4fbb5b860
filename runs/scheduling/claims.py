"""Making room for runs of higher priority, and keeping it for them. Pure. See `preemption` for who gives way.

A claim binds all runs of no higher priority: its room is taken from the pass's ledger as far as it is free already, and
the rest is promised to nobody else. When its run's turn comes the claim is given back to it, and made anew, the same if
it can be, as long as what runs there has not ended.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from runs.scheduling import quota
from runs.scheduling.candidates import Candidates
from runs.scheduling.ledger import Ledger, Take, bits_of, indexes
from runs.scheduling.ordering import Shares
from runs.scheduling.preemption import Bounds, Found, search
from runs.scheduling.types import Claim, Hold, Preemption, Room, WaitingRun
from runs.scheduling.victims import Victims

CLAIM_SECONDS = 300.0  # how long a claim lasts at most
VICTIMS_PER_PASS = 100
VAIN_SEARCHES_PER_PASS = 10  # each looks at every machine
WORKERS_PER_PASS = 15_000  # for which room was looked for: the search that reaches it is the last


class _Kept(NamedTuple):
    """One room of a claim: what of it is taken from the ledger, and what is still to come."""

    taken: Take
    promised: Take


class Claims:
    """`preemptions`: who gives way to whom, by this pass. `news`: claims that differ from those stored; None: over."""

    def __init__(self, ledger: Ledger, shares: Shares, holds: Sequence[Hold], now: float) -> None:
        self.ledger, self.shares, self.holds, self.now = ledger, shares, holds, now
        self.preemptions: list[Preemption] = []
        self.news: dict[int, Claim | None] = {}
        self._kept: dict[int, list[_Kept]] = {}
        self._lowest = min((hold.priority for hold in holds), default=None)
        self._hopeless: set[tuple[object, ...]] = set()
        self._vain_searches = self._workers = 0

    @cached_property
    def victims(self) -> Victims:
        return Victims(self.ledger, self.holds, self.now)

    def rows(self) -> set[int]:
        return {kept.taken.row for rooms in self._kept.values() for kept in rooms}

    def keep_stored(self, runs: Iterable[WaitingRun]) -> None:
        """Before the first run of their priority is considered: what these runs were promised is theirs."""
        for run in runs:
            if run.claim is not None and self._holds(run.claim):
                self._keep(run.id, [self._take(room) for room in run.claim.rooms])

    def give_back(self, run: WaitingRun) -> set[int]:
        """The rows of the run's claim, whose room is now free for it."""
        rooms = self._kept.pop(run.id, [])
        for kept in reversed(rooms):
            self.ledger.give_back(kept.taken)
            self.victims.spare.promise_no_more(kept.promised)
        return {kept.taken.row for kept in rooms}

    def has_given_way(self, run_id: int) -> bool:
        """Whether the run is a victim of this pass."""
        return bool(self.preemptions) and run_id in self.victims.gone

    def settle(self, run: WaitingRun) -> None:
        """The run was considered and needs no claim any more."""
        if run.claim is not None and run.id not in self.news:
            self.news[run.id] = None

    def make_room(
        self, run: WaitingRun, wanted: Sequence[Candidates], closed: Collection[int], claimed: Collection[int]
    ) -> bool:
        """Claim room for these workers of a run that found none: where something ends, or gives way. `claimed`: the
        rows of its claim so far. False: that would not help."""
        if self._is_spent:
            return self._leave_as_it_is(run, claimed)
        if not claimed and not self._has_lower(run.priority):
            return False
        found = self._find(run, wanted, Bounds(closed, run.distinct_machines, claimed))
        if found is None:
            return False
        self._claim(run, found, bool(claimed))
        return True

    def could_make_room(self, run: WaitingRun, wanted: Sequence[Candidates], closed: Collection[int]) -> bool:
        """Whether `make_room` would; nobody gives way."""
        if self._is_spent or not self._has_lower(run.priority):
            return False
        return self._find(run, wanted, Bounds(closed, run.distinct_machines)) is not None

    def _find(self, run: WaitingRun, wanted: Sequence[Candidates], bounds: Bounds) -> Found | None:
        wanted = self._within_quota(run, wanted)
        asks = tuple(dict.fromkeys(id(candidates.ask) for candidates in wanted))
        key = (run.priority, run.gang, run.distinct_machines, len(wanted), asks)
        if not wanted or key in self._hopeless:
            return None
        self._workers += len(wanted)
        found = search(self.victims, wanted, run.priority, bounds, run.gang)
        if found is None or not self._allows(run, found):
            self._hopeless.add(key)
            self._vain_searches += 1
            return None
        return found

    def _leave_as_it_is(self, run: WaitingRun, claimed: Collection[int]) -> bool:
        if claimed and run.claim is not None:
            self._keep(run.id, [self._take(room) for room in run.claim.rooms])
        return bool(claimed)

    @property
    def _is_spent(self) -> bool:
        """Whether the rest is left to the next pass: this one has taken its time."""
        return (
            len(self.preemptions) >= VICTIMS_PER_PASS
            or self._vain_searches >= VAIN_SEARCHES_PER_PASS
            or self._workers >= WORKERS_PER_PASS
        )

    def _has_lower(self, priority: int) -> bool:
        return self._lowest is not None and self._lowest < priority and self.victims.has_lower(priority)

    def _claim(self, run: WaitingRun, found: Found, renewed: bool) -> None:
        if found.victims:
            self._hopeless.clear()  # what they leave over may serve another
            self.victims.give_way(found.victims)
            self.preemptions += [Preemption(victim.run_id, run.id) for victim in found.victims]
        stored = run.claim if renewed and not found.victims else None
        until = stored.until if stored else self.now + CLAIM_SECONDS
        claim = Claim(until, tuple(self._room(room) for room in found.rooms))
        if claim != run.claim:
            self.news[run.id] = claim
        self._keep(run.id, found.rooms)

    def _within_quota(self, run: WaitingRun, wanted: Sequence[Candidates]) -> Sequence[Candidates]:
        """Nobody gives way for what a quota forbids all the same."""
        amount = quota.NOTHING
        for number, candidates in enumerate(wanted):
            ask = candidates.ask
            amount = amount.plus(ask.gpus, ask.cpu_milli, ask.memory_bytes)
            if quota.refuse(self.shares, run.namespace_id, run.id, amount) is not None:
                return () if run.gang else wanted[:number]
        return wanted

    def _allows(self, run: WaitingRun, found: Found) -> bool:
        """Again with what the workers take where they go: a node fraction is known only there."""
        amount = quota.NOTHING
        for room in found.rooms:
            amount = amount.plus(room.gpu_bits.bit_count(), room.cpu_milli, room.memory_bytes)
        return quota.refuse(self.shares, run.namespace_id, run.id, amount) is None

    def _holds(self, claim: Claim) -> bool:
        """Whether it has not lapsed, and its machines still take work."""
        rows = [self.ledger.row_of.get(room.machine_id) for room in claim.rooms]
        return self.now < claim.until and all(row is not None and self.ledger.takes_work[row] for row in rows)

    def _keep(self, run_id: int, rooms: Iterable[Take]) -> None:
        self._kept[run_id] = []
        for room in rooms:
            free_cpu, free_memory = int(self.ledger.free_cpu[room.row]), int(self.ledger.free_memory[room.row])
            cpu_milli, memory_bytes = min(room.cpu_milli, max(0, free_cpu)), min(room.memory_bytes, max(0, free_memory))
            bits = room.gpu_bits & ~self.ledger.held[room.row]
            taken = Take(room.row, cpu_milli, memory_bytes, bits)
            promised = Take(
                room.row, room.cpu_milli - cpu_milli, room.memory_bytes - memory_bytes, room.gpu_bits & ~bits
            )
            self.ledger.keep(taken)
            self.victims.spare.promise(promised)
            self._kept[run_id].append(_Kept(taken, promised))

    def _take(self, room: Room) -> Take:
        row = self.ledger.row_of[room.machine_id]
        return Take(row, room.cpu_milli, room.memory_bytes, bits_of(room.gpu_indexes))

    def _room(self, room: Take) -> Room:
        machine_id = self.ledger.machines[room.row].id
        return Room(machine_id, room.cpu_milli, room.memory_bytes, indexes(room.gpu_bits))


def claimants(waiting: Iterable[WaitingRun]) -> dict[int, list[WaitingRun]]:
    """Runs with a claim, by priority."""
    found: dict[int, list[WaitingRun]] = {}
    for run in waiting:
        if run.claim is not None:
            found.setdefault(run.priority, []).append(run)
    return found
