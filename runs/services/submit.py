"""Submit: one door for the console, the CLI and the API."""

import uuid
from collections.abc import Sequence
from datetime import datetime

from django.db import IntegrityError

from astraconsole import events
from astraconsole.errors import JobAlreadyExists, NotFound, PriorityNotAllowed
from astraconsole.sql import fetch
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from machines.models import Cluster, Namespace
from runs.models import Run, Stem
from runs.scheduling.explain import is_for_good
from runs.scheduling.load import load_inventory
from runs.scheduling.planner import make_plan
from runs.scheduling.shapes import ask_of, plan_workers
from runs.scheduling.types import (
    MachineView,
    NamespaceView,
    Refusal,
    Snapshot,
    WaitingRun,
    WaitingWorker,
    WorkerShape,
)
from runs.services import codes, engines, writes
from runs.spec import RunRequest, RunSpec
from runs.state_machine import CREATED


def submit_run(access: Access, cluster_slug: str, request: RunRequest, now: datetime) -> Run:
    """Accept a run as Pending, with its workers where they can be planned. One that could never run on the cluster as
    it is says so at once in `status_reason`, and waits all the same: machines may join.

    Raises Forbidden, NotFound (no such cluster for the workspace), PriorityNotAllowed, JobAlreadyExists,
    ValidationError (code that is not there; no engine).
    """
    namespace = admit(access, cluster_slug, request)
    inventory = load_inventory(namespace.cluster_id)
    planned = plan_workers(request.spec, request.metadata.name, inventory, namespace.pools)
    shapes: Sequence[WorkerShape] = [] if isinstance(planned, Refusal) else planned
    refusal = planned if isinstance(planned, Refusal) else never(request.spec, shapes, inventory, namespace.pools)
    spec, code_id = codes.keep(access, request.spec, now)
    run = _new_run(access, namespace, request, spec, refusal, now)
    run.code_id = code_id
    _insert(run, request.spec.stems(run.name), shapes, access.actor)
    return run


def admit(access: Access, cluster_slug: str, request: RunRequest) -> Namespace:
    """Where the run would be, if this person may submit it there.

    Raises Forbidden, NotFound, PriorityNotAllowed, ValidationError (no engine to serve its model).
    """
    access.require(Action.WRITE)
    namespace = _namespace(access, cluster_slug)
    engines.refuse_unserved(request.spec)
    if request.spec.priority > namespace.max_priority:
        raise PriorityNotAllowed(
            f"priority {request.spec.priority} is above namespace {namespace}'s maximum of {namespace.max_priority}"
        )
    return namespace


# Raw, since this is on the path of every submit: the ORM takes longer to word this query than PostgreSQL to answer it.
_NAMESPACE = """
SELECT n.id, n.cluster_id, n.max_priority, n.pools
FROM machines_namespace n JOIN machines_cluster c ON c.id = n.cluster_id WHERE n.workspace_id = %s AND c.slug = %s
"""


def _namespace(access: Access, cluster_slug: str) -> Namespace:
    """What submitting asks of it: not its quota; and of the cluster its name alone."""
    found = fetch(_NAMESPACE, [access.workspace.pk, cluster_slug.replace("\0", "")])
    if not found:
        raise NotFound(f"the workspace has no cluster {cluster_slug}")
    id, cluster_id, max_priority, pools = found[0]
    cluster = Cluster(id=cluster_id, slug=cluster_slug)
    return Namespace(id=id, workspace=access.workspace, cluster=cluster, max_priority=max_priority, pools=pools)


def never(
    spec: RunSpec, shapes: Sequence[WorkerShape], inventory: Sequence[MachineView], pools: Sequence[str]
) -> Refusal | None:
    """Why the run could not run even if the cluster were empty: the scheduler's own answer, on a rehearsal."""
    distinct = spec.machines is not None
    asks = [ask_of(spec, shape, pools) for shape in shapes]
    workers = [WaitingWorker(number, ask) for number, ask in enumerate(asks if distinct else dict.fromkeys(asks))]
    alone = WaitingRun(id=0, namespace_id=0, queued_at=0, workers=tuple(workers), distinct_machines=distinct)
    snapshot = Snapshot(machines=tuple(inventory), namespaces=(NamespaceView(id=0),), waiting=(alone,))
    refusal = make_plan(snapshot, 0).refusals.get(0)
    return refusal if refusal is not None and is_for_good(refusal.code) else None


def _new_run(
    access: Access, namespace: Namespace, request: RunRequest, spec: RunSpec, refusal: Refusal | None, now: datetime
) -> Run:
    return Run(
        uid=uuid.uuid4(),
        namespace=namespace,
        workspace=access.workspace,
        name=request.metadata.name,
        labels=request.metadata.labels,
        spec=spec.stored(),
        priority=spec.priority,
        gpus=spec.gpus,
        gang=spec.effective_start == "Gang",
        on_failure=spec.effective_on_failure,
        created_by=access.user,
        created_at=now,
        changed_at=now,
        queued_at=now,
        reason=CREATED,
        pending_code=refusal.code if refusal else "",
        pending_numbers=refusal.numbers if refusal else {},
    )


def refuse_taken_names(namespace: Namespace, name: str, stems: Sequence[str]) -> None:
    """Raises JobAlreadyExists where a run of this name, with workers named like this, could not be submitted now."""
    if Stem.objects.filter(namespace=namespace.pk, stem__in=stems).exists():
        raise _clash(namespace, name, stems)


def _insert(run: Run, stems: Sequence[str], shapes: Sequence[WorkerShape], actor: str) -> None:
    try:
        run.id = writes.insert_run(run, stems, shapes, actor)
    except IntegrityError:
        raise _clash(run.namespace, run.name, stems) from None
    if run.id is None:
        raise _same_name(run.namespace, run.name)
    events.wake("schedule", run.namespace.cluster_id)
    events.runs_changed(run.workspace_id, [run.uid])


def _same_name(namespace: Namespace, name: str) -> JobAlreadyExists:
    return JobAlreadyExists(f"a run named {name} already exists on {namespace.cluster}: delete it or pick another name")


def _clash(namespace: Namespace, name: str, stems: Sequence[str]) -> JobAlreadyExists:
    """Workers' names are stems and ranks, so two runs' can only be equal where their stems are."""
    taken = Stem.objects.filter(namespace=namespace.pk, stem__in=stems).select_related("run").order_by("stem")
    found = taken.first()
    if found is None:
        return JobAlreadyExists(f"the run's names were another's until just now: submit {name} again")
    owner = found.run.name
    if found.stem == owner == name:
        return _same_name(namespace, name)
    whose = "a run of that name" if found.stem == owner else f"the run {owner}, whose workers are called {found.stem}-…"
    return JobAlreadyExists(f"the name {found.stem} is taken by {whose}: pick another name for the run or its group")
