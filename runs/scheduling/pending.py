"""Why one run waits, in full, worked out when somebody reads it: for its page and the API's `status.pending`.

Counts only: no other run is ever named.
"""

from typing import TypedDict

from django.db import connection

from runs.models import Run
from runs.scheduling.explain import machine_sentence, sentence
from runs.scheduling.feasible import refusals_by_machine
from runs.scheduling.ledger import Ledger
from runs.scheduling.load import load_snapshot
from runs.scheduling.load_sql import AHEAD
from runs.scheduling.ordering import Shares
from runs.scheduling.types import NamespaceView, Numbers, Snapshot

MACHINES_NAMED = 20  # of a group; the rest are counted


class MachineRefusals(TypedDict):
    """Machines with one reason. `machines`: the first names; `count`: how many in all."""

    code: str
    reason: str
    numbers: Numbers
    count: int
    machines: list[str]


class QuotaUse(TypedDict):
    used: int
    limit: int | None


class Pending(TypedDict):
    """`ahead`: runs that wait for room and are looked at before this one. `starts_by`: Unix seconds, where known."""

    code: str
    reason: str
    numbers: Numbers
    ahead: int
    starts_by: int | None
    machines: list[MachineRefusals]
    quota: dict[str, QuotaUse]


def pending_details(run: Run) -> Pending | None:
    """None where nothing of the run waits, or no pass has looked at it yet. Three queries."""
    if not run.pending_code:
        return None
    cluster_id = run.namespace.cluster_id
    snapshot = load_snapshot(cluster_id, run.id)
    shares = Shares(snapshot.machines, snapshot.namespaces, snapshot.holds)
    numbers: Numbers = dict(run.pending_numbers)
    ahead = _ahead(run, cluster_id, shares)
    if run.pending_code == "queued":
        numbers["ahead"] = max(1, ahead)
    starts_by = numbers.get("starts_by")
    return Pending(
        code=run.pending_code,
        reason=sentence(run.pending_code, numbers),
        numbers=numbers,
        ahead=ahead,
        starts_by=int(starts_by) if isinstance(starts_by, int | float) else None,
        machines=_machines(snapshot),
        quota=_quota(shares, shares.namespaces[run.namespace_id]),
    )


def _machines(snapshot: Snapshot) -> list[MachineRefusals]:
    """What each machine says to the run's first waiting worker."""
    workers = [worker for run in snapshot.waiting for worker in run.workers[:1]]
    if not workers:
        return []
    groups = refusals_by_machine(Ledger(snapshot.machines, snapshot.holds), workers[0].ask)
    return [
        MachineRefusals(
            code=group.code,
            reason=machine_sentence(group.code, group.numbers),
            numbers=group.numbers,
            count=len(group.machines),
            machines=list(group.machines[:MACHINES_NAMED]),
        )
        for group in groups
    ]


def _quota(shares: Shares, namespace: NamespaceView) -> dict[str, QuotaUse]:
    use = shares.use[namespace.id]
    return {
        "gpus": QuotaUse(used=use.gpus, limit=namespace.quota_gpus),
        "cpu_milli": QuotaUse(used=use.cpu_milli, limit=namespace.quota_cpu_milli),
        "memory_bytes": QuotaUse(used=use.memory_bytes, limit=namespace.quota_memory_bytes),
        "runs": QuotaUse(used=len(use.runs), limit=namespace.quota_runs),
    }


def _ahead(run: Run, cluster_id: int, shares: Shares) -> int:
    """Runs of higher priority; of the same, those of namespaces with a smaller share, and older ones of its own."""
    with connection.cursor() as cursor:
        cursor.execute(
            AHEAD, {"cluster": cluster_id, "run": run.id, "priority": run.priority, "queued_at": run.queued_at}
        )
        counted = cursor.fetchall()
    mine = shares.share(run.namespace_id)
    ahead = 0
    for namespace_id, higher, equal, older in counted:
        theirs = shares.share(namespace_id)
        ahead += higher + (equal if theirs < mine else older if theirs == mine else 0)
    return ahead
