"""Stop: the record and the logs stay. Workers that wait are Cancelled at once; those on machines get SIGTERM, then
SIGKILL after their machine's grace, and are Cancelled when the machine says that they are gone."""

from datetime import datetime

from astraconsole.errors import AlreadyEnded
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from runs.models import Run, Worker
from runs.services import rows
from runs.services.ends import stop_workers
from runs.services.moves import locked
from runs.state_machine import ENDED, PLACED, RunState, WorkerState


def stop_worker(access: Access, worker: Worker, reason: str, now: datetime) -> None:
    """`reason`: the person's own words, or "". Asking again, also when it has been carried out, changes nothing. Raises
    Forbidden; AlreadyEnded when it ended otherwise."""
    access.require(Action.WRITE)
    with locked([worker.run_id]) as batch:
        found = batch.add_workers(rows.workers_by_id([worker.id]))
        if found and found[0].state is WorkerState.CANCELLED:
            return
        if not found or found[0].state in ENDED:
            raise AlreadyEnded(f"worker {worker.name} has already ended")
        stop_workers(batch, found, stop_sentence(access.actor, reason), access.actor, now)


def stop_run(access: Access, run: Run, reason: str, now: datetime) -> None:
    """Stops every worker that has not ended, and a run that has none yet. Asking again changes nothing. Raises
    Forbidden; AlreadyEnded when it ended otherwise."""
    access.require(Action.WRITE)
    with locked([run.id]) as batch:
        locked_run = batch.runs.get(run.id)
        if locked_run is not None and locked_run.state is RunState.CANCELLED:
            return
        if locked_run is None or locked_run.ended:
            raise AlreadyEnded(f"run {run.name} has already ended")
        is_news = locked_run.stop_requested_at is None
        locked_run.stop_requested_at = locked_run.stop_requested_at or now
        locked_run.restarting = None
        workers = batch.add_workers(rows.workers_of_runs([run.id]))
        sentence = stop_sentence(access.actor, reason)
        if is_news and any(worker.state in PLACED for worker in workers):
            batch.note_run(locked_run, f"Stopping: {sentence}", access.actor, now)
        stop_workers(batch, workers, sentence, access.actor, now)
        batch.derive(locked_run, access.actor, now)


def stop_sentence(actor: str, reason: str) -> str:
    return f"Stopped by {actor}: {reason}" if reason else f"Stopped by {actor}"
