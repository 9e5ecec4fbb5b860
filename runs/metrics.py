"""The workers' metrics by the names of now: which attempts a question is about, and who may ask."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from astraconsole.tenancy.queries import Access
from machines.metrics import engine, lane, store
from machines.metrics.names import METRICS, Metric, series_of
from machines.metrics.query import MAX_ATTEMPTS, Ask, Labels, Matches, query
from machines.models import Gpu
from runs.models import Attempt, Run, Worker
from runs.queries import get_namespace

log = logging.getLogger(__name__)
COLUMNS = ("uid", "worker__run__name", "worker__name", "number", "machine__name")


def answer_range(access: Access, cluster: str, ask: Ask) -> dict[str, Any]:
    """The answer of `metrics/range`: of the workspace's own workers on this cluster, deleted runs left out.

    Raises NotFound, ValidationError, Unavailable."""
    return query(ask, _matched(access, cluster, ask))


def _matched(access: Access, cluster: str, ask: Ask) -> dict[UUID, Labels]:
    namespace = get_namespace(access, cluster)
    start, end = (datetime.fromtimestamp(at, UTC) for at in (ask.start, ask.end))
    present = Attempt.objects.filter(Q(ended_at=None) | Q(ended_at__gte=start), placed_at__lt=end)
    found = present.filter(worker__namespace=namespace, worker__deleted=False, worker__run__deleted_at=None)
    found = found.filter(_names(ask.matches))
    limited = found.values_list(*COLUMNS).order_by("worker__run_id", "worker__rank", "number")[: MAX_ATTEMPTS + 1]
    return {
        uid: {"job": job, "task": task, "attempt": str(number), "machine": machine}
        for uid, job, task, number, machine in limited
    }


def _names(matches: Matches) -> Q:
    wanted = Q()
    for label, values in matches.items():
        match label:
            case "job":
                wanted &= Q(worker__run__name__in=values)
            case "task":
                wanted &= Q(worker__name__in=values)
            case "machine":
                wanted &= Q(machine__name__in=values)
            case "attempt":
                wanted &= Q(number__in=[int(value) for value in values if value.isdecimal() and len(value) < 10])
    return wanted


# ---- taking in -------------------------------------------------------------------------------------------------------


def machines_of(attempts: Collection[UUID]) -> dict[UUID, int]:
    """Where each was placed: only that machine may speak for it. Deleted runs' attempts are left out."""
    found = Attempt.objects.filter(uid__in=attempts, worker__run__deleted_at=None)
    return dict(found.values_list("uid", "machine_id"))


def take_in(cluster_id: int) -> int:
    """Store what machines have sent since; returns how many entries of the lane are done with. Where the engine at
    METRICS_URL is away, what it was not given yet waits in the lane."""
    return lane.drain(cluster_id, _keep)


def _keep(frames: Sequence[lane.Frame]) -> bool:
    blocks = store.blocks_of(frames, machines_of)
    store.write(blocks)
    store.write_gpu_use(frames)
    try:
        if settings.METRICS_URL:
            engine.write(blocks)
    except engine.EngineAway as error:
        log.warning("The metrics engine does not take samples; they wait for it: %s", error)
        return False
    return True


# ---- the newest ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Using:
    """What workers use now, in all; None: not known. Ratios 0 to 1."""

    gpu_ratio: float | None
    cores: float | None
    memory_bytes: float | None


def latest(workers: Iterable[Worker]) -> dict[int, dict[str, float]]:
    """By worker id, the newest value of each metric: of a GPU metric the mean (0–1) or the sum (bytes) over its GPUs.
    Workers of which nothing fresh is known are left out. One query, or none."""
    attempts = {worker.newest.uid: worker.pk for worker in workers if worker.newest and not worker.newest.ended_at}
    found = store.latest(list(attempts), timezone.now())
    return {attempts[uid]: _by_name(values) for uid, values in found.items()}


def _by_name(values: Mapping[int, float]) -> dict[str, float]:
    each: dict[Metric, list[float]] = {}
    for key, value in values.items():
        if (series := series_of(key)) is not None:
            each.setdefault(series[0], []).append(value)
    return {metric.name: _together(metric, each[metric]) for metric in METRICS if metric in each}


def _together(metric: Metric, values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if metric.unit == "0–1" else sum(values)


def using_now(run_id: int) -> Using | None:
    """What a run's live workers use together; None: nothing is known just now. Two queries."""
    live = Attempt.objects.filter(worker__run=run_id, ended_at=None, superseded_at=None)
    found = store.latest(list(live.values_list("uid", flat=True)), timezone.now())
    if not found:
        return None
    sums: dict[str, list[float]] = {}
    for values in found.values():
        for key, value in values.items():
            if (series := series_of(key)) is not None:
                sums.setdefault(series[0].name, []).append(value)
    busy = sums.get("task_gpu_utilization_ratio")
    return Using(
        gpu_ratio=sum(busy) / len(busy) if busy else None,
        cores=_sum(sums.get("task_cpu_usage_cores")),
        memory_bytes=_sum(sums.get("task_memory_used_bytes")),
    )


def _sum(values: Sequence[float] | None) -> float | None:
    return sum(values) if values else None


# ---- whose charts ----------------------------------------------------------------------------------------------------


def attempts_drawn(run: Run, workers: int) -> list[Attempt]:
    """Of a run's first workers, by rank, oldest first; with worker and machine. One query."""
    found = Attempt.objects.filter(worker__run=run, worker__rank__lt=workers).select_related("worker", "machine")
    return list(found.order_by("worker__rank", "number")[:MAX_ATTEMPTS])


def attempts_of_worker(worker: Worker) -> list[Attempt]:
    """Oldest first; with worker and machine. One query."""
    found = Attempt.objects.filter(worker=worker).select_related("worker", "machine").order_by("-number")
    return list(found[:MAX_ATTEMPTS])[::-1]


def is_simulated(attempts: Sequence[Attempt]) -> bool:
    """Whether what is told of them is made up, in whole or for their GPUs. One query, or none."""
    if any(attempt.machine.runtime == "simulated" for attempt in attempts):
        return True
    held = {attempt.machine_id for attempt in attempts if attempt.gpu_indexes}
    return bool(held) and Gpu.objects.filter(machine__in=held, simulated=True).exists()
