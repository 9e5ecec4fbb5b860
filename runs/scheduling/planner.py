"""make_plan: the whole decision of one pass, from a snapshot and the time. Pure."""

from runs.scheduling.types import Plan, Snapshot


def make_plan(snapshot: Snapshot, now: float) -> Plan:
    """Who goes where, and why everybody else waits. `now`: Unix seconds. Equal snapshots give equal plans."""
    raise NotImplementedError
