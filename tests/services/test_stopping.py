"""Stop, delete, lost machines, a console that stops: who is told what, and what becomes of the worker."""

import pytest

from astraconsole.errors import AlreadyEnded, Forbidden, NotFound
from astraconsole.tenancy.permissions import Role
from machines.models import Assignment, Machine
from machines.protocol import EndReason, Phase
from runs.models import Attempt
from runs.services import lost, restarting
from runs.services.deleting import delete_run
from runs.services.stopping import stop_run, stop_worker
from tests import builders as make
from tests.builders import T0, after, state_of

pytestmark = pytest.mark.django_db


# ---- stop ----


def test_a_waiting_worker_is_cancelled_at_once(editor, east) -> None:
    run = make.submit(editor, east)
    worker = make.workers(run)[0]
    stop_worker(editor, worker, "wrong data", after(5))
    assert state_of(worker) == ("Cancelled", f"Stopped by {editor.actor}: wrong data")
    run.refresh_from_db()
    assert (run.state, run.reason) == ("Cancelled", "All workers ended; some were cancelled")


def test_a_running_worker_is_cancelled_when_its_machine_says_that_it_is_gone(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.run_on(worker, on)
    stop_worker(editor, worker, "", after(5))
    assert state_of(worker) == ("Running", f"Stopping: Stopped by {editor.actor}")
    assert not Assignment.objects.exists()
    make.check_invariants()
    make.report_end(attempt, exit_code=137, reason=EndReason.STOPPED, at=after(35))
    assert state_of(worker) == ("Cancelled", f"Stopped by {editor.actor}")
    assert (worker.exit_code, worker.last_failure, worker.restart_at) == (137, None, None)
    make.check_invariants()


def test_a_worker_that_completed_before_its_stop_arrived_has_completed(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.run_on(worker, on)
    stop_worker(editor, worker, "", after(5))
    make.report_end(attempt, exit_code=0, at=after(6))
    assert state_of(worker)[0] == "Completed"


def test_what_a_machine_may_not_have_heard_of_is_forgotten_so_that_it_answers(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.place(worker, on)
    stop_worker(editor, worker, "", after(1))
    assert Assignment.objects.get(attempt=attempt.uid).order is None
    make.report(attempt, (Phase.FORGOTTEN, 0.0), at=after(2))
    attempt.refresh_from_db()
    assert state_of(worker)[0] == "Cancelled"
    assert attempt.released_at == after(2)
    assert not Assignment.objects.exists()
    make.check_invariants()


def test_a_restarting_worker_does_not_restart_after_a_stop(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    make.report_end(make.run_on(worker, on), exit_code=1, at=after(5))
    stop_worker(editor, worker, "", after(6))
    assert state_of(worker)[0] == "Cancelled"
    assert restarting.start_due(after(1000)) == 0


def test_stopping_again_changes_nothing_and_stopping_what_ended_otherwise_is_refused(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.run_on(worker, on)
    stop_worker(editor, worker, "first", after(5))
    history = make.moves_of(worker)
    stop_worker(editor, worker, "second", after(6))
    assert make.moves_of(worker) == history
    make.report_end(attempt, exit_code=143, reason=EndReason.STOPPED, at=after(7))
    history = make.moves_of(worker)
    stop_worker(editor, worker, "third", after(8))
    stop_run(editor, worker.run, "fourth", after(8))
    assert make.moves_of(worker) == history
    other = make.workers(make.submit(editor, east))[0]
    make.report_end(make.run_on(other, on), at=after(9))
    for stop in (lambda: stop_worker(editor, other, "", after(10)), lambda: stop_run(editor, other.run, "", after(10))):
        with pytest.raises(AlreadyEnded):
            stop()


def test_stopping_a_run_stops_what_runs_and_cancels_what_waits(editor, east, on) -> None:
    run = make.submit(editor, east, array={"count": 3})
    zero, one, two = make.workers(run)
    attempt = make.run_on(zero, on)
    make.report_end(make.run_on(one, on), at=after(4))
    stop_run(editor, run, "", after(5))
    assert [state_of(worker)[0] for worker in (zero, one, two)] == ["Running", "Completed", "Cancelled"]
    make.report_end(attempt, exit_code=143, reason=EndReason.STOPPED, at=after(9))
    run.refresh_from_db()
    assert run.state == "Cancelled"
    make.check_invariants()


def test_a_run_without_workers_can_be_stopped(editor, east) -> None:
    run = make.submit(editor, east, gpus=10, machines=3)
    stop_run(editor, run, "", after(5))
    run.refresh_from_db()
    assert (run.state, run.ended_at) == ("Cancelled", after(5))
    make.check_invariants()


class Life:
    """A run of one worker, brought as far as its name says."""

    def __init__(self, editor, east, on, state: str) -> None:
        self.run = make.submit(editor, east)
        self.worker = make.workers(self.run)[0]
        self.attempt = None
        if state != "Pending":
            self.attempt = make.place(self.worker, on)
        reached = {"Preparing": Phase.PREPARING, "Pulling": Phase.PULLING, "Starting": Phase.STARTING}
        if state in reached:
            make.report(self.attempt, (reached[state], 1.0), at=after(1))
        if state in ("Running", "Lost", "Restarting"):
            make.report(self.attempt, (Phase.PREPARING, 2.0), (Phase.RUNNING, 1.0), at=after(1))
        if state == "Restarting":
            make.report_end(self.attempt, exit_code=1, at=after(2))
        if state == "Lost":
            Machine.objects.filter(pk=on.pk).update(state="Lost")
            lost.machines_lost([on.pk], after(2))

    def machine_answers(self) -> None:
        """It does what it was told: stops what it no longer has an order for, forgets what it is to forget."""
        assignment = Assignment.objects.filter(attempt=self.attempt.uid).first() if self.attempt else None
        if self.attempt is None or (assignment and assignment.order is not None):
            return
        self.attempt.refresh_from_db()
        phases = [(Phase.ENDED, 1.0), *([(Phase.FORGOTTEN, 0.0)] if assignment else [])]
        make.report(self.attempt, *phases, exit_code=143, end_reason=EndReason.STOPPED, at=after(9))


STATES = ["Pending", "Preparing", "Pulling", "Starting", "Running", "Restarting", "Lost"]


@pytest.mark.parametrize("act", ["stop its worker", "stop it", "delete it"])
@pytest.mark.parametrize("state", STATES)
def test_wherever_a_run_is_it_can_be_stopped_and_deleted_and_again(editor, east, on, state, act) -> None:
    life = Life(editor, east, on, state)
    do = {
        "stop its worker": lambda at: stop_worker(editor, life.worker, "", at),
        "stop it": lambda at: stop_run(editor, life.run, "", at),
        "delete it": lambda at: delete_run(editor, life.run, at),
    }[act]
    do(after(5))
    make.check_invariants()
    if act == "delete it":
        with pytest.raises(NotFound):
            do(after(6))
    else:
        do(after(6))
    life.machine_answers()
    assert state_of(life.worker)[0] == "Cancelled"
    life.run.refresh_from_db()
    assert life.run.state == "Cancelled"
    assert not Attempt.objects.filter(released_at=None).exists()
    assert not Assignment.objects.exists()
    assert restarting.start_due(after(10_000)) == 0
    make.check_invariants()


def test_a_viewer_can_neither_stop_nor_delete(editor, east) -> None:
    viewer = make.access(editor.workspace, Role.VIEWER)
    run = make.submit(editor, east)
    for act in (
        lambda: stop_worker(viewer, make.workers(run)[0], "", T0),
        lambda: stop_run(viewer, run, "", T0),
        lambda: delete_run(viewer, run, T0),
    ):
        with pytest.raises(Forbidden):
            act()
    run.refresh_from_db()
    assert (run.state, run.deleted_at) == ("Pending", None)


# ---- delete ----


def test_deleting_cancels_the_workers_and_has_every_machine_forget_every_attempt(editor, east, on) -> None:
    run = make.submit(editor, east, node_selection={"count": 2})
    zero, one = make.workers(run)
    first = make.run_on(zero, on)
    make.report_end(first, exit_code=1, at=after(5))
    restarting.start_due(after(100))
    second = make.run_on(zero, make.machine(east), after(100))
    delete_run(editor, run, after(200))
    assert [state_of(worker)[0] for worker in (zero, one)] == ["Cancelled", "Cancelled"]
    assert dict(Assignment.objects.values_list("attempt", "order")) == {first.uid: None, second.uid: None}
    run.refresh_from_db()
    assert (run.state, run.deleted_at) == ("Cancelled", after(200))
    assert make.moves_of(run)[-1] == ("Cancelled", f"Deleted by {editor.actor}")
    make.check_invariants()


def test_deleting_what_has_completed_keeps_its_state_on_the_tombstone(editor, east, on) -> None:
    run = make.submit(editor, east)
    make.report_end(make.run_on(make.workers(run)[0], on), at=after(5))
    delete_run(editor, run, after(6))
    run.refresh_from_db()
    assert (run.state, run.ended_at) == ("Completed", after(5))
    with pytest.raises(NotFound):
        delete_run(editor, run, after(7))
    make.check_invariants()


# ---- machines that go ----


def test_a_lost_machines_workers_wait_for_another_at_no_cost(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.run_on(worker, on)
    Machine.objects.filter(pk=on.pk).update(state="Lost")
    lost.machines_lost([on.pk], after(30))
    lost.machines_lost([on.pk], after(35))
    assert state_of(worker) == ("Pending", "Machine lost: its lease expired")
    assert (worker.restarts, worker.failures_in_row) == (1, 0)
    assert worker.last_failure["reason"] == "Machine lost: its lease expired"
    attempt.refresh_from_db()
    assert (attempt.superseded_at, attempt.released_at) == (after(30), None)
    assert not Assignment.objects.exists()
    make.check_invariants()


@pytest.mark.parametrize("asked", [{"template": {"restart_policy": "Never"}}, {"on_failure": "FailJob"}])
def test_a_lost_machine_fails_work_that_must_not_run_twice(editor, east, on, asked) -> None:
    run = make.submit(editor, east, "etl", **asked)
    make.run_on(make.workers(run)[0], on)
    lost.machines_lost([on.pk], after(30))
    run.refresh_from_db()
    assert (run.state, run.reason) == ("Failed", "Worker etl-0 failed on gpu-08: Machine lost: its lease expired")
    make.check_invariants()


def test_a_worker_being_stopped_on_a_lost_machine_is_cancelled(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    make.run_on(worker, on)
    stop_worker(editor, worker, "", after(5))
    lost.machines_lost([on.pk], after(30))
    assert state_of(worker) == ("Cancelled", f"Stopped by {editor.actor}")
    make.check_invariants()


def test_a_console_that_stops_sends_its_workers_back_to_the_queue(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.run_on(worker, on)
    lost.requeue_cluster_workers([on.pk], "Console stopped", after(30))
    assert state_of(worker) == ("Pending", "Console stopped")
    assert (worker.restarts, worker.failures_in_row, worker.last_failure) == (0, 0, None)
    worker.run.refresh_from_db()
    assert (worker.run.state, worker.run.status_reason) == ("Pending", "Console stopped")
    make.report_end(attempt, exit_code=143, reason=EndReason.STOPPED, at=after(35))
    assert state_of(worker) == ("Pending", "Console stopped")
    assert not Attempt.objects.filter(released_at=None).exists()
    make.check_invariants()
