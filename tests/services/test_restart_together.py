"""on_failure RestartJob: one failure stops all workers of a run, and all start again together."""

from typing import Any

import pytest

from machines.models import Assignment, Machine
from machines.protocol import EndReason, Phase
from runs import queries
from runs.models import Attempt, Run, Worker
from runs.services import lost, reports, restarting
from runs.services.deleting import delete_run
from runs.services.stopping import stop_run, stop_worker
from tests import builders as make
from tests.builders import GIB, after

pytestmark = pytest.mark.django_db


@pytest.fixture
def machines(east):
    return [make.machine(east, f"gpu-0{number}", cpu=64, memory=64 * GIB) for number in range(3)]


class Together:
    """A run of three workers on three machines, all Running."""

    def __init__(self, editor: Any, east: Any, machines: list[Machine], **asked: Any) -> None:
        asked = {"node_selection": {"count": 3}, "on_failure": "RestartJob", **asked}
        self.run = make.submit(editor, east, "ddp", **asked)
        self.machines = machines
        self.attempts: list[Attempt] = []
        self.start(0)

    def start(self, at: float) -> None:
        pairs = zip(self.workers, self.machines, strict=True)
        self.attempts = [make.run_on(worker, machine, after(at)) for worker, machine in pairs]

    @property
    def workers(self) -> list[Worker]:
        return make.workers(self.run)

    def fail(self, rank: int, at: float, exit_code: int = 1, **fields: Any) -> None:
        make.report_end(self.attempts[rank], exit_code=exit_code, at=after(at), **fields)

    def stopped(self, rank: int, at: float) -> None:
        self.fail(rank, at, 143, reason=EndReason.STOPPED)

    def restart(self, rank: int, at: float) -> None:
        """One fails at `at`; the others stop a second later; all run again when their time has come."""
        self.fail(rank, at)
        for other in {0, 1, 2} - {rank}:
            self.stopped(other, at + 1)
        wait = max((worker.restart_at for worker in self.workers), default=None)
        assert wait is not None
        assert restarting.start_due(wait) == 3
        self.start((wait - after(0)).total_seconds())

    def states(self) -> list[str]:
        return [worker.state for worker in self.workers]

    def told(self) -> tuple[str, str]:
        self.run.refresh_from_db()
        return self.run.state, self.run.status_reason


@pytest.fixture
def ddp(editor, east, machines) -> Together:
    return Together(editor, east, machines)


def test_one_failure_stops_the_others_and_the_run_tells_it(ddp: Together) -> None:
    ddp.fail(1, 30)
    assert ddp.states() == ["Running", "Restarting", "Running"]
    cause = "Worker ddp-1 failed on gpu-01: Exited with code 1"
    assert ddp.told() == ("Running", f"{cause}; all workers restart together, 1 of 3 stopped")
    assert ddp.workers[0].reason == f"Stopping: {cause}; all workers restart together"
    assert not Assignment.objects.filter(order__isnull=False).exists()  # the others are told to stop
    make.check_invariants()


def test_all_start_again_when_the_last_has_stopped_and_the_back_off_is_over(ddp: Together) -> None:
    ddp.fail(1, 30)
    ddp.stopped(0, 31)
    assert restarting.start_due(after(100)) == 0  # ddp-2 takes its time
    assert ddp.states() == ["Restarting", "Restarting", "Running"]
    ddp.stopped(2, 59)
    assert ddp.told() == ("Pending", "Restarting all 3 workers: Worker ddp-1 failed on gpu-01: Exited with code 1")
    assert {worker.restart_at for worker in ddp.workers} == {after(40)}
    make.check_invariants()
    assert restarting.start_due(after(39)) == 0
    assert restarting.start_due(after(60)) == 3
    assert ddp.states() == ["Pending"] * 3
    assert ddp.told() == ("Pending", "Restarting: attempt 2")
    assert restarting.start_due(after(61)) == 0
    make.check_invariants()


def test_a_restart_counts_once_for_the_run_and_once_for_each_worker(ddp: Together) -> None:
    ddp.restart(1, 30)
    ddp.restart(0, 60)
    ddp.run.refresh_from_db()
    assert (ddp.run.restarts, ddp.run.failures_in_row) == (2, 2)
    assert [worker.restarts for worker in ddp.workers] == [2, 2, 2]
    assert ddp.told() == ("Running", "3 of 3 workers running")
    make.check_invariants()


def test_the_back_off_is_the_runs_whichever_worker_fails(ddp: Together) -> None:
    waits = []
    at = 30.0
    for rank in (0, 1, 2, 0, 1, 2):
        ddp.fail(rank, at)
        waits.append((ddp.workers[rank].restart_at - after(at)).total_seconds())
        for other in {0, 1, 2} - {rank}:
            ddp.stopped(other, at)
        at += waits[-1]
        restarting.start_due(after(at))
        ddp.start(at)
        at += 5
    assert waits == [10, 20, 40, 80, 160, 300]


def test_the_budget_is_the_runs_and_its_end_stops_the_others(ddp: Together) -> None:
    Run.objects.update(failures_in_row=10)
    ddp.fail(2, 30)
    assert ddp.told()[0] == "Running"
    for rank in (0, 1):
        ddp.stopped(rank, 31)
    assert ddp.states() == ["Cancelled", "Cancelled", "Failed"]
    exhausted = "Worker ddp-2 failed on gpu-02: Retry budget exhausted after 10/10 restarts"
    assert ddp.told() == ("Failed", exhausted)
    assert ddp.workers[2].last_failure["reason"] == "Exited with code 1"
    make.check_invariants()


def test_ten_minutes_of_running_reset_the_runs_count(ddp: Together) -> None:
    Run.objects.update(failures_in_row=10)
    ddp.fail(2, 700, ran=600)
    ddp.run.refresh_from_db()
    assert (ddp.run.failures_in_row, ddp.workers[2].state) == (1, "Restarting")


def test_what_the_others_did_when_they_lost_the_first_is_no_failure_of_theirs(ddp: Together) -> None:
    ddp.fail(1, 30, 137, reason=EndReason.OOM_KILLED, log_tail="step 4410\n")
    ddp.fail(0, 32, log_tail="NCCL error\n")
    ddp.stopped(2, 33)
    failures = [worker.last_failure for worker in ddp.workers]
    assert [failure is None for failure in failures] == [True, False, True]
    assert failures[1]["reason"].startswith("OOMKilled")
    ddp.run.refresh_from_db()
    assert ddp.run.failures_in_row == 1


def test_the_first_failure_is_the_cause_although_its_machine_reports_it_later(ddp: Together) -> None:
    ddp.fail(0, 30, log_tail="NCCL error\n")
    late = (Phase.RUNNING, 31.0), (Phase.ENDED, 2.0)  # it ended at 29, and says so at 31
    make.report(ddp.attempts[2], *late, at=after(31), exit_code=137, end_reason=EndReason.OOM_KILLED)
    assert ddp.told()[1].startswith("Worker ddp-2 failed on gpu-02: OOMKilled")
    assert ddp.workers[2].last_failure["reason"].startswith("OOMKilled")
    make.check_invariants()


def test_what_completed_or_waits_starts_again_with_the_others(editor, east, machines) -> None:
    ddp = Together(editor, east, machines)
    make.report_end(ddp.attempts[0], at=after(20))
    assert ddp.states() == ["Completed", "Running", "Running"]
    ddp.fail(1, 30)
    assert ddp.states() == ["Restarting", "Restarting", "Running"]
    ddp.stopped(2, 31)
    assert restarting.start_due(after(40)) == 3
    make.check_invariants()


def test_a_worker_that_waits_for_room_is_held_back_with_the_others(editor, east, machines) -> None:
    run = make.submit(editor, east, node_selection={"count": 2}, on_failure="RestartJob")
    zero, _ = make.workers(run)
    make.report_end(make.run_on(zero, machines[0]), exit_code=1, at=after(5))
    assert [(worker.state, worker.restarts) for worker in make.workers(run)] == [("Restarting", 1), ("Restarting", 0)]
    assert restarting.start_due(after(15)) == 2
    make.check_invariants()


def test_it_completes_when_all_have_completed(ddp: Together) -> None:
    ddp.restart(1, 30)
    for rank in range(3):
        make.report_end(ddp.attempts[rank], at=after(100))
    assert ddp.told() == ("Completed", "3 of 3 workers completed")
    make.check_invariants()


def test_a_lost_machine_restarts_all_at_once_and_costs_no_budget(ddp: Together) -> None:
    Machine.objects.filter(name="gpu-01").update(state="Lost")
    lost.machines_lost([ddp.machines[1].pk], after(30))
    assert ddp.told()[1].startswith("Worker ddp-1 failed on gpu-01: Machine lost: its lease expired; all workers")
    ddp.stopped(0, 31)
    ddp.stopped(2, 32)
    assert restarting.start_due(after(32)) == 3
    ddp.run.refresh_from_db()
    assert (ddp.run.restarts, ddp.run.failures_in_row) == (1, 0)
    make.check_invariants()


def test_machines_lost_one_after_the_other_do_not_restart_it_twice(ddp: Together) -> None:
    lost.machines_lost([ddp.machines[0].pk, ddp.machines[1].pk], after(30))
    lost.machines_lost([ddp.machines[2].pk], after(31))
    assert ddp.states() == ["Restarting"] * 3
    assert restarting.start_due(after(31)) == 3
    ddp.run.refresh_from_db()
    assert ddp.run.restarts == 1
    make.check_invariants()


def test_a_final_failure_stops_the_others_and_fails_the_run(ddp: Together) -> None:
    ddp.fail(0, 30, 143, reason=EndReason.TIME_LIMIT)
    ddp.stopped(1, 31)
    ddp.stopped(2, 31)
    assert ddp.states() == ["Failed", "Cancelled", "Cancelled"]
    assert ddp.told()[0] == "Failed"
    make.check_invariants()


# ---- stops meanwhile ----


@pytest.mark.parametrize("asked", [{"on_failure": "FailJob"}, {"template": {"restart_policy": "Never"}}])
def test_the_first_failure_is_named_although_another_was_told_before(editor, east, machines, asked) -> None:
    """The network of rank 2 was slow: what rank 0 did when it lost rank 2 came first."""
    ddp = Together(editor, east, machines, **asked)
    ddp.fail(0, 20, exit_code=134)
    assert ddp.states() == ["Failed", "Running", "Running"]
    ddp.attempts[2].refresh_from_db()
    said = make.told(ddp.attempts[2], (Phase.RUNNING, 30), (Phase.ENDED, 6), exit_code=7, log_tail="NaN\n")
    reports.apply([make.entry(machines[2], after(24), said)], after(24))
    ddp.stopped(1, 25)
    assert ddp.states() == ["Failed", "Cancelled", "Failed"]
    ddp.run.refresh_from_db()
    assert ddp.run.reason.startswith(f"Worker ddp-2 failed on {machines[2].name}: Exited with code 7")
    assert ddp.workers[2].last_failure["log_tail"] == "NaN\n"
    first = queries.first_failed(ddp.run)
    assert first is not None
    assert [first.name, *(worker.name for worker in queries.failed_later(ddp.run, 9))] == ["ddp-2", "ddp-0"]
    make.check_invariants()


def test_what_fails_after_the_first_is_its_consequence(editor, east, machines) -> None:
    ddp = Together(editor, east, machines, on_failure="FailJob")
    ddp.fail(0, 20)
    ddp.fail(1, 21, exit_code=134)
    ddp.stopped(2, 22)
    assert ddp.states() == ["Failed", "Cancelled", "Cancelled"]
    assert (ddp.workers[1].exit_code, ddp.workers[1].last_failure) == (134, None)
    make.check_invariants()


def test_stopping_the_run_while_it_restarts_stops_it_for_good(editor, ddp: Together) -> None:
    ddp.fail(1, 30)
    stop_run(editor, ddp.run, "", after(31))
    assert ddp.states() == ["Running", "Cancelled", "Running"]
    ddp.stopped(0, 32)
    ddp.stopped(2, 32)
    assert ddp.states() == ["Cancelled"] * 3
    assert ddp.told()[0] == "Cancelled"
    assert restarting.start_due(after(1000)) == 0
    make.check_invariants()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_others_do_not_restart_without_one_that_was_stopped_meanwhile(editor, ddp: Together, rank: int) -> None:
    """Whether it waits for the restart already (1) or is still on its machine (0)."""
    ddp.fail(1, 30)
    stop_worker(editor, ddp.workers[rank], "", after(31))
    ddp.stopped(0, 32)
    ddp.stopped(2, 32)
    restarting.start_due(after(40))
    assert ddp.states() == ["Cancelled"] * 3
    without = "Another worker was stopped, and the others do not restart without it"
    assert ddp.workers[2].reason == without
    make.check_invariants()


def test_a_failure_is_final_once_a_worker_was_stopped(editor, ddp: Together) -> None:
    stop_worker(editor, ddp.workers[0], "", after(20))
    ddp.stopped(0, 21)
    ddp.fail(1, 30)
    ddp.stopped(2, 31)
    assert ddp.states() == ["Cancelled", "Failed", "Cancelled"]
    make.check_invariants()


def test_deleting_it_while_it_restarts_leaves_nothing_behind(editor, ddp: Together) -> None:
    ddp.fail(1, 30)
    delete_run(editor, ddp.run, after(31))
    assert ddp.states() == ["Cancelled"] * 3
    assert restarting.start_due(after(1000)) == 0
    make.check_invariants()


def test_a_console_that_stops_gives_back_the_workers_of_other_machines_too(ddp: Together) -> None:
    lost.requeue_cluster_workers([ddp.machines[0].pk], "Console stopped", after(30))
    assert ddp.states() == ["Restarting", "Running", "Running"]
    ddp.stopped(1, 31)
    ddp.stopped(2, 31)
    assert restarting.start_due(after(31)) == 3
    assert ddp.told() == ("Pending", "Console stopped")
    assert [worker.restarts for worker in ddp.workers] == [0, 0, 0]
    make.check_invariants()
