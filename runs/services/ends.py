"""What follows from the end of an attempt: the table of `runs.state_machine`, applied to a worker of a batch."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from machines.protocol import LOG_TAIL_BYTES, LOG_TAIL_LINES
from runs.services import rows
from runs.services.moves import Batch
from runs.services.rows import AttemptRow, RunRow, WorkerRow
from runs.spec import RunSpec, template_of
from runs.state_machine import PLACED, WAITING, End, Policy, WorkerState, outcome


def policy_of(spec: RunSpec, group: str) -> Policy:
    template = template_of(spec, group)
    return Policy(
        image=template.image,
        restart_policy=template.restart_policy,
        on_failure=spec.effective_on_failure,
        lifetime=spec.effective_lifetime,
        time_limit_seconds=template.time_limit_seconds,
        budget=settings.RESTART_BUDGET,
        backoff_seconds=settings.RESTART_BACKOFF_SECONDS,
        backoff_max_seconds=settings.RESTART_BACKOFF_MAX_SECONDS,
        reset_seconds=settings.RESTART_RESET_SECONDS,
    )


def end_worker(
    batch: Batch, worker: WorkerRow, spec: RunSpec, end: End, actor: str, at: datetime, log_tail: str = ""
) -> None:
    """Its newest attempt has ended: completed, failed, cancelled, or to be placed again."""
    if worker.stop_requested_at is not None:
        end = replace(end, stop_reason=worker.stop_reason)
    result = outcome(end, policy_of(spec, worker.group), worker.failures_in_row)
    worker.exit_code = end.exit_code
    worker.failures_in_row = result.failures_in_row
    if result.failure is not None:
        worker.last_failure = failure_snapshot(result.failure, end.exit_code, log_tail, max(at, worker.changed_at))
    if result.state in WAITING:
        worker.restarts += 1
        batch.run_of(worker).restarts += 1
    if result.state is WorkerState.RESTARTING:
        worker.restart_at = max(at, worker.changed_at) + timedelta(seconds=result.wait_seconds)
        batch.restart_times.append(worker.restart_at)
    batch.move(worker, result.state, result.reason, actor, at)
    if result.fails_run:
        reason = f"Worker {worker.name} failed, and the run fails with it"
        stop_workers(batch, siblings_of(batch, batch.run_of(worker)), reason, "console", at)


def failure_snapshot(reason: str, exit_code: int | None, log_tail: str, failed_at: datetime) -> dict[str, Any]:
    """What outlives the container and its log. The machine cuts the tail; it is cut again, since machines may err."""
    tail = "\n".join(log_tail.removesuffix("\n").split("\n")[-LOG_TAIL_LINES:])
    tail = tail.encode()[-LOG_TAIL_BYTES:].decode(errors="ignore")
    failed = failed_at.isoformat(timespec="microseconds")
    return {"reason": reason, "failed_at": failed, "exit_code": exit_code, "log_tail": f"{tail}\n" if tail else ""}


def siblings_of(batch: Batch, run: RunRow) -> list[WorkerRow]:
    return batch.add_workers(rows.workers_of_runs([run.id]))


def stop_workers(batch: Batch, workers: list[WorkerRow], reason: str, actor: str, now: datetime) -> None:
    """Those that wait are Cancelled at once; those on machines when their machines say that they are gone."""
    for worker in workers:
        if worker.state in WAITING:
            worker.restart_at = None
            batch.move(worker, WorkerState.CANCELLED, reason, actor, now)
    placed = [worker for worker in workers if worker.state in PLACED and worker.stop_requested_at is None]
    if not placed:
        return
    for worker in placed:
        worker.stop_requested_at = now
        worker.stop_reason = reason
        batch.note(worker, f"Stopping: {reason}", actor, now)
    wanted = {worker.id: worker.attempt_number for worker in placed}
    for attempt in batch.add_attempts(rows.live_attempts_of_workers(wanted)):
        if (
            attempt.released_at is None
            and attempt.superseded_at is None
            and wanted[attempt.worker_id] == attempt.number
        ):
            end_on_machine(batch, attempt)


def end_on_machine(batch: Batch, attempt: AttemptRow) -> None:
    """Have the machine stop an attempt. One it may never have heard of is forgotten instead of withdrawn: to that the
    machine answers in any case, while it says nothing of what it does not know (but in its next hello)."""
    if attempt.report_seq == 0 and attempt.machine_connected:
        batch.forget(attempt)
    else:
        batch.withdraw(attempt)
