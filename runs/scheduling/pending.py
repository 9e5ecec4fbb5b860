"""Why one run waits, in full, worked out when somebody reads it: for its page and the API's `status.pending`.

Counts only: no other run is ever named.
"""

import math
from datetime import datetime
from typing import NamedTuple, TypedDict

from astraconsole.sql import fetch
from runs.models import Run
from runs.scheduling.changes import Question, changes_that_start
from runs.scheduling.explain import machine_sentence, sentence
from runs.scheduling.feasible import refusals_by_machine
from runs.scheduling.forecast import starts_by
from runs.scheduling.ledger import Ledger
from runs.scheduling.load import load_snapshot
from runs.scheduling.load_sql import AHEAD
from runs.scheduling.ordering import Shares
from runs.scheduling.types import NamespaceView, Numbers, Snapshot, WaitingRun

MACHINES_NAMED = 20  # of a group; the rest are counted
ESTIMATED_AHEAD = 100  # behind more runs nobody's guess is worth working out


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


class WouldStart(TypedDict):
    """A change of the run with which it would start. `key`: what `changes.changed` takes."""

    key: str
    label: str
    outcome: str


class Pending(TypedDict):
    """`ahead`: runs that wait for room and are looked at before this one. `starts_by`: Unix seconds, where known: the
    latest start, if all use their limits."""

    code: str
    reason: str
    numbers: Numbers
    ahead: int
    starts_by: int | None
    machines: list[MachineRefusals]
    quota: dict[str, QuotaUse]
    would_start: list[WouldStart]


def pending_details(run: Run, now: datetime) -> Pending | None:
    """None where nothing of the run waits, or no pass has looked at it yet. At most four queries."""
    if not run.pending_code:
        return None
    cluster_id = run.namespace.cluster_id
    snapshot = load_snapshot(cluster_id, run.id)
    shares = Shares(snapshot.machines, snapshot.namespaces, snapshot.holds)
    numbers: Numbers = dict(run.pending_numbers)
    ahead, others = queue_around(cluster_id, shares, run.namespace_id, run.priority, run.queued_at, run.id)
    if run.pending_code == "queued":
        numbers["ahead"] = max(1, ahead)
    waiting = next((one for one in snapshot.waiting if one.id == run.id), None)
    return Pending(
        code=run.pending_code,
        reason=sentence(run.pending_code, numbers),
        numbers=numbers,
        ahead=ahead,
        starts_by=_starts_by(run, cluster_id, ahead, now),
        machines=_machines(snapshot, waiting) if waiting else [],
        quota=_quota(shares, shares.namespaces[run.namespace_id]),
        would_start=_would_start(run, waiting, snapshot, others, now) if waiting else [],
    )


def _starts_by(run: Run, cluster_id: int, ahead: int, now: datetime) -> int | None:
    """Worked out where few are ahead; of the first in the queue as the last plan has it."""
    known = run.pending_numbers.get("starts_by")
    if known is not None:
        return int(known)
    if run.pending_code != "queued" or ahead > ESTIMATED_AHEAD:
        return None
    at = starts_by(load_snapshot(cluster_id, run.id, run.priority), now.timestamp(), run.id)
    return None if at is None else math.ceil(at / 60) * 60


def _would_start(run: Run, waiting: WaitingRun, snapshot: Snapshot, others: int, now: datetime) -> list[WouldStart]:
    """Only for runs of which nothing has started: nothing else can be submitted anew with changes. If the run is the
    first in the queue, the room kept for it goes to whoever comes next, so the queue behind it is loaded as well."""
    if run.pending_code == "preempting" or run.started_at is not None:
        return []
    if run.pending_code in ("next", "gang"):
        if others > ESTIMATED_AHEAD:
            return []
        snapshot = load_snapshot(run.namespace.cluster_id, run.id, run.priority)
    spec = {name: value for name, value in run.spec.items() if name != "code"}
    question = Question(waiting, run.name, spec, run.namespace.pools, snapshot, now.timestamp())
    return [WouldStart(**change._asdict()) for change in changes_that_start(question)]


def _machines(snapshot: Snapshot, waiting: WaitingRun) -> list[MachineRefusals]:
    """What each machine says to the run's first waiting worker."""
    if not waiting.workers:
        return []
    groups = refusals_by_machine(Ledger(snapshot.machines, snapshot.holds), waiting.workers[0].ask)
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


class Queue(NamedTuple):
    """ahead: how many wait for room and are looked at before a run; others: how many of at least its priority wait."""

    ahead: int
    others: int


def queue_around(
    cluster_id: int, shares: Shares, namespace_id: int, priority: int, queued_at: datetime, run_id: int = 0
) -> Queue:
    """Ahead are those of higher priority; of the same, those of namespaces with a smaller share, and older ones of its
    own. `run_id`: 0 for a run that is not there yet."""
    parameters = {"cluster": cluster_id, "run": run_id, "priority": priority, "queued_at": queued_at}
    mine = shares.share(namespace_id)
    ahead = others = 0
    for other_id, higher, equal, older in fetch(AHEAD, parameters):
        theirs = shares.share(other_id)
        ahead += higher + (equal if theirs < mine else older if theirs == mine else 0)
        others += higher + equal
    return Queue(ahead, others)
