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


def run_once(cluster_id: int, now: datetime) -> bool:
    """Run one pass, unless another holds the cluster's lock: then leave, since the holder will see the wake that led
    here. True: the pass stopped at its bound and did something; run another at once."""
    with transaction.atomic():
        if not try_lock(cluster_id):
            return False
        snapshot = load_snapshot(cluster_id)
        if not snapshot.waiting:
            return False
        plan = _plan(cluster_id, snapshot, now.timestamp())
        placed = apply_plan(cluster_id, plan, now)
        if surprises.dropped_without_cause(cluster_id, snapshot, plan, placed):
            surprises.keep(cluster_id, Recording(now.timestamp(), snapshot, "a sound proposal was dropped", plan))
    return plan.more and bool(placed or plan.splits)


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
