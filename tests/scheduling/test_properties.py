"""What holds for every cluster and every queue."""

from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runs.scheduling.candidates import Candidates
from runs.scheduling.explain import is_for_good
from runs.scheduling.feasible import STAGES, Level, refusals_by_machine
from runs.scheduling.ledger import Ledger
from runs.scheduling.places import Places
from runs.scheduling.planner import make_plan
from runs.scheduling.types import (
    Ask,
    Constraints,
    GpuView,
    Hold,
    MachineView,
    NamespaceView,
    Placement,
    Plan,
    Snapshot,
    SplitAsk,
    WaitingRun,
    WaitingWorker,
)

MODELS = ("A100", "H100")
NOW = 1000.0


@st.composite
def machines(draw: st.DrawFn, number: int) -> MachineView:
    gpus = draw(st.lists(st.tuples(st.sampled_from(MODELS), st.booleans()), max_size=4))
    return MachineView(
        id=number,
        name=f"m{number}",
        cpu_milli=draw(st.integers(0, 8)) * 1000,
        memory_bytes=draw(st.integers(0, 8)),
        gpus=tuple(GpuView(index, model, 80, healthy) for index, (model, healthy) in enumerate(gpus)),
        labels=draw(st.sampled_from(((), (("pool", "a"),)))),
        ready=draw(st.sampled_from((True, True, True, False))),
        cordoned=draw(st.sampled_from((False, False, False, True))),
    )


asks = st.builds(
    Ask,
    gpus=st.integers(0, 5),
    cpu_milli=st.integers(0, 9).map(lambda cores: cores * 500),
    memory_bytes=st.integers(0, 9),
    node_fraction=st.sampled_from((None, None, None, 0.3, 0.5, 1.0)),
    constraints=st.builds(
        Constraints,
        pools=st.sampled_from(((), (), ("a",))),
        gpu_models=st.sampled_from(((), (), ("A100",), ("B200",))),
    ),
)
quotas = st.none() | st.integers(0, 6)


@st.composite
def runs(draw: st.DrawFn, number: int) -> WaitingRun:
    ask, other = draw(asks), draw(asks)
    count, of_other = draw(st.integers(1, 4)), draw(st.sampled_from((0, 0, 0, 1, 2)))
    distinct = draw(st.sampled_from((False, False, True)))
    each = [ask] * count + [other] * (0 if distinct else of_other)
    return WaitingRun(
        id=number,
        namespace_id=draw(st.integers(1, 2)),
        queued_at=float(draw(st.integers(0, 5))),
        workers=tuple(WaitingWorker(number * 10 + rank, one) for rank, one in enumerate(each)),
        priority=draw(st.integers(0, 2)),
        gang=draw(st.booleans()),
        distinct_machines=distinct,
        parallelism=draw(st.none() | st.integers(1, 3)),
        time_limit=draw(st.none() | st.integers(60, 600)),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Holds come from a plan of their own: only what could have been granted is held."""
    inventory = tuple(draw(machines(number)) for number in range(draw(st.integers(0, 4))))
    unlimited = (NamespaceView(1), NamespaceView(2))
    earlier = tuple(draw(runs(number)) for number in range(100, 100 + draw(st.integers(0, 3))))
    limits = {run.id: run.time_limit for run in earlier}
    priorities = {run.id: run.priority for run in earlier}
    held = make_plan(Snapshot(inventory, (), unlimited, earlier), NOW).placements
    namespaces = tuple(
        NamespaceView(number, float(draw(st.integers(1, 3))), draw(quotas), None, draw(quotas), draw(quotas))
        for number in (1, 2)
    )
    waiting = tuple(draw(runs(number)) for number in range(draw(st.integers(0, 6))))
    away = draw(st.sampled_from((-1, -1, 0, 1)))
    inventory = tuple(msgspec.structs.replace(machine, connected=machine.id != away) for machine in inventory)
    holds = tuple(hold_of(placed, limits[placed.run_id], priorities[placed.run_id]) for placed in held)
    return Snapshot(inventory, holds, namespaces, waiting)


def hold_of(placed: Placement, limit: float | None, priority: int) -> Hold:
    return Hold(
        placed.run_id,
        placed.namespace_id,
        placed.machine_id,
        placed.cpu_milli,
        placed.memory_bytes,
        placed.gpu_indexes,
        priority,
        NOW - 30,
        None if limit is None else NOW - 30 + limit,
    )


def plan_of(snapshot: Snapshot) -> Plan:
    return make_plan(snapshot, NOW)


@given(snapshots())
@settings(max_examples=60)
def test_no_machine_and_no_gpu_is_ever_given_twice(snapshot: Snapshot) -> None:
    plan = plan_of(snapshot)
    for machine in snapshot.machines:
        here = [item for item in (*snapshot.holds, *plan.placements) if item.machine_id == machine.id]
        assert sum(item.cpu_milli for item in here) <= machine.cpu_milli
        assert sum(item.memory_bytes for item in here) <= machine.memory_bytes
        given_out = [index for item in here for index in item.gpu_indexes]
        assert len(given_out) == len(set(given_out))
        assert set(given_out) <= {gpu.index for gpu in machine.gpus if gpu.healthy}


@given(snapshots())
@settings(max_examples=60)
def test_what_is_placed_is_what_was_asked_for_where_it_was_asked_for(snapshot: Snapshot) -> None:
    machines_by_id = {machine.id: machine for machine in snapshot.machines}
    workers = {worker.id: worker.ask for run in snapshot.waiting for worker in run.workers}
    for placed in plan_of(snapshot).placements:
        machine, ask = machines_by_id[placed.machine_id], workers[placed.worker_id]
        assert machine.ready
        assert machine.connected
        assert not machine.cordoned
        assert len(placed.gpu_indexes) == ask.gpus
        models = {gpu.model for gpu in machine.gpus if gpu.index in placed.gpu_indexes}
        assert not ask.constraints.gpu_models or models <= set(ask.constraints.gpu_models)
        assert not ask.constraints.pools or machine.pool in ask.constraints.pools
        if ask.node_fraction is None:
            assert (placed.cpu_milli, placed.memory_bytes) == (ask.cpu_milli, ask.memory_bytes)


@given(snapshots())
@settings(max_examples=60)
def test_no_pass_takes_a_namespace_above_its_quota(snapshot: Snapshot) -> None:
    plan = plan_of(snapshot)
    ready = {machine.id for machine in snapshot.machines if machine.ready}
    for namespace in snapshot.namespaces:
        granted = [placed for placed in plan.placements if placed.namespace_id == namespace.id]
        if not granted:
            continue  # what was held before the quota was lowered is not the pass's doing
        held = [hold for hold in snapshot.holds if hold.namespace_id == namespace.id and hold.machine_id in ready]
        together = [*held, *granted]
        if any(placed.gpu_indexes for placed in granted) and namespace.quota_gpus is not None:
            assert sum(len(item.gpu_indexes) for item in together) <= namespace.quota_gpus
        if any(placed.memory_bytes for placed in granted) and namespace.quota_memory_bytes is not None:
            assert sum(item.memory_bytes for item in together) <= namespace.quota_memory_bytes
        if {placed.run_id for placed in granted} - {hold.run_id for hold in held} and namespace.quota_runs is not None:
            assert len({item.run_id for item in together}) <= namespace.quota_runs


@given(snapshots())
@settings(max_examples=60)
def test_gangs_are_whole_or_absent_and_every_other_run_says_why_it_waits(snapshot: Snapshot) -> None:
    plan = plan_of(snapshot)
    placed: dict[int, int] = defaultdict(int)
    for placement in plan.placements:
        placed[placement.run_id] += 1
    for run in snapshot.waiting:
        at_once = len(run.workers) if run.parallelism is None else min(run.parallelism, len(run.workers))
        if run.gang:
            assert placed[run.id] in (0, at_once)
        assert (placed[run.id] < at_once) == (run.id in plan.refusals)


def together(count: int, ask: Ask, **facts: Any) -> WaitingRun:
    return WaitingRun(50, 1, 0.0, tuple(WaitingWorker(500 + rank, ask) for rank in range(count)), gang=True, **facts)


# Each is more than the four machines with at most four GPUs and eight cores could ever hold, or hold at once.
IMPOSSIBLE = (
    together(1, Ask(gpus=99)),
    together(1, Ask(constraints=Constraints(names=("nowhere",)))),
    together(17, Ask(gpus=1)),
    together(65, Ask(cpu_milli=500), time_limit=60.0),
    together(5, Ask(), distinct_machines=True),
    WaitingRun(50, 1, 0.0, split=SplitAsk(gpus=99)),
)


@given(snapshots(), st.integers(0, 6), st.integers(0, 2), st.sampled_from(IMPOSSIBLE))
@settings(max_examples=120)
def test_an_impossible_run_changes_nobodys_plan(
    snapshot: Snapshot, place: int, priority: int, impossible: WaitingRun
) -> None:
    impossible = msgspec.structs.replace(impossible, priority=priority)
    waiting = (*snapshot.waiting[:place], impossible, *snapshot.waiting[place:])
    without = plan_of(snapshot)
    together = make_plan(Snapshot(snapshot.machines, snapshot.holds, snapshot.namespaces, waiting), NOW)
    assert 50 in together.splits or is_for_good(together.refusals[50].code)  # one worker, which then can never run
    others = {run_id: refusal for run_id, refusal in together.refusals.items() if run_id != 50}
    assert (together.placements, others) == (without.placements, without.refusals)
    assert (together.preemptions, together.reservation) == (without.preemptions, without.reservation)


@given(snapshots())
@settings(max_examples=60)
def test_of_two_equal_runs_of_a_namespace_the_one_of_higher_priority_is_placed_first(snapshot: Snapshot) -> None:
    plan = plan_of(snapshot)
    placed = {placement.run_id for placement in plan.placements}
    for first in snapshot.waiting:
        for second in snapshot.waiting:
            same = first.namespace_id == second.namespace_id and _asks(first) == _asks(second)
            same = same and first.time_limit == second.time_limit
            if same and first.priority > second.priority and second.id in placed:
                assert first.id in placed


def _asks(run: WaitingRun) -> tuple[object, ...]:
    return tuple(worker.ask for worker in run.workers), run.gang, run.distinct_machines, run.parallelism


@given(snapshots())
@settings(max_examples=60)
def test_equal_snapshots_give_equal_plans_and_a_plan_that_is_followed_leaves_nothing_to_place(
    snapshot: Snapshot,
) -> None:
    plan = plan_of(snapshot)
    assert plan == plan_of(snapshot)
    limits = {run.id: run.time_limit for run in snapshot.waiting}
    gone = {placed.worker_id for placed in plan.placements}
    counts: dict[int, int] = defaultdict(int)
    for placed in plan.placements:
        counts[placed.run_id] += 1
    waiting = []
    for run in snapshot.waiting:
        left = tuple(worker for worker in run.workers if worker.id not in gone)
        if left:
            waiting.append(
                WaitingRun(
                    run.id, run.namespace_id, run.queued_at, left, run.priority, run.gang, run.distinct_machines,
                    run.parallelism, run.placed + counts[run.id], run.time_limit,
                )
            )  # fmt: skip
    holds = (*snapshot.holds, *(hold_of(placed, limits[placed.run_id], 0) for placed in plan.placements))
    again = make_plan(Snapshot(snapshot.machines, holds, snapshot.namespaces, tuple(waiting)), NOW)
    assert again.placements == ()


@given(snapshots(), asks)
@settings(max_examples=60)
def test_what_is_said_of_makes_of_machine_holds_for_every_machine(snapshot: Snapshot, ask: Ask) -> None:
    """The short cut over makes agrees with the filters, asked machine by machine."""
    ledger = Ledger(snapshot.machines, snapshot.holds)
    place = Places(ledger).of(ask.constraints)
    refused = {name: group.code for group in refusals_by_machine(ledger, ask) for name in group.machines}
    level = {stage.code: stage.level for stage in STAGES}
    refused_at = [level[refused[machine.name]] if machine.name in refused else 9 for machine in snapshot.machines]
    assert place.can_ever(ask) == any(at > Level.EVER for at in refused_at)
    assert place.is_open(ask) == any(at > Level.AVAILABLE for at in refused_at)
    fits = [row for row, at in enumerate(refused_at) if at > Level.ROOM]
    assert list(np.flatnonzero(Candidates(Places(ledger), ask).room() & ledger.connected)) == fits


@given(snapshots(), st.lists(asks, min_size=1, max_size=4), st.sets(st.integers(0, 3)))
@settings(max_examples=150)
def test_a_first_look_that_skips_idle_machines_of_a_kind_finds_the_same_as_a_whole_one(
    snapshot: Snapshot, wanted: list[Ask], alike: set[int]
) -> None:
    twins = [msgspec.structs.replace(m, id=m.id + 10, name=f"t{m.id}") for m in snapshot.machines if m.id in alike]
    ledger = Ledger((*snapshot.machines, *twins, *twins), snapshot.holds)
    places = Places(ledger)
    for ask in wanted:
        candidates = Candidates(places, ask)
        row, again = candidates.best(as_known=False), candidates.best(as_known=False)
        assert row == again
        if row is not None:
            ledger.take(ledger.choose(row, ask, candidates.place.kinds))
    ledger.undo_to(0)
    candidates = Candidates(places, wanted[0])
    assert candidates.best(as_known=False) == candidates.best(as_known=False)
