"""Workers given back in order: stopped where they are, with their grace, and placed again when they have stopped.

Nothing is counted against them. What completes by itself meanwhile has completed; a stop for good stays one.
"""

from collections.abc import Iterable
from datetime import datetime

from runs.services import rows
from runs.services.ends import requeue_workers
from runs.services.moves import locked


def requeue_machines(machine_ids: Iterable[int], reason: str, actor: str, now: datetime) -> None:
    """All workers on these machines, and the other workers of runs that restart together. Safe to run again."""
    ids = list(machine_ids)
    with locked(rows.runs_live_on_machines(ids)) as batch:
        live = [attempt for attempt in rows.live_attempts_on_machines(ids) if attempt.superseded_at is None]
        number = {attempt.worker_id: attempt.number for attempt in live}
        workers = batch.add_workers(worker for worker in rows.workers_by_id(number) if worker.run_id in batch.runs)
        there = [worker for worker in workers if worker.attempt_number == number[worker.id]]
        requeue_workers(batch, there, reason, actor, now)
