"""Set-based reads for services: runs locked in id order, their workers and attempts, one statement for any number.

The rows are plain objects that a batch changes in memory (`moves`) and writes back at once (`writes`).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings

from astraconsole.sql import fetch
from runs.quick_failures import Blame, QuickFailure
from runs.spec import RunSpec, load_spec
from runs.state_machine import PLACED, RUN_ENDED, FirstFailure, RunFacts, RunState, WorkerState


@dataclass(frozen=True, slots=True)
class WholeRestart:
    """All workers of a run stop and start again together: not before `at`, and not before all have stopped.
    `failed_at`: when the first one failed; null where they are given back in order."""

    at: datetime
    cause: str
    failed_at: datetime | None


@dataclass(slots=True)
class RunRow:
    """A locked run: what the mover reads and writes."""

    id: int
    uid: UUID
    name: str
    namespace_id: int
    workspace_id: int
    cluster_id: int
    gang: bool
    on_failure: str
    state: RunState
    reason: str
    changed_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    deleted_at: datetime | None
    stop_requested_at: datetime | None
    restarts: int
    preemptions: int
    failures_in_row: int
    restarting: WholeRestart | None
    pending_code: str
    counts: dict[WorkerState, int] = field(default_factory=dict)
    failure: FirstFailure | None = None
    failed_at: str = ""  # when that was, as in `last_failure`

    @property
    def ended(self) -> bool:
        return self.state in RUN_ENDED

    def facts(self, waiting_reason: str) -> RunFacts:
        return RunFacts(
            counts=self.counts,
            gang=self.gang,
            together=self.on_failure != "RestartTask",
            restarting=self.restarting.cause if self.restarting else "",
            stop_requested=self.stop_requested_at is not None,
            failure=self.failure,
            waiting_reason=waiting_reason,
        )


@dataclass(slots=True)
class WorkerRow:
    """A worker of a locked run."""

    id: int
    uid: UUID
    run_id: int
    name: str
    group: str
    rank: int
    gpus: int
    node_fraction: float | None
    state: WorkerState
    reason: str
    changed_at: datetime
    attempt_number: int
    restarts: int
    failures_in_row: int
    restart_at: datetime | None
    stop_requested_at: datetime | None
    stop_reason: str
    after_stop: WorkerState
    exit_code: int | None
    last_failure: dict[str, Any] | None


@dataclass(slots=True)
class AttemptRow:
    """An attempt of a worker of a locked run, with what is asked of its machine."""

    id: int
    uid: UUID
    worker_id: int
    machine_id: int
    machine_name: str
    machine_connected: bool
    number: int
    placed_at: datetime
    running_at: datetime | None
    ended_at: datetime | None
    superseded_at: datetime | None
    released_at: datetime | None
    report_seq: int
    exit_code: int | None
    end_reason: str
    image_digest: str
    engine_image: str
    process_oom_kills: int
    blame: str


def lock_runs(run_ids: Iterable[int]) -> dict[int, RunRow]:
    """Lock runs in id order, with the counts of their workers. Deleted ones too: their record goes on."""
    ids = sorted(set(run_ids))
    rows = fetch(
        """
        SELECT r.id, r.uid, r.name, r.namespace_id, r.workspace_id, n.cluster_id, r.gang,
               r.on_failure, r.state, r.reason, r.changed_at, r.started_at, r.ended_at, r.deleted_at,
               r.stop_requested_at, r.restarts, r.preemptions, r.failures_in_row, r.restarting::text, r.pending_code
        FROM runs_run r JOIN machines_namespace n ON n.id = r.namespace_id
        WHERE r.id = ANY(%s) ORDER BY r.id FOR NO KEY UPDATE OF r
        """,
        [ids],
    )
    runs = {row[0]: _run_row(row) for row in rows}
    _count_workers(runs)
    return runs


def _run_row(row: Sequence[Any]) -> RunRow:
    values = list(row)
    values[8] = RunState(values[8])
    values[18] = msgspec.json.decode(values[18], type=WholeRestart) if values[18] else None
    return RunRow(*values)


def _count_workers(runs: dict[int, RunRow]) -> None:
    """After the lock: the counts before it may be another transaction's past."""
    counted = fetch(
        "SELECT run_id, state, count(*) FROM runs_worker WHERE run_id = ANY(%s) GROUP BY run_id, state", [list(runs)]
    )
    for run_id, state, count in counted:
        runs[run_id].counts[WorkerState(state)] = count
    failed = [run.id for run in runs.values() if run.counts.get(WorkerState.FAILED)]
    if failed:
        for run_id, failed_at, failure in first_failures(failed):
            runs[run_id].failure, runs[run_id].failed_at = failure, failed_at


def first_failures(run_ids: Sequence[int]) -> list[tuple[int, str, FirstFailure]]:
    """(run, when, what) of the failure that came first on the workers' machines, in whatever order they told it."""
    rows = fetch(
        """
        SELECT DISTINCT ON (w.run_id) w.run_id, w.last_failure->>'failed_at', w.name, coalesce(m.name, ''), w.reason
        FROM runs_worker w
        LEFT JOIN runs_attempt a ON a.worker_id = w.id AND a.number = w.attempt_number
        LEFT JOIN machines_machine m ON m.id = a.machine_id
        WHERE w.run_id = ANY(%s) AND w.state = 'Failed' ORDER BY w.run_id, 2, w.id
        """,
        [list(run_ids)],
    )
    return [(run_id, failed_at, FirstFailure(*failure)) for run_id, failed_at, *failure in rows]


def specs_of(run_ids: Iterable[int]) -> dict[int, RunSpec]:
    """Without their packed code, which nothing here reads."""
    rows = fetch("SELECT id, spec::text FROM runs_run WHERE id = ANY(%s)", [list(run_ids)])
    return {run_id: load_spec(json.loads(spec)) for run_id, spec in rows}


WORKER_COLUMNS = """
    w.id, w.uid, w.run_id, w.name, w."group", w.rank, w.gpus, w.node_fraction, w.state, w.reason, w.changed_at,
    w.attempt_number, w.restarts, w.failures_in_row, w.restart_at, w.stop_requested_at, w.stop_reason, w.after_stop,
    w.exit_code, w.last_failure::text
"""


def workers_by_id(worker_ids: Iterable[int]) -> list[WorkerRow]:
    return _workers("w.id = ANY(%s)", [list(worker_ids)])


def workers_of_runs(run_ids: Iterable[int]) -> list[WorkerRow]:
    return _workers("w.run_id = ANY(%s)", [list(run_ids)])


def _workers(condition: str, parameters: list[Any]) -> list[WorkerRow]:
    rows = fetch(f"SELECT {WORKER_COLUMNS} FROM runs_worker w WHERE {condition} ORDER BY w.id", parameters)
    return [_worker_row(row) for row in rows]


def _worker_row(row: Sequence[Any]) -> WorkerRow:
    values = list(row)
    values[8] = WorkerState(values[8])
    values[17] = WorkerState(values[17])
    values[19] = json.loads(values[19]) if values[19] else None
    return WorkerRow(*values)


ATTEMPT_COLUMNS = """
    a.id, a.uid, a.worker_id, a.machine_id, m.name, m.connection <> '', a.number, a.placed_at, a.running_at,
    a.ended_at, a.superseded_at, a.released_at, a.report_seq, a.exit_code, a.end_reason, a.image_digest,
    a.engine_image, a.process_oom_kills, a.blame
"""


def attempts_by_uid(uids: Iterable[UUID]) -> list[AttemptRow]:
    return _attempts("a.uid = ANY(%s)", [list(uids)])


def live_attempts_of_workers(worker_ids: Iterable[int]) -> list[AttemptRow]:
    """Those that hold room: their machines have not said that they are gone."""
    return _attempts("a.worker_id = ANY(%s) AND a.released_at IS NULL", [list(worker_ids)])


def attempts_of_runs(run_ids: Iterable[int]) -> list[AttemptRow]:
    return _attempts("a.worker_id IN (SELECT id FROM runs_worker WHERE run_id = ANY(%s))", [list(run_ids)])


def attempts_placed_before(worker_ids: Iterable[int]) -> dict[int, tuple[UUID, int]]:
    """Worker → (uid, machine) of its newest attempt, on a machine that is still there."""
    ids = list(worker_ids)
    if not ids:
        return {}
    found = fetch(
        """
        SELECT w.id, a.uid, a.machine_id FROM runs_worker w
        JOIN runs_attempt a ON a.worker_id = w.id AND a.number = w.attempt_number
        JOIN machines_machine m ON m.id = a.machine_id
        WHERE w.id = ANY(%s) AND m.state <> 'Removed'
        """,
        [ids],
    )
    return {worker_id: (uid, machine_id) for worker_id, uid, machine_id in found}


def live_attempts_on_machines(machine_ids: Iterable[int]) -> list[AttemptRow]:
    return _attempts("a.machine_id = ANY(%s) AND a.released_at IS NULL", [list(machine_ids)])


def _attempts(condition: str, parameters: list[Any]) -> list[AttemptRow]:
    rows = fetch(
        f"SELECT {ATTEMPT_COLUMNS} FROM runs_attempt a JOIN machines_machine m ON m.id = a.machine_id "
        f"WHERE {condition} ORDER BY a.id",
        parameters,
    )
    return [AttemptRow(*row) for row in rows]


def quick_failures_on(machine_id: int, since: datetime, now: datetime) -> list[QuickFailure]:
    """On this machine, placed after `since`, after it was last trusted, and after the last one there that went well:
    one that succeeded, or ran for long enough. Without runs that failed so on another machine too."""
    quick = settings.MACHINE_CORDON_SECONDS
    found = fetch(
        """
        WITH recent AS (
            SELECT a.* FROM runs_attempt a JOIN machines_machine m ON m.id = a.machine_id
            WHERE a.machine_id = %s AND a.placed_at > greatest(%s, m.trusted_since)),
        good AS (
            SELECT max(placed_at) AS placed_at FROM recent WHERE (end_reason = 'Exited' AND exit_code = 0)
                OR coalesce(ended_at, superseded_at, %s) - running_at >= %s * interval '1 second')
        SELECT DISTINCT r.id, recent.blame, r.created_by_id, r.spec #>> '{task_template,image}',
            r.spec #>> '{task_template,command}', w."group"
        FROM recent JOIN runs_worker w ON w.id = recent.worker_id JOIN runs_run r ON r.id = w.run_id CROSS JOIN good
        WHERE recent.blame <> '' AND recent.placed_at > coalesce(good.placed_at, '-infinity') AND NOT EXISTS (
            SELECT FROM runs_worker v JOIN runs_attempt b ON b.worker_id = v.id
            WHERE v.run_id = r.id AND b.machine_id <> recent.machine_id AND b.blame <> '')
        """,
        [machine_id, since, now, quick],
    )
    return [QuickFailure(run_id, Blame(blame), tuple(program)) for run_id, blame, *program in found]


def runs_of_attempts(uids: Iterable[UUID]) -> list[int]:
    rows = fetch(
        "SELECT DISTINCT w.run_id FROM runs_attempt a JOIN runs_worker w ON w.id = a.worker_id WHERE a.uid = ANY(%s)",
        [list(uids)],
    )
    return [run_id for (run_id,) in rows]


def runs_live_on_machines(machine_ids: Iterable[int]) -> list[int]:
    rows = fetch(
        """
        SELECT DISTINCT w.run_id FROM runs_attempt a JOIN runs_worker w ON w.id = a.worker_id
        WHERE a.machine_id = ANY(%s) AND a.released_at IS NULL
        """,
        [list(machine_ids)],
    )
    return [run_id for (run_id,) in rows]


def attempts_at_barriers(run_ids: Iterable[int]) -> list[tuple[UUID, int, int]]:
    """(uid, machine, run) of attempts that wait for the others of their gang."""
    return fetch(
        """
        SELECT a.uid, a.machine_id, w.run_id FROM runs_worker w JOIN runs_attempt a ON a.worker_id = w.id
        JOIN machines_assignment s ON s.attempt = a.uid
        WHERE w.run_id = ANY(%s) AND s.waits AND s."order" IS NOT NULL
        """,
        [list(run_ids)],
    )


def runs_late_at_barriers(limit: timedelta, engine: timedelta, now: datetime) -> list[int]:
    """Runs of which a worker has waited at the barrier for `limit`, and for `engine` more if engines start beside its
    workers. Not while a machine that another worker still prepares on fills a drive or a model of their workspace, nor
    within `limit` after that."""
    found = fetch(
        """
        WITH waits AS (
            SELECT w.run_id, min(w.changed_at) AS since FROM machines_assignment s
            JOIN runs_attempt a ON a.uid = s.attempt JOIN runs_worker w ON w.id = a.worker_id
            WHERE s.waits AND s."order" IS NOT NULL AND a.superseded_at IS NULL AND w.state = 'Starting'
            GROUP BY w.run_id
        )
        SELECT r.id FROM waits JOIN runs_run r ON r.id = waits.run_id
        WHERE waits.since <= %(limit)s - CASE WHEN r.spec #>> '{engine,model}' <> '' THEN %(engine)s ELSE '0' END
        AND NOT EXISTS (
            SELECT FROM runs_worker w JOIN runs_attempt a ON a.worker_id = w.id AND a.number = w.attempt_number
            JOIN machines_dataonmachine d ON d.machine_id = a.machine_id JOIN machines_volume v ON v.uid = d.uid
            WHERE w.run_id = r.id AND w.state IN ('Preparing', 'Pulling') AND v.workspace_id = r.workspace_id
            AND (d.state = 'Filling' OR (d.state = 'Ready' AND d.changed_at > %(limit)s)))
        """,
        {"limit": now - limit, "engine": engine},
    )
    return [run_id for (run_id,) in found]


def has_attempts(run_id: int) -> bool:
    sql = "SELECT 1 FROM runs_attempt a JOIN runs_worker w ON w.id = a.worker_id WHERE w.run_id = %s LIMIT 1"
    return bool(fetch(sql, [run_id]))


def assigned_attempts(machine_id: int) -> set[UUID]:
    """What a machine is told to run or to forget."""
    return {uid for (uid,) in fetch("SELECT attempt FROM machines_assignment WHERE machine_id = %s", [machine_id])}


def runs_with_due_restarts(now: datetime, limit: int) -> list[int]:
    """But for those of which all restart together while one of them has not stopped."""
    due = fetch(
        """
        SELECT w.run_id FROM runs_worker w JOIN runs_run r ON r.id = w.run_id
        WHERE w.state = 'Restarting' AND w.restart_at <= %s AND (r.restarting IS NULL OR NOT EXISTS (
            SELECT FROM runs_worker p WHERE p.run_id = r.id AND p.state = ANY(%s)))
        ORDER BY w.restart_at LIMIT %s
        """,
        [now, list(PLACED), limit],
    )
    return sorted({run_id for (run_id,) in due})


def workers_due(run_ids: Iterable[int], now: datetime) -> list[WorkerRow]:
    return _workers("w.run_id = ANY(%s) AND w.state = 'Restarting' AND w.restart_at <= %s", [list(run_ids), now])
