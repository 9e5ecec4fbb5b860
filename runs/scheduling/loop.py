"""One pass of a cluster's scheduler: lock, load, plan, apply."""

from datetime import datetime

from django.db import transaction

from runs.scheduling.apply import apply_plan, try_lock
from runs.scheduling.load import load_snapshot
from runs.scheduling.planner import make_plan


def run_once(cluster_id: int, now: datetime) -> bool:
    """Run one pass, unless another holds the cluster's lock: then leave, since the holder will see the wake that led
    here. True: the pass stopped at its bound and did something; run another at once."""
    with transaction.atomic():
        if not try_lock(cluster_id):
            return False
        snapshot = load_snapshot(cluster_id)
        if not snapshot.waiting:
            return False
        plan = make_plan(snapshot, now.timestamp())
        placed = apply_plan(cluster_id, plan, now)
    return plan.more and bool(placed or plan.splits)
