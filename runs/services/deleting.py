"""Delete: the name is free at once, workers are stopped, containers and logs removed; a tombstone keeps the record.

The room of a deleted run's workers stays held until their machines report them gone.
"""

from datetime import datetime

from astraconsole.errors import NotFound
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from runs.models import Run
from runs.services import rows, writes
from runs.services.moves import locked
from runs.state_machine import ENDED, WorkerState


def delete_run(access: Access, run: Run, now: datetime) -> None:
    """Raises Forbidden; NotFound when it has been deleted meanwhile."""
    access.require(Action.WRITE)
    reason = f"Deleted by {access.actor}"
    with locked([run.id]) as batch:
        locked_run = batch.runs.get(run.id)
        if locked_run is None or locked_run.deleted_at is not None:
            raise NotFound(f"there is no run {run.name}")
        locked_run.deleted_at = now
        locked_run.stop_requested_at = locked_run.stop_requested_at or now
        locked_run.restarting = None
        for worker in batch.add_workers(rows.workers_of_runs([run.id])):
            if worker.state not in ENDED:
                worker.restart_at = None
                batch.move(worker, WorkerState.CANCELLED, reason, access.actor, now)
        for attempt in batch.add_attempts(rows.attempts_of_run(run.id)):
            if attempt.released_at is None:
                batch.supersede(attempt, now)
            batch.forget(attempt)
        batch.derive(locked_run, access.actor, now)
        batch.note_run(locked_run, reason, access.actor, now)
        writes.free_names(run.id)
