"""Schedules of a workspace: the list, one with its next times and what came of the last ones, saving and removing."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from astraconsole.errors import AstraError
from astraconsole.json_bodies import parse_json
from astraconsole.tenancy.pages import ask, context_of
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access, get_access
from runs import queries, saved_queries
from runs.saved import Overlap, read_schedule
from runs.services import schedules as timetables
from runs.spec import load_spec
from runs.views.templates import NOT_JSON, run_of_link, shown

if TYPE_CHECKING:
    from runs.models import Firing, Schedule

FIELDS = ("name", "cluster", "cron", "zone", "overlap", "spec", "enabled")
OVERLAPS = (
    (Overlap.SKIP, "Skip: no new run while one goes on"),
    (Overlap.ALLOW, "Allow: a new run beside it"),
    (Overlap.REPLACE, "Replace: stop it, then start the new one"),
)


@dataclass(frozen=True)
class Row:
    schedule: "Schedule"
    last: "Firing | None"


@require_GET
def schedules(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    found = list(saved_queries.schedules_for(access))
    newest = saved_queries.newest_firings(found)
    rows = [Row(schedule, newest.get(schedule.pk)) for schedule in found]
    return render(request, "schedules/list.html", context_of(access, rows=rows))


@require_GET
def schedule(request: HttpRequest, org: str, ws: str, name: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    found = saved_queries.get_schedule(access, name)
    times = saved_queries.next_times(found, timezone.now())
    context = context_of(
        access,
        schedule=found,
        times=times,
        firings=saved_queries.firings_of(found),
        spec=shown(json.loads(found.spec)),
        overlap=dict(OVERLAPS)[Overlap(found.overlap)],
    )
    return render(request, "schedules/schedule.html", context)


@require_http_methods(["GET", "POST"])
def new_schedule(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """A form; of a run, a template or a schedule (`?of= ?template= ?edit=`) it holds what that has."""
    access = get_access(request.user, org, ws)
    access.require(Action.WRITE)
    if request.method == "GET":
        return _form(request, access, _given(request, access))
    given = {name: request.POST.get(name, "").strip() for name in FIELDS}
    try:
        body = {**given, "spec": parse_json(given["spec"], NOT_JSON), "enabled": given["enabled"] != "0"}
        saved, new = timetables.save_schedule(access, read_schedule(body), timezone.now())
    except AstraError as error:
        return _form(request, access, given, error)
    messages.success(request, f"The schedule {saved.name} was {'saved' if new else 'replaced'}")
    return redirect("schedule", org, ws, saved.name)


def _form(request: HttpRequest, access: Access, given: dict[str, str], error: AstraError | None = None) -> HttpResponse:
    clusters = [namespace.cluster.slug for namespace in queries.namespaces_for(access)]
    rules = {entry["field"]: entry["rule"] for entry in error.detail} if error else {}
    of_spec = [item for item in error.detail if item["field"] not in FIELDS or item["field"] == "spec"] if error else []
    context = context_of(
        access, given=given, error=error, rules=rules, of_spec=of_spec, clusters=clusters, overlaps=OVERLAPS
    )
    return render(request, "schedules/new.html", context, status=error.status if error else 200)


def _given(request: HttpRequest, access: Access) -> dict[str, str]:
    given = dict.fromkeys(FIELDS, "") | {
        "cron": "0 3 * * *",
        "zone": "UTC",
        "overlap": Overlap.SKIP.value,
        "enabled": "1",
    }
    if edit := request.GET.get("edit"):
        found = saved_queries.get_schedule(access, edit)
        same = {name: getattr(found, name) for name in ("name", "cron", "zone", "overlap")}
        same["enabled"] = "1" if found.enabled else "0"
        return {**same, "cluster": found.namespace.cluster.slug, "spec": shown(json.loads(found.spec))}
    if template := request.GET.get("template"):
        kept = saved_queries.get_template(access, template)
        return {**given, "spec": shown(json.loads(kept.spec))}
    if of := request.GET.get("of"):
        run = run_of_link(access, of)
        spec = shown(load_spec(run.spec).stored())
        return {**given, "name": run.name, "cluster": run.namespace.cluster.slug, "spec": spec}
    return given


# ---- what is done to one ----


@require_POST
def run_schedule(request: HttpRequest, org: str, ws: str, name: str) -> HttpResponse:
    def run(access: Access, found: "Schedule", now: datetime) -> str:
        firing = timetables.run_now(access, found, now)
        return f"{firing.run.name if firing.run else found.name} was started"

    return _act(request, org, ws, name, run)


@require_POST
def enable_schedule(request: HttpRequest, org: str, ws: str, name: str) -> HttpResponse:
    def enable(access: Access, found: "Schedule", now: datetime) -> str:
        timetables.set_enabled(access, found, True, now)
        return f"{name} goes on"

    return _act(request, org, ws, name, enable)


@require_POST
def disable_schedule(request: HttpRequest, org: str, ws: str, name: str) -> HttpResponse:
    def disable(access: Access, found: "Schedule", now: datetime) -> str:
        timetables.set_enabled(access, found, False, now)
        return f"{name} starts no more runs by itself"

    return _act(request, org, ws, name, disable)


def _act(
    request: HttpRequest, org: str, ws: str, name: str, do: "Callable[[Access, Schedule, datetime], str]"
) -> HttpResponse:
    access = get_access(request.user, org, ws)
    access.require(Action.WRITE)
    found = saved_queries.get_schedule(access, name)
    try:
        messages.success(request, do(access, found, timezone.now()))
    except AstraError as error:
        messages.error(request, f"{name}: {error.message}")
    return redirect("schedule", org, ws, name)


@require_http_methods(["GET", "POST"])
def remove_schedule(request: HttpRequest, org: str, ws: str, name: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    access.require(Action.WRITE)
    found = saved_queries.get_schedule(access, name)
    if request.method == "POST":
        timetables.remove_schedule(access, found, timezone.now())
        messages.success(request, f"The schedule {name} was removed")
        return redirect("schedules", org, ws)
    return ask(
        request,
        access,
        section=("Schedules", "schedules"),
        name=name,
        question=f"Remove the schedule {name}?",
        consequence="It starts no more runs. Those that it has started stay as they are.",
        verb="Remove schedule",
        back=reverse("schedule", args=[org, ws, name]),
        dangerous=True,
    )
