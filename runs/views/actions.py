"""Stop and delete: each asks first, in a dialog or as a page, then calls the service that every door calls."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from astraconsole.errors import AstraError, BadRequest
from astraconsole.json_bodies import valid_reason
from astraconsole.tenancy.pages import ask
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access, get_access
from runs import queries
from runs.services import deleting, stopping
from runs.units import counted

if TYPE_CHECKING:
    from runs.models import Run

BULK_MAX = 200
RUNS = ("Runs", "runs")
REASON_KEPT = "optional; its history keeps it"
LOST_LOGS = "Its record and logs go with it: download what you need first. There is no undo."


@require_http_methods(["GET", "POST"])
def stop_run(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    access, run = _writable_run(request, org, ws, cluster, name)
    if request.method == "POST":
        stopping.stop_run(access, run, _reason(request), timezone.now())
        messages.success(request, f"{name} is being stopped")
        return redirect("run", org, ws, cluster, name)
    return ask(
        request,
        access,
        section=RUNS,
        name=name,
        question=f"Stop {name}?",
        consequence=_consequence([run]),
        warning="Its record and logs stay.",
        verb="Stop run",
        back=reverse("run", args=[org, ws, cluster, name]),
        asks_reason=REASON_KEPT,
    )


@require_http_methods(["GET", "POST"])
def delete_run(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    access, run = _writable_run(request, org, ws, cluster, name)
    typed = request.POST.get("typed", "").strip()
    if request.method == "POST" and typed == name:
        deleting.delete_run(access, run, timezone.now())
        messages.success(request, f"{name} was deleted")
        return redirect("runs", org, ws)
    return ask(
        request,
        access,
        section=RUNS,
        name=name,
        question=f"Delete {name}?",
        consequence=_consequence([run]),
        warning=LOST_LOGS,
        verb="Delete run",
        back=reverse("run", args=[org, ws, cluster, name]),
        typed=name,
        typed_error=f"{typed or 'nothing'} is not its name" if request.method == "POST" else "",
        dangerous=True,
    )


@require_http_methods(["GET", "POST"])
def stop_worker(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    access.require(Action.WRITE)
    worker = queries.get_worker(access, cluster, name)
    if request.method == "POST":
        stopping.stop_worker(access, worker, _reason(request), timezone.now())
        messages.success(request, f"{name} is being stopped")
        return redirect("worker", org, ws, cluster, name)
    return ask(
        request,
        access,
        section=RUNS,
        name=name,
        question=f"Stop {name}?",
        consequence="It ends Cancelled and is not restarted; the run's other workers go on.",
        warning="Its record and log stay.",
        verb="Stop worker",
        back=reverse("worker", args=[org, ws, cluster, name]),
        asks_reason=REASON_KEPT,
    )


BULK: dict[str, tuple[str, str, Callable[[Access, "Run", datetime], Any]]] = {
    "stop": ("Stop", "Records and logs stay.", lambda access, run, now: stopping.stop_run(access, run, "", now)),
    "delete": ("Delete", LOST_LOGS.replace("Its record", "Records").replace("it:", "them:"), deleting.delete_run),
}


@require_POST
def bulk(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """Stop or delete the picked runs (`run=<cluster>/<name>`, repeated), after a question."""
    access = get_access(request.user, org, ws)
    access.require(Action.WRITE)
    do, picked = request.POST.get("do", ""), list(dict.fromkeys(request.POST.getlist("run")))
    if do not in BULK or not 1 <= len(picked) <= BULK_MAX:
        raise BadRequest(f"pick 1 to {BULK_MAX} runs to stop or delete")
    runs, gone = queries.picked_runs(access, picked)
    for item in gone:
        messages.warning(request, f"{item}: there is no such run any more")
    if not runs:
        return redirect("runs", org, ws)
    verb, warning, act = BULK[do]
    if request.POST.get("confirmed") != "1":
        what = f"{verb} {counted(len(runs), 'run')}"
        return ask(
            request,
            access,
            section=RUNS,
            question=f"{what}?",
            names=[run.name for run in runs],
            consequence=_consequence(runs),
            warning=warning,
            verb=what,
            back=reverse("runs", args=[org, ws]),
            picked=[f"{run.namespace.cluster.slug}/{run.name}" for run in runs],
            do=do,
            dangerous=do == "delete",
        )
    _act_on_all(request, access, runs, act)
    return HttpResponseRedirect(reverse("runs", args=[org, ws]))


def _act_on_all(request: HttpRequest, access: Access, runs: "list[Run]", act: Callable[..., Any]) -> None:
    """One refusal (a run that has ended meanwhile) does not keep the others from it."""
    done = 0
    for run in runs:
        try:
            act(access, run, timezone.now())
            done += 1
        except AstraError as error:
            messages.warning(request, f"{run.name}: {error.message}")
    messages.success(request, f"Done for {done} of {len(runs)}")


def _writable_run(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> "tuple[Access, Run]":
    access = get_access(request.user, org, ws)
    access.require(Action.WRITE)
    return access, queries.get_run(access, cluster, name)


def _reason(request: HttpRequest) -> str:
    return valid_reason(request.POST.get("reason", ""))


def _consequence(runs: "list[Run]") -> str:
    """How many workers will be stopped and how many GPUs freed."""
    held = queries.held_by(runs)
    if not held.workers:
        return "None of its workers is running." if len(runs) == 1 else "None of their workers is running."
    return f"{counted(held.workers, 'worker')} will be stopped and {counted(held.gpus, 'GPU')} freed."
