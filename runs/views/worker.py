"""A worker's page: where it runs, its log, its history, its attempts, and how it was started."""

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
from machines.queries import credentials_of, volumes_of
from runs import queries, sentences
from runs.spec import Probe, Probes, RunSpec, TaskTemplate, load_spec, template_of
from runs.state_machine import ENDED, WorkerState
from runs.views import facts
from runs.views.failure import failure_of
from runs.views.log_panel import worker_log
from runs.views.metrics import worker_tab

if TYPE_CHECKING:
    from runs.models import Worker

TABS = ("log", "metrics", "history", "started")


@require_GET
def worker(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    found = queries.get_worker(access, cluster, name)
    tab = request.GET.get("tab", "log")
    tab = tab if tab in TABS else "log"
    context = context_of(access, cluster=cluster, tab=tab, worker=found)
    context |= _head(access, found) | _tab(found, tab)
    if tab == "log" and not is_partial(request):
        context |= worker_log(request, found)
    if tab == "metrics" and not is_partial(request):
        context |= worker_tab(request, found)
    answer = render(request, "runs/_worker.html" if is_partial(request) else "runs/worker.html", context)
    return with_charts(answer) if tab == "metrics" else answer


def _head(access: Access, worker: "Worker") -> dict[str, Any]:
    spec = load_spec(worker.run.spec)
    attempts = list(queries.attempts_of(worker))
    now = timezone.now()
    newest = attempts[-1] if attempts else None
    ended = worker.state in ENDED
    template = template_of(spec, worker.group)
    return {
        "run": worker.run,
        "template": template,
        "code": spec.code,
        "engine": spec.engine,
        "environment": sorted(template.env.items()),
        "image": shown_reference(template.image),
        "probes": _probes(template.probes),
        "secrets": _secrets(template),
        **_awaited(access, worker, spec, template),
        "mounts": _mounts(template, spec.code is not None),
        "sentence": _sentence(worker),
        "failure": failure_of(access, worker.run, worker) if worker.state == WorkerState.FAILED else None,
        "looping_failure": failure_of(access, worker.run, worker) if worker.last_failure and not ended else None,
        "retry": facts.retry(spec),
        "attempts": [(attempt, facts.ran_for(attempt, now)) for attempt in reversed(attempts)],
        "newest": newest,
        "on_failure": spec.effective_on_failure,
        "lifetime": spec.effective_lifetime,
        "ended": ended,
    }


def _secrets(template: TaskTemplate) -> list[tuple[str, str]]:
    """(credential, variable and its key): names, never values."""
    return [
        (ref.external_secret_name, f"{variable} (key {key})")
        for ref in template.secret_refs
        for key, variable in ref.env_vars.items()
    ]


def _awaited(access: Access, worker: "Worker", spec: RunSpec, template: TaskTemplate) -> dict[str, Any]:
    """What its preparation waits for, and where to see how far that is: a credential, a drive or a model. One query
    where it waits for one, else none."""
    words = worker.reason.replace(":", " ").split() if worker.reason.lower().startswith("waiting for ") else []
    if not words or worker.state in ENDED or "engine" in words[:4]:  # what an engine waits for, no page tells
        return {}
    refs = [*template.secret_refs, *([template.registry_secret_ref] if template.registry_secret_ref else [])]
    named = {
        "credential": [ref.external_secret_name for ref in refs],
        "drive": [ref.name for ref in template.datavolume_refs],
        "model": [ref.name for ref in template.model_refs] + ([spec.engine.model] if spec.engine else []),
    }
    kinds = ("credential",) if "secret" in words else ("model",) if "model" in words[:3] else ("drive", "model")
    for kind in kinds:
        if name := next((name for name in named[kind] if name in words), ""):
            there = credentials_of(access) if kind == "credential" else volumes_of(access, kind)
            return {"waits_for": name, "waits_kind": kind, "is_defined": name in {each.name for each in there}}
    return {}


def _mounts(template: TaskTemplate, has_code: bool) -> list[tuple[str, str]]:
    """(path in the container, what is there)."""
    mounts = [("/workspace", "the code that came with the run")] if has_code else []
    for drive in template.datavolume_refs:
        mounts.append((drive.mount_path, f"drive {drive.name}{', read only' if drive.read_only else ''}"))
    mounts += [(model.mount_path, f"model {model.name}, read only") for model in template.model_refs]
    refs = [ref for ref in template.secret_refs if ref.mount_path is not None]
    return mounts + [(ref.mount_path or "", f"credential {ref.external_secret_name}, read only") for ref in refs]


def _probes(probes: Probes | None) -> list[tuple[str, Probe]]:
    """(name, probe) of those that it has."""
    if probes is None:
        return []
    named = (("Startup", probes.startup), ("Readiness", probes.readiness), ("Liveness", probes.liveness))
    return [(name, probe) for name, probe in named if probe is not None]


def _sentence(worker: "Worker") -> str:
    """In plain words; where these only repeat the state, the API's reason says more."""
    plain = sentences.worker_sentence(worker.state, worker.reason, worker.stop_requested_at is not None)
    return worker.reason if plain in (worker.state, "Running") else plain


def _tab(worker: "Worker", tab: str) -> dict[str, Any]:
    """The history is newest first here, unlike everywhere else: what a worker did last is what is looked for."""
    return {"history": queries.history_of_worker(worker)[::-1]} if tab == "history" else {}
