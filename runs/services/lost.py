"""Workers whose machine is lost, or gives them back: superseded where they were, and placed again elsewhere.

Neither uses up the retry budget. The old copy may still run for a while: its reports change nothing any more, it keeps
its room until its machine says that it is gone, and it is stopped as soon as the machine can be told.
"""

from collections.abc import Iterable
from datetime import datetime

from runs.outcomes import End, EndCause
from runs.services import machine_rows, rows
from runs.services.ends import end_stopped, end_worker, restart_whole
from runs.services.moves import Batch, locked
from runs.services.rows import AttemptRow, WholeRestart, WorkerRow
from runs.state_machine import PLACED, WorkerState


def machines_lost(machine_ids: Iterable[int], now: datetime) -> None:
    """Their leases expired, or they were removed: the workers restart under their policies. Safe to run again at any
    time."""
    ids = list(machine_ids)
    with locked(rows.runs_live_on_machines(ids)) as batch:
        gone = _superseded(batch, ids, now)
        specs = rows.specs_of({worker.run_id for worker, _ in gone})
        reasons = machine_rows.why_lost(ids)
        for worker, attempt in gone:
            end = End(EndCause.MACHINE_LOST, message=reasons[attempt.machine_id])
            end_worker(batch, worker, specs[worker.run_id], end, "console", now)


def requeue_cluster_workers(machine_ids: Iterable[int], reason: str, now: datetime) -> None:
    """Give up these machines' workers in order: back to Pending with `reason`, to be placed again. Their machines are
    told to stop them, with their grace. A worker whose stop was asked for becomes what it was stopped for instead.
    Where one failure is all workers', those on other machines are given back with them."""
    ids = list(machine_ids)
    with locked(rows.runs_live_on_machines(ids)) as batch:
        cut = [worker for worker, _ in _superseded(batch, ids, now)]
        for worker in cut:
            if worker.stop_requested_at is not None:
                end_stopped(batch, worker, "console", now)
            else:
                batch.move(worker, WorkerState.PENDING, reason, "console", now)
        for run_id in dict.fromkeys(worker.run_id for worker in cut):
            run = batch.runs[run_id]
            if run.on_failure == "RestartJob" and run.restarting is None and any(map(run.counts.get, PLACED)):
                restart_whole(batch, run, WholeRestart(now, reason, None), "console", now)


def _superseded(batch: Batch, machine_ids: list[int], now: datetime) -> list[tuple[WorkerRow, AttemptRow]]:
    """The workers whose wanted attempts are on these machines, after cutting them off. Their room stays held."""
    live = [attempt for attempt in rows.live_attempts_on_machines(machine_ids) if attempt.superseded_at is None]
    workers = {worker.id: worker for worker in rows.workers_by_id({attempt.worker_id for attempt in live})}
    batch.add_workers(worker for worker in workers.values() if worker.run_id in batch.runs)
    cut = []
    for attempt in live:
        worker = batch.workers.get(attempt.worker_id)
        if worker is None:
            continue  # placed since the runs were locked: the next look finds it
        batch.add_attempts([attempt])
        batch.supersede(attempt, now)
        batch.withdraw(attempt)
        if attempt.number == worker.attempt_number and worker.state in PLACED:
            cut.append((worker, attempt))
    return cut
