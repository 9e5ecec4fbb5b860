"""The runs list of a workspace: every cluster, filtered, counted and paged in SQL."""

from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET

from astraconsole.tenancy.pages import context_of
from astraconsole.tenancy.queries import Access, get_access
from astraconsole.web import is_partial
from runs import queries
from runs.state_machine import RunState

PAGE = 50
GROUPS = ("active", "ended", "all")


@dataclass(frozen=True)
class Filters:
    """What the list is narrowed to: the query of its URL."""

    state: str = "active"
    search: str = ""
    mine: bool = False
    cluster: str = ""
    after: str = ""

    @classmethod
    def of(cls, request: HttpRequest) -> "Filters":
        state = request.GET.get("state", "active")
        return cls(
            state=state if state in GROUPS or state in list(RunState) else "active",
            search=request.GET.get("search", "").strip()[:100],
            mine=request.GET.get("mine") == "1",
            cluster=request.GET.get("cluster", ""),
            after=request.GET.get("after", ""),
        )

    def query(self, **changes: Any) -> str:
        """As a URL's query, `?state=ended`; another page of another list would make no sense, so `after` goes."""
        other = replace(self, **{"after": "", **changes})
        parts = {
            "state": other.state if other.state != "active" else "",
            "search": other.search,
            "mine": "1" if other.mine else "",
            "cluster": other.cluster,
            "after": other.after,
        }
        return f"?{urlencode({name: value for name, value in parts.items() if value})}"

    @property
    def group(self) -> str:
        """The group to fall back to from a single state."""
        return self.state if self.state in GROUPS else "all"

    @property
    def narrows(self) -> dict[str, Any]:
        return {"cluster": self.cluster or None, "search": self.search, "mine": self.mine}

    @property
    def is_narrowed(self) -> bool:
        return bool(self.search or self.mine or self.cluster or self.state in list(RunState))


@require_GET
def home(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    return redirect("runs", org, ws)


@require_GET
def runs(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    filters = Filters.of(request)
    context = context_of(access, filters=filters, **_list(access, filters))
    if is_partial(request):
        response = render(request, "runs/_list.html", context)
        here = request.path + filters.query()
        if request.htmx.trigger == "filters" and request.htmx.current_url_abs_path != here:  # type: ignore[attr-defined]
            response["HX-Push-Url"] = here  # once: leaving the field asks for the same list again
        return response
    clusters = [namespace.cluster.slug for namespace in queries.namespaces_for(access)]
    return render(request, "runs/list.html", context | {"clusters": clusters, "states": list(RunState)})


def _list(access: Access, filters: Filters) -> dict[str, Any]:
    page = queries.list_runs(access, state=filters.state, after=filters.after or None, limit=PAGE, **filters.narrows)
    counts = queries.state_counts(access, **filters.narrows)
    return {
        "runs": page.items,
        "next": filters.query(after=page.next) if page.next else "",
        "here": filters.query(after=filters.after),
        "groups": [(name, name.capitalize(), counts[name], filters.query(state=name)) for name in GROUPS],
    }
