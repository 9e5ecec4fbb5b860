"""Records that are kept no longer: ended runs become tombstones, tombstones go with all that hangs on them, but for the
GPU time that they held.

Periodic, in batches, each a transaction of its own: safe to run at once and again. A tombstone stays while a machine
has still to stop or to forget something of it.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from astraconsole.sql import execute, fetch
from runs import usage
from runs.services.deleting import bury
from runs.services.moves import locked
from runs.units import format_duration

BATCH = 200  # runs of one transaction
BATCHES = 500  # of one pass: the next one goes on
CONSOLE = "console"


def keep_no_longer(now: datetime) -> None:
    """What the settings say; 0 keeps for ever."""
    if settings.ENDED_RUNS_KEEP_SECONDS:
        _repeat(lambda: delete_ended(now, settings.ENDED_RUNS_KEEP_SECONDS))
    if settings.DELETED_RUNS_KEEP_SECONDS:
        _repeat(lambda: remove_deleted(now, settings.DELETED_RUNS_KEEP_SECONDS))


def _repeat(step: Callable[[], int]) -> None:
    for _ in range(BATCHES):
        if step() < BATCH:
            return


def delete_ended(now: datetime, keep_seconds: int) -> int:
    """As a person would: names are free, machines remove containers and logs. How many."""
    due = fetch(
        "SELECT id FROM runs_run WHERE deleted_at IS NULL AND ended_at <= %s ORDER BY ended_at LIMIT %s",
        [now - timedelta(seconds=keep_seconds), BATCH],
    )
    if not due:
        return 0
    reason = f"Deleted by the console: it ended more than {format_duration(keep_seconds)} ago"
    with locked(run_id for (run_id,) in due) as batch:
        runs = [run for run in batch.runs.values() if run.deleted_at is None and run.ended_at is not None]
        bury(batch, runs, reason, CONSOLE, now)
    return len(due)


# The tables that hang on a run, each with how its rows are found: by indexes, and children before their parents.
_WORKERS = "(SELECT id FROM runs_worker WHERE run_id = ANY(%(runs)s))"
DELETIONS = {
    "machines_assignment": f"attempt IN (SELECT uid FROM runs_attempt WHERE worker_id IN {_WORKERS})",
    "runs_transition": f"worker_id IN {_WORKERS} OR (run_id = ANY(%(runs)s) AND worker_id IS NULL)",
    "runs_attempt": f"worker_id IN {_WORKERS}",
    "runs_worker": "run_id = ANY(%(runs)s)",
    "runs_receipt": "run_id = ANY(%(runs)s)",
    "runs_stem": "run_id = ANY(%(runs)s)",
    "runs_run": "id = ANY(%(runs)s)",
}


@transaction.atomic
def remove_deleted(now: datetime, keep_seconds: int) -> int:
    """Tombstones, for good. How many."""
    due = fetch(
        """
        SELECT r.id FROM runs_run r WHERE r.deleted_at <= %s AND NOT EXISTS (
            SELECT FROM runs_worker w JOIN runs_attempt a ON a.worker_id = w.id
            JOIN machines_machine m ON m.id = a.machine_id LEFT JOIN machines_assignment s ON s.attempt = a.uid
            WHERE w.run_id = r.id AND m.state <> 'Removed' AND (a.released_at IS NULL OR s.attempt IS NOT NULL))
        ORDER BY r.id LIMIT %s FOR UPDATE OF r SKIP LOCKED
        """,
        [now - timedelta(seconds=keep_seconds), BATCH],
    )
    run_ids = [run_id for (run_id,) in due]
    if run_ids:
        usage.keep(run_ids, now)
        execute("UPDATE runs_firing SET run_id = NULL WHERE run_id = ANY(%s)", [run_ids])
        for table, which in DELETIONS.items():
            execute(f"DELETE FROM {table} WHERE {which}", {"runs": run_ids})
    return len(run_ids)
