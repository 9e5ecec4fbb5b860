"""Pages of a workspace's drives and models: what there is, how far its machines are with it; adding and removing.

Each view serves both: the route says which `kind` it is for.
"""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from astraconsole.errors import AstraError
from astraconsole.tenancy.pages import ask, context_of
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access, get_access
from astraconsole.web import is_partial
from machines import queries
from machines.fillings import views_of
from machines.orders import DataKind
from machines.volumes import FORMS, create_volume, fields_of
from runs.services.volumes import delete_volume


@require_http_methods(["GET", "POST"])
def volumes(request: HttpRequest, org: str, ws: str, kind: DataKind) -> HttpResponse:
    """The list; a POST creates one."""
    access = get_access(request.user, org, ws)
    if request.method == "GET":
        return _list(request, access, kind)
    access.require(Action.MANAGE)
    given = {name: request.POST.get(name, "").strip() for name in fields_of(kind)}
    values: dict[str, Any] = dict(given)
    if "read_only" in values:
        values["read_only"] = True if values["read_only"] or given["kind"] == "copy" else None
    try:
        made = create_volume(access, kind, values, timezone.now())
    except AstraError as error:
        return _list(request, access, kind, given, error)
    messages.success(request, f"{made.name} was added: machines get it when a worker there needs it")
    return redirect(kind.value, org, ws, made.name)


def _list(
    request: HttpRequest,
    access: Access,
    kind: DataKind,
    given: dict[str, str] | None = None,
    error: AstraError | None = None,
) -> HttpResponse:
    rules = {entry["field"]: entry["rule"] for entry in error.detail} if error else {}
    views = views_of(access, queries.volumes_of(access, kind))
    context = _context(
        access, kind, views=views, given=given or {"kind": "copy"}, error=error, rules=rules, forms=FORMS.items()
    )
    template = "volumes/_list.html" if is_partial(request) else "volumes/list.html"
    return render(request, template, context, status=error.status if error else 200)


@require_GET
def volume(request: HttpRequest, org: str, ws: str, name: str, kind: DataKind) -> HttpResponse:
    """One, and how far each machine is with it."""
    access = get_access(request.user, org, ws)
    (view,) = views_of(access, [queries.get_volume(access, kind, name)])
    template = "volumes/_volume.html" if is_partial(request) else "volumes/volume.html"
    return render(request, template, _context(access, kind, view=view))


@require_http_methods(["GET", "POST"])
def remove(request: HttpRequest, org: str, ws: str, name: str, kind: DataKind) -> HttpResponse:
    access = get_access(request.user, org, ws)
    access.require(Action.MANAGE)
    found = queries.get_volume(access, kind, name)
    if request.method == "GET":
        return _ask(request, access, kind, found.name)
    try:
        delete_volume(access, kind, found.name)
    except AstraError as error:
        return _ask(request, access, kind, found.name, error)
    messages.success(request, f"{found.name} was removed")
    return redirect(f"{kind}s", org, ws)


def _ask(
    request: HttpRequest, access: Access, kind: DataKind, name: str, error: AstraError | None = None
) -> HttpResponse:
    workspace = access.workspace
    return ask(
        request,
        access,
        section=(_title(kind), f"{kind}s"),
        name=name,
        question=f"Remove {name}?",
        consequence="Machines remove their copies of it once no worker uses them.",
        warning="What it was copied from, and a folder of a machine or of a file server, are left as they are.",
        verb=f"Remove {kind}",
        back=reverse(kind.value, args=[workspace.organisation.slug, workspace.slug, name]),
        error=error,
        dangerous=True,
    )


def _context(access: Access, kind: DataKind, **more: Any) -> dict[str, Any]:
    return context_of(
        access,
        kind=kind.value,
        list_route=f"{kind}s",
        remove_route=f"remove_{kind}",
        title=_title(kind),
        icon="circle-stack" if kind is DataKind.DRIVE else "cube",
        **more,
    )


def _title(kind: DataKind) -> str:
    return f"{kind.capitalize()}s"
