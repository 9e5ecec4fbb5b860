"""The JSON API of runs ("jobs") and workers ("tasks"). Documents: `runs.api_documents`; the rules: services."""

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router, Schema
from pydantic import Field

from astraconsole.errors import ValidationError
from astraconsole.histories import moves
from astraconsole.json_bodies import json_response, read_json, read_reason, reason_body
from astraconsole.tenancy.api_access import CLUSTER, WORKSPACE, access_of
from astraconsole.tenancy.permissions import Action
from machines import queries as machine_queries
from machines.images import shown_reference
from machines.protocol import LOG_CHUNK_BYTES
from runs import comparing, metrics, queries, receipts
from runs.api_documents import (
    ClusterList,
    DryRunDocument,
    RunDocument,
    RunList,
    WorkerDocument,
    WorkerList,
    cluster_document,
    created,
    dry_run_document,
    pending_document,
    run_document,
    run_summary,
    worker_summary,
)
from runs.debugging_documents import DiffDocument
from runs.log_answers import (
    BYTES_MAX,
    BYTES_MIN,
    LINES_DEFAULT,
    LINES_MAX,
    read_slice,
    read_slice_of_tail,
    tail_text,
)
from runs.log_documents import Log, LogSlice, log_slice
from runs.names import WORKERS_MAX
from runs.scheduling.dry_run import dry_run
from runs.scheduling.pending import pending_details
from runs.services.deleting import delete_run
from runs.services.stopping import stop_run, stop_worker
from runs.services.submit import submit_run
from runs.spec import load_spec, parse_run, template_of

if TYPE_CHECKING:
    from runs.models import Run, Worker

LOG_PARAMETERS = ("tail", "attempt", "from", "limit", "encoding")

router = Router()


class RunFilters(Schema):
    state: str = Field("all", max_length=20, description="active, ended, all, or one state")
    name: str = Field("", max_length=200, description="a part of the name")
    search: str = Field("", max_length=200, description="a part of the name or the owner; a label: key or key=value")
    mine: bool = Field(False, description="only your own")
    deleted: bool = Field(False, description="deleted runs too")
    limit: int = Field(50, ge=1, le=queries.LIMIT_MAX)
    after: str | None = Field(None, max_length=200, description="`next` of the page before")


class WorkerFilters(Schema):
    job: str = Field(max_length=200, description="the run whose workers to list")
    limit: int = Field(1000, ge=1, le=WORKERS_MAX)
    after: int = Field(-1, ge=-1, le=WORKERS_MAX, description="`next` of the page before")


class LogPlace(Schema):
    tail: int | None = Field(None, ge=1, le=LINES_MAX, description=f"lines from the end; {LINES_DEFAULT} by default")
    attempt: int | None = Field(None, ge=1, le=2**31 - 1, description="the newest by default")
    start: int | None = Field(
        None,
        alias="from",
        ge=-(2**62),
        le=2**62,
        description="a byte offset (below 0: from the end); answers a LogSlice",
    )
    limit: int | None = Field(None, ge=BYTES_MIN, le=BYTES_MAX, description="bytes at most; answers a LogSlice")
    encoding: Literal["text", "base64"] = Field("text", description="of a LogSlice")


def _run_body() -> dict[str, Any]:
    """The request body, for the documentation; what reads it is `runs.spec.parse_run`."""
    schema = {"$ref": "#/components/schemas/RunRequest"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


# ---- runs ------------------------------------------------------------------------------------------------------------


class Submitting(Schema):
    dry_run: bool = Field(False, description="check and plan the run, create nothing; answers a DryRunDocument")


def create_run(request: HttpRequest, org: str, ws: str, cluster: str, how: Query[Submitting]) -> HttpResponse:
    """Submit a run. The answer is the run as created."""
    access = access_of(request, org, ws, Action.WRITE, Submitting.model_fields)
    if how.dry_run:
        return json_response(dry_run_document(dry_run(access, cluster, parse_run(read_json(request)), timezone.now())))
    run = submit_run(access, cluster, parse_run(read_json(request)), timezone.now())
    return json_response(run_document(run, [created(run)], queries.names_and_states(run)), HTTPStatus.CREATED)


def list_runs(request: HttpRequest, org: str, ws: str, cluster: str, filters: Query[RunFilters]) -> HttpResponse:
    """Runs on this cluster, newest first."""
    return _run_list(request, org, ws, cluster, filters)


def list_workspace_runs(request: HttpRequest, org: str, ws: str, filters: Query[RunFilters]) -> HttpResponse:
    """Runs on all clusters, newest first."""
    return _run_list(request, org, ws, None, filters)


def _run_list(request: HttpRequest, org: str, ws: str, cluster: str | None, filters: RunFilters) -> HttpResponse:
    access = access_of(request, org, ws, parameters=RunFilters.model_fields)
    if cluster is not None:
        queries.get_namespace(access, cluster)  # a cluster that does not exist is not one without runs
    page = queries.list_runs(
        access,
        cluster=cluster,
        state=filters.state,
        name=filters.name,
        search=filters.search,
        mine=filters.mine,
        deleted=filters.deleted,
        after=filters.after,
        limit=filters.limit,
    )
    counts = queries.task_counts(page.items)
    items = [run_summary(run, counts.get(run.pk, {})) for run in page.items]
    return json_response({"items": items, "next": page.next})


def get_run(request: HttpRequest, org: str, ws: str, cluster: str, job: str) -> HttpResponse:
    """One run, with its history (oldest first), the names of its workers and, while it waits, why in full."""
    run = queries.get_run(access_of(request, org, ws), cluster, job)
    document = _run(run)
    if run.pending_code and (details := pending_details(run, timezone.now())) is not None:
        document["status"]["pending"] = pending_document(details)
    if (receipt := receipts.receipt_of(run, timezone.now())) is not None:
        document["receipt"] = receipt
    return json_response(document)


def _run(run: "Run") -> dict[str, Any]:
    return run_document(run, moves(queries.history_of_run(run)), queries.names_and_states(run))


def delete(request: HttpRequest, org: str, ws: str, cluster: str, job: str) -> HttpResponse:
    """Stop a run's workers and remove the run, its workers and their logs."""
    access = access_of(request, org, ws, Action.WRITE)
    delete_run(access, queries.get_run(access, cluster, job), timezone.now())
    return HttpResponse(status=HTTPStatus.NO_CONTENT)


def stop(request: HttpRequest, org: str, ws: str, cluster: str, job: str) -> HttpResponse:
    """Stop all workers of a run; its record and logs stay. The answer is the run."""
    access = access_of(request, org, ws, Action.WRITE)
    stop_run(access, queries.get_run(access, cluster, job), read_reason(request), timezone.now())
    return json_response(_run(queries.get_run(access, cluster, job)))


class Against(Schema):
    against: str = Field("", max_length=200, description="another run of the cluster; the last good one without")


def diff(request: HttpRequest, org: str, ws: str, cluster: str, job: str, other: Query[Against]) -> HttpResponse:
    """What differs from the last good run of the same schedule, name, series of names, or image and command."""
    access = access_of(request, org, ws, parameters=Against.model_fields)
    run = queries.get_run(access, cluster, job)
    return json_response(comparing.document(comparing.compare(access, run, other.against)))


def _serve_runs(name: str, in_schema: bool) -> None:
    runs, options = f"{CLUSTER}/{name}", {"include_in_schema": in_schema, "tags": ["Runs"]}
    router.post(runs, response={200: DryRunDocument, 201: RunDocument}, openapi_extra=_run_body(), **options)(
        create_run
    )
    router.get(runs, response=RunList, **options)(list_runs)
    router.get(f"{runs}/{{job}}", response=RunDocument, **options)(get_run)
    router.delete(f"{runs}/{{job}}", response={204: None}, **options)(delete)
    router.post(f"{runs}/{{job}}/stop", response=RunDocument, openapi_extra=reason_body(), **options)(stop)
    router.get(f"{runs}/{{job}}/diff", response=DiffDocument, **options)(diff)
    router.get(f"{WORKSPACE}/{name}", response=RunList, **options)(list_workspace_runs)


_serve_runs("jobs", in_schema=True)
_serve_runs("runs", in_schema=False)  # an alias


# ---- workers ---------------------------------------------------------------------------------------------------------


@router.get(f"{CLUSTER}/tasks", response=WorkerList, tags=["Workers"])
def list_workers(request: HttpRequest, org: str, ws: str, cluster: str, filters: Query[WorkerFilters]) -> HttpResponse:
    """A run's workers, by rank."""
    access = access_of(request, org, ws, parameters=WorkerFilters.model_fields)
    run = queries.get_run(access, cluster, filters.job)
    workers = queries.workers_of(run, filters.after, filters.limit + 1)
    more = len(workers) > filters.limit
    workers = workers[: filters.limit]
    return json_response({"items": _workers(run, workers), "next": str(workers[-1].rank) if more else None})


def _workers(run: "Run", workers: "list[Worker]") -> list[dict[str, Any]]:
    """Of one run."""
    spec = load_spec(run.spec)
    images = {group: shown_reference(template_of(spec, group).image) for group in {worker.group for worker in workers}}
    machines = {worker.newest.machine_id for worker in workers if worker.newest and worker.newest.gpu_indexes}
    gpus = machine_queries.gpus_of(machines)
    used = metrics.latest(workers)

    def summary(worker: "Worker") -> dict[str, Any]:
        its = gpus.get(worker.newest.machine_id, ()) if worker.newest else ()
        return worker_summary(worker, run.name, images[worker.group], its, used.get(worker.pk, {}))

    return [summary(worker) for worker in workers]


@router.get(f"{CLUSTER}/tasks/{{task}}", response=WorkerDocument, tags=["Workers"])
def get_worker(request: HttpRequest, org: str, ws: str, cluster: str, task: str) -> HttpResponse:
    """One worker, with its history (oldest first)."""
    return json_response(_worker(queries.get_worker(access_of(request, org, ws), cluster, task)))


def _worker(worker: "Worker") -> dict[str, Any]:
    return {**_workers(worker.run, [worker])[0], "history": moves(queries.history_of_worker(worker))}


@router.get(f"{CLUSTER}/tasks/{{task}}/logs", response=Log | LogSlice, tags=["Workers"])
def get_log(request: HttpRequest, org: str, ws: str, cluster: str, task: str, place: Query[LogPlace]) -> HttpResponse:
    """The end of a worker's output, cut to its last 900 KiB; with `from` or `limit` its bytes from a position on."""
    worker = queries.get_worker(access_of(request, org, ws, parameters=LOG_PARAMETERS), cluster, task)
    if place.start is None and place.limit is None:
        text, archived, cut = tail_text(worker, place.tail or LINES_DEFAULT, place.attempt)
        further = {**({"archived": True} if archived else {}), **({"cut": cut} if cut else {})}
        return json_response({"task_name": worker.name, "logs": text, **further})
    limit = place.limit or LOG_CHUNK_BYTES
    if place.tail is None:
        piece = read_slice(worker, place.attempt, place.start or 0, limit)
    elif place.start is None:
        piece = read_slice_of_tail(worker, place.attempt, place.tail, limit)
    else:
        rule = "cannot be given together with from"
        raise ValidationError(f"tail {rule}", [{"field": "tail", "rule": rule}])
    return json_response(log_slice(worker.name, piece, place.encoding))


@router.post(f"{CLUSTER}/tasks/{{task}}/stop", response=WorkerDocument, openapi_extra=reason_body(), tags=["Workers"])
def stop_one(request: HttpRequest, org: str, ws: str, cluster: str, task: str) -> HttpResponse:
    """Stop a worker: it ends Cancelled and is not restarted. The answer is the worker."""
    access = access_of(request, org, ws, Action.WRITE)
    stop_worker(access, queries.get_worker(access, cluster, task), read_reason(request), timezone.now())
    return json_response(_worker(queries.get_worker(access, cluster, task)))


# ---- the workspace ---------------------------------------------------------------------------------------------------


@router.get(f"{WORKSPACE}/clusters", response=ClusterList, tags=["Workspace"])
def list_clusters(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """The clusters that the workspace may use, and its share of each."""
    namespaces = queries.namespaces_for(access_of(request, org, ws))
    return json_response({"items": [cluster_document(namespace) for namespace in namespaces], "next": None})
