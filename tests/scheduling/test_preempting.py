"""Preemption on the real database: decided, stopped with grace, requeued, started."""

from datetime import datetime, timedelta

import pytest

from machines.models import Assignment
from machines.protocol import EndReason, Phase
from runs.models import Attempt, Run, Transition, Worker
from runs.scheduling.apply import apply_plan
from runs.scheduling.claims import CLAIM_SECONDS
from runs.scheduling.load import load_snapshot
from runs.scheduling.loop import run_once
from runs.scheduling.pending import pending_details
from runs.scheduling.planner import make_plan
from runs.scheduling.types import Claim, Room
from runs.services import reports
from runs.services.deleting import delete_run
from tests import builders
from tests.scheduling.database import GIB, NOW, make_machine, make_namespace, make_run

pytestmark = pytest.mark.django_db


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def running(run: Run, seconds: float = 1) -> Attempt:
    """Placed by a pass, and reported as running."""
    run_once(run.namespace.cluster_id, after(seconds))
    attempt = Attempt.objects.get(worker__run=run, released_at=None)
    report = builders.told(attempt, (Phase.PREPARING, 1.0), (Phase.RUNNING, 0.0), seq=1)
    reports.apply([builders.entry(attempt.machine, after(seconds + 1), report)], after(seconds + 1))
    return attempt


def stop(attempt: Attempt, seconds: float) -> None:
    """Its machine says that it has stopped."""
    phases = ((Phase.PREPARING, 3.0), (Phase.RUNNING, 2.0), (Phase.ENDED, 0.0))
    report = builders.told(attempt, *phases, seq=9, exit_code=143, end_reason=EndReason.STOPPED)
    reports.apply([builders.entry(attempt.machine, after(seconds), report)], after(seconds))


def states() -> dict[str, str]:
    return dict(Run.objects.values_list("name", "state"))


def test_a_victim_stops_waits_and_says_to_whom_it_gave_way() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    low = make_run(namespace, "low", age=60, gpus=8, node_selection={"count": 1})
    attempt = running(low)
    high = make_run(namespace, "high", age=5, gpus=4, priority=5)
    run_once(namespace.cluster_id, after(10))
    low.refresh_from_db()
    assert (low.preemptions, low.restarts, low.state) == (1, 0, "Running")
    worker = Worker.objects.get(run=low)
    assert worker.reason == "Stopping: Preempted by higher-priority work (high)"
    assert not Assignment.objects.filter(attempt=attempt.uid).exclude(order=None).exists()
    high.refresh_from_db()
    assert high.status_reason == "Next to run: what runs in its place is stopping"
    stop(attempt, 15)
    low.refresh_from_db()
    worker.refresh_from_db()
    assert (low.state, worker.state, worker.failures_in_row) == ("Pending", "Pending", 0)
    assert worker.reason == "Preempted by higher-priority work (high)"
    run_once(namespace.cluster_id, after(16))
    assert states() == {"low": "Pending", "high": "Starting"}
    high.refresh_from_db()
    assert (high.pending_code, high.claim) == ("", None)


def test_a_victim_of_another_workspace_is_told_no_name() -> None:
    namespace = make_namespace()
    other = make_namespace("speech", namespace.cluster)
    make_machine(namespace.cluster, "m0", gpus=8)
    low = make_run(namespace, "low", age=60, gpus=8, node_selection={"count": 1})
    attempt = running(low)
    make_run(other, "secret", age=5, gpus=8, priority=5, node_selection={"count": 1})
    run_once(namespace.cluster_id, after(10))
    stop(attempt, 15)
    assert Worker.objects.get(run=low).reason == "Preempted by higher-priority work (another workspace's run)"
    assert not Transition.objects.filter(run=low, reason__contains="secret").exists()


def test_freed_room_is_kept_for_the_claimant_in_the_database() -> None:
    namespace = make_namespace()
    machine = make_machine(namespace.cluster, "m0", gpus=8)
    other = make_namespace("speech", namespace.cluster)
    attempt = running(make_run(namespace, "low", age=60, gpus=8, node_selection={"count": 1}))
    high = make_run(namespace, "high", age=5, gpus=8, priority=5, node_selection={"count": 1})
    run_once(namespace.cluster_id, after(10))
    high.refresh_from_db()
    (waiting,) = (run for run in load_snapshot(namespace.cluster_id).waiting if run.id == high.id)
    until = after(10).timestamp() + CLAIM_SECONDS
    assert waiting.claim == Claim(until, (Room(machine.id, 8000, 8 * GIB, tuple(range(8))),))
    make_run(other, "equal", age=50, gpus=8, priority=5, node_selection={"count": 1})
    stop(attempt, 15)
    run_once(namespace.cluster_id, after(16))
    assert states()["high"] == "Starting"
    assert states()["equal"] == "Pending"


def test_a_preemption_for_a_run_that_is_gone_meanwhile_is_dropped() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    low = make_run(namespace, "low", age=60, gpus=8, node_selection={"count": 1})
    running(low)
    high = make_run(namespace, "high", age=5, gpus=8, priority=5, node_selection={"count": 1})
    plan = make_plan(load_snapshot(namespace.cluster_id), after(10).timestamp())
    assert len(plan.preemptions) == 1
    delete_run(builders.access(namespace.workspace), high, after(11))
    apply_plan(namespace.cluster_id, plan, after(12))
    low.refresh_from_db()
    assert (low.state, low.preemptions) == ("Running", 0)


def test_a_preemption_applied_twice_is_applied_once() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    low = make_run(namespace, "low", age=60, gpus=8, node_selection={"count": 1})
    running(low)
    make_run(namespace, "high", age=5, gpus=8, priority=5, node_selection={"count": 1})
    plan = make_plan(load_snapshot(namespace.cluster_id), after(10).timestamp())
    apply_plan(namespace.cluster_id, plan, after(10))
    apply_plan(namespace.cluster_id, plan, after(11))
    low.refresh_from_db()
    assert low.preemptions == 1


def test_a_run_that_makes_room_is_not_preempted_again_by_later_passes() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=4)
    make_machine(namespace.cluster, "m1", gpus=4)
    for name in ("one", "two"):
        running(make_run(namespace, name, age=60, gpus=4, node_selection={"count": 1}))
    make_run(namespace, "high", age=5, gpus=4, priority=5, node_selection={"count": 1})
    for seconds in (10, 15, 20, 25):
        run_once(namespace.cluster_id, after(seconds))
    assert sorted(Run.objects.values_list("preemptions", flat=True)) == [0, 0, 1]


def test_the_details_of_a_run_that_makes_room_can_be_read() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    running(make_run(namespace, "low", age=60, gpus=8, node_selection={"count": 1}))
    high = make_run(namespace, "high", age=5, gpus=8, priority=5, node_selection={"count": 1})
    run_once(namespace.cluster_id, after(10))
    details = pending_details(Run.objects.get(id=high.id), NOW)
    assert details is not None
    assert details["reason"] == "Next to run: what runs in its place is stopping"
    assert details["machines"][0]["reason"] == "8 GPUs wanted, at most 0 free"
