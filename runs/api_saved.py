"""The JSON API of a workspace's templates and schedules."""

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router, Schema
from pydantic import Field
from typing_extensions import TypedDict

from astraconsole.json_bodies import json_response, moment, object_body, read_json
from astraconsole.tenancy.api_access import WORKSPACE, access_of
from astraconsole.tenancy.permissions import Action
from runs import saved_queries
from runs.saved import read_schedule, read_template
from runs.services import schedules as scheduling
from runs.services.templates import remove_template, save_template

if TYPE_CHECKING:
    from runs.models import Firing, Schedule, Template

router = Router()


class TemplateFilters(Schema):
    limit: int = Field(100, ge=1, le=saved_queries.LIMIT_MAX)
    after: str = Field("", max_length=200, description="`next` of the page before")


class TemplateDocument(TypedDict):
    """`spec` as it was given: it is checked when a run is made of it."""

    id: str
    name: str
    description: str
    spec: dict[str, Any]
    saved_by: str | None
    saved_at: str


class TemplateList(TypedDict):
    items: list[TemplateDocument]
    next: str | None


class FiringDocument(TypedDict):
    """One time a schedule was due or was started by hand. `run`: the run's name, if one was started."""

    due_at: str
    fired_at: str
    outcome: str
    message: str
    run: str | None
    actor: str


class ScheduleDocument(TypedDict):
    """`next_at`: the next five times; none while it is disabled. `error`: why its newest firing failed."""

    id: str
    name: str
    cluster: str
    cron: str
    zone: str
    overlap: str
    enabled: bool
    next_at: list[str]
    error: str
    last: FiringDocument | None
    spec: dict[str, Any]
    saved_by: str | None
    saved_at: str


class ScheduleList(TypedDict):
    items: list[ScheduleDocument]
    next: None


TEXT, OBJECT = {"type": "string"}, {"type": "object"}
TEMPLATE_BODY = object_body({"name": TEXT, "description": TEXT, "spec": OBJECT}, ["name", "spec"])
SCHEDULE_BODY = object_body(
    dict.fromkeys(("name", "cluster", "cron", "zone", "overlap"), TEXT)
    | {"spec": OBJECT, "enabled": {"type": "boolean"}},
    ["name", "cluster", "cron", "spec"],
)


# ---- templates -------------------------------------------------------------------------------------------------------


@router.get(f"{WORKSPACE}/templates", response=TemplateList, tags=["Templates"])
def list_templates(request: HttpRequest, org: str, ws: str, filters: Query[TemplateFilters]) -> HttpResponse:
    """The workspace's templates, by name."""
    access = access_of(request, org, ws, parameters=TemplateFilters.model_fields)
    page = saved_queries.list_templates(access, filters.after, filters.limit)
    return json_response({"items": [template_document(item) for item in page.items], "next": page.next})


@router.post(
    f"{WORKSPACE}/templates",
    response={200: TemplateDocument, 201: TemplateDocument},
    openapi_extra=TEMPLATE_BODY,
    tags=["Templates"],
)
def post_template(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """Save a template. One of this name is replaced (200). The specification is checked only when it is used."""
    access = access_of(request, org, ws, Action.WRITE)
    template, new = save_template(access, read_template(read_json(request)), timezone.now())
    return json_response(template_document(template), HTTPStatus.CREATED if new else HTTPStatus.OK)


@router.delete(f"{WORKSPACE}/templates/{{template}}", response={204: None}, tags=["Templates"])
def delete_template(request: HttpRequest, org: str, ws: str, template: str) -> HttpResponse:
    """Remove a template, by its id."""
    access = access_of(request, org, ws, Action.WRITE)
    remove_template(access, saved_queries.get_template(access, template), timezone.now())
    return HttpResponse(status=HTTPStatus.NO_CONTENT)


def template_document(template: "Template") -> dict[str, Any]:
    return {
        "id": str(template.uid),
        "name": template.name,
        "description": template.description,
        "spec": json.loads(template.spec),
        "saved_by": template.saved_by.username if template.saved_by else None,
        "saved_at": moment(template.saved_at),
    }


# ---- schedules -------------------------------------------------------------------------------------------------------


@router.get(f"{WORKSPACE}/schedules", response=ScheduleList, tags=["Schedules"])
def list_schedules(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """The workspace's schedules, by name."""
    schedules = list(saved_queries.schedules_for(access_of(request, org, ws)))
    newest = saved_queries.newest_firings(schedules)
    return json_response({"items": [schedule_document(item, newest.get(item.pk)) for item in schedules], "next": None})


@router.post(
    f"{WORKSPACE}/schedules",
    response={200: ScheduleDocument, 201: ScheduleDocument},
    openapi_extra=SCHEDULE_BODY,
    tags=["Schedules"],
)
def post_schedule(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """Save a schedule. One of this name is replaced (200). Its runs are named `<schedule>-<n>`, and are yours."""
    access = access_of(request, org, ws, Action.WRITE)
    schedule, new = scheduling.save_schedule(access, read_schedule(read_json(request)), timezone.now())
    return json_response(_schedule(schedule), HTTPStatus.CREATED if new else HTTPStatus.OK)


@router.get(f"{WORKSPACE}/schedules/{{schedule}}", response=ScheduleDocument, tags=["Schedules"])
def get_schedule(request: HttpRequest, org: str, ws: str, schedule: str) -> HttpResponse:
    return json_response(_schedule(saved_queries.get_schedule(access_of(request, org, ws), schedule)))


@router.delete(f"{WORKSPACE}/schedules/{{schedule}}", response={204: None}, tags=["Schedules"])
def delete_schedule(request: HttpRequest, org: str, ws: str, schedule: str) -> HttpResponse:
    """Remove a schedule. Its runs stay."""
    access = access_of(request, org, ws, Action.WRITE)
    scheduling.remove_schedule(access, saved_queries.get_schedule(access, schedule), timezone.now())
    return HttpResponse(status=HTTPStatus.NO_CONTENT)


@router.post(f"{WORKSPACE}/schedules/{{schedule}}/run", response={201: FiringDocument}, tags=["Schedules"])
def run_schedule(request: HttpRequest, org: str, ws: str, schedule: str) -> HttpResponse:
    """Start a run of it now, beside its timetable."""
    access = access_of(request, org, ws, Action.WRITE)
    firing = scheduling.run_now(access, saved_queries.get_schedule(access, schedule), timezone.now())
    return json_response(_firing(firing), HTTPStatus.CREATED)


@router.post(f"{WORKSPACE}/schedules/{{schedule}}/enable", response=ScheduleDocument, tags=["Schedules"])
def enable_schedule(request: HttpRequest, org: str, ws: str, schedule: str) -> HttpResponse:
    return _set_enabled(request, org, ws, schedule, True)


@router.post(f"{WORKSPACE}/schedules/{{schedule}}/disable", response=ScheduleDocument, tags=["Schedules"])
def disable_schedule(request: HttpRequest, org: str, ws: str, schedule: str) -> HttpResponse:
    return _set_enabled(request, org, ws, schedule, False)


def _set_enabled(request: HttpRequest, org: str, ws: str, name: str, enabled: bool) -> HttpResponse:
    access = access_of(request, org, ws, Action.WRITE)
    scheduling.set_enabled(access, saved_queries.get_schedule(access, name), enabled, timezone.now())
    return json_response(_schedule(saved_queries.get_schedule(access, name)))


def _schedule(schedule: "Schedule") -> dict[str, Any]:
    return schedule_document(schedule, saved_queries.newest_firings([schedule]).get(schedule.pk))


def schedule_document(schedule: "Schedule", newest: "Firing | None") -> dict[str, Any]:
    times = saved_queries.next_times(schedule, timezone.now())
    return {
        "id": str(schedule.uid),
        "name": schedule.name,
        "cluster": schedule.namespace.cluster.slug,
        "cron": schedule.cron,
        "zone": schedule.zone,
        "overlap": schedule.overlap,
        "enabled": schedule.enabled,
        "next_at": [moment(at) for at in times],
        "error": schedule.error,
        "last": _firing(newest) if newest else None,
        "spec": json.loads(schedule.spec),
        "saved_by": schedule.saved_by.username if schedule.saved_by else None,
        "saved_at": moment(schedule.saved_at),
    }


def _firing(firing: "Firing") -> dict[str, Any]:
    return {
        "due_at": moment(firing.due_at),
        "fired_at": moment(firing.fired_at),
        "outcome": firing.outcome,
        "message": firing.message,
        "run": firing.run.name if firing.run else None,
        "actor": firing.actor,
    }
