"""Workers given back in order: they stop, and wait for another place then; nothing is counted against them."""

import pytest

from machines.models import Assignment
from machines.protocol import EndReason
from runs.models import Attempt
from runs.services import lost, requeueing, restarting
from runs.services.stopping import stop_worker
from tests import builders as make
from tests.builders import after

pytestmark = pytest.mark.django_db
REASON = "Machine gpu-08 is drained: a fan rattles"


def requeue(on, at: float) -> None:
    requeueing.requeue_machines([on.pk], REASON, "anna", after(at))


def stopped(attempt: Attempt, at: float) -> None:
    make.report_end(attempt, exit_code=143, reason=EndReason.STOPPED, at=after(at))


def told(worker):
    worker.refresh_from_db()
    return worker.state, worker.reason


def test_a_worker_stops_first_and_waits_then(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.run_on(worker, on)
    requeue(on, 30)
    assert told(worker) == ("Running", f"Stopping: {REASON}")
    assert not Assignment.objects.exists()
    make.check_invariants()
    stopped(attempt, 55)
    assert told(worker) == ("Pending", REASON)
    worker.run.refresh_from_db()
    assert (worker.run.state, worker.run.reason) == ("Pending", REASON)
    assert (worker.restarts, worker.failures_in_row, worker.last_failure) == (0, 0, None)
    assert worker.transitions.get(reason=f"Stopping: {REASON}").actor == "anna"
    assert make.run_on(worker, make.machine(east), after(60)).number == 2
    make.check_invariants()


def test_asking_again_changes_nothing(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.run_on(worker, on)
    requeue(on, 30)
    history = make.moves_of(worker)
    requeue(on, 31)
    assert make.moves_of(worker) == history
    stopped(attempt, 32)
    requeue(on, 33)
    assert told(worker) == ("Pending", REASON)


@pytest.mark.parametrize("asked", [{}, {"on_failure": "FailJob"}, {"template": {"restart_policy": "Never"}}])
def test_no_failure_policy_matters(editor, east, on, asked) -> None:
    worker = make.workers(make.submit(editor, east, **asked))[0]
    attempt = make.run_on(worker, on)
    requeue(on, 30)
    stopped(attempt, 31)
    assert told(worker)[0] == "Pending"


def test_what_completes_before_it_is_stopped_has_completed(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.run_on(worker, on)
    requeue(on, 30)
    make.report_end(attempt, exit_code=0, at=after(31))
    assert told(worker)[0] == "Completed"
    make.check_invariants()


@pytest.mark.parametrize("first", ["requeue", "stop"])
def test_a_persons_stop_wins(editor, east, on, first: str) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.run_on(worker, on)
    acts = [lambda: requeue(on, 30), lambda: stop_worker(editor, worker, "", after(30))]
    for act in acts if first == "requeue" else reversed(acts):
        act()
    make.check_invariants()
    stopped(attempt, 31)
    assert told(worker) == ("Cancelled", f"Stopped by {editor.actor}")


def test_a_machine_lost_meanwhile_gives_back_as_well(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    make.run_on(worker, on)
    requeue(on, 30)
    lost.machines_lost([on.pk], after(60))
    assert told(worker) == ("Pending", REASON)
    assert worker.restarts == 0
    make.check_invariants()


def test_only_workers_on_the_machine_are_given_back(editor, east, on) -> None:
    run = make.submit(editor, east, node_selection={"count": 2})
    zero, one = make.workers(run)
    make.run_on(zero, on)
    make.run_on(one, make.machine(east))
    requeue(on, 30)
    assert told(one)[1] == "Container running"


def test_where_all_restart_together_the_others_are_given_back_too(editor, east, on) -> None:
    run = make.submit(editor, east, node_selection={"count": 2}, on_failure="RestartJob")
    attempts = [make.run_on(worker, at) for worker, at in zip(make.workers(run), (on, make.machine(east)), strict=True)]
    requeue(on, 30)
    run.refresh_from_db()
    assert run.reason == f"{REASON}; all workers restart together, 0 of 2 stopped"
    for attempt in attempts:
        assert restarting.start_due(after(31)) == 0
        stopped(attempt, 31)
    assert restarting.start_due(after(31)) == 2
    run.refresh_from_db()
    assert (run.state, run.status_reason, run.restarts, run.failures_in_row) == ("Pending", REASON, 0, 0)
    make.check_invariants()
