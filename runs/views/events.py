"""The workspace's Events page: what happened to its runs, workers and machines, and what people did, newest first."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from astraconsole.errors import ValidationError
from astraconsole.tenancy.pages import context_of
from astraconsole.tenancy.queries import Access, get_access
from astraconsole.web import is_partial
from runs import event_queries
from runs.event_positions import parse_position
from runs.event_queries import KINDS, Wanted

PAGE = 100
FILTERS = ("name", "kind", "actor")


@require_GET
def events(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    given = {name: request.GET.get(name, "").strip() for name in FILTERS}
    after = request.GET.get("after", "")
    try:
        found = _found(access, event_queries.wanted(**given), after)
    except ValidationError as error:
        found = {"events": [], "next": "", "error": error}
    here = _query(**given, after=after)
    context = context_of(access, given=given, after=after, here=here, newest=_query(**given), kinds=KINDS, **found)
    if not is_partial(request):
        return render(request, "events/list.html", context)
    response = render(request, "events/_list.html", context)
    here = request.path + here
    if request.htmx.trigger == "filters" and request.htmx.current_url_abs_path != here:  # type: ignore[attr-defined]
        response["HX-Push-Url"] = here
    return response


def _found(access: Access, wanted: Wanted, after: str) -> dict[str, Any]:
    before = parse_position(after, "after") if after else None
    page = event_queries.newest(access.workspace.pk, wanted, before, PAGE)
    given = {"name": wanted.name, "kind": wanted.kind, "actor": wanted.actor}
    return {"events": page.items, "next": _query(**given, after=page.next) if page.next else ""}


def _query(**parts: str) -> str:
    """As an address's query."""
    return f"?{urlencode({name: value for name, value in parts.items() if value})}"
