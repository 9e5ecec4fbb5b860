"""make_plan: the whole decision of one pass, from a snapshot and the time. Pure.

One screen of verbs: order → plan workers → can it ever run → quota → place (whole or one by one) → make room where
priority allows → reserve for the first that waits → say why not.
"""

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import zip_longest

from runs.scheduling import backfill, quota
from runs.scheduling.candidates import Candidates
from runs.scheduling.claims import Claims, claimants
from runs.scheduling.ledger import Ledger, indexes
from runs.scheduling.ordering import Shares, in_order
from runs.scheduling.packing import Looks, pack, workers_largest_first
from runs.scheduling.places import Places
from runs.scheduling.rank import beside_gpus
from runs.scheduling.shapes import split_count
from runs.scheduling.types import (
    Ask,
    Placement,
    Plan,
    Refusal,
    Rehearsed,
    Snapshot,
    SplitAsk,
    WaitingRun,
    WaitingWorker,
)
from runs.scheduling.whole import Whole, amounts_of, rows_of_distinct_runs

PLACEMENTS_PER_PASS = 2000  # a pass ends here; the next follows at once
_NO_ROWS: frozenset[int] = frozenset()


def make_plan(snapshot: Snapshot, now: float, placements_per_pass: int = PLACEMENTS_PER_PASS) -> Plan:
    """Who goes where, and why everybody else waits. `now`: Unix seconds. Equal snapshots give equal plans."""
    working = _Pass(snapshot, now, placements_per_pass)
    claiming = claimants(snapshot.waiting)
    for run in in_order(snapshot.waiting, working.shares):
        working.claims.keep_stored(claiming.pop(run.priority, ()))
        working.consider(run)
        if working.at_bound:
            break
    return working.plan()


def rehearse(snapshot: Snapshot, now: float, variants: Sequence[WaitingRun]) -> list[Rehearsed]:
    """What would become of a waiting run, were it each of these, in its place in the queue. All have its id, priority,
    workspace and submission time."""
    working = _Pass(snapshot, now, PLACEMENTS_PER_PASS)
    claiming = claimants(snapshot.waiting)
    for run in in_order(snapshot.waiting, working.shares):
        working.claims.keep_stored(claiming.pop(run.priority, ()))
        if run.id == variants[0].id:
            break
        working.consider(run)
    starts_by = working.reserved.starts_by if working.reserved else None
    return [Rehearsed(*working.rehearse(variant), starts_by) for variant in variants]


class _Pass:
    """What a pass knows while it goes through the queue."""

    def __init__(self, snapshot: Snapshot, now: float, bound: int) -> None:
        self.snapshot = snapshot
        self.now = now
        self.bound = bound
        self.ledger = Ledger(snapshot.machines, snapshot.holds)
        self.places = Places(self.ledger)
        self.whole = Whole(self.places)
        self.looks = Looks()
        self.shares = Shares(snapshot.machines, snapshot.namespaces, snapshot.holds)
        self.asks: dict[Ask, Candidates] = {}
        self.candidates: dict[int, Candidates] = {}  # by the identity of the ask
        self.beside: dict[int, Candidates] = {}  # the same, on what the reservation leaves
        self.limits = {run.id: run.time_limit for run in snapshot.waiting}
        self.nevers: dict[int, Refusal | None] = {}  # by the identity of the run
        self.counts: dict[SplitAsk, int | Refusal] = {}
        self.rows_of_run = rows_of_distinct_runs(snapshot.waiting, snapshot.holds, self.ledger)
        self.claims = Claims(self.ledger, self.shares, snapshot.holds, now)
        self.placements: list[Placement] = []
        self.refusals: dict[int, Refusal] = {}
        self.changed: list[int] = []
        self.splits: dict[int, int] = {}
        self.reserved: backfill.Reserved | None = None
        self.head: int | None = None  # the first run that waits for room
        self.more = False
        self.ledger.need_beside_gpus(beside_gpus(snapshot.holds, self._asked()))

    def _asked(self) -> Iterator[tuple[Ask, int]]:
        """What waiting workers ask for, where they could run at all; a run's workers are mostly equal."""
        for run in self.snapshot.waiting:
            if run.workers and self._never(run) is None:
                yield run.workers[0].ask, len(run.workers)

    @property
    def at_bound(self) -> bool:
        """Whether the rest is left to the next pass; nothing is said about runs not reached."""
        return len(self.placements) >= self.bound

    def plan(self) -> Plan:
        return Plan(
            placements=tuple(self.placements),
            refusals=self.refusals,
            changed=tuple(self.changed),
            splits=self.splits,
            preemptions=tuple(self.claims.preemptions),
            claims=self.claims.news,
            reservation=self.reserved.reservation if self.reserved else None,
            more=self.more or self.at_bound,
        )

    def consider(self, run: WaitingRun) -> None:
        """Place what can be placed of a run; note why the rest waits."""
        claimed = self._claimed_rows(run) if run.claim is not None else _NO_ROWS
        refusal = self._plan_again(run) or self._never(run) or self._place(run, claimed)
        if (refusal is None or refusal.code != "preempting") and not self.at_bound:
            self.claims.settle(run)
        if refusal is not None:
            self.refusals[run.id] = refusal
            if refusal != run.stored:
                self.changed.append(run.id)

    def _claimed_rows(self, run: WaitingRun) -> Set[int]:
        """The rows of the run's claim, after its room was given to it."""
        rows = self.claims.give_back(run)
        self._follow(rows)
        return rows

    def _plan_again(self, run: WaitingRun) -> Refusal | None:
        """Split the run's GPUs by the machines there are now; a new count is placed by the next pass."""
        if run.split is None:
            return None
        count = self.counts.get(run.split)
        if count is None:
            count = self.counts[run.split] = split_count(run.split, self.places)
        if isinstance(count, Refusal):
            return count
        if count != run.planned:
            self.splits[run.id] = count
            self.more = True
        return None

    def _never(self, run: WaitingRun) -> Refusal | None:
        """Why the run could not run on the cluster if it were empty, ready and in good health; None if it could."""
        if id(run) not in self.nevers:
            self.nevers[id(run)] = self._find_never(run)
        return self.nevers[id(run)]

    def _find_never(self, run: WaitingRun) -> Refusal | None:
        last: Ask | None = None
        for worker in run.workers:
            if worker.ask is last:
                continue  # equal workers share one ask, and stand together
            last = worker.ask
            candidates = self._candidates(last)
            if not candidates.can_ever:
                return candidates.never
        if run.distinct_machines and run.workers:
            wanted, has = len(run.workers) + run.placed, int(self.places.ever(candidates.need).sum())
            if has < wanted:
                return Refusal("never_machines", {"wanted": wanted, "most": has})
        if run.gang and len(run.workers) > 1:
            return self.whole.never([worker.ask for worker in run.workers[: run.parallelism]])
        return None

    def _place(self, run: WaitingRun, claimed: Set[int]) -> Refusal | None:
        if run.id in self.splits:
            return None
        workers = run.workers
        if run.parallelism is not None:
            workers = workers[: max(0, run.parallelism - run.placed)]
            if not workers:
                return Refusal("parallelism", {"limit": run.parallelism})
        if self.claims.has_given_way(run.id):
            return Refusal("queued", amounts_of(workers[0].ask))
        return self._place_whole(run, workers, claimed) if run.gang else self._place_each(run, workers, claimed)

    def rehearse(self, run: WaitingRun) -> tuple[list[Placement], Refusal | None]:
        """What `consider` would place, without placing it, and the first reason why not all."""
        refusal = self._never(run)
        if refusal is not None:
            return [], refusal
        mark, at_once = self.ledger.mark(), run.workers[: run.parallelism]
        turn = workers_largest_first(at_once) if run.gang else at_once
        trial, refusal = self._try_whole(run, turn) if run.gang else self._try_all(run, turn)
        self._undo(run, mark, trial)
        if refusal is None:
            return trial, None
        asks = [worker.ask for worker in turn] if run.gang else [turn[len(trial)].ask]
        if refusal.code == "queued":
            refusal = self._closed_to(run, asks) or self._could_make_room(run, asks) or refusal
        return [] if run.gang else trial, refusal

    def _place_each(self, run: WaitingRun, workers: Iterable[WaitingWorker], claimed: Set[int]) -> Refusal | None:
        """Each worker for itself: those that fit are placed; the first that does not is why the run waits."""
        refused: dict[int, Refusal] = {}  # by the identity of the ask
        without_room: list[Ask] = []
        for worker in workers:
            if self.at_bound:
                return None
            refusal = refused.get(id(worker.ask))
            if refusal is None:
                placed = self._try(run, worker, quota.NOTHING)
                if isinstance(placed, Placement):
                    self._grant(placed)
                    continue
                refusal = refused[id(worker.ask)] = placed
            if refusal.code == "queued":
                without_room.append(worker.ask)
        if without_room:
            first = without_room[0]
            refused[id(first)] = (
                self._closed_to(run, [first])
                or self._make_room(run, without_room, claimed)
                or self._as_head(run, [first], refused[id(first)])
            )
        return next(iter(refused.values()), None)

    def _place_whole(self, run: WaitingRun, workers: Iterable[WaitingWorker], claimed: Set[int]) -> Refusal | None:
        """All or nothing: tried in the ledger, and undone unless every worker fits."""
        mark, turn = self.ledger.mark(), workers_largest_first(workers)
        trial, refusal = self._try_whole(run, turn)
        if refusal is not None:
            self._undo(run, mark, trial)
            return self._gang_waits(run, [worker.ask for worker in turn], refusal, len(trial), claimed)
        for placed in trial:
            self._grant(placed)
        return None

    def _try_whole(self, run: WaitingRun, turn: Sequence[WaitingWorker]) -> tuple[list[Placement], Refusal | None]:
        """As `_try_all`; if that finds no room, tried again where a search over all ways has found some."""
        mark = self.ledger.mark()
        trial, refusal = self._try_all(run, turn)
        if refusal is None or refusal.code != "queued" or all(worker.ask is turn[0].ask for worker in turn):
            return trial, refusal
        self._undo(run, mark, trial)
        asked = self._candidates_beside if self._is_long(run) else self._candidates
        packed = pack([asked(worker.ask) for worker in turn], self.looks)
        if packed is None:
            return trial, refusal
        return self._try_all(run, [turn[number] for number, _ in packed], [row for _, row in packed])

    def _try_all(
        self, run: WaitingRun, workers: Sequence[WaitingWorker], rows: Sequence[int] = ()
    ) -> tuple[list[Placement], Refusal | None]:
        """Take room for these workers in the ledger, on `rows` if given, up to the first that is refused."""
        amount, trial = quota.NOTHING, list[Placement]()
        for worker, row in zip_longest(workers, rows):
            placed = self._try(run, worker, amount, row)
            if isinstance(placed, Refusal):
                return trial, placed
            trial.append(placed)
            amount = amount.plus(len(placed.gpu_indexes), placed.cpu_milli, placed.memory_bytes)
        return trial, None

    def _gang_waits(self, run: WaitingRun, asks: list[Ask], refusal: Refusal, fit: int, claimed: Set[int]) -> Refusal:
        if refusal.code != "queued":
            return refusal
        if elsewhere := self._closed_to(run, asks) or self._make_room(run, asks, claimed):
            return elsewhere
        refusal = self._as_head(run, asks, refusal)
        if refusal.code != "next":
            return refusal
        differ = {"differ": 1} if any(ask != asks[0] for ask in asks) else {}
        return Refusal("gang", {**refusal.numbers, "workers": len(asks), "fit": fit, **differ})

    def _closed_to(self, run: WaitingRun, asks: list[Ask]) -> Refusal | None:
        """Why these workers would find no room at once however empty the machines were; None if they would."""
        if run.distinct_machines:
            of_run = len(run.workers) + run.placed
            return self.whole.refuse_distinct(self._candidates(asks[0]), len(asks), of_run, self.rows_of_run[run.id])
        return self.whole.refuse(asks) if len(asks) > 1 else None

    def _try(
        self, run: WaitingRun, worker: WaitingWorker, before: quota.Amount, row: int | None = None
    ) -> Placement | Refusal:
        """Take room for one worker in the ledger, on this row if one is given; `before`: what the trial has taken."""
        candidates, ask = self._candidates(worker.ask), worker.ask
        amount = before.plus(ask.gpus, ask.cpu_milli, ask.memory_bytes)
        refusal = quota.refuse(self.shares, run.namespace_id, run.id, amount)
        if refusal is not None:
            return refusal
        if not candidates.is_open:
            return candidates.closed
        long = self._is_long(run)
        if long:
            candidates = self._candidates_beside(ask)
        used_rows = self.rows_of_run.get(run.id)
        if row is None:
            row = candidates.best(used_rows or (), before is quota.NOTHING, run.claim is None)
        if row is None:
            return Refusal("queued", amounts_of(ask))
        if ask.node_fraction is not None:
            amount = before.plus(ask.gpus, *self.ledger.needs(ask, row))
            refusal = quota.refuse(self.shares, run.namespace_id, run.id, amount)
            if refusal is not None:
                return refusal
        taken = candidates.ledger.choose(row, ask, candidates.place.kinds)
        self.ledger.take(taken)
        if self.reserved is not None:
            self.reserved.follow(taken, long)
        if used_rows is not None:
            used_rows.add(row)
        return Placement(
            worker_id=worker.id,
            machine_id=self.snapshot.machines[row].id,
            gpu_indexes=indexes(taken.gpu_bits),
            cpu_milli=taken.cpu_milli,
            memory_bytes=taken.memory_bytes,
            run_id=run.id,
            namespace_id=run.namespace_id,
        )

    def _is_long(self, run: WaitingRun) -> bool:
        """Whether the run could delay the reservation, were it placed in reserved room."""
        if self.reserved is None:
            return False
        return run.time_limit is None or not self.reserved.is_short(self.now + run.time_limit)

    def _make_room(self, run: WaitingRun, asks: list[Ask], claimed: Set[int]) -> Refusal | None:
        """Have work of lower priority give way, where that helps; never where the first in the queue has its room."""
        wanted = [self._candidates(ask) for ask in asks]
        if not self.claims.make_room(run, wanted, self._closed_rows(run), claimed):
            return None
        self._follow(self.claims.rows())
        return Refusal("preempting")

    def _could_make_room(self, run: WaitingRun, asks: list[Ask]) -> Refusal | None:
        """What `_make_room` would answer; nobody gives way."""
        wanted = [self._candidates(ask) for ask in asks]
        return Refusal("preempting") if self.claims.could_make_room(run, wanted, self._closed_rows(run)) else None

    def _closed_rows(self, run: WaitingRun) -> Set[int]:
        rows = self.rows_of_run.get(run.id, _NO_ROWS)
        return rows if self.reserved is None else rows | self.reserved.rows

    def _follow(self, rows: Iterable[int]) -> None:
        if self.reserved is not None:
            for row in rows:
                self.reserved.follow_row(row)

    def _as_head(self, run: WaitingRun, asks: list[Ask], refusal: Refusal) -> Refusal:
        """Of all that wait for room the first is the head: it gets the reservation, and says so."""
        if self.head is not None:
            return refusal
        self.head = run.id
        self.reserved = self._reserve(run, asks)
        numbers = dict(refusal.numbers)
        if away := int((self._candidates(asks[0]).room() & ~self.ledger.connected).sum()):
            numbers["away"] = away
        if self.reserved is not None and self.reserved.reservation.starts_by is not None:
            numbers["starts_by"] = math.ceil(self.reserved.reservation.starts_by / 60) * 60
        return Refusal("next", numbers)

    def _reserve(self, run: WaitingRun, asks: list[Ask]) -> backfill.Reserved | None:
        ends = backfill.releases(
            self.ledger,
            self.snapshot.holds,
            ((placed, self.limits[placed.run_id]) for placed in self.placements),
            self.now,
        )
        # Claimed machines are not reserved as well: two promises of one room are none.
        without = self.rows_of_run.get(run.id, _NO_ROWS) | self.claims.rows()
        workers = [self._candidates(ask) for ask in asks]
        return backfill.reserve(run.id, workers, ends, without, run.distinct_machines, self.looks)

    def _grant(self, placed: Placement) -> None:
        self.placements.append(placed)
        self.shares.grant(placed)

    def _undo(self, run: WaitingRun, mark: int, trial: list[Placement]) -> None:
        """Give back what a trial has taken."""
        long = self._is_long(run)
        for taken in self.ledger.undo_to(mark):
            if self.reserved is not None:
                self.reserved.follow(taken, long, -1)
        if run.id in self.rows_of_run:
            self.rows_of_run[run.id] -= {self.ledger.row_of[placed.machine_id] for placed in trial}

    def _candidates(self, ask: Ask) -> Candidates:
        """Looked up by identity first: equal asks mostly are one object, and comparing them is half of a pass."""
        candidates = self.candidates.get(id(ask))
        if candidates is None:
            candidates = self.asks.get(ask)
            if candidates is None:
                candidates = self.asks[ask] = Candidates(self.places, ask)
            self.candidates[id(ask)] = candidates
        return candidates

    def _candidates_beside(self, ask: Ask) -> Candidates:
        candidates = self.beside.get(id(ask))
        if candidates is None:
            assert self.reserved is not None
            candidates = self.beside[id(ask)] = self._candidates(ask).beside(self.reserved.beside)
        return candidates
