"""The documents of the JSON API about runs and workers: their shapes, and how they are made from rows.

They are plain dictionaries: on the way in a run is validated once, on the way out nothing is. Times are UTC with six
decimals and `Z`. Sizes are bytes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from astraconsole.histories import Moved
from astraconsole.json_bodies import moment
from machines.protocol import LOG_TAIL_BYTES
from runs.debugging_documents import ReceiptDocument
from runs.log_text import plain_text
from runs.state_machine import is_ready

if TYPE_CHECKING:
    from machines.models import Gpu, Namespace
    from runs.models import Run, Worker
    from runs.scheduling.dry_run import DryRun
    from runs.scheduling.pending import Pending


class RunMetadata(TypedDict):
    name: str
    uid: str
    created_at: str
    created_by: str | None
    cluster: str
    workspace: str
    labels: dict[str, str]
    deleted_at: NotRequired[str]  # in lists with `deleted` alone


class MachinesRefusing(TypedDict):
    """Machines with one reason against the run's first waiting worker; `machines` names the first of `count`."""

    code: str
    reason: str
    numbers: dict[str, Any]
    count: int
    machines: list[str]


class QuotaInUse(TypedDict):
    used: int
    limit: int | None


class WouldStart(TypedDict):
    """A small change of the run, and what would come of it."""

    change: str
    outcome: str


class PendingDocument(TypedDict):
    """Why a run waits. A list has only `code` and `numbers`; no other run is ever named.

    `ahead`: runs that are looked at before it. `starts_by`: at the latest, if all use their limits. `would_start`:
    changes with which it would start."""

    code: str
    numbers: dict[str, Any]
    ahead: NotRequired[int]
    starts_by: NotRequired[str | None]
    machines: NotRequired[list[MachinesRefusing]]
    quota: NotRequired[dict[str, QuotaInUse]]
    would_start: NotRequired[list[WouldStart]]


class RunStatus(TypedDict):
    state: str
    reason: str
    pending: NotRequired[PendingDocument]  # while it waits
    started_at: str | None
    ended_at: str | None
    restarts: int
    preemptions: int  # how often it gave way to work of higher priority


class RunSummary(TypedDict):
    """A run in a list. Of its code, `spec.code` holds the digest and the size."""

    metadata: RunMetadata
    spec: dict[str, Any]
    status: RunStatus
    task_counts: dict[str, int]


class RunDocument(RunSummary):
    """`receipt`: of a run that has ended."""

    history: list[Moved]
    task_names: list[str]
    receipt: NotRequired[ReceiptDocument]


class PlannedWorker(TypedDict):
    """With `node_fraction` the other amounts are those of its machine, and null."""

    name: str
    gpus: int
    cpu_cores: float | None
    memory_bytes: int | None
    node_fraction: float | None


class ForecastDocument(TypedDict):
    """`starts`: at_once | later | never, as the cluster is now; `text` says why, and when."""

    starts: str
    text: str


class DryRunDocument(TypedDict):
    """What submitting would create; nothing was. `spec` without `code`, defaults left out."""

    dry_run: bool
    metadata: dict[str, Any]
    spec: dict[str, Any]
    workers: list[PlannedWorker]
    forecast: ForecastDocument


class WorkerMetadata(TypedDict):
    name: str
    job: str
    rank: int
    group: str


class WorkerStatus(TypedDict):
    state: str
    reason: str


class LastFailure(TypedDict):
    reason: str
    failed_at: str
    exit_code: int | None
    log_tail: str


class ImageUsed(TypedDict):
    """The image in full, and the digest of what ran; null before it ran, and on machines that use no images."""

    reference: str
    digest: str | None


class Placed(TypedDict):
    machine: str
    gpu_ids: list[int]
    gpu_uuids: list[str]


class WorkerSummary(TypedDict):
    """A worker in a list. `placement` is null before the first placement. `ready`: it runs, its readiness probe (if it
    has one) succeeds, and nobody stops it. `metrics` holds what it uses now: of a GPU metric the mean (0–1) or the sum
    (bytes) over its GPUs; empty while nothing is known."""

    metadata: WorkerMetadata
    status: WorkerStatus
    ready: bool
    image: ImageUsed
    exit_code: int | None
    restarts: int
    restart_at: str | None
    last_failure: LastFailure | None
    placement: Placed | None
    metrics: dict[str, float]


class WorkerDocument(WorkerSummary):
    history: list[Moved]


class RunList(TypedDict):
    """`next` goes into `after` for the following page; null at the end."""

    items: list[RunSummary]
    next: str | None


class WorkerList(TypedDict):
    items: list[WorkerSummary]
    next: str | None


class Quota(TypedDict):
    """Null is no limit."""

    gpus: int | None
    cpu_cores: float | None
    memory_bytes: int | None
    runs: int | None


class ClusterDocument(TypedDict):
    """A cluster as the workspace may use it. No pools means every pool."""

    name: str
    quota: Quota
    weight: float
    max_priority: int
    pools: list[str]


class ClusterList(TypedDict):
    items: list[ClusterDocument]
    next: None


def run_summary(run: "Run", counts: Mapping[str, int]) -> dict[str, Any]:
    """What a list and a document share. The run's `namespace` (cluster, workspace) and `created_by` are loaded.

    `counts`: of its workers, by state.
    """
    return {
        "metadata": {
            "name": run.name,
            "uid": str(run.uid),
            "created_at": moment(run.created_at),
            "created_by": run.created_by.username if run.created_by else None,
            "cluster": run.namespace.cluster.slug,
            "workspace": run.namespace.workspace.slug,
            "labels": run.labels,
            **({"deleted_at": moment(run.deleted_at)} if run.deleted_at else {}),
        },
        "spec": run.spec,
        "status": _status(run),
        "task_counts": dict(counts),
    }


def _status(run: "Run") -> dict[str, Any]:
    status = {
        "state": run.state,
        "reason": run.status_reason,
        "started_at": moment(run.started_at),
        "ended_at": moment(run.ended_at),
        "restarts": run.restarts,
        "preemptions": run.preemptions,
    }
    if run.pending_code:
        status["pending"] = {"code": run.pending_code, "numbers": run.pending_numbers}
    return status


def pending_document(details: "Pending") -> PendingDocument:
    starts_by = details["starts_by"]
    return {
        "code": details["code"],
        "numbers": details["numbers"],
        "ahead": details["ahead"],
        "starts_by": moment(datetime.fromtimestamp(starts_by, UTC)) if starts_by is not None else None,
        "machines": [MachinesRefusing(**group) for group in details["machines"]],
        "quota": {name: QuotaInUse(**use) for name, use in details["quota"].items()},
        "would_start": [WouldStart(change=one["label"], outcome=one["outcome"]) for one in details["would_start"]],
    }


def run_document(run: "Run", history: list[dict[str, Any]], workers: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """A RunDocument. `history`: each a Moved. `workers`: the name and the state of each, by rank."""
    summary = run_summary(run, Counter(state for _, state in workers))
    return {**summary, "history": history, "task_names": [name for name, _ in workers]}


def worker_summary(
    worker: "Worker", job: str, image: str, gpus: Iterable["Gpu"], metrics: Mapping[str, float]
) -> dict[str, Any]:
    """A WorkerSummary. `image`: its reference in full. `gpus`: those of its machine. `metrics`: its newest values."""
    return {
        "metadata": {"name": worker.name, "job": job, "rank": worker.rank, "group": worker.group},
        "status": {"state": worker.state, "reason": worker.reason},
        "ready": is_ready(worker.state, worker.reason),
        "image": {"reference": image, "digest": worker.newest.image_digest or None if worker.newest else None},
        "exit_code": worker.exit_code,
        "restarts": worker.restarts,
        "restart_at": moment(worker.restart_at),
        "last_failure": _failure(worker.last_failure),
        "placement": _placement(worker, gpus),
        "metrics": dict(metrics),
    }


def _failure(stored: dict[str, Any] | None) -> dict[str, Any] | None:
    """In the order of its fields: the database keeps an order of its own. The output without terminal codes."""
    if stored is None:
        return None
    tail = plain_text(stored["log_tail"]).encode()[-LOG_TAIL_BYTES:].decode(errors="ignore")
    return {name: stored[name] for name in LastFailure.__annotations__} | {"log_tail": tail}


def _placement(worker: "Worker", gpus: Iterable["Gpu"]) -> dict[str, Any] | None:
    attempt = worker.newest
    if attempt is None:
        return None
    uuids = {gpu.index: gpu.uuid for gpu in gpus}
    return {
        "machine": attempt.machine.name,
        "gpu_ids": list(attempt.gpu_indexes),
        "gpu_uuids": [uuids[index] for index in attempt.gpu_indexes if index in uuids],
    }


def cluster_document(namespace: "Namespace") -> dict[str, Any]:
    """A ClusterDocument. The namespace's `cluster` is loaded."""
    cpu_milli = namespace.quota_cpu_milli
    return {
        "name": namespace.cluster.slug,
        "quota": {
            "gpus": namespace.quota_gpus,
            "cpu_cores": None if cpu_milli is None else cpu_milli / 1000,
            "memory_bytes": namespace.quota_memory_bytes,
            "runs": namespace.quota_runs,
        },
        "weight": namespace.weight,
        "max_priority": namespace.max_priority,
        "pools": namespace.pools,
    }


def dry_run_document(tried: "DryRun") -> DryRunDocument:
    request, outlook = tried.request, tried.outlook
    return {
        "dry_run": True,
        "metadata": {"name": request.metadata.name, "labels": request.metadata.labels},
        "spec": {name: value for name, value in request.spec.stored().items() if name != "code"},
        "workers": [
            {
                "name": shape.name,
                "gpus": shape.gpus,
                "cpu_cores": None if shape.node_fraction else shape.cpu_milli / 1000,
                "memory_bytes": None if shape.node_fraction else shape.memory_bytes,
                "node_fraction": shape.node_fraction,
            }
            for shape in tried.workers
        ],
        "forecast": {
            "starts": "never" if outlook.never else "later" if outlook.waits else "at_once",
            "text": outlook.text,
        },
    }


def created(run: "Run") -> dict[str, Any]:
    """The Moved that submitting wrote, without reading it again: all that a new run's history holds."""
    actor = run.created_by.username if run.created_by else ""
    return {"transition_at": moment(run.created_at), "state": run.state, "reason": run.reason, "actor": actor}
