"""Set-based writes of runs, workers, attempts and transitions: one statement for any number of rows.

The ORM's bulk_update is too slow for a batch of reports (a CASE for each row and column). Rows travel as one JSON text
instead: encoding a thousand takes a millisecond, and PostgreSQL reads them as a table. Every statement here runs under
the locks of `runs.services.moves`, or makes rows that nobody else knows yet.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from astraconsole.sql import execute, prepared
from runs.models import Run
from runs.scheduling.explain import QUOTA_WORDS
from runs.scheduling.types import Claim, Numbers, WorkerShape
from runs.services.rows import AttemptRow, RunRow, WorkerRow


@dataclass(frozen=True, slots=True)
class TransitionRow:
    workspace_id: int
    run_id: int
    worker_id: int | None
    attempt_number: int | None
    state: str
    reason: str
    actor: str
    at: datetime


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


def update_runs(runs: Sequence[RunRow]) -> None:
    execute(
        """
        UPDATE runs_run r SET state = v.state, reason = v.reason, changed_at = v.changed_at, started_at = v.started_at,
            ended_at = v.ended_at, deleted_at = v.deleted_at, stop_requested_at = v.stop_requested_at,
            restarts = v.restarts, preemptions = v.preemptions, failures_in_row = v.failures_in_row,
            restarting = v.restarting, pending_code = v.pending_code
        FROM json_to_recordset(%s::json) AS v(id bigint, state text, reason text, changed_at timestamptz,
            started_at timestamptz, ended_at timestamptz, deleted_at timestamptz, stop_requested_at timestamptz,
            restarts int, preemptions int, failures_in_row int, restarting jsonb, pending_code text)
        WHERE r.id = v.id
        """,
        [_json(runs)],
    )


def update_workers(workers: Sequence[WorkerRow]) -> None:
    execute(
        """
        UPDATE runs_worker w SET state = v.state, reason = v.reason, changed_at = v.changed_at,
            attempt_number = v.attempt_number, restarts = v.restarts, failures_in_row = v.failures_in_row,
            restart_at = v.restart_at, stop_requested_at = v.stop_requested_at, stop_reason = v.stop_reason,
            after_stop = v.after_stop, exit_code = v.exit_code, last_failure = v.last_failure
        FROM json_to_recordset(%s::json) AS v(id bigint, state text, reason text, changed_at timestamptz,
            attempt_number int, restarts int, failures_in_row int, restart_at timestamptz,
            stop_requested_at timestamptz, stop_reason text, after_stop text, exit_code int,
            last_failure jsonb)
        WHERE w.id = v.id
        """,
        [_json(workers)],
    )


def update_attempts(attempts: Sequence[AttemptRow]) -> None:
    execute(
        """
        UPDATE runs_attempt a SET running_at = v.running_at, ended_at = v.ended_at, superseded_at = v.superseded_at,
            released_at = v.released_at, report_seq = v.report_seq, exit_code = v.exit_code, end_reason = v.end_reason,
            image_digest = v.image_digest, engine_image = v.engine_image, process_oom_kills = v.process_oom_kills,
            blame = v.blame
        FROM json_to_recordset(%s::json) AS v(id bigint, running_at timestamptz, ended_at timestamptz,
            superseded_at timestamptz, released_at timestamptz, report_seq int, exit_code int, end_reason text,
            image_digest text, engine_image text, process_oom_kills int, blame text)
        WHERE a.id = v.id
        """,
        [_json(attempts)],
    )


def insert_attempts(attempts: Sequence[NewAttempt]) -> None:
    execute(
        """
        INSERT INTO runs_attempt (uid, worker_id, machine_id, number, cpu_milli, memory_bytes, gpu_indexes, placed_at,
            report_seq, end_reason, image_digest, process_oom_kills)
        SELECT v.*, 0, '', '', 0
        FROM json_to_recordset(%s::json) AS v(uid uuid, worker_id bigint, machine_id bigint, number int,
            cpu_milli bigint, memory_bytes bigint, gpu_indexes smallint[], placed_at timestamptz)
        """,
        [_json(attempts)],
    )


def insert_transitions(transitions: Sequence[TransitionRow]) -> None:
    execute(
        """
        INSERT INTO runs_transition (workspace_id, run_id, worker_id, attempt_number, state, reason, actor, at)
        SELECT * FROM json_to_recordset(%s::json) AS v(workspace_id bigint, run_id bigint, worker_id bigint,
            attempt_number int, state text, reason text, actor text, at timestamptz)
        """,
        [_json(transitions)],
    )


# The workers of the run in `made`, and the first entry of each one's history, after what `recorded` writes.
_WITH_WORKERS = """
    workers AS (
        INSERT INTO runs_worker (uid, run_id, namespace_id, deleted, name, "group", rank, gpus, cpu_milli,
            memory_bytes, node_fraction, state, reason, changed_at, attempt_number, restarts, failures_in_row,
            stop_reason)
        SELECT gen_random_uuid(), made.id, made.namespace_id, false, v.*, 'Pending', made.reason, made.at, 0, 0, 0, ''
        FROM made, json_to_recordset(%s::json) AS v(name text, "group" text, rank int, gpus int, cpu_milli bigint,
            memory_bytes bigint, node_fraction float8)
        RETURNING id, run_id, reason, changed_at),
    begun AS (
        INSERT INTO runs_transition (workspace_id, run_id, worker_id, state, reason, actor, at)
        SELECT made.workspace_id, w.run_id, w.id, 'Pending', w.reason, %s, w.changed_at
        FROM workers w, made, (SELECT count(*) FROM recorded) AS first_of_all ORDER BY w.id)
"""


def insert_run(run: Run, stems: Sequence[str], shapes: Sequence[WorkerShape], actor: str) -> int | None:
    """A run, its names, its workers and the beginnings of their histories: one statement, a transaction of its own.
    None when the run's name is another run's. Raises IntegrityError when one of the stems is taken otherwise.

    `stems`: in order, so that two that clash in several do not wait for each other."""
    with prepared() as cursor:
        cursor.execute(
            f"""
            WITH made AS (
                INSERT INTO runs_run (uid, namespace_id, workspace_id, name, labels, spec, code_id,
                    priority, gpus, gang, on_failure, created_by_id, created_at, changed_at, queued_at, state, reason,
                    restarts, preemptions, pending_code, pending_numbers)
                VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 0, 0, %s, %s)
                ON CONFLICT (namespace_id, name) WHERE deleted_at IS NULL DO NOTHING
                RETURNING id, namespace_id, workspace_id, reason, created_at AS at),
            recorded AS (
                INSERT INTO runs_transition (workspace_id, run_id, state, reason, actor, at)
                SELECT workspace_id, id, 'Pending', reason, %s, at FROM made RETURNING id),
            claimed AS (
                INSERT INTO runs_stem (namespace_id, run_id, stem)
                SELECT namespace_id, id, unnest(%s::text[]) FROM made),
            {_WITH_WORKERS}
            SELECT id FROM made
            """,
            [
                run.uid, run.namespace_id, run.workspace_id, run.name, json.dumps(run.labels), json.dumps(run.spec),
                run.code_id, run.priority, run.gpus, run.gang, run.on_failure, run.created_by_id,
                run.created_at, run.changed_at, run.queued_at, run.state, run.reason, run.pending_code,
                json.dumps(run.pending_numbers), actor, list(stems), _json(shapes), actor,
            ],
        )  # fmt: skip
        found = cursor.fetchone()
    return found[0] if found else None


def insert_workers(run_id: int, shapes: Sequence[WorkerShape], reason: str, actor: str, at: datetime) -> None:
    """Workers and the beginnings of their histories. Their names are free: the run has claimed their stems."""
    execute(
        f"""
        WITH made AS (
                SELECT id, namespace_id, workspace_id, %s AS reason, %s::timestamptz AS at FROM runs_run WHERE id = %s),
            recorded AS (SELECT),
            {_WITH_WORKERS}
        SELECT
        """,
        [reason, at, run_id, _json(shapes), actor],
    )


def delete_workers(run_id: int) -> None:
    """Of a run of which nothing has started: they have no attempts."""
    workers = "(SELECT id FROM runs_worker WHERE run_id = %s)"
    execute(f"DELETE FROM runs_transition WHERE worker_id IN {workers}", [run_id])
    execute("DELETE FROM runs_worker WHERE run_id = %s", [run_id])


def free_names(run_ids: Sequence[int]) -> None:
    """Of runs that are deleted, and of their workers."""
    execute("UPDATE runs_worker SET deleted = true WHERE run_id = ANY(%s)", [list(run_ids)])
    execute("DELETE FROM runs_stem WHERE run_id = ANY(%s)", [list(run_ids)])


def update_pending(items: Sequence[tuple[int, str, Numbers]], quotas: Mapping[int, str], now: datetime) -> None:
    """(run id, code, numbers) of waiting runs, where they differ from what is stored. Runs that somebody else is
    changing just now are left to the next pass: waiting for them, with other locks held, could wait for ever.

    `quotas`: run → sentence of those that wait for their quota: an entry of the history, unless that said so last."""
    refusals = [
        {"id": run_id, "code": code, "numbers": numbers, "quota": quotas.get(run_id)} for run_id, code, numbers in items
    ]
    execute(
        """
        WITH v AS (SELECT * FROM json_to_recordset(%s::json) AS v(id bigint, code text, numbers jsonb, quota text)),
            locked AS (
                SELECT id FROM runs_run WHERE id IN (SELECT id FROM v) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED),
            changed AS (
                UPDATE runs_run r SET pending_code = v.code, pending_numbers = v.numbers
                FROM v JOIN locked ON locked.id = v.id
                WHERE r.id = v.id AND r.deleted_at IS NULL AND r.state IN ('Pending', 'Starting', 'Running')
                    AND (r.pending_code, r.pending_numbers) IS DISTINCT FROM (v.code, v.numbers)
                RETURNING r.id, r.workspace_id, r.state, r.changed_at, v.quota)
        INSERT INTO runs_transition (workspace_id, run_id, state, reason, actor, at)
        SELECT c.workspace_id, c.id, c.state, c.quota, 'scheduler', greatest(c.changed_at, %s)
        FROM changed c, LATERAL (
            SELECT t.reason FROM runs_transition t WHERE t.run_id = c.id AND t.worker_id IS NULL
            ORDER BY t.id DESC LIMIT 1) newest
        WHERE c.quota IS NOT NULL AND NOT starts_with(newest.reason, %s)
        """,
        [_json(refusals), now, QUOTA_WORDS],
    )


def update_claims(claims: Mapping[int, Claim | None]) -> None:
    """Room that others give up for these runs (by id), which are locked; None: no more."""
    execute(
        """
        UPDATE runs_run r SET claim = v.claim FROM json_to_recordset(%s::json) AS v(id bigint, claim jsonb)
        WHERE r.id = v.id
        """,
        [_json([{"id": run_id, "claim": claim} for run_id, claim in claims.items()])],
    )


def _json(rows: Sequence[Any]) -> str:
    return msgspec.json.encode(rows).decode()
