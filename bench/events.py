"""How long a page of events takes among a million: every filter, the first page and one far back, and reading on.

    python -m bench.events [--runs 100000]

Starts a PostgreSQL of its own. Prints medians of the whole call.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django

from astraconsole import embedded

TRIES = 15
# Of each run: its own moves and those of one worker; one run in the middle has ten thousand workers.
FILL = """
INSERT INTO runs_run (uid, namespace_id, workspace_id, name, labels, spec, priority, gpus, gang, on_failure, created_at,
    changed_at, queued_at, state, reason, restarts, preemptions, pending_code, pending_numbers)
SELECT gen_random_uuid(), %(namespace)s, %(workspace)s, 'run-' || i, '{}', '{}', 0, 0, false, 'RestartTask', now(),
    now(), now(), 'Completed', '', 0, 0, '', '{}' FROM generate_series(1, %(runs)s) i;
INSERT INTO runs_worker (uid, run_id, namespace_id, deleted, name, "group", rank, gpus, cpu_milli, memory_bytes, state,
    reason, changed_at, attempt_number, restarts, failures_in_row, stop_reason)
SELECT gen_random_uuid(), r.id, r.namespace_id, false, r.name || '-' || k, '', k, 0, 0, 0, 'Completed', '', now(), 1, 0,
    0, '' FROM runs_run r, generate_series(0, CASE WHEN r.name = 'run-5000' THEN 9999 ELSE 0 END) k;
INSERT INTO runs_transition (workspace_id, run_id, worker_id, state, reason, actor, at, tx)
SELECT %(workspace)s, r.id, m.worker_id, m.state, 'Container running', m.actor, now(), r.id
FROM runs_run r, LATERAL (
    SELECT NULL::bigint AS worker_id, state, 'user-' || r.id %% 50 AS actor
        FROM unnest(ARRAY['Pending', 'Running', 'Completed']) state
    UNION ALL
    SELECT w.id, s.state, CASE s.state WHEN 'Pending' THEN 'scheduler' ELSE 'machine gpu-' || r.id %% 1000 END
        FROM runs_worker w,
            unnest(ARRAY['Pending', 'Preparing', 'Pulling', 'Starting', 'Running', 'Completed']) s(state)
        WHERE w.run_id = r.id) m ORDER BY r.id;
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="astra-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        servers = embedded.start(folder)
        os.environ.update(DATABASE_URL=servers.database_url, REDIS_URL=servers.redis_url, SECRET_KEY="of-the-bench")
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "astraconsole.settings")
        try:
            django.setup()
            measure(options.runs)
        finally:
            servers.stop()
    return 0


def measure(runs: int) -> None:
    from django.core.management import call_command  # noqa: PLC0415  (the settings need the server's address)
    from django.db import connection  # noqa: PLC0415

    from bench.scheduler_database import make_machines, make_namespace  # noqa: PLC0415
    from runs import event_queries  # noqa: PLC0415
    from runs.event_positions import Position  # noqa: PLC0415
    from runs.event_queries import Wanted  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    namespace = make_namespace("bench")
    workspace = namespace.workspace_id
    make_machines(namespace.cluster, 1000)
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"namespace": namespace.pk, "workspace": workspace, "runs": runs})
        for table in ("runs_run", "runs_worker", "runs_transition"):
            cursor.execute(f"VACUUM ANALYZE {table}")
        cursor.execute("SELECT count(*) FROM runs_transition")
        print(f"{cursor.fetchone()[0]:,} events")
        cursor.execute(
            """SELECT indexrelname, pg_size_pretty(pg_relation_size(indexrelid)) FROM pg_stat_user_indexes
            WHERE relname = 'runs_transition' ORDER BY 1"""
        )
        print("  ".join(f"{name} {size}" for name, size in cursor.fetchall()))
    far = Position(runs // 10, 0, 0)
    for filters in (
        Wanted(),
        Wanted(kind="run"),
        Wanted(kind="worker"),
        Wanted(kind="member"),
        Wanted(name=f"run-{runs // 2}"),
        Wanted(name=f"run-{runs // 2}-0"),
        Wanted(name="run-5000"),
        Wanted(name="nothing"),
        Wanted(actor="user-7"),
        Wanted(actor="nobody"),
        Wanted(actor="scheduler"),
        Wanted(actor="machine gpu-7"),
        Wanted(actor="machine gone"),
    ):
        told = " ".join(f"{key}={value}" for key, value in vars(filters).items() if value) or "everything"
        first = timed(lambda f=filters: event_queries.newest(workspace, f))
        back = timed(lambda f=filters: event_queries.newest(workspace, f, far))
        print(f"{told:24} first page {first:6.1f} ms   far back {back:6.1f} ms")
    step = timed(lambda: event_queries.read_on(workspace, Wanted(), far))
    print(f"{'reading on':24} 100 events {step:6.1f} ms")


def timed(act: Callable[[], Any]) -> float:
    """Milliseconds: the median, after one that is not counted."""
    act()
    spent = []
    for _ in range(TRIES):
        began = time.perf_counter()
        act()
        spent.append(1000 * (time.perf_counter() - began))
    return statistics.median(spent)


if __name__ == "__main__":
    sys.exit(main())
