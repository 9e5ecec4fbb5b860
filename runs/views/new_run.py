"""New run: the form, the same run as JSON, and what is echoed while somebody types."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from astraconsole.errors import AstraError
from astraconsole.json_bodies import parse_json
from astraconsole.tenancy.pages import context_of
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access, get_access
from machines.queries import machines_for, names_of
from runs import queries, saved_queries
from runs.forms import NAMED, NewRun
from runs.names import RUN_NAME_MAX
from runs.receipts import receipt_of
from runs.scheduling.changes import changed
from runs.services.submit import submit_run
from runs.spec import RunRequest, load_spec, parse_run
from runs.views.forecast import forecast
from runs.views.templates import NOT_JSON, run_of_link, save_page, shown

if TYPE_CHECKING:
    from runs.models import Run

AGAIN = "-again"


@require_http_methods(["GET", "POST"])
def new_run(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    access = _writer(request, org, ws)
    if request.method == "GET":
        if template := request.GET.get("template"):
            return _from_template(request, access, template)
        again = request.GET.get("again", "")
        return _run_again(request, access, again) if again else _form_page(request, access, NewRun.empty())
    if request.POST.get("mode") == "json":
        return _start_json(request, access)
    form = NewRun.read(request.POST)
    if request.POST.get("action") == "json" and not form.errors:
        return _json_page(request, access, shown(form.body()))
    if request.POST.get("action") == "template" and not form.errors:
        return _save_as_template(request, access, form.body())
    parsed = form.request()
    if parsed is None or request.POST.get("action") in ("json", "template"):
        return _form_page(request, access, form, status=400)
    try:
        return _started(access, request.POST.get("cluster", ""), parsed)
    except AstraError as error:
        form.refuse(error)
        return _form_page(request, access, form, status=error.status)


@require_POST
def check(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """What was understood so far, and what is wrong with it: fragments that go under the fields."""
    access = _writer(request, org, ws)
    form = NewRun.read(request.POST)
    parsed = form.request()
    form.only_of_filled()
    context = _form_context(access, form, request.POST.get("cluster", ""))
    if parsed is not None and context["namespace"] is not None:
        context["forecast"] = forecast(context["namespace"], parsed, timezone.now())
    return render(request, "runs/_checked.html", context)


def _writer(request: HttpRequest, org: str, ws: str) -> Access:
    access = get_access(request.user, org, ws)
    access.require(Action.WRITE)
    return access


def _started(access: Access, cluster: str, parsed: RunRequest) -> HttpResponse:
    run = submit_run(access, cluster, parsed, timezone.now())
    return redirect("run", access.workspace.organisation.slug, access.workspace.slug, cluster, run.name)


# ---- the form ----


def _form_page(request: HttpRequest, access: Access, form: NewRun, status: int = 200) -> HttpResponse:
    cluster = request.POST.get("cluster") or request.GET.get("cluster", "")
    context = _form_context(access, form, cluster) | {"templates": saved_queries.templates_shown(access)}
    return render(request, "runs/new.html", context, status=status)


def _form_context(access: Access, form: NewRun, cluster: str) -> dict[str, Any]:
    context = _cluster_context(access, cluster)
    form.known = names_of(access) if any(name in form.values for name in NAMED) else {}
    return context | {"form": form, "sections": form.sections(context["pools"])}


def _cluster_context(access: Access, cluster: str) -> dict[str, Any]:
    """The clusters to choose from, and what the workspace has on the chosen one."""
    namespaces = list(queries.namespaces_for(access))
    chosen = next((item for item in namespaces if item.cluster.slug == cluster), namespaces[0] if namespaces else None)
    if chosen is None:
        return context_of(access, clusters=[], cluster="", namespace=None, pools=[])
    machines = list(machines_for(access, chosen.cluster.slug))
    pools = sorted({machine.labels["pool"] for machine in machines if machine.labels.get("pool")})
    return context_of(
        access,
        clusters=[item.cluster.slug for item in namespaces],
        cluster=chosen.cluster.slug,
        namespace=chosen,
        use=queries.use_of(chosen),
        machines=machines,
        pools=[pool for pool in pools if not chosen.pools or pool in chosen.pools],
    )


# ---- as JSON ----


def _run_again(request: HttpRequest, access: Access, again: str) -> HttpResponse:
    run = run_of_link(access, again)
    stem = run.name.lower()[: RUN_NAME_MAX - len(AGAIN)].rstrip("-")
    metadata: dict[str, Any] = {"name": f"{stem}{AGAIN}"}
    if run.labels:
        metadata["labels"] = run.labels
    spec = load_spec(run.spec).stored()
    derived = _right_sizes(run) if request.GET.get("sizes") == "used" else []
    for change in [request.GET.get("change", ""), *(size["change"] for size in derived)]:
        with suppress(ValueError):  # a link by hand: the run as it was
            spec = changed(spec, change)
    body = {"metadata": metadata, "spec": spec}
    return _json_page(request, access, shown(body), cluster=run.namespace.cluster.slug, of=run.name, derived=derived)


def _right_sizes(run: "Run") -> list[dict[str, str]]:
    """Of its receipt: {change, label, how} each; none of a run that goes on."""
    receipt = receipt_of(run, timezone.now())
    return receipt["right_sizes"] if receipt else []


def _from_template(request: HttpRequest, access: Access, uid: str) -> HttpResponse:
    """As JSON, under a name made of the template's: what is wrong with it is told when it is started."""
    template = saved_queries.get_template(access, uid)
    stem = re.sub(r"[^a-z0-9]+", "-", template.name.lower())[:RUN_NAME_MAX].strip("-")
    body = {"metadata": {"name": stem or "run"}, "spec": json.loads(template.spec)}
    return _json_page(request, access, shown(body), template=template.name)


def _save_as_template(request: HttpRequest, access: Access, body: Any) -> HttpResponse:
    """The specification as it stands: it is not checked before it is used."""
    parts = body if isinstance(body, dict) else {}
    metadata = parts.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    return save_page(request, access, {"name": str(name), "description": "", "spec": shown(parts.get("spec", {}))})


def _json_page(
    request: HttpRequest,
    access: Access,
    text: str,
    cluster: str = "",
    of: str = "",
    error: AstraError | None = None,
    template: str = "",
    derived: Sequence[Mapping[str, str]] = (),
) -> HttpResponse:
    context = _cluster_context(access, cluster or request.POST.get("cluster", ""))
    context |= {"text": text, "error": error, "of": of, "template": template, "derived": derived}
    return render(request, "runs/new_json.html", context, status=error.status if error else 200)


def _start_json(request: HttpRequest, access: Access) -> HttpResponse:
    text = request.POST.get("body", "")
    try:
        if request.POST.get("action") == "template":
            return _save_as_template(request, access, parse_json(text, NOT_JSON))
        return _started(access, request.POST.get("cluster", ""), parse_run(parse_json(text, NOT_JSON), console=True))
    except AstraError as error:
        return _json_page(request, access, text, error=error)
