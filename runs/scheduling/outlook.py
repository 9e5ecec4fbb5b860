"""What would become of a run that is not there yet: told in the form, before anybody starts it."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from machines.models import Namespace
from runs.scheduling.explain import is_for_good, sentence
from runs.scheduling.forecast import at_once, later, never, starts_by
from runs.scheduling.load import load_snapshot
from runs.scheduling.ordering import Shares
from runs.scheduling.pending import ESTIMATED_AHEAD, queue_around
from runs.scheduling.planner import rehearse
from runs.scheduling.shapes import waiting_run
from runs.scheduling.types import Refusal, Snapshot, WaitingRun, WorkerShape
from runs.spec import RunSpec


class Outlook(NamedTuple):
    """`waits`: it would not start at once; `never`: at no time, as it is."""

    text: str
    waits: bool = False
    never: bool = False


def outlook(namespace: Namespace, spec: RunSpec, planned: Sequence[WorkerShape] | Refusal, now: datetime) -> Outlook:
    """`planned`: its workers, or why there are none. One query where it would start at once, else at most three."""
    if isinstance(planned, Refusal):
        return Outlook(never(planned), never=True)
    snapshot = load_snapshot(namespace.cluster_id, about=0)
    run = waiting_run(spec, planned, namespace.id, namespace.pools, now.timestamp())
    (rehearsed,) = rehearse(_joined(snapshot, run), now.timestamp(), [run])
    refusal = rehearsed.refusal
    if refusal is None or rehearsed.placements:
        names = {machine.id: machine.name for machine in snapshot.machines}
        return Outlook(at_once(rehearsed.placements, names, len(run.workers) if refusal else 0))
    if is_for_good(refusal.code):
        return Outlook(never(refusal), never=True)
    if refusal.code == "preempting":
        return Outlook("starts as soon as work of lower priority has stopped", waits=True)
    if refusal.code != "queued":
        return Outlook(sentence(refusal.code, refusal.numbers), waits=True)
    return Outlook(_later(namespace, snapshot, run, now), waits=True)


def _later(namespace: Namespace, snapshot: Snapshot, run: WaitingRun, now: datetime) -> str:
    shares = Shares(snapshot.machines, snapshot.namespaces, snapshot.holds)
    ahead, _ = queue_around(namespace.cluster_id, shares, namespace.id, run.priority, now)
    if ahead > ESTIMATED_AHEAD:
        return f"waits behind {ahead} runs"
    queue = load_snapshot(namespace.cluster_id, about=0, from_priority=run.priority)
    at = starts_by(_joined(queue, run), now.timestamp(), run.id)
    away = any(machine.ready and not machine.connected for machine in queue.machines)
    return later(None if at is None else at - now.timestamp(), ahead, away)


def _joined(snapshot: Snapshot, run: WaitingRun) -> Snapshot:
    return msgspec.structs.replace(snapshot, waiting=(*snapshot.waiting, run))
