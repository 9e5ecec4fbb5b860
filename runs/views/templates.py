"""Templates of a workspace: the list, saving one, removing one. Using one is a matter of New run."""

import json
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from astraconsole.errors import AstraError
from astraconsole.json_bodies import parse_json
from astraconsole.tenancy.pages import ask, context_of
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access, get_access
from runs import queries, saved_queries
from runs.saved import read_template
from runs.services.templates import remove_template as remove
from runs.services.templates import save_template as save
from runs.spec import load_spec

if TYPE_CHECKING:
    from runs.models import Run

FIELDS = ("name", "description", "spec")
NOT_JSON = "this is not JSON that can be read"


@require_GET
def templates(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    context = context_of(access, templates=saved_queries.templates_shown(access))
    return render(request, "templates/list.html", context)


@require_http_methods(["GET", "POST"])
def save_template(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """A form; of a run (`?of=<cluster>/<run>`) it holds that run's specification."""
    access = get_access(request.user, org, ws)
    access.require(Action.WRITE)
    if request.method == "GET":
        return save_page(request, access, _given(access, request.GET.get("of", "")))
    given = {name: request.POST.get(name, "").strip() for name in FIELDS}
    try:
        body = {**given, "spec": parse_json(given["spec"], NOT_JSON)}
        template, new = save(access, read_template(body), timezone.now())
    except AstraError as error:
        return save_page(request, access, given, error)
    messages.success(request, f"The template {template.name} was {'saved' if new else 'replaced'}")
    return redirect("templates", org, ws)


def save_page(
    request: HttpRequest, access: Access, given: dict[str, str], error: AstraError | None = None
) -> HttpResponse:
    """The form that saves a template, from wherever its specification comes."""
    rules = {entry["field"]: entry["rule"] for entry in error.detail} if error else {}
    names = [template.name for template in saved_queries.templates_shown(access)]
    context = context_of(access, given=given, error=error, rules=rules, names=names)
    return render(request, "templates/save.html", context, status=error.status if error else 200)


def shown(spec: Any) -> str:
    """A specification as people edit it."""
    return json.dumps(spec, indent=2, ensure_ascii=False)


def run_of_link(access: Access, link: str) -> "Run":
    """The run that `<cluster>/<name>` in an address is. Raises NotFound."""
    cluster, _, name = link.partition("/")
    return queries.get_run(access, cluster, name)


def _given(access: Access, of: str) -> dict[str, str]:
    if not of:
        return {"name": "", "description": "", "spec": ""}
    run = run_of_link(access, of)
    return {"name": run.name, "description": "", "spec": shown(load_spec(run.spec).stored())}


@require_http_methods(["GET", "POST"])
def remove_template(request: HttpRequest, org: str, ws: str, template: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    access.require(Action.WRITE)
    found = saved_queries.get_template(access, template)
    back = reverse("templates", args=[org, ws])
    if request.method == "POST":
        remove(access, found, timezone.now())
        messages.success(request, f"The template {found.name} was removed")
        return redirect(back)
    return ask(
        request,
        access,
        section=("Templates", "templates"),
        question=f"Remove the template {found.name}?",
        consequence="Runs that were started from it stay as they are.",
        verb="Remove template",
        back=back,
        dangerous=True,
    )
