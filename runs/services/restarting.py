"""Workers that wait for their restart: back to the scheduler when their time has come."""

from datetime import datetime

from runs.services import rows
from runs.services.moves import locked
from runs.state_machine import WorkerState

BATCH = 1000


def start_due(now: datetime) -> int:
    """Returns how many went back to Pending. Bounded by BATCH; safe to run twice and at once."""
    run_ids = rows.runs_with_due_restarts(now, BATCH)
    if not run_ids:
        return 0
    started = 0
    with locked(run_ids) as batch:
        for worker in batch.add_workers(rows.workers_due(run_ids, now)):
            attempt = worker.attempt_number + 1
            worker.restart_at = None
            batch.move(worker, WorkerState.PENDING, f"Restarting: attempt {attempt}", "console", now)
            started += 1
    return started
