"""Set-based SQL for runs, workers, attempts and transitions: one statement for any number of rows.

The ORM's bulk_update is too slow for a batch of reports (it builds a CASE per row and column); `UPDATE … FROM unnest`
takes milliseconds for a thousand rows. Every statement here is run under the locks of `runs.services.moves`.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from runs.models import Run
from runs.scheduling.types import WorkerShape
from runs.spec import RunSpec, load_spec
from runs.state_machine import RUN_ENDED, FirstFailure, RunFacts, RunState, WorkerState


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
    pending_code: str
    counts: dict[WorkerState, int] = field(default_factory=dict)
    failure: FirstFailure | None = None

    @property
    def ended(self) -> bool:
        return self.state in RUN_ENDED

    def facts(self, waiting_reason: str) -> RunFacts:
        return RunFacts(
            counts=self.counts,
            gang=self.gang,
            fail_job=self.on_failure == "FailJob",
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
    process_oom_kills: int


@dataclass(frozen=True, slots=True)
class TransitionRow:
    run_id: int
    worker_id: int | None
    attempt_number: int | None
    state: str
    reason: str
    actor: str
    at: datetime


def lock_runs(run_ids: Iterable[int]) -> dict[int, RunRow]:
    """Lock runs in id order, with the counts of their workers. Deleted ones too: their record goes on."""
    ids = sorted(set(run_ids))
    rows = _fetch(
        """
        SELECT r.id, r.uid, r.name, r.namespace_id, r.workspace_id, n.cluster_id, r.gang,
               r.on_failure, r.state, r.reason, r.changed_at, r.started_at, r.ended_at, r.deleted_at,
               r.stop_requested_at, r.restarts, r.pending_code
        FROM runs_run r JOIN machines_namespace n ON n.id = r.namespace_id
        WHERE r.id = ANY(%s) ORDER BY r.id FOR UPDATE OF r
        """,
        [ids],
    )
    runs = {row[0]: _run_row(row) for row in rows}
    _count_workers(runs)
    return runs


def _run_row(row: Sequence[Any]) -> RunRow:
    values = list(row)
    values[8] = RunState(values[8])
    return RunRow(*values)


def _count_workers(runs: dict[int, RunRow]) -> None:
    """After the lock: the counts before it may be another transaction's past."""
    counted = _fetch(
        "SELECT run_id, state, count(*) FROM runs_worker WHERE run_id = ANY(%s) GROUP BY run_id, state", [list(runs)]
    )
    for run_id, state, count in counted:
        runs[run_id].counts[WorkerState(state)] = count
    failed = [run.id for run in runs.values() if run.counts.get(WorkerState.FAILED)]
    if failed:
        for run_id, failure in first_failures(failed).items():
            runs[run_id].failure = failure


def first_failures(run_ids: Sequence[int]) -> dict[int, FirstFailure]:
    rows = _fetch(
        """
        SELECT DISTINCT ON (w.run_id) w.run_id, w.name, coalesce(m.name, ''), w.reason
        FROM runs_worker w
        LEFT JOIN runs_attempt a ON a.worker_id = w.id AND a.number = w.attempt_number
        LEFT JOIN machines_machine m ON m.id = a.machine_id
        WHERE w.run_id = ANY(%s) AND w.state = 'Failed' ORDER BY w.run_id, w.changed_at, w.id
        """,
        [list(run_ids)],
    )
    return {run_id: FirstFailure(name, machine, reason) for run_id, name, machine, reason in rows}


def specs_of(run_ids: Iterable[int]) -> dict[int, RunSpec]:
    """Without their packed code, which nothing here reads."""
    rows = _fetch("SELECT id, (spec - 'code')::text FROM runs_run WHERE id = ANY(%s)", [list(run_ids)])
    return {run_id: load_spec(json.loads(spec)) for run_id, spec in rows}


WORKER_COLUMNS = """
    w.id, w.uid, w.run_id, w.name, w."group", w.rank, w.gpus, w.node_fraction, w.state, w.reason, w.changed_at,
    w.attempt_number, w.restarts, w.failures_in_row, w.restart_at, w.stop_requested_at, w.stop_reason, w.exit_code,
    w.last_failure::text
"""


def workers_by_id(worker_ids: Iterable[int]) -> list[WorkerRow]:
    return _workers("w.id = ANY(%s)", [list(worker_ids)])


def workers_of_runs(run_ids: Iterable[int]) -> list[WorkerRow]:
    return _workers("w.run_id = ANY(%s)", [list(run_ids)])


def _workers(condition: str, parameters: list[Any]) -> list[WorkerRow]:
    rows = _fetch(f"SELECT {WORKER_COLUMNS} FROM runs_worker w WHERE {condition} ORDER BY w.id", parameters)
    return [_worker_row(row) for row in rows]


def _worker_row(row: Sequence[Any]) -> WorkerRow:
    values = list(row)
    values[8] = WorkerState(values[8])
    values[18] = json.loads(values[18]) if values[18] else None
    return WorkerRow(*values)


ATTEMPT_COLUMNS = """
    a.id, a.uid, a.worker_id, a.machine_id, m.name, m.connection <> '', a.number, a.placed_at, a.running_at,
    a.ended_at, a.superseded_at, a.released_at, a.report_seq, a.exit_code, a.end_reason, a.image_digest,
    a.process_oom_kills
"""


def attempts_by_uid(uids: Iterable[UUID]) -> list[AttemptRow]:
    return _attempts("a.uid = ANY(%s)", [list(uids)])


def live_attempts_of_workers(worker_ids: Iterable[int]) -> list[AttemptRow]:
    """Those that hold room: their machines have not said that they are gone."""
    return _attempts("a.worker_id = ANY(%s) AND a.released_at IS NULL", [list(worker_ids)])


def attempts_of_run(run_id: int) -> list[AttemptRow]:
    return _attempts("a.worker_id IN (SELECT id FROM runs_worker WHERE run_id = %s)", [run_id])


def live_attempts_on_machines(machine_ids: Iterable[int]) -> list[AttemptRow]:
    return _attempts("a.machine_id = ANY(%s) AND a.released_at IS NULL", [list(machine_ids)])


def _attempts(condition: str, parameters: list[Any]) -> list[AttemptRow]:
    rows = _fetch(
        f"SELECT {ATTEMPT_COLUMNS} FROM runs_attempt a JOIN machines_machine m ON m.id = a.machine_id "
        f"WHERE {condition} ORDER BY a.id",
        parameters,
    )
    return [AttemptRow(*row) for row in rows]


def runs_of_attempts(uids: Iterable[UUID]) -> list[int]:
    rows = _fetch(
        "SELECT DISTINCT w.run_id FROM runs_attempt a JOIN runs_worker w ON w.id = a.worker_id WHERE a.uid = ANY(%s)",
        [list(uids)],
    )
    return [run_id for (run_id,) in rows]


def runs_of_workers(worker_ids: Iterable[int]) -> list[int]:
    rows = _fetch("SELECT DISTINCT run_id FROM runs_worker WHERE id = ANY(%s)", [list(worker_ids)])
    return [run_id for (run_id,) in rows]


def runs_live_on_machines(machine_ids: Iterable[int]) -> list[int]:
    rows = _fetch(
        """
        SELECT DISTINCT w.run_id FROM runs_attempt a JOIN runs_worker w ON w.id = a.worker_id
        WHERE a.machine_id = ANY(%s) AND a.released_at IS NULL
        """,
        [list(machine_ids)],
    )
    return [run_id for (run_id,) in rows]


def update_runs(runs: Sequence[RunRow]) -> None:
    _execute(
        """
        UPDATE runs_run r SET state = v.state, reason = v.reason, changed_at = v.changed_at, started_at = v.started_at,
            ended_at = v.ended_at, deleted_at = v.deleted_at, stop_requested_at = v.stop_requested_at,
            restarts = v.restarts, pending_code = v.pending_code
        FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[],
            %s::timestamptz[], %s::timestamptz[], %s::int[], %s::text[])
            AS v(id, state, reason, changed_at, started_at, ended_at, deleted_at, stop_requested_at, restarts,
                 pending_code)
        WHERE r.id = v.id
        """,
        _columns(
            runs,
            ("id", "state", "reason", "changed_at", "started_at", "ended_at", "deleted_at", "stop_requested_at",
             "restarts", "pending_code"),
        ),
    )  # fmt: skip


def update_workers(workers: Sequence[WorkerRow]) -> None:
    columns = _columns(
        workers,
        ("id", "state", "reason", "changed_at", "attempt_number", "restarts", "failures_in_row", "restart_at",
         "stop_requested_at", "stop_reason", "exit_code"),
    )  # fmt: skip
    failures = [None if worker.last_failure is None else json.dumps(worker.last_failure) for worker in workers]
    _execute(
        """
        UPDATE runs_worker w SET state = v.state, reason = v.reason, changed_at = v.changed_at,
            attempt_number = v.attempt_number, restarts = v.restarts, failures_in_row = v.failures_in_row,
            restart_at = v.restart_at, stop_requested_at = v.stop_requested_at, stop_reason = v.stop_reason,
            exit_code = v.exit_code, last_failure = v.last_failure::jsonb
        FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::timestamptz[], %s::int[], %s::int[], %s::int[],
            %s::timestamptz[], %s::timestamptz[], %s::text[], %s::int[], %s::text[])
            AS v(id, state, reason, changed_at, attempt_number, restarts, failures_in_row, restart_at,
                 stop_requested_at, stop_reason, exit_code, last_failure)
        WHERE w.id = v.id
        """,
        [*columns, failures],
    )


def update_attempts(attempts: Sequence[AttemptRow]) -> None:
    _execute(
        """
        UPDATE runs_attempt a SET running_at = v.running_at, ended_at = v.ended_at, superseded_at = v.superseded_at,
            released_at = v.released_at, report_seq = v.report_seq, exit_code = v.exit_code, end_reason = v.end_reason,
            image_digest = v.image_digest, process_oom_kills = v.process_oom_kills
        FROM unnest(%s::bigint[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[], %s::int[],
            %s::int[], %s::text[], %s::text[], %s::int[])
            AS v(id, running_at, ended_at, superseded_at, released_at, report_seq, exit_code, end_reason, image_digest,
                 process_oom_kills)
        WHERE a.id = v.id
        """,
        _columns(
            attempts,
            ("id", "running_at", "ended_at", "superseded_at", "released_at", "report_seq", "exit_code", "end_reason",
             "image_digest", "process_oom_kills"),
        ),
    )  # fmt: skip


def insert_transitions(transitions: Sequence[TransitionRow]) -> None:
    _execute(
        """
        INSERT INTO runs_transition (run_id, worker_id, attempt_number, state, reason, actor, at)
        SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %s::text[], %s::text[], %s::text[],
            %s::timestamptz[])
        """,
        _columns(transitions, ("run_id", "worker_id", "attempt_number", "state", "reason", "actor", "at")),
    )


@dataclass(frozen=True, slots=True)
class NewAttempt:
    uid: UUID
    worker_id: int
    machine_id: int
    number: int
    cpu_milli: int
    memory_bytes: int
    gpu_indexes: tuple[int, ...]
    placed_at: datetime


def insert_attempts(attempts: Sequence[NewAttempt]) -> None:
    columns = _columns(
        attempts, ("uid", "worker_id", "machine_id", "number", "cpu_milli", "memory_bytes", "gpu_indexes", "placed_at")
    )
    columns[6] = ["{" + ",".join(map(str, gpus)) + "}" for gpus in columns[6]]  # unnest flattens arrays of arrays
    _execute(
        """
        INSERT INTO runs_attempt (uid, worker_id, machine_id, number, cpu_milli, memory_bytes, gpu_indexes, placed_at,
            report_seq, end_reason, image_digest, process_oom_kills)
        SELECT uid, worker_id, machine_id, number, cpu_milli, memory_bytes, gpus::smallint[], placed_at, 0, '', '', 0
        FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::int[], %s::bigint[], %s::bigint[], %s::text[],
            %s::timestamptz[]) AS v(uid, worker_id, machine_id, number, cpu_milli, memory_bytes, gpus, placed_at)
        """,
        columns,
    )


def _columns(rows: Sequence[Any], names: Sequence[str]) -> list[list[Any]]:
    return [[getattr(row, name) for row in rows] for name in names]


def _fetch(sql: str, parameters: list[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall()


def _execute(sql: str, parameters: list[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """A locked machine: what it has, and what its live attempts hold of it."""

    id: int
    name: str
    hostname: str
    cpu_milli: int
    memory_bytes: int
    takes_work: bool
    stop_grace_seconds: float


def lock_machines(machine_ids: Iterable[int]) -> dict[int, MachineRoom]:
    """Lock machines in id order (after runs: the one order everywhere)."""
    rows = _fetch(
        """
        SELECT id, name, hostname, cpu_milli, memory_bytes, state = 'Ready' AND cordoned_at IS NULL, stop_grace_seconds
        FROM machines_machine WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE
        """,
        [sorted(set(machine_ids))],
    )
    return {row[0]: MachineRoom(*row) for row in rows}


def held_room(machine_ids: Iterable[int]) -> list[tuple[int, int, int, list[int]]]:
    """(machine, cpu_milli, memory_bytes, GPU indexes) of each live attempt."""
    return _fetch(
        """
        SELECT machine_id, cpu_milli, memory_bytes, gpu_indexes FROM runs_attempt
        WHERE machine_id = ANY(%s) AND released_at IS NULL
        """,
        [list(machine_ids)],
    )


def healthy_gpus(machine_ids: Iterable[int]) -> dict[int, set[int]]:
    gpus: dict[int, set[int]] = {machine_id: set() for machine_id in machine_ids}
    found = _fetch('SELECT machine_id, "index" FROM machines_gpu WHERE machine_id = ANY(%s) AND healthy', [list(gpus)])
    for machine_id, index in found:
        gpus[machine_id].add(index)
    return gpus


def hosts_of_rank_0(run_ids: Iterable[int]) -> dict[int, str]:
    found = _fetch(
        """
        SELECT w.run_id, coalesce(nullif(m.hostname, ''), m.name) FROM runs_worker w
        JOIN runs_attempt a ON a.worker_id = w.id AND a.number = w.attempt_number
        JOIN machines_machine m ON m.id = a.machine_id
        WHERE w.run_id = ANY(%s) AND w.rank = 0 AND a.released_at IS NULL AND a.superseded_at IS NULL
        """,
        [list(run_ids)],
    )
    return dict(found)


def has_attempts(run_id: int) -> bool:
    sql = "SELECT 1 FROM runs_attempt a JOIN runs_worker w ON w.id = a.worker_id WHERE w.run_id = %s LIMIT 1"
    return bool(_fetch(sql, [run_id]))


def delete_workers(run_id: int) -> None:
    """Of a run of which nothing has started: they have no attempts."""
    _execute("DELETE FROM runs_transition WHERE run_id = %s AND worker_id IS NOT NULL", [run_id])
    _execute("DELETE FROM runs_worker WHERE run_id = %s", [run_id])


def insert_workers(
    run_id: int, namespace_id: int, shapes: Sequence[WorkerShape], reason: str, actor: str, at: datetime
) -> None:
    """Workers and the first entry of each one's history. Raises IntegrityError when a name is taken."""
    columns = _columns(shapes, ("name", "group", "rank", "gpus", "cpu_milli", "memory_bytes", "node_fraction"))
    _execute(
        """
        WITH made AS (
            INSERT INTO runs_worker (uid, run_id, namespace_id, deleted, name, "group", rank, gpus, cpu_milli,
                memory_bytes, node_fraction, state, reason, changed_at, attempt_number, restarts, failures_in_row,
                stop_reason)
            SELECT gen_random_uuid(), %s, %s, false, v.*, 'Pending', %s, %s, 0, 0, 0, ''
            FROM unnest(%s::text[], %s::text[], %s::int[], %s::int[], %s::bigint[], %s::bigint[], %s::float8[]) AS v
            RETURNING id)
        INSERT INTO runs_transition (run_id, worker_id, state, reason, actor, at)
        SELECT %s, made.id, 'Pending', %s, %s, %s FROM made ORDER BY made.id
        """,
        [run_id, namespace_id, reason, at, *columns, run_id, reason, actor, at],
    )


def update_pending(items: Sequence[tuple[int, str, str]]) -> None:
    ids, codes, numbers = zip(*items, strict=True)
    _execute(
        """
        WITH v AS (SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS v(id, code, numbers)),
            locked AS (SELECT id FROM runs_run WHERE id IN (SELECT id FROM v) ORDER BY id FOR UPDATE)
        UPDATE runs_run r SET pending_code = v.code, pending_numbers = v.numbers::jsonb
        FROM v JOIN locked ON locked.id = v.id
        WHERE r.id = v.id AND r.deleted_at IS NULL AND r.state IN ('Pending', 'Starting', 'Running')
            AND (r.pending_code, r.pending_numbers) IS DISTINCT FROM (v.code, v.numbers::jsonb)
        """,
        [list(ids), list(codes), list(numbers)],
    )


def assigned_attempts(machine_id: int) -> set[UUID]:
    """What a machine is told to run or to forget."""
    return {uid for (uid,) in _fetch("SELECT attempt FROM machines_assignment WHERE machine_id = %s", [machine_id])}


def runs_with_due_restarts(now: datetime, limit: int) -> list[int]:
    due = _fetch(
        "SELECT run_id FROM runs_worker WHERE state = 'Restarting' AND restart_at <= %s ORDER BY restart_at LIMIT %s",
        [now, limit],
    )
    return sorted({run_id for (run_id,) in due})


def workers_due(run_ids: Iterable[int], now: datetime) -> list[WorkerRow]:
    return _workers("w.run_id = ANY(%s) AND w.state = 'Restarting' AND w.restart_at <= %s", [list(run_ids), now])


def free_worker_names(run_id: int) -> None:
    _execute("UPDATE runs_worker SET deleted = true WHERE run_id = %s", [run_id])


def insert_run(run: Run, spec: str, actor: str) -> int | None:
    """A run and the first entry of its history; None when its name is taken, without ending the transaction."""
    found = _fetch(
        """
        WITH made AS (
            INSERT INTO runs_run (uid, namespace_id, workspace_id, name, labels, spec, spec_version, priority, gpus,
                gang, on_failure, created_by_id, created_at, changed_at, queued_at, state, reason, restarts,
                preemptions, pending_code, pending_numbers)
            VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 0, 0, %s, %s)
            ON CONFLICT (namespace_id, name) WHERE deleted_at IS NULL DO NOTHING RETURNING id),
        recorded AS (
            INSERT INTO runs_transition (run_id, state, reason, actor, at)
            SELECT id, %s, %s, %s, %s FROM made)
        SELECT id FROM made
        """,
        [
            run.uid, run.namespace_id, run.workspace_id, run.name, json.dumps(run.labels), spec, run.spec_version,
            run.priority, run.gpus, run.gang, run.on_failure, run.created_by_id, run.created_at, run.changed_at,
            run.queued_at, run.state, run.reason, run.pending_code, json.dumps(run.pending_numbers),
            run.state, run.reason, actor, run.created_at,
        ],
    )  # fmt: skip
    return found[0][0] if found else None
