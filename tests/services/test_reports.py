"""What machines report: phases into history, ends into outcomes."""

import pytest

from machines import leases
from machines.models import Assignment, Machine
from machines.protocol import EndReason, Phase
from runs.services import lost, reports, restarting, stopping
from tests import builders as make
from tests.builders import T0, after, state_of

pytestmark = pytest.mark.django_db


# ---- phases ----


def test_phases_become_transitions_at_the_times_the_machine_tells(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.place(worker, on, now=after(1))
    phases = [(Phase.PREPARING, 9.0), (Phase.PULLING, 8.0), (Phase.STARTING, 2.0), (Phase.RUNNING, 1.5)]
    make.report(attempt, *phases, at=after(20))
    assert list(worker.transitions.order_by("id").values_list("state", "reason", "at", "actor")) == [
        ("Pending", "Run created", T0, editor.actor),
        ("Preparing", "Placed on gpu-08", after(1), "scheduler"),
        ("Pulling", "Pulling docker.io/library/busybox:latest", after(12), "machine gpu-08"),
        ("Starting", "Starting the container", after(18), "machine gpu-08"),
        ("Running", "Container running", after(18.5), "machine gpu-08"),
    ]
    assert state_of(worker) == ("Running", "Container running")
    assert (worker.run.state, worker.run.reason, worker.run.started_at) == (
        "Running",
        "1 of 1 workers running",
        after(18.5),
    )
    make.check_invariants()


def test_one_report_of_a_whole_short_life_leaves_the_whole_history(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    make.report_end(make.place(worker, on), ran=0.2, at=after(5))
    assert [state for state, _ in make.moves_of(worker)] == ["Pending", "Preparing", "Starting", "Running", "Completed"]
    assert make.moves_of(worker.run) == [
        ("Pending", "Run created"),
        ("Starting", "0 of 1 workers running"),
        ("Running", "1 of 1 workers running"),
        ("Completed", "1 of 1 workers completed"),
    ]
    make.check_invariants()


def test_what_a_preparation_waits_for_is_the_workers_reason_until_it_goes_on(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.place(worker, on)
    make.report(attempt, (Phase.PREPARING, 1.0), waiting="waiting for external secret hf-token", at=after(2))
    assert state_of(worker) == ("Preparing", "waiting for external secret hf-token")
    make.report(attempt, (Phase.PREPARING, 9.0), (Phase.RUNNING, 0.5), at=after(10))
    assert state_of(worker) == ("Running", "Container running")
    assert "waiting" not in str(make.moves_of(worker))


@pytest.mark.parametrize("ago", [-3600.0, 86400.0 * 365])
def test_no_time_is_before_the_previous_transition_or_in_the_future(editor, east, on, ago) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    make.report(make.place(worker, on, now=after(1)), (Phase.RUNNING, ago), at=after(5))
    newest = worker.transitions.latest("id")
    assert after(1) <= newest.at <= after(5)


def test_pull_progress_is_shown_and_not_recorded(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.place(worker, on)
    make.report(attempt, (Phase.PULLING, 1.0), pull_progress="20 %")
    make.report(attempt, (Phase.PULLING, 2.0), pull_progress="61 %")
    assert state_of(worker) == ("Pulling", "Pulling docker.io/library/busybox:latest: 61 %")
    assert [reason for _, reason in make.moves_of(worker)] == [
        "Run created",
        "Placed on gpu-08",
        "Pulling docker.io/library/busybox:latest",
    ]


def test_why_a_machine_still_prepares_is_shown(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    make.report(make.place(worker, on), (Phase.PREPARING, 1.0), message="waiting for external secret hf-token")
    assert state_of(worker) == ("Preparing", "waiting for external secret hf-token")


def test_a_worker_that_is_not_ready_says_why_and_says_when_it_is(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.place(worker, on)
    running = ((Phase.PREPARING, 2.0), (Phase.RUNNING, 1.0))
    make.report(attempt, *running, not_ready="readiness probe failed: HTTP 503", at=after(3))
    assert state_of(worker) == ("Running", "Running, not ready: readiness probe failed: HTTP 503")
    assert worker.run.reason == "1 of 1 workers running"
    make.report(attempt, *running, at=after(4))
    assert state_of(worker) == ("Running", "Container running")
    make.check_invariants()


# ---- ends ----


def test_a_failed_probe_is_the_reason_of_a_restart(running) -> None:
    worker, attempt = running()
    failed = "Liveness probe failed: HTTP 500"
    make.report_end(attempt, exit_code=0, reason=EndReason.PROBE_FAILED, message=failed, log_tail="hung\n", at=after(9))
    assert state_of(worker) == ("Restarting", failed)
    assert (worker.failures_in_row, worker.last_failure["reason"], worker.last_failure["log_tail"]) == (
        1,
        failed,
        "hung\n",
    )
    make.check_invariants()


def test_exit_code_0_completes_and_frees_the_room(running) -> None:
    worker, attempt = running()
    make.report_end(attempt, ran=60, at=after(60))
    attempt.refresh_from_db()
    assert state_of(worker) == ("Completed", "Exited with code 0")
    assert (attempt.exit_code, attempt.end_reason, attempt.released_at) == (0, "Exited", after(60))
    assert (worker.run.state, worker.run.ended_at) == ("Completed", after(60))
    assert not Assignment.objects.exists()
    make.check_invariants()


def test_a_failure_waits_and_restarts_with_what_it_left(running) -> None:
    worker, attempt = running()
    make.report_end(attempt, exit_code=3, log_tail="step 1\nKilled\n", at=after(60))
    assert state_of(worker) == ("Restarting", "Exited with code 3")
    assert (worker.restart_at, worker.restarts, worker.failures_in_row, worker.exit_code) == (after(70), 1, 1, 3)
    assert worker.last_failure == {
        "reason": "Exited with code 3",
        "failed_at": "2026-10-01T01:03:11.402117+00:00",
        "exit_code": 3,
        "log_tail": "step 1\nKilled\n",
    }
    assert (worker.run.state, worker.run.restarts) == ("Pending", 1)
    make.check_invariants()


def test_a_due_restart_goes_back_to_the_scheduler_and_not_before(running, on) -> None:
    worker, attempt = running()
    make.report_end(attempt, exit_code=1, at=after(60))
    assert restarting.start_due(after(69)) == 0
    assert restarting.start_due(after(70)) == 1
    assert restarting.start_due(after(70)) == 0
    assert state_of(worker) == ("Pending", "Restarting: attempt 2")
    again = make.place(worker, on, now=after(71))
    worker.refresh_from_db()
    assert (again.number, worker.exit_code, worker.restart_at) == (2, None, None)
    make.check_invariants()


def test_a_placement_has_the_machine_of_the_attempt_before_archive_its_log_until_it_has(running, east, on) -> None:
    worker, attempt = running()
    make.report_end(attempt, exit_code=1, at=after(60))
    restarting.start_due(after(70))
    elsewhere = make.machine(east, "gpu-99")
    make.place(worker, elsewhere, now=after(71))
    [told] = Assignment.objects.filter(attempt=attempt.uid)
    assert (told.machine, told.order, told.archives) == (on, None, True)
    phases = [(Phase.RUNNING, 30.0), (Phase.ENDED, 11.0), (Phase.ARCHIVED, 0.0)]
    make.report(attempt, *phases, seq=1000, end_reason=EndReason.EXITED, exit_code=1, at=after(80))
    assert not Assignment.objects.filter(attempt=attempt.uid).exists()
    make.check_invariants()


def test_ten_restarts_in_a_row_use_up_the_budget(running, on) -> None:
    worker, attempt = running()
    now = 0
    for failure in range(11):
        make.report_end(attempt, exit_code=7, at=after(now + 1))
        worker.refresh_from_db()
        if failure < 10:
            assert worker.state == "Restarting"
            now += 1000
            restarting.start_due(after(now))
            attempt = make.run_on(worker, on, after(now))
    assert state_of(worker) == ("Failed", "Retry budget exhausted after 10/10 restarts")
    assert worker.last_failure["reason"] == "Exited with code 7"
    assert worker.run.reason == f"Worker {worker.name} failed on gpu-08: Retry budget exhausted after 10/10 restarts"
    assert worker.restarts == 10
    make.check_invariants()


def test_a_listed_exit_code_restarts_without_using_up_the_budget(running, on) -> None:
    worker, attempt = running(template={"retry_exit_codes": [75]})
    for number in range(12):
        make.report_end(attempt, exit_code=75, at=after(1000 * number + 5))
        worker.refresh_from_db()
        assert (worker.state, worker.failures_in_row, worker.restarts) == ("Restarting", 0, number + 1)
        restarting.start_due(after(1000 * number + 15))
        attempt = make.run_on(worker, on, after(1000 * number + 20))
    make.check_invariants()


def test_a_service_starts_again_after_every_end_until_it_is_stopped(running, on, editor) -> None:
    worker, attempt = running(lifetime="Service", template={"restart_policy": "Never"})
    for number, code in enumerate([0, 1, None, *[1] * 12]):
        make.report_end(attempt, exit_code=code, at=after(1000 * number + 5))
        assert state_of(worker)[0] == "Restarting"
        restarting.start_due(after(1000 * number + 500))
        attempt = make.run_on(worker, on, after(1000 * number + 501))
    stopping.stop_worker(editor, worker, "", after(20_000))
    make.report_end(attempt, exit_code=143, reason=EndReason.STOPPED, at=after(20_001))
    assert state_of(worker)[0] == worker.run.state == "Cancelled"
    make.check_invariants()


def test_ten_minutes_running_reset_the_budget(running) -> None:
    worker, attempt = running()
    type(worker).objects.update(failures_in_row=10)
    make.report_end(attempt, exit_code=7, ran=600, at=after(600))
    assert state_of(worker) == ("Restarting", "Exited with code 7")
    assert worker.failures_in_row == 1


def test_a_time_out_fails_for_good_and_names_the_limit(running) -> None:
    worker, attempt = running(name="resnet50", template={"time_limit_seconds": 43200})
    make.report_end(attempt, exit_code=143, reason=EndReason.TIME_LIMIT, at=after(43200))
    assert state_of(worker) == ("Failed", "Exceeded its time limit of 12h")
    assert worker.run.reason == "Worker resnet50-0: Exceeded its time limit of 12h"


def test_an_unknown_exit_code_is_null_and_never_completed(running) -> None:
    worker, attempt = running(template={"restart_policy": "Never"})
    make.report_end(attempt, exit_code=None)
    assert state_of(worker)[0] == "Failed"
    assert worker.exit_code is None
    assert worker.last_failure["exit_code"] is None


def test_a_pull_error_ends_the_worker_in_the_engines_words(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.place(worker, on)
    phases = [(Phase.PREPARING, 3.0), (Phase.PULLING, 2.0), (Phase.ENDED, 0.0)]
    make.report(attempt, *phases, end_reason=EndReason.IMAGE_PULL, message="manifest unknown")
    assert state_of(worker) == ("Failed", "ErrImagePull: manifest unknown")


def test_the_last_failures_log_is_cut_to_50_lines_and_16_kib(running) -> None:
    worker, attempt = running(template={"restart_policy": "Never"})
    make.report_end(attempt, exit_code=1, log_tail="".join(f"{n} {'é' * 400}\n" for n in range(100)))
    worker.refresh_from_db()
    tail = worker.last_failure["log_tail"]
    assert tail.endswith("99 " + "é" * 400 + "\n")
    assert len(tail.encode()) <= 16 * 1024
    assert tail.count("\n") <= 50
    assert "\ufffd" not in tail


def test_a_killed_child_is_a_remark_and_changes_nothing(running) -> None:
    worker, attempt = running()
    make.report(attempt, (Phase.RUNNING, 9.0), process_oom_kills=1)
    make.report(attempt, (Phase.RUNNING, 9.0), process_oom_kills=1)
    assert state_of(worker) == ("Running", "Container running")
    remarks = [reason for _, reason in make.moves_of(worker) if "killed" in reason]
    assert remarks == ["1 process was killed for memory; the worker goes on"]


# ---- several workers ----


def test_the_first_failure_by_time_names_the_run(editor, east) -> None:
    machines = [make.machine(east, "gpu-07"), make.machine(east, "gpu-08")]
    run = make.submit(editor, east, "llama", node_selection={"count": 2}, template={"restart_policy": "Never"})
    attempts = [make.run_on(worker, on) for worker, on in zip(make.workers(run), machines, strict=True)]
    said = [
        make.told(attempt, (Phase.RUNNING, 9.0), (Phase.ENDED, ago), exit_code=code, end_reason=EndReason.EXITED)
        for attempt, ago, code in zip(attempts, (1.0, 4.0), (134, 1), strict=True)
    ]
    entries = [make.entry(on, after(60), report) for on, report in zip(machines, said, strict=True)]
    reports.apply(entries, after(60))
    run.refresh_from_db()
    assert run.reason == "Worker llama-1 failed on gpu-08: Exited with code 1"
    make.check_invariants()


def test_fail_job_stops_the_siblings_and_fails_when_they_are_gone(editor, east, on) -> None:
    run = make.submit(editor, east, "llama", node_selection={"count": 3}, on_failure="FailJob")
    zero, one, two = make.workers(run)
    attempts = [make.run_on(worker, on) for worker in (zero, one)]
    make.report_end(attempts[1], exit_code=1, at=after(60))
    assert state_of(one) == ("Failed", "Exited with code 1")
    assert state_of(two) == ("Cancelled", "Worker llama-1 failed, and the run fails with it")
    assert state_of(zero)[0] == "Running"
    assert zero.run.reason == "Worker llama-1 failed on gpu-08: Exited with code 1; stopping the others"
    assert not Assignment.objects.filter(attempt=attempts[0].uid).exists()
    make.report_end(attempts[0], exit_code=143, reason=EndReason.STOPPED, at=after(65))
    assert state_of(zero)[0] == "Cancelled"
    assert (zero.run.state, zero.run.reason) == ("Failed", "Worker llama-1 failed on gpu-08: Exited with code 1")
    make.check_invariants()


def test_a_failed_worker_leaves_independent_siblings_running(editor, east, on) -> None:
    run = make.submit(editor, east, array={"count": 2}, template={"restart_policy": "Never"})
    zero, one = make.workers(run)
    attempts = [make.run_on(worker, on) for worker in (zero, one)]
    make.report_end(attempts[0], exit_code=1)
    assert state_of(one)[0] == "Running"
    assert (one.run.state, one.run.reason) == ("Running", "1 of 2 workers running, 1 failed")
    make.report_end(attempts[1])
    one.run.refresh_from_db()
    assert one.run.state == "Failed"


# ---- engines ----


def test_the_engine_that_was_told_once_is_kept(running) -> None:
    _, attempt = running()
    make.report(attempt, (Phase.PREPARING, 0.0), at=after(31), engine_image="vllm/vllm-openai:v1@sha256:aa")
    make.report_end(attempt, exit_code=0, at=after(60))
    attempt.refresh_from_db()
    assert attempt.engine_image == "vllm/vllm-openai:v1@sha256:aa"


# ---- lost machines ----


@pytest.mark.parametrize(
    ("state", "told", "reason"),
    [
        ("Lost", leases.LOST_REASON, "Machine lost: its lease expired"),
        ("Lost", f"{leases.MOVED_REASON}: b-2", "Machine lost: its agent runs in another place: b-2"),
        ("Removed", "Removed by alice", "Machine lost: it was removed from its cluster"),
        ("Ready", "", "Machine lost: its lease expired"),
    ],
)
def test_a_worker_is_told_why_its_machine_is_lost(running, on, state, told, reason) -> None:
    worker, _ = running()
    Machine.objects.filter(pk=on.pk).update(state=state, state_reason=told)
    lost.machines_lost([on.pk], after(30))
    assert state_of(worker) == ("Pending", reason)
