"""The Metrics tabs: the page's part, the data of its charts, and what a run uses now."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from astraconsole.json_bodies import json_response
from astraconsole.tenancy.queries import get_access
from machines.metrics.names import METRICS
from runs import charts, metrics, queries
from runs.charts import RUN_CHARTS, WORKER_CHARTS, WORKERS_DRAWN
from runs.state_machine import ENDED, RUN_ENDED

if TYPE_CHECKING:
    from runs.models import Attempt, Run, Worker


@never_cache
@require_GET
def run_charts(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    """The data of a run's charts, as JSON."""
    run = queries.get_run(get_access(request.user, org, ws), cluster, name)
    attempts = metrics.attempts_drawn(run, WORKERS_DRAWN)
    span = charts.span_of(request.GET, attempts, run.state in RUN_ENDED, timezone.now())
    why = charts.why_run_is_empty(run, attempts)
    return json_response(charts.charts(RUN_CHARTS, attempts, run.gpus, span, why))


@never_cache
@require_GET
def worker_charts(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    """The data of a worker's charts, as JSON."""
    worker = queries.get_worker(get_access(request.user, org, ws), cluster, name)
    attempts = metrics.attempts_of_worker(worker)
    span = charts.span_of(request.GET, attempts, worker.state in ENDED, timezone.now())
    why = charts.why_worker_is_empty(worker, attempts)
    return json_response(charts.charts(WORKER_CHARTS, attempts, worker.gpus, span, why))


@never_cache
@require_GET
def using(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    """What a run uses now, for its readout."""
    run = queries.get_run(get_access(request.user, org, ws), cluster, name)
    context = {"org": org, "ws": ws, "cluster": cluster, "run": run, "ended": run.state in RUN_ENDED}
    return render(request, "runs/_using.html", context | {"using": metrics.using_now(run.pk)})


def run_tab(request: HttpRequest, run: "Run") -> dict[str, Any]:
    """What the tab shows beside the charts: the range, and a table of what each worker uses now."""
    attempts = metrics.attempts_drawn(run, WORKERS_DRAWN)
    workers = queries.workers_of(run, -1, WORKERS_DRAWN)
    more = max(0, run.workers.count() - WORKERS_DRAWN)
    return _tab(request, attempts, run.state in RUN_ENDED, workers) | {
        "drawn": WORKERS_DRAWN,
        "more": more,
        "why": charts.why_run_is_empty(run, attempts),
        "simulated": metrics.is_simulated(attempts),
    }


def worker_tab(request: HttpRequest, worker: "Worker") -> dict[str, Any]:
    attempts = metrics.attempts_of_worker(worker)
    return _tab(request, attempts, worker.state in ENDED, [worker]) | {
        "why": charts.why_worker_is_empty(worker, attempts),
        "simulated": metrics.is_simulated(attempts),
    }


def _tab(
    request: HttpRequest, attempts: "Sequence[Attempt]", ended: bool, workers: "Sequence[Worker]"
) -> dict[str, Any]:
    latest = metrics.latest(workers)
    known = [metric for metric in METRICS if any(metric.name in values for values in latest.values())]
    span = charts.span_of(request.GET, attempts, ended, timezone.now())
    return {
        "span": span,
        "chart_query": request.GET.urlencode(),
        "own_from": request.GET.get("from", "") if not span.chosen else "",
        "own_to": request.GET.get("to", "") if not span.chosen else "",
        "metrics_known": known,
        "metrics_now": [
            (worker, [(metric, latest[worker.pk].get(metric.name)) for metric in known])
            for worker in workers
            if worker.pk in latest
        ],
    }
