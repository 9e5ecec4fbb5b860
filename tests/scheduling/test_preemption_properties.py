"""What holds for every cluster and queue in which some give way to others, however long each takes to stop."""

from itertools import combinations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from runs.scheduling.claims import CLAIM_SECONDS
from runs.scheduling.planner import make_plan
from runs.scheduling.types import (
    Ask,
    GpuView,
    Hold,
    MachineView,
    NamespaceView,
    Plan,
    Snapshot,
    WaitingRun,
    WaitingWorker,
)
from tests.scheduling.test_properties import NOW, hold_of, runs, snapshots

RUNS = 7


@given(snapshots())
@settings(max_examples=150)
def test_victims_are_strictly_lower_whole_and_all_needed(snapshot: Snapshot) -> None:
    plan = make_plan(snapshot, NOW)
    priorities = {hold.run_id: hold.priority for hold in snapshot.holds}
    waiting = {run.id: run for run in snapshot.waiting}
    for preemption in plan.preemptions:
        assert priorities[preemption.run_id] < waiting[preemption.by_run_id].priority
    assert len({preemption.run_id for preemption in plan.preemptions}) == len(plan.preemptions)
    placed = {placement.run_id for placement in plan.placements}
    assert not placed & {preemption.run_id for preemption in plan.preemptions}


@given(snapshots(), runs(0))
@settings(max_examples=150)
def test_one_run_alone_has_the_fewest_possible_give_way_and_none_in_vain(snapshot: Snapshot, run: WaitingRun) -> None:
    """Against every set of runs that could give way."""
    run = msgspec.structs.replace(run, workers=run.workers[:1], priority=2, gang=False, parallelism=None)
    alone = msgspec.structs.replace(snapshot, waiting=(run,))
    plan = make_plan(alone, NOW)
    if plan.placements or plan.refusals[run.id].code not in ("next", "preempting"):
        assert plan.preemptions == ()
        return
    lower = sorted({hold.run_id for hold in snapshot.holds if hold.priority < run.priority})
    suffices = [
        chosen
        for size in range(1, len(lower) + 1)
        for chosen in combinations(lower, size)
        if make_plan(_without(alone, chosen), NOW).placements
    ]
    fewest = min(map(len, suffices), default=0)
    assert len(plan.preemptions) == fewest
    if fewest:
        assert tuple(sorted(preemption.run_id for preemption in plan.preemptions)) in suffices


def _without(snapshot: Snapshot, gone: tuple[int, ...]) -> Snapshot:
    holds = tuple(hold for hold in snapshot.holds if hold.run_id not in gone)
    return msgspec.structs.replace(snapshot, holds=holds)


class World:
    """Runs that never end by themselves, on machines that stay: whatever moves, moves by the plans alone."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot, self.now = snapshot, NOW
        self.runs: dict[int, WaitingRun] = {}
        self.waiting: dict[int, WaitingRun] = {}
        self.holds: dict[int, list[Hold]] = {}
        self.stopping: list[Hold] = []
        self.preempted: list[tuple[int, int]] = []
        self.placed: list[int] = []  # runs, in the order in which workers of theirs were placed
        self.asked_at: dict[int, int] = {}  # by claimant: how many had been placed when it last had others give way

    def tick(self, seconds: float) -> Plan:
        self.now += seconds
        holds = (*(hold for there in self.holds.values() for hold in there), *self.stopping)
        plan = make_plan(
            Snapshot(self.snapshot.machines, holds, self.snapshot.namespaces, tuple(self.waiting.values())), self.now
        )
        for run_id, claim in plan.claims.items():
            self.waiting[run_id] = msgspec.structs.replace(self.waiting[run_id], claim=claim)
        for placed in plan.placements:
            hold = hold_of(placed, None, self.runs[placed.run_id].priority)
            self.holds.setdefault(placed.run_id, []).append(msgspec.structs.replace(hold, started_at=self.now))
            self.placed.append(placed.run_id)
            run = self.waiting[placed.run_id]
            left = tuple(worker for worker in run.workers if worker.id != placed.worker_id)
            self.waiting[run.id] = msgspec.structs.replace(run, workers=left, placed=run.placed + 1)
        for preemption in plan.preemptions:
            self.preempted.append((preemption.run_id, preemption.by_run_id))
            given_up = self.holds.pop(preemption.run_id)
            self.stopping += [msgspec.structs.replace(hold, stopping_since=self.now) for hold in given_up]
            claim = self.waiting.get(preemption.run_id, self.runs[preemption.run_id]).claim
            self.waiting[preemption.run_id] = msgspec.structs.replace(self.runs[preemption.run_id], claim=claim)
        self._check_no_loop({preemption.by_run_id for preemption in plan.preemptions})
        self.waiting = {run.id: run for run in self.waiting.values() if run.workers}
        return plan

    def _check_no_loop(self, claimants: set[int]) -> None:
        """Whoever has others give way again has started meanwhile, or strictly higher priority has taken its room."""
        for claimant in claimants:
            since = self.placed[self.asked_at.get(claimant, len(self.placed)) :]
            mine = self.runs[claimant].priority
            if claimant in self.asked_at:
                assert any(run_id == claimant or self.runs[run_id].priority > mine for run_id in since)
            self.asked_at[claimant] = len(self.placed)

    def stop(self, which: list[bool]) -> None:
        """Some of those that were told to stop have stopped."""
        flags = dict(enumerate(which))
        self.stopping = [hold for number, hold in enumerate(self.stopping) if not flags.get(number, True)]


@st.composite
def crowded(draw: st.DrawFn) -> tuple[tuple[MachineView, ...], list[WaitingRun]]:
    """A few small machines, and more runs of different priorities than they hold."""
    inventory = tuple(
        MachineView(number, f"m{number}", 4000, 4, tuple(GpuView(index, "H100", 80) for index in range(size)))
        for number, size in enumerate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    )
    queue = []
    for number in range(RUNS):
        ask = Ask(draw(st.integers(0, 4)), draw(st.integers(0, 4)) * 500, draw(st.integers(0, 2)))
        count = draw(st.sampled_from((1, 1, 1, 2, 3)))
        queue.append(
            WaitingRun(
                id=number,
                namespace_id=draw(st.integers(1, 2)),
                queued_at=float(number),
                workers=tuple(WaitingWorker(number * 10 + rank, ask) for rank in range(count)),
                priority=draw(st.integers(0, 2)),
                gang=draw(st.booleans()),
                distinct_machines=draw(st.sampled_from((False, False, True))),
                parallelism=draw(st.sampled_from((None, None, 1))),
                time_limit=draw(st.sampled_from((None, 20.0, 600.0))),
            )
        )
    return inventory, queue


steps_of = st.lists(st.tuples(st.integers(0, 2), st.lists(st.booleans(), max_size=6)), min_size=6, max_size=14)


@given(crowded(), steps_of, st.sampled_from((None, None, 3)))
@settings(max_examples=300)
def test_victims_that_stop_at_any_time_are_never_asked_twice_by_the_same_run(
    crowd: tuple[tuple[MachineView, ...], list[WaitingRun]], steps: list[tuple[int, list[bool]]], quota: int | None
) -> None:
    """No preempt, admit, preempt: each pair meets at most once unless the stronger gives way itself in between, and the
    world comes to rest with no claim open."""
    inventory, arriving = crowd
    namespaces = (NamespaceView(1), NamespaceView(2, quota_gpus=quota))
    world = World(Snapshot(inventory, (), namespaces, ()))
    for count, stopped in steps:
        for run in arriving[:count]:
            world.runs[run.id] = world.waiting[run.id] = run
        del arriving[:count]
        world.tick(5.0)
        world.stop(stopped)
    for _ in range(3 * RUNS):
        world.stop([])
        world.tick(5.0)
    met: set[tuple[int, int]] = set()
    for victim, by in world.preempted:
        assert (victim, by) not in met
        met = {pair for pair in met if pair[1] != victim} | {(victim, by)}
    before = len(world.preempted)
    world.stop([])
    rest = world.tick(CLAIM_SECONDS)
    assert (len(world.preempted), rest.placements) == (before, ())
    assert [run.id for run in world.waiting.values() if run.claim is not None] == []
