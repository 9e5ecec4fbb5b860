"""One pass of a cluster's scheduler: lock, load, plan, apply."""

import time
from datetime import datetime

from django.conf import settings
from django.db import transaction

from runs.scheduling import surprises
from runs.scheduling.apply import apply_plan, try_lock
from runs.scheduling.load import load_snapshot
from runs.scheduling.planner import make_plan
from runs.scheduling.recording import Recording
from runs.scheduling.types import Plan, Snapshot

LONG_QUEUE = 500  # waiting runs: planning so many takes longer than starting one
_long_queues: set[int] = set()  # clusters, by the last whole pass of this process


def run_once(cluster_id: int, now: datetime) -> bool:
    """Run one pass, unless another holds the cluster's lock: then leave, since the holder will see the wake that led
    here. True: the pass stopped at its bound and did something, or kept a promise; run another at once."""
    with transaction.atomic():
        if not try_lock(cluster_id):
            return False
        if cluster_id in _long_queues and _keep_promises(cluster_id, now):
            return True
        snapshot = load_snapshot(cluster_id)
        (_long_queues.add if len(snapshot.waiting) > LONG_QUEUE else _long_queues.discard)(cluster_id)
        if not snapshot.waiting:
            return False
        plan = _plan(cluster_id, snapshot, now.timestamp())
        placed = apply_plan(cluster_id, plan, now)
        if surprises.dropped_without_cause(cluster_id, snapshot, plan, placed):
            surprises.keep(cluster_id, Recording(now.timestamp(), snapshot, "a sound proposal was dropped", plan))
    return plan.more and bool(placed or plan.splits)


def _keep_promises(cluster_id: int, now: datetime) -> bool:
    """Start those that room is kept for, and nobody else, before the whole of a long queue is read. True: somebody
    started; the next pass is a whole one."""
    plan = make_plan(load_snapshot(cluster_id, about=0), now.timestamp())
    if not plan.placements:
        return False
    _long_queues.discard(cluster_id)
    started = {placement.run_id for placement in plan.placements}
    claims = {run_id: claim for run_id, claim in plan.claims.items() if run_id in started}
    apply_plan(cluster_id, Plan(placements=plan.placements, claims=claims), now)
    return True


def _plan(cluster_id: int, snapshot: Snapshot, now: float) -> Plan:
    began = time.thread_time()
    try:
        plan = make_plan(snapshot, now)
    except Exception as error:
        surprises.keep(cluster_id, Recording(now, snapshot, f"planning failed: {error!r}"))
        raise
    seconds = time.thread_time() - began
    if seconds > settings.SCHEDULER_SLOW_SECONDS:
        surprises.keep(cluster_id, Recording(now, snapshot, f"planning took {seconds:.1f} s", plan))
    return plan
