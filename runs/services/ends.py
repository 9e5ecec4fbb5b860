"""What follows from the end of an attempt: the table of `runs.state_machine`, applied to a worker of a batch."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings

from machines.protocol import LOG_TAIL_BYTES, LOG_TAIL_LINES
from runs.outcomes import End, Policy, end_sentence, outcome
from runs.services import rows
from runs.services.moves import Batch
from runs.services.rows import AttemptRow, RunRow, WholeRestart, WorkerRow
from runs.spec import RunSpec, template_of
from runs.state_machine import FAILS_WITH_IT, PLACED, WAITING, FirstFailure, WorkerState, worker_failed


def policy_of(spec: RunSpec, group: str, run: RunRow) -> Policy:
    template = template_of(spec, group)
    return Policy(
        image=template.image,
        restart_policy=template.restart_policy,
        on_failure=spec.effective_on_failure,
        lifetime=spec.effective_lifetime,
        retry_exit_codes=frozenset(template.retry_exit_codes),
        time_limit_seconds=template.time_limit_seconds,
        budget=settings.RESTART_BUDGET,
        backoff_seconds=settings.RESTART_BACKOFF_SECONDS,
        backoff_max_seconds=settings.RESTART_BACKOFF_MAX_SECONDS,
        reset_seconds=settings.RESTART_RESET_SECONDS,
        whole=not (run.counts.get(WorkerState.CANCELLED) or run.counts.get(WorkerState.FAILED)),
    )


def end_worker(
    batch: Batch, worker: WorkerRow, spec: RunSpec, end: End, actor: str, at: datetime, log_tail: str = ""
) -> None:
    """Its newest attempt has ended: completed, failed, cancelled, or to be placed again."""
    run = batch.run_of(worker)
    policy = policy_of(spec, worker.group, run)
    happened, at = at, max(at, worker.changed_at)
    if worker.stop_requested_at is not None:
        end = replace(end, stop_reason=worker.stop_reason, after_stop=worker.after_stop)
    result = outcome(end, policy, run.failures_in_row if policy.together else worker.failures_in_row)
    worker.exit_code = end.exit_code
    if _failed_first(run, worker, end, policy, happened):
        cause = end_sentence(end, policy)
        worker.last_failure = failure_snapshot(cause, end.exit_code, log_tail, happened)
        batch.move(worker, WorkerState.FAILED, cause, actor, at)
        return
    if end.stop_reason is not None:
        _become(batch, worker, result.state, result.reason, actor, at)
        _look_for_an_earlier_cause(batch, worker, end, policy, happened, log_tail)
        return
    worker.failures_in_row = result.failures_in_row
    if result.failure is not None:
        worker.last_failure = failure_snapshot(result.failure, end.exit_code, log_tail, at)
    if result.state in WAITING:
        worker.restarts += 1
        run.restarts += 1
    if result.state is WorkerState.RESTARTING:
        worker.restart_at = at + timedelta(seconds=result.wait_seconds)
        batch.restart_times.append(worker.restart_at)
    batch.move(worker, result.state, result.reason, actor, at)
    if result.restarts_run:
        run.failures_in_row = result.failures_in_row
        cause = worker_failed(FirstFailure(worker.name, batch.machine_of(worker), result.reason))
        restart_whole(batch, run, WholeRestart(at + timedelta(seconds=result.wait_seconds), cause, at), "console", at)
    if result.fails_run:
        reason = f"Worker {worker.name} {FAILS_WITH_IT}"
        stop_workers(batch, siblings_of(batch, run), reason, "console", at)


def _failed_first(run: RunRow, worker: WorkerRow, end: End, policy: Policy, happened: datetime) -> bool:
    """Machines report in any order: whether a worker that is being stopped because another failed had failed before
    that by itself. Then it is the cause, and the other one the consequence."""
    return (
        end.stop_reason is not None
        and worker.after_stop is WorkerState.CANCELLED
        and run.stop_requested_at is None
        and policy.on_failure != "RestartTask"
        and run.failure is not None
        and end.by_itself
        and moment_text(happened) < run.failed_at
    )


# ---- all restart together ----


def restart_whole(batch: Batch, run: RunRow, restart: WholeRestart, actor: str, now: datetime) -> None:
    """Have all workers of a run stop, and start again together when the last one has: also those that wait for room,
    and those that have completed, since the others would wait for them."""
    run.restarting = restart
    reason = f"{restart.cause}; all workers restart together"
    workers = siblings_of(batch, run)
    _ask_to_stop(batch, workers, reason, WorkerState.RESTARTING, actor, now)
    for worker in workers:
        if worker.state is WorkerState.RESTARTING:
            worker.restart_at = restart.at
            batch.touch(worker)
        elif worker.state in (WorkerState.PENDING, WorkerState.COMPLETED):
            _count_restart(worker, run)
            worker.restart_at = restart.at
            batch.move(worker, WorkerState.RESTARTING, reason, actor, now)
    batch.restart_times.append(restart.at)
    batch.derive(run, actor, now)


def _count_restart(worker: WorkerRow, run: RunRow) -> None:
    """Of a worker that restarts with the others; given back in order, it does not count."""
    if worker.attempt_number and run.restarting is not None and run.restarting.failed_at is not None:
        worker.restarts += 1


def end_stopped(batch: Batch, worker: WorkerRow, actor: str, at: datetime) -> None:
    """Its stop has been carried out, or nobody waits for that any more."""
    _become(batch, worker, worker.after_stop, worker.stop_reason, actor, at)


def _become(batch: Batch, worker: WorkerRow, state: WorkerState, reason: str, actor: str, at: datetime) -> None:
    """What it was stopped for."""
    run = batch.run_of(worker)
    if state in WAITING:
        worker.stop_requested_at, worker.stop_reason, worker.after_stop = None, "", WorkerState.CANCELLED
    if state is WorkerState.RESTARTING:
        assert run.restarting is not None
        _count_restart(worker, run)
        worker.restart_at = run.restarting.at
        batch.restart_times.append(worker.restart_at)
    batch.move(worker, state, reason, actor, at)


def _look_for_an_earlier_cause(
    batch: Batch, worker: WorkerRow, end: End, policy: Policy, at: datetime, log_tail: str
) -> None:
    """Machines report in any order: what failed by itself before the failure that stopped it is the cause, and the
    other one its consequence. What fails later keeps an earlier record of its own."""
    restart = batch.run_of(worker).restarting
    if restart is None or restart.failed_at is None or not end.by_itself or at >= restart.failed_at:
        return
    cause = end_sentence(end, policy)
    worker.last_failure = failure_snapshot(cause, end.exit_code, log_tail, at)
    sentence = worker_failed(FirstFailure(worker.name, batch.machine_of(worker), cause))
    batch.run_of(worker).restarting = replace(restart, cause=sentence, failed_at=at)
    batch.derive(batch.run_of(worker), "console", at)


def failure_snapshot(reason: str, exit_code: int | None, log_tail: str, failed_at: datetime) -> dict[str, Any]:
    """What outlives the container and its log. The machine cuts the tail; it is cut again, since machines may err."""
    lines = log_tail.removesuffix("\n").split("\n")[-LOG_TAIL_LINES:]
    tail = "\n".join([*lines, ""]) if log_tail else ""
    tail = tail.encode()[-LOG_TAIL_BYTES:].decode(errors="ignore")
    return {"reason": reason, "failed_at": moment_text(failed_at), "exit_code": exit_code, "log_tail": tail}


def moment_text(moment: datetime) -> str:
    """UTC, six decimals: so that its order as text is the order in time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def siblings_of(batch: Batch, run: RunRow) -> list[WorkerRow]:
    return batch.add_workers(rows.workers_of_runs([run.id]))


def stop_workers(batch: Batch, workers: list[WorkerRow], reason: str, actor: str, now: datetime) -> None:
    """Those that wait are Cancelled at once; those on machines when their machines say that they are gone."""
    for worker in workers:
        if worker.state in WAITING:
            worker.restart_at = None
            batch.move(worker, WorkerState.CANCELLED, reason, actor, now)
    _ask_to_stop(batch, workers, reason, WorkerState.CANCELLED, actor, now)


def requeue_workers(batch: Batch, workers: list[WorkerRow], reason: str, actor: str, now: datetime) -> None:
    """Have workers on machines stop, with their grace, and wait for another place then. Nothing is counted: they did
    nothing wrong. Where one failure is all workers', the others of their runs are given back with them."""
    placed = [worker for worker in workers if worker.state in PLACED and worker.stop_requested_at is None]
    alone = [worker for worker in placed if batch.run_of(worker).on_failure != "RestartJob"]
    _ask_to_stop(batch, alone, reason, WorkerState.PENDING, actor, now)
    for run_id in dict.fromkeys(worker.run_id for worker in placed):
        run = batch.runs[run_id]
        if run.on_failure == "RestartJob" and run.restarting is None:
            restart_whole(batch, run, WholeRestart(now, reason, None), actor, now)


# How final what a stop is for is: what is to be Cancelled does not restart after all.
_FINALITY = (WorkerState.PENDING, WorkerState.RESTARTING, WorkerState.CANCELLED)


def _ask_to_stop(
    batch: Batch, workers: list[WorkerRow], reason: str, then: WorkerState, actor: str, now: datetime
) -> None:
    """Of those on machines, unless they are being stopped for as much already."""
    placed = [worker for worker in workers if worker.state in PLACED and _is_news(worker, then)]
    asked = {worker.id for worker in placed if worker.stop_requested_at is not None}
    for worker in placed:
        worker.stop_requested_at = worker.stop_requested_at or now
        worker.stop_reason, worker.after_stop = reason, then
        batch.note(worker, f"Stopping: {reason}", actor, now)
    wanted = {worker.id: worker.attempt_number for worker in placed if worker.id not in asked}
    for attempt in batch.add_attempts(rows.live_attempts_of_workers(wanted)) if wanted else ():
        if (
            attempt.released_at is None
            and attempt.superseded_at is None
            and wanted[attempt.worker_id] == attempt.number
        ):
            end_on_machine(batch, attempt)


def _is_news(worker: WorkerRow, then: WorkerState) -> bool:
    if worker.stop_requested_at is None:
        return True
    return _FINALITY.index(then) > _FINALITY.index(worker.after_stop)


def end_on_machine(batch: Batch, attempt: AttemptRow) -> None:
    """Have the machine stop an attempt. One it may never have heard of is forgotten instead of withdrawn: to that the
    machine answers in any case, while it says nothing of what it does not know (but in its next hello)."""
    if attempt.report_seq == 0 and attempt.machine_connected:
        batch.forget(attempt)
    else:
        batch.withdraw(attempt)
