"""Gangs start together: each worker waits at a barrier, all but started, until the last one is ready."""

from datetime import datetime, timedelta

from django.conf import settings

from runs.services import rows
from runs.services.ends import requeue_workers, siblings_of
from runs.services.moves import Batch, locked
from runs.services.rows import RunRow
from runs.state_machine import WorkerState
from runs.units import format_duration

_NOT_READY = (WorkerState.PENDING, WorkerState.RESTARTING, WorkerState.PREPARING, WorkerState.PULLING)
STARTING_TOGETHER = "All workers are ready: starting"


def open_barriers(batch: Batch) -> None:
    """Of the batch's gangs of which no worker is waited for any more."""
    ready = [run for run in batch.runs.values() if _is_ready(run)]
    waiting = rows.attempts_at_barriers(run.id for run in ready) if ready else []
    for uid, machine_id, _ in waiting:
        batch.open_barrier(uid, machine_id)
    for run_id in {run_id for _, _, run_id in waiting}:
        for worker in siblings_of(batch, batch.runs[run_id]):
            if worker.state is WorkerState.STARTING and worker.stop_requested_at is None:
                batch.reword(worker, STARTING_TOGETHER)


def _is_ready(run: RunRow) -> bool:
    return (
        run.gang
        and bool(run.counts.get(WorkerState.STARTING))
        and not any(run.counts.get(state) for state in _NOT_READY)
        and run.stop_requested_at is None
    )


def give_back_late(now: datetime) -> None:
    """Gangs that have been at the barrier for too long: all their workers give back their room, and wait again. Those
    that turn out to be ready start instead."""
    limit = settings.GANG_BARRIER_SECONDS
    engine = timedelta(seconds=settings.ENGINE_START_SECONDS)
    run_ids = rows.runs_late_at_barriers(timedelta(seconds=limit), engine, now)
    if not run_ids:
        return
    with locked(run_ids) as batch:
        open_barriers(batch)
        for run in batch.runs.values():
            if run.gang and not _is_ready(run):
                workers = siblings_of(batch, run)
                ready = sum(worker.state is WorkerState.STARTING for worker in workers)
                reason = f"Only {ready} of {len(workers)} workers were ready within {format_duration(round(limit))}"
                requeue_workers(batch, workers, reason, "console", now)
