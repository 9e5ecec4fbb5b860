"""Plan → guarded writes: each proposal is checked again, and what has become stale is dropped.

The cluster's advisory lock is held by the transaction, so nobody else grants room; machines, workers and quotas may
have changed since the snapshot all the same. A dropped proposal simply waits for the next pass.
"""

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from astraconsole.sql import prepared
from runs.scheduling.quota import Amount
from runs.scheduling.shapes import equal_workers
from runs.scheduling.types import Placement, Plan, WorkerShape
from runs.services import placing, preempting, rows, writes
from runs.services.moves import locked

LOCK_SPACE = 0x5C4ED  # first key of the advisory locks of schedulers; the second is the cluster's id


def try_lock(cluster_id: int) -> bool:
    """Be the only scheduler of this cluster until the transaction ends; False: another one is. For as long, PostgreSQL
    may sort a large queue in memory, and compiles nothing: that takes longer than the statements."""
    with prepared() as cursor:
        cursor.execute(
            "SELECT pg_try_advisory_xact_lock(%s, %s), set_config('work_mem', '64MB', true), "
            "set_config('jit', 'off', true)",
            [LOCK_SPACE, cluster_id],
        )
        return bool(cursor.fetchone()[0])


def apply_plan(cluster_id: int, plan: Plan, now: datetime) -> list[int]:
    """Write what still holds of a plan; the ids of the workers that were placed. The caller holds the lock.

    All runs are locked at once, in id order, before any machine: the one order everywhere.
    """
    placed: list[int] = []
    with transaction.atomic(savepoint=False):
        if plan.placements or plan.preemptions or plan.claims or plan.splits:
            with locked(_changed_runs(plan), savepoint=False) as batch:
                for run_id, shapes in _new_shapes(plan.splits).items():
                    placing.plan_run(run_id, shapes, now)
                if plan.preemptions:
                    preempting.preempt(batch, plan.preemptions, placing.SCHEDULER, now)
                if plan.claims:
                    writes.update_claims(plan.claims)
                if plan.placements:
                    placed = placing.place(batch, cluster_id, within_quota(plan.placements), now)
        if plan.changed:
            placing.store_pending(
                [(run_id, plan.refusals[run_id].code, plan.refusals[run_id].numbers) for run_id in plan.changed], now
            )
    return placed


def _changed_runs(plan: Plan) -> set[int]:
    """Whatever is placed, planned, preempted or claimed for."""
    preempted = {run_id for item in plan.preemptions for run_id in (item.run_id, item.by_run_id)}
    return {placed.run_id for placed in plan.placements} | preempted | {*plan.claims, *plan.splits}


def _new_shapes(splits: dict[int, int]) -> dict[int, list[WorkerShape]]:
    """The workers of runs that are to be planned anew (run id → count)."""
    if not splits:
        return {}
    shapes: dict[int, list[WorkerShape]] = {}
    names = _names_of(splits)
    for run_id, spec in rows.specs_of(splits).items():
        planned = equal_workers(spec, names[run_id], splits[run_id])
        if isinstance(planned, list):
            shapes[run_id] = planned
    return shapes


def _names_of(run_ids: dict[int, int]) -> dict[int, str]:
    with prepared() as cursor:
        cursor.execute("SELECT id, name FROM runs_run WHERE id = ANY(%s)", [list(run_ids)])
        return dict(cursor.fetchall())


def within_quota(placements: Sequence[Placement]) -> list[Placement]:
    """Those that the namespaces' quotas still allow, by sums over live attempts now. A run's are kept or dropped
    together, so that no gang is halved."""
    limits = _limited_namespaces({placed.namespace_id for placed in placements})
    if not limits:
        return list(placements)
    by_run: dict[int, list[Placement]] = {}
    for placed in placements:
        by_run.setdefault(placed.run_id, []).append(placed)
    kept: list[Placement] = []
    for run_id, together in by_run.items():
        room = limits.get(together[0].namespace_id)
        if room is None or room.take(run_id, together):
            kept += together
    return kept


class _Room:
    """What a namespace may still be granted. None: no limit."""

    def __init__(
        self, gpus: int | None, cpu_milli: int | None, memory_bytes: int | None, runs: int | None, known: Sequence[int]
    ) -> None:
        self.left: tuple[int | None, ...] = (gpus, cpu_milli, memory_bytes, runs)
        self.known = set(known)  # runs that hold something already

    def take(self, run_id: int, placements: Sequence[Placement]) -> bool:
        amount = Amount()
        for placed in placements:
            amount = amount.plus(len(placed.gpu_indexes), placed.cpu_milli, placed.memory_bytes)
        wanted = (*amount, int(run_id not in self.known))
        # A quota lowered below what is in use leaves less than nothing: only what asks for some of it is refused.
        if any(have is not None and want and want > have for have, want in zip(self.left, wanted, strict=True)):
            return False
        self.left = tuple(None if have is None else have - want for have, want in zip(self.left, wanted, strict=True))
        self.known.add(run_id)
        return True


_LIMITED = """
SELECT id FROM machines_namespace
WHERE id = ANY(%s) AND num_nonnulls(quota_gpus, quota_cpu_milli, quota_memory_bytes, quota_runs) > 0"""

_ROOM_LEFT = """
SELECT n.id, n.quota_gpus - u.gpus, n.quota_cpu_milli - u.cpu_milli, n.quota_memory_bytes - u.memory_bytes,
    n.quota_runs - cardinality(u.runs), u.runs
FROM machines_namespace n
CROSS JOIN LATERAL (
    SELECT coalesce(sum(cardinality(a.gpu_indexes)), 0)::bigint AS gpus,
        coalesce(sum(a.cpu_milli), 0)::bigint AS cpu_milli,
        coalesce(sum(a.memory_bytes), 0)::bigint AS memory_bytes,
        coalesce(array_agg(DISTINCT w.run_id) FILTER (WHERE w.run_id IS NOT NULL), '{}') AS runs
    FROM runs_attempt a
    JOIN runs_worker w ON w.id = a.worker_id
    JOIN machines_machine m ON m.id = a.machine_id
    WHERE a.released_at IS NULL AND w.namespace_id = n.id AND m.state = 'Ready'
) u
WHERE n.id = ANY(%s)"""


def _limited_namespaces(namespace_ids: set[int]) -> dict[int, _Room]:
    """Those of these namespaces that have a quota; most have none, and then nothing is summed."""
    with prepared() as cursor:
        cursor.execute(_LIMITED, [list(namespace_ids)])
        limited = [namespace_id for (namespace_id,) in cursor.fetchall()]
        if not limited:
            return {}
        cursor.execute(_ROOM_LEFT, [limited])
        return {row[0]: _Room(*row[1:]) for row in cursor.fetchall()}
