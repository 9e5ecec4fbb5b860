"""Workers that wait for their restart: back to the scheduler when their time has come."""

from datetime import datetime

from runs.services import rows
from runs.services.ends import stop_workers
from runs.services.moves import Batch, locked
from runs.services.rows import RunRow, WorkerRow
from runs.state_machine import PLACED, WorkerState

BATCH = 1000


def start_due(now: datetime) -> int:
    """Returns how many went back to Pending. Bounded by BATCH; safe to run twice and at once."""
    run_ids = rows.runs_with_due_restarts(now, BATCH)
    if not run_ids:
        return 0
    started = 0
    with locked(run_ids) as batch:
        due: dict[int, list[WorkerRow]] = {}
        for worker in batch.add_workers(rows.workers_due(run_ids, now)):
            due.setdefault(worker.run_id, []).append(worker)
        for run_id, workers in due.items():
            run = batch.runs[run_id]
            if run.restarting is None:
                started += _start(batch, workers, "", now)
            elif not any(run.counts.get(state) for state in PLACED):
                started += _start_together(batch, run, workers, now)
    return started


def _start_together(batch: Batch, run: RunRow, workers: list[WorkerRow], now: datetime) -> int:
    """All have stopped. One that was stopped for good does not come back, and the others do not run without it."""
    restart = run.restarting
    run.restarting = None
    if restart is None or run.counts.get(WorkerState.CANCELLED):
        stop_workers(
            batch, workers, "Another worker was stopped, and the others do not restart without it", "console", now
        )
        return 0
    return _start(batch, workers, restart.cause if restart.failed_at is None else "", now)


def _start(batch: Batch, workers: list[WorkerRow], reason: str, now: datetime) -> int:
    for worker in workers:
        worker.restart_at = None
        again = f"Restarting: attempt {worker.attempt_number + 1}"
        batch.move(worker, WorkerState.PENDING, reason or again, "console", now)
    return len(workers)
