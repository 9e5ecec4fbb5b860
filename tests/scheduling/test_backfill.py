"""Room kept for the first run that waits, and who may use it meanwhile. The time in these cases is 1000."""

import math

from hypothesis import given, settings

from runs.scheduling.planner import make_plan
from runs.scheduling.types import Hold, NamespaceView, Snapshot, WaitingRun, WaitingWorker
from tests.scheduling.harness import cluster
from tests.scheduling.test_properties import NOW, hold_of, snapshots


def test_the_first_run_that_waits_is_told_when_it_starts_at_the_latest() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=2, ends_by=1300).holding("m0", gpus=2, ends_by=1200)
    case.run("a", gpus=5).expect()
    reservation = case.plan().reservation
    assert reservation is not None
    assert (reservation.starts_by, reservation.machine_ids) == (1200, (100,))
    case.expect_reason(
        "a", "Next to run: 5 GPUs, 1 core and 1 GiB on one machine are free by 1970-01-01 00:20 UTC at the latest"
    )


def test_the_machine_that_is_free_first_is_reserved() -> None:
    case = cluster().machine(gpus=8, count=3)
    case.holding("m0", gpus=8, ends_by=1500).holding("m1", gpus=8, ends_by=1200).holding("m2", gpus=8, ends_by=1300)
    reservation = case.run("a", gpus=8).plan().reservation
    assert reservation is not None
    assert (reservation.starts_by, reservation.machine_ids) == (1200, (101,))


def test_a_gang_starts_when_its_last_machine_is_free() -> None:
    case = cluster().machine(gpus=8, count=3)
    case.holding("m0", gpus=8, ends_by=1500).holding("m1", gpus=8, ends_by=1200).holding("m2", gpus=8, ends_by=1300)
    reservation = case.run("a", gpus=8, workers=2, gang=True).plan().reservation
    assert reservation is not None
    assert (reservation.starts_by, reservation.machine_ids) == (1300, (101, 102))


def test_room_on_a_machine_that_is_away_for_a_moment_stays_reserved() -> None:
    case = cluster().machine(gpus=8).machine(gpus=8, connected=False)
    case.run("large", gpus=8, workers=2, gang=True).run("long", gpus=1).run("limited", gpus=1, time_limit=60).expect()
    reservation = case.plan().reservation
    assert reservation is not None
    assert (reservation.starts_by, reservation.machine_ids) == (None, (100, 101))


def test_a_run_that_ends_in_time_may_use_reserved_room() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=4, ends_by=1200)
    case.run("large", gpus=8).run("short", gpus=4, time_limit=200.0).expect(short="m0")


def test_a_run_that_would_end_too_late_may_not() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=4, ends_by=1200).run("large", gpus=8)
    case.run("long", gpus=4, time_limit=201.0).run("endless", gpus=4).expect()


def test_a_long_run_uses_what_the_reservation_leaves() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=4, ends_by=1200).run("large", gpus=5)
    case.run("a", gpus=3).run("b", gpus=1).expect(a="m0")


def test_cores_and_memory_are_reserved_too() -> None:
    case = cluster().machine(cores=8, memory=8).holding("m0", cores=4, memory=4, ends_by=1200)
    case.run("large", cores=6, memory=6).run("a", cores=3, memory=1).run("b", cores=1, memory=3)
    case.run("c", cores=2, memory=2).run("d", cores=1, memory=1).expect(c="m0")


def test_other_machines_are_open_to_everybody() -> None:
    case = cluster().machine(gpus=8).machine(gpus=4).holding("m0", gpus=4, ends_by=1200)
    case.run("large", gpus=8).run("endless", gpus=4).expect(endless="m1")


def test_room_is_kept_where_the_fewest_endless_runs_are_in_the_way() -> None:
    case = cluster().machine(gpus=8, count=2).holding("m0", gpus=6).holding("m1", gpus=2)
    reservation = case.run("large", gpus=8).run("small", gpus=2).expect(small="m0").plan().reservation
    assert reservation is not None
    assert (reservation.starts_by, reservation.machine_ids) == (None, (101,))


def test_what_was_told_to_stop_is_soon_gone() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=8, stopping_since=990)
    reservation = case.run("a", gpus=8).plan().reservation
    assert reservation is not None
    assert reservation.starts_by == 1030


def test_what_is_placed_in_the_same_pass_is_counted_on_too() -> None:
    case = cluster().machine(gpus=8).run("a", gpus=4, time_limit=300.0).run("b", gpus=8)
    reservation = case.plan().reservation
    assert reservation is not None
    assert reservation.starts_by == 1300


def test_a_run_that_waits_for_quota_or_for_ever_reserves_nothing() -> None:
    case = cluster().namespace(1, quota_gpus=4).machine(gpus=8).holding("m0", gpus=4)
    assert case.run("a", gpus=2).run("b", gpus=9).plan().reservation is None


def test_a_large_run_starts_within_bounds_under_a_stream_of_small_ones() -> None:
    """One-GPU runs of 100 s arrive for ever, two every 10 s on 8 GPUs; at 200 s, when 24 of them wait, a run of 8 GPUs
    comes. It starts when those 24 have run, 8 at a time, and no younger one."""
    base = cluster().machine(gpus=8)
    machines = tuple(base.machines)
    base.plan()
    waiting: list[WaitingRun] = []
    holds: list[Hold] = []
    small = cluster().machine(gpus=8).run("s", gpus=1)
    large = cluster().machine(gpus=8).run("l", gpus=8)
    small_ask, large_ask = small.runs["s"].workers[0].ask, large.runs["l"].workers[0].ask
    small.plan(), large.plan()
    started = math.inf
    for step in range(100):
        now = step * 10.0
        holds = [hold for hold in holds if hold.ends_by is None or hold.ends_by > now]
        if step == 20:
            waiting.append(WaitingRun(1, 1, now, (WaitingWorker(1, large_ask),), time_limit=100.0))
        for number in (1, 2):
            id_ = 10 + 2 * step + number
            waiting.append(WaitingRun(id_, 1, now, (WaitingWorker(id_, small_ask),), time_limit=100.0))
        plan = make_plan(Snapshot(machines, tuple(holds), (NamespaceView(1),), tuple(waiting)), now)
        for placed in plan.placements:
            hold = hold_of(placed, None, 0)
            holds.append(Hold(*[getattr(hold, name) for name in Hold.__struct_fields__[:7]], now, now + 100.0))
            if placed.run_id == 1:
                started = min(started, now)
        done = {placed.run_id for placed in plan.placements}
        waiting = [run for run in waiting if run.id not in done]
    assert started <= 200 + 24 / 8 * 100 + 100


@given(snapshots())
@settings(max_examples=60)
def test_nothing_that_is_placed_delays_the_reservation(snapshot: Snapshot) -> None:
    """When all that ends by then has ended, the run that holds the reservation fits, alone in its queue."""
    plan = make_plan(snapshot, NOW)
    if plan.reservation is None or plan.reservation.starts_by is None:
        return
    at = plan.reservation.starts_by
    (head,) = (run for run in snapshot.waiting if run.id == plan.reservation.run_id)
    limits = {run.id: run.time_limit for run in snapshot.waiting}
    placed = {placement.worker_id for placement in plan.placements}
    mine = sum(placement.run_id == head.id for placement in plan.placements)
    holds = [hold for hold in snapshot.holds if hold.ends_by is None or max(hold.ends_by, NOW) > at]
    for placement in plan.placements:
        limit = limits[placement.run_id]
        if limit is None or NOW + limit > at:
            holds.append(hold_of(placement, None, 0))
    left = tuple(worker for worker in head.workers if worker.id not in placed)
    unlimited = tuple(NamespaceView(namespace.id) for namespace in snapshot.namespaces)
    alone = WaitingRun(
        head.id, head.namespace_id, 0.0, left, head.priority, head.gang, head.distinct_machines, head.parallelism,
        head.placed + mine,
    )  # fmt: skip
    then = make_plan(Snapshot(snapshot.machines, tuple(holds), unlimited, (alone,)), at)
    assert then.placements
