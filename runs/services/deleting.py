"""Delete: the name is free at once, workers are stopped, containers and logs removed; a tombstone keeps the record.

The room of a deleted run's workers stays held until their machines report them gone.
"""

from collections.abc import Sequence
from datetime import datetime

from astraconsole.errors import NotFound
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from machines.metrics import store
from runs.models import Run
from runs.services import rows, writes
from runs.services.moves import Batch, locked
from runs.services.rows import RunRow
from runs.state_machine import ENDED, WorkerState


def delete_run(access: Access, run: Run, now: datetime) -> None:
    """Raises Forbidden; NotFound when it has been deleted meanwhile."""
    access.require(Action.WRITE)
    with locked([run.id]) as batch:
        found = [row for row in batch.runs.values() if row.deleted_at is None]
        if not found:
            raise NotFound(f"there is no run {run.name}")
        bury(batch, found, f"Deleted by {access.actor}", access.actor, now)


def bury(batch: Batch, runs: Sequence[RunRow], reason: str, actor: str, now: datetime) -> None:
    """Runs of the batch that are not deleted become tombstones."""
    ids = [run.id for run in runs]
    for run in runs:
        run.deleted_at = now
        run.stop_requested_at = run.stop_requested_at or now
        run.restarting = None
    for worker in batch.add_workers(rows.workers_of_runs(ids)):
        if worker.state not in ENDED:
            worker.restart_at = None
            batch.move(worker, WorkerState.CANCELLED, reason, actor, now)
    for attempt in batch.add_attempts(rows.attempts_of_runs(ids)):
        if attempt.released_at is None:
            batch.supersede(attempt, now)
        batch.forget(attempt)
    for run in runs:
        batch.derive(run, actor, now)
        batch.note_run(run, reason, actor, now)
    writes.free_names(ids)
    store.forget([attempt.uid for attempt in batch.attempts.values()])
