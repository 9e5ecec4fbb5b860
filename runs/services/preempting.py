"""Work of lower priority gives way: whole runs stop, with their grace, and wait for another place. Nothing is counted
against them but the preemption itself."""

from collections.abc import Sequence
from datetime import datetime

from runs.scheduling.types import Preemption
from runs.services import rows
from runs.services.ends import requeue_workers
from runs.services.moves import Batch
from runs.services.rows import RunRow, WorkerRow
from runs.state_machine import PLACED, WorkerState


def preempt(batch: Batch, preemptions: Sequence[Preemption], actor: str, now: datetime) -> None:
    """Of what was proposed, what still makes sense: the other run still waits, and the victim still runs. Both are
    locked by the batch."""
    pairs = [
        (batch.runs[item.run_id], batch.runs[item.by_run_id])
        for item in preemptions
        if item.run_id in batch.runs and item.by_run_id in batch.runs and _waits(batch.runs[item.by_run_id])
    ]
    if not pairs:
        return
    workers_of: dict[int, list[WorkerRow]] = {}
    for worker in batch.add_workers(rows.workers_of_runs(victim.id for victim, _ in pairs)):
        if worker.state in PLACED and worker.stop_requested_at is None:
            workers_of.setdefault(worker.run_id, []).append(worker)
    for victim, by in pairs:
        if victim.id in workers_of:
            victim.preemptions += 1
            requeue_workers(batch, workers_of[victim.id], sentence(victim, by), actor, now)


def sentence(victim: RunRow, by: RunRow) -> str:
    name = by.name if by.workspace_id == victim.workspace_id else "another workspace's run"
    return f"Preempted by higher-priority work ({name})"


def _waits(run: RunRow) -> bool:
    return run.deleted_at is None and not run.ended and bool(run.counts.get(WorkerState.PENDING))
