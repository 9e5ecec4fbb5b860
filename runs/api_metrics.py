"""The JSON API of metrics and GPUs."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Router
from typing_extensions import TypedDict

from astraconsole.json_bodies import json_response
from astraconsole.tenancy.api_access import CLUSTER, access_of
from machines import queries as machine_queries
from machines.metrics.align import Agg
from machines.metrics.names import BY_NAME
from machines.metrics.query import DEFAULT_SECONDS, LABELS, PARAMETERS, parse
from runs.gpus import SeenGpu, gpus_for
from runs.metrics import answer_range

router = Router()


class Series(TypedDict):
    """`points`: [milliseconds, value], each named by the start of its step; null where nothing is known."""

    labels: dict[str, str]
    points: list[tuple[float, float | None]]


class Range(TypedDict):
    """`unit` is that of the values: with `rate`, per second. `step`: seconds, not finer than what is kept."""

    metric: str
    kind: str
    unit: str
    start: float
    end: float
    step: float
    series: list[Series]


class SeenGpuDocument(TypedDict):
    """`held_by` is null for a free GPU, `another workspace's run` for one that this workspace may not name.
    `utilization` (0–1), `memory_used_bytes` and `processes` are null where the machine has not said so lately.
    `unused`: why a GPU that is held is worth a look; empty: it is not."""

    machine: str
    index: int
    uuid: str
    model: str
    memory_bytes: int
    utilization: float | None
    memory_used_bytes: int | None
    processes: int | None
    health: str
    held_by: str | None
    worker: str | None
    unused: str
    simulated: bool


class GpuList(TypedDict):
    items: list[SeenGpuDocument]
    next: None


def _range_parameters() -> dict[str, Any]:
    """For the documentation; what reads them is `machines.metrics.query.parse`."""
    text, number = {"type": "string"}, {"type": "number"}
    told = {
        "metric": ({**text, "enum": list(BY_NAME)}, "required: a metric's name"),
        "match": ({"type": "array", "items": text}, f"label:value, repeatable; labels: {', '.join(LABELS)}"),
        "by": (text, "labels to keep, comma-separated; the rest are combined; one series without"),
        "agg": ({**text, "enum": list(Agg), "default": Agg.AVG}, "how series are combined"),
        "rate": ({"type": "boolean", "default": False}, "per-second rate of a counter (…_total)"),
        "start": (number, f"Unix seconds; {DEFAULT_SECONDS} s before the end without"),
        "end": (number, "Unix seconds; now without"),
        "step": (number, "seconds; automatic without"),
    }
    return {
        "parameters": [
            {"name": name, "in": "query", "required": name == "metric", "schema": schema, "description": description}
            for name, (schema, description) in told.items()
        ]
    }


@router.get(f"{CLUSTER}/metrics/range", response=Range, openapi_extra=_range_parameters(), tags=["Metrics"])
def get_range(request: HttpRequest, org: str, ws: str, cluster: str) -> HttpResponse:
    """A metric of the workspace's own workers over time."""
    access = access_of(request, org, ws, parameters=PARAMETERS)
    ask = parse(request.GET, timezone.now().timestamp())
    return json_response(answer_range(access, cluster, ask))


@router.get(f"{CLUSTER}/gpus", response=GpuList, tags=["Machines"])
def list_gpus(request: HttpRequest, org: str, ws: str, cluster: str) -> HttpResponse:
    """Every GPU of the cluster, by machine and index: what it does, how it is, and who holds it."""
    access = access_of(request, org, ws)
    found = gpus_for(access, machine_queries.get_cluster(access, cluster).slug, timezone.now())
    return json_response({"items": [gpu_document(gpu) for gpu in found], "next": None})


def gpu_document(seen: SeenGpu) -> dict[str, Any]:
    return {
        "machine": seen.machine.name,
        "index": seen.gpu.index,
        "uuid": seen.gpu.uuid,
        "model": seen.gpu.model,
        "memory_bytes": seen.gpu.memory_bytes,
        "utilization": seen.utilization,
        "memory_used_bytes": seen.memory_used,
        "processes": seen.processes,
        "health": seen.health,
        "held_by": seen.holder.name if seen.holder else None,
        "worker": seen.holder.worker or None if seen.holder else None,
        "unused": seen.unused,
        "simulated": seen.gpu.simulated,
    }
