"""A run's page: what it is doing and why, its workers, their logs, its history."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from astraconsole.security import with_charts
from astraconsole.tenancy.pages import context_of
from astraconsole.tenancy.queries import Access, get_access
from astraconsole.web import is_partial
from machines.images import shown_reference
from runs import around, metrics, queries, receipts, saved_queries, sentences
from runs.reference_queries import held_up
from runs.scheduling.explain import is_for_good, is_for_room, what_it_takes
from runs.scheduling.pending import pending_details
from runs.spec import load_spec
from runs.state_machine import RUN_ENDED, RunState, WorkerState
from runs.views import facts, receipt
from runs.views.failure import failure_of
from runs.views.log_panel import run_log
from runs.views.metrics import run_tab

if TYPE_CHECKING:
    from runs.models import Run, Worker

TABS = ("workers", "logs", "metrics", "history")
LATER_SHOWN = 20  # workers that failed after the first
WORKERS_SHOWN = 100  # of a large array; the others are a page away


@require_GET
def run(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    found = queries.get_run(access, cluster, name)
    tab = request.GET.get("tab", "workers")
    tab = tab if tab in TABS else "workers"
    context = context_of(access, cluster=cluster, run=found, tab=tab)
    head = _head(access, found)
    context |= head | _tab(request, found, tab, head["failed"])
    answer = render(request, "runs/_run.html" if is_partial(request) else "runs/run.html", context)
    return with_charts(answer) if tab == "metrics" else answer


def _head(access: Access, run: "Run") -> dict[str, Any]:
    """Nothing here grows with the number of workers: a run may have thousands, and its page is read at every change."""
    spec = load_spec(run.spec)
    counts = queries.task_counts([run]).get(run.pk, {})
    failed = queries.first_failed(run) if counts.get(WorkerState.FAILED) else None
    ended = run.state in RUN_ENDED
    looping, loops = (None, 0) if ended else queries.loops_of(run, facts.LOOPS_FROM)
    return {
        "spec": spec,
        "image": ", ".join(dict.fromkeys(shown_reference(template.image) for template in spec.templates)),
        "ended": ended,
        "readout": facts.readout(run, spec, counts, queries.places_of(run), timezone.now()),
        "using": None if ended else metrics.using_now(run.pk),
        "sentence": _sentence(run, failed),
        "held_up": held_up(run),
        "schedule": saved_queries.schedule_of(run),
        "failed": failed,
        **_order_of_failure(run, failed, counts),
        "more_failed": counts.get(WorkerState.FAILED, 0) - 1,
        **_waiting(run),
        "failure": failure_of(access, run, failed),
        "retry": facts.retry(spec),
        "receipt": receipt.shown(receipts.receipt_of(run, timezone.now())) if ended else None,
        "simulated_gpus": ended and around.is_simulated(run),
        "looping": looping,
        "looping_failure": failure_of(access, run, looping),
        "more_loops": loops - 1,
    }


def _order_of_failure(run: "Run", failed: "Worker | None", counts: Mapping[str, int]) -> dict[str, Any]:
    """What followed the first failure, how long after it, and what the samples before it say. The first few of a
    large run."""
    stored = (failed.last_failure or {}).get("failed_at") if failed else None
    if failed is None or not stored:
        return {"failed_later": [], "findings": []}
    first = datetime.fromisoformat(stored)
    later = queries.failed_later(run, LATER_SHOWN) if counts[WorkerState.FAILED] > 1 else []
    return {
        "failed_later": [(worker, _seconds_after(first, worker)) for worker in later],
        "stopped": around.stopped_after(run, first) if counts.get(WorkerState.CANCELLED) else None,
        "completed_before": counts.get(WorkerState.COMPLETED, 0),
        "ran_before": (first - run.started_at).total_seconds() if run.started_at else None,
        "findings": around.findings_of(run, failed, first, timezone.now()),
    }


def _seconds_after(first: datetime, worker: "Worker") -> float | None:
    stored = (worker.last_failure or {}).get("failed_at")
    return (datetime.fromisoformat(stored) - first).total_seconds() if stored else None


def _waiting(run: "Run") -> dict[str, Any]:
    """The facts of a waiting run, from the last plan and the machines of now."""
    of_its_own = run.state != RunState.PENDING and run.pending_code == "parallelism"  # an array that runs as it should
    details = None if of_its_own else pending_details(run, timezone.now())
    if details is None:
        return {"waiting": None}
    code, starts_by = details["code"], details["starts_by"]
    return {
        "waiting": details,
        "never": is_for_good(code),
        "takes": what_it_takes(code),
        "ahead_matters": is_for_room(code),
        "starts_by": starts_by and datetime.fromtimestamp(starts_by, UTC),
        "has_no_end": code in ("gang", "next") and starts_by is None and "away" not in details["numbers"],
    }


def _sentence(run: "Run", failed: "Worker | None") -> str:
    """In plain words; where these only repeat the state, the API's reason says more."""
    plain = sentences.run_sentence(run.state, run.status_reason, failed.reason if failed else "")
    return run.status_reason if plain == run.state else plain


def _tab(request: HttpRequest, run: "Run", tab: str, failed: "Worker | None") -> dict[str, Any]:
    if tab == "history":
        return {"history": queries.history_of_run(run)}
    if tab == "metrics":
        return {} if is_partial(request) else run_tab(request, run)
    if tab == "logs":
        return {} if is_partial(request) else run_log(request, run, failed)
    after = request.GET.get("after", "")
    start = int(after) if after.isdecimal() and after.isascii() and len(after) < 7 else -1
    found = queries.workers_of(run, start, WORKERS_SHOWN + 1)
    shown = found[:WORKERS_SHOWN]
    return {
        "workers": shown,
        "after": after if start >= 0 else "",
        "next_after": shown[-1].rank if len(found) > WORKERS_SHOWN else None,
    }
