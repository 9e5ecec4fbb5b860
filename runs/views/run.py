"""A run's page: what it is doing and why, its workers, their logs, its history."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from astraconsole.tenancy.queries import get_access
from astraconsole.web import is_partial
from runs import queries, sentences
from runs.scheduling.pending import pending_details
from runs.services.submit import NEVER
from runs.spec import load_spec
from runs.state_machine import RUN_ENDED, RunState
from runs.views import facts
from runs.views.context import context_of
from runs.views.logs import log_tab

if TYPE_CHECKING:
    from runs.models import Run, Worker

TABS = ("workers", "logs", "history")
WORKERS_SHOWN = 200  # of a large array; the others are a page away


@require_GET
def run(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    found = queries.get_run(access, cluster, name)
    tab = request.GET.get("tab", "workers")
    tab = tab if tab in TABS else "workers"
    workers = queries.workers_of(found)
    context = context_of(access, cluster=cluster, run=found, tab=tab, api=request.build_absolute_uri("/api/v1"))
    context |= _head(found, workers) | _tab(request, found, workers, tab)
    return render(request, "runs/_run.html" if is_partial(request) else "runs/run.html", context)


def _head(run: "Run", workers: "list[Worker]") -> dict[str, Any]:
    now = timezone.now()
    spec = load_spec(run.spec)
    counts = queries.task_counts([run]).get(run.pk, {})
    failed = facts.first_failed(workers)
    return {
        "spec": spec,
        "image": spec.task_template.image,
        "ended": run.state in RUN_ENDED,
        "counts": counts,
        "readout": facts.readout(run, spec, counts, workers, now),
        "sentence": _sentence(run, failed),
        "failed": failed,
        **_waiting(run),
        "advice": facts.advice_for(failed),
        "retry_budget": settings.RESTART_BUDGET,
        "looping": facts.in_a_loop(workers),
    }


def _waiting(run: "Run") -> dict[str, Any]:
    """The facts of a waiting run, from the last plan and the machines of now."""
    details = pending_details(run) if run.state == RunState.PENDING else None
    starts_by = details["starts_by"] if details else None
    return {
        "waiting": details,
        "never": details is not None and details["code"].startswith(NEVER),
        "starts_by": starts_by and datetime.fromtimestamp(starts_by, UTC),
    }


def _sentence(run: "Run", failed: "Worker | None") -> str:
    """In plain words; where these only repeat the state, the API's reason says more."""
    plain = sentences.run_sentence(run.state, run.status_reason, failed.reason if failed else "")
    return run.status_reason if plain == run.state else plain


def _tab(request: HttpRequest, run: "Run", workers: "list[Worker]", tab: str) -> dict[str, Any]:
    if tab == "history":
        return {"history": queries.history_of_run(run)}
    if tab == "logs":
        return {} if is_partial(request) else log_tab(request, _chosen(request, workers), workers)
    first = request.GET.get("from", "0")
    start = int(first) if first.isdecimal() and len(first) < 7 else 0
    end = start + WORKERS_SHOWN
    return {"workers": workers[start:end], "next_rank": end if end < len(workers) else None, "start": start}


def _chosen(request: HttpRequest, workers: "list[Worker]") -> "Worker | None":
    """Whose log to show: the one that was asked for, or the first."""
    wanted = request.GET.get("worker", "")
    return next((worker for worker in workers if worker.name == wanted), workers[0] if workers else None)
