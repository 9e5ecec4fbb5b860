"""One pass of a cluster's scheduler: lock, load, plan, apply."""

from datetime import datetime


def run_once(cluster_id: int, now: datetime) -> bool:
    """Run one pass unless another holds the cluster's lock. True: the pass stopped at its bound, run another."""
    raise NotImplementedError
