"""The charts of the Metrics tabs: which there are, their series, and why one has none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings

from machines.metrics.align import Agg
from machines.metrics.names import BY_NAME, Kind
from machines.metrics.query import Ask, Labels, possible_step, query
from runs.models import Attempt, Run, Worker
from runs.state_machine import ENDED, RUN_ENDED

WORKERS_DRAWN = 32
RANGES = {"15m": 900, "1h": 3600, "6h": 6 * 3600, "24h": 86400, "7d": 7 * 86400}  # and `all`: while it ran
WHOLE = "all"
MARGIN_SECONDS = 20

ABOUT_GPUS = "No samples yet: this GPU's driver has told nothing"
HOPPER = "Not told: NVIDIA Hopper GPUs or later only"
NETWORK = "Not known: host processes and containers on the host's network share its traffic"


@dataclass(frozen=True)
class Chart:
    """`by`: what makes a line each. `limit`: a second metric, drawn as a bound."""

    title: str
    metric: str
    by: str
    agg: Agg = Agg.AVG
    limit: str = ""
    empty: str = ""

    @property
    def of_gpus(self) -> bool:
        return BY_NAME[self.metric].per_gpu


RUN_CHARTS = (
    Chart("CPU", "task_cpu_usage_cores", "task", Agg.SUM),
    Chart("Memory", "task_memory_used_bytes", "task", Agg.MAX),
    Chart("GPU utilisation", "task_gpu_utilization_ratio", "task", empty=ABOUT_GPUS),
    Chart("GPU memory", "task_gpu_memory_used_bytes", "task", Agg.SUM, empty=ABOUT_GPUS),
    Chart("Tensor cores", "task_gpu_tensor_active_ratio", "task", empty=HOPPER),
    Chart("SM activity", "task_gpu_sm_active_ratio", "task", empty=HOPPER),
    Chart("Memory bandwidth", "task_gpu_dram_active_ratio", "task", empty=HOPPER),
)
WORKER_CHARTS = (
    Chart("CPU", "task_cpu_usage_cores", "", Agg.SUM),
    Chart("Memory", "task_memory_used_bytes", "", Agg.MAX, limit="task_memory_limit_bytes"),
    Chart("GPU utilisation", "task_gpu_utilization_ratio", "gpu", empty=ABOUT_GPUS),
    Chart("GPU memory", "task_gpu_memory_used_bytes", "gpu", Agg.MAX, empty=ABOUT_GPUS),
    Chart("Tensor cores", "task_gpu_tensor_active_ratio", "gpu", empty=HOPPER),
    Chart("Network received", "task_network_receive_bytes_total", "", Agg.SUM, empty=NETWORK),
)


@dataclass(frozen=True)
class Span:
    """The time that a tab shows. `chosen`: a key of RANGES, `all`, or empty for one's own times."""

    start: datetime
    end: datetime
    chosen: str
    live: bool

    @property
    def choices(self) -> list[tuple[str, str]]:
        return [*((name, name) for name in RANGES), (WHOLE, "All")]


def span_of(asked: Mapping[str, str], attempts: Sequence[Attempt], ended: bool, now: datetime) -> Span:
    """`asked`: `range`, or `from` and `to` in UTC. Without a use: the last hour; of what has ended, all of it."""
    begin, stop = _moment(asked.get("from", "")), _moment(asked.get("to", ""))
    if begin is not None and begin < (stop or now):
        return Span(begin, stop or now, "", live=stop is None and not ended)
    chosen = asked.get("range", "")
    if chosen in RANGES:
        return Span(now - timedelta(seconds=RANGES[chosen]), now, chosen, live=not ended)
    if chosen != WHOLE and not ended:
        return Span(now - timedelta(seconds=RANGES["1h"]), now, "1h", live=True)
    first = min((attempt.running_at or attempt.placed_at for attempt in attempts), default=now - timedelta(hours=1))
    ends = [attempt.ended_at for attempt in attempts]
    last = max((end for end in ends if end), default=now) if ended else now
    margin = timedelta(seconds=MARGIN_SECONDS)
    return Span(first - margin, max(last, first) + margin, WHOLE, live=not ended)


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def charts(kinds: Sequence[Chart], attempts: Sequence[Attempt], gpus: int, span: Span, why: str) -> dict[str, Any]:
    """{start, end, step, live, charts: [{title, unit, series: [{name, bound, points}], empty}]}.

    Charts of GPUs are left out where there are none. `why`: what one without a line says, unless it knows better."""
    named = {each.uid: _labels(each) for each in attempts}
    now = datetime.now(UTC).timestamp()
    start, end = span.start.timestamp(), span.end.timestamp()
    step = possible_step(None, start, end, now)
    shown = [_drawn(kind, named, start, end, step) for kind in kinds if gpus or not kind.of_gpus]
    nothing = not any(chart["series"] for chart in shown)
    for kind, chart in zip((kind for kind in kinds if gpus or not kind.of_gpus), shown, strict=True):
        if not chart["series"]:
            chart["empty"] = why if nothing or not kind.empty else kind.empty
    return {"start": start * 1000, "end": end * 1000, "step": step, "live": span.live, "charts": shown}


def _labels(attempt: Attempt) -> Labels:
    worker = attempt.worker
    return {"job": "", "task": worker.name, "attempt": str(attempt.number), "machine": ""}


def _drawn(kind: Chart, attempts: Mapping[UUID, Labels], start: float, end: float, step: float) -> dict[str, Any]:
    by = (kind.by,) if kind.by else ()
    rate = BY_NAME[kind.metric].kind == Kind.COUNTER
    answer = query(Ask(BY_NAME[kind.metric], {}, by, kind.agg, rate, start, end, step), attempts)
    series = [_line(kind, one) for one in answer["series"]]
    if kind.limit and series:
        bound = query(Ask(BY_NAME[kind.limit], {}, (), Agg.MAX, False, start, end, step), attempts)
        series += [{"name": "limit", "bound": True, "points": one["points"]} for one in bound["series"]]
    return {"title": kind.title, "metric": kind.metric, "unit": answer["unit"], "series": series}


def _line(kind: Chart, series: Mapping[str, Any]) -> dict[str, Any]:
    label = series["labels"].get(kind.by, "")
    name = f"GPU {label}" if kind.by == "gpu" else label or kind.title
    return {"name": name, "bound": False, "points": series["points"]}


# ---- why there is nothing --------------------------------------------------------------------------------------------


def why_run_is_empty(run: Run, attempts: Sequence[Attempt]) -> str:
    if not attempts:
        ended = run.state in RUN_ENDED
        return "No samples: it never ran" if ended else "No samples yet: the run has not started"
    return _why(attempts, run.state in RUN_ENDED)


def why_worker_is_empty(worker: Worker, attempts: Sequence[Attempt]) -> str:
    if not attempts:
        ended = worker.state in ENDED
        return "No samples: it never ran" if ended else "No samples yet: the worker has no machine yet"
    return _why(attempts, worker.state in ENDED)


def _why(attempts: Sequence[Attempt], ended: bool) -> str:
    every = round(settings.METRICS_SAMPLE_SECONDS)
    newest = attempts[-1]
    machine = newest.machine
    if ended or newest.ended_at is not None:
        days = round(settings.METRICS_TEN_MINUTE_SECONDS / 86400)
        return f"No samples in this time: one is taken every {every} s while it runs, and kept for {days} days"
    if newest.running_at is None:
        return "No samples yet: it is not running yet"
    if machine.state != "Ready" or not machine.connection:
        return f"No samples now: {machine.name} is not connected"
    return f"No samples yet: {machine.name} takes one every {every} s; the first come within half a minute"
