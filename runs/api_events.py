"""The JSON API of a workspace's events."""

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field
from typing_extensions import TypedDict

from astraconsole.json_bodies import json_response
from astraconsole.tenancy.api_access import WORKSPACE, access_of
from runs import event_queries
from runs.event_positions import parse_position
from runs.event_queries import FILTER_LENGTH, KINDS, LIMIT_MAX, event_document

router = Router(tags=["Events"])


class EventFilters(Schema):
    name: str = Field("", max_length=FILTER_LENGTH, description="of a run (with its workers), a worker, a machine, …")
    kind: str = Field("", max_length=20, description=f"one of {', '.join(KINDS)}")
    actor: str = Field(
        "", max_length=FILTER_LENGTH, description="a user name, `scheduler`, `machine <name>`, `console`"
    )
    after: str | None = Field(None, max_length=80, description="`next` of the page before")
    limit: int = Field(50, ge=1, le=LIMIT_MAX)


class EventDocument(TypedDict):
    """`run`: of a run or worker, the run's name; `cluster`: null where the event is the whole workspace's."""

    id: str
    at: str
    kind: str
    name: str
    run: str | None
    cluster: str | None
    state: str
    reason: str
    actor: str


class EventList(TypedDict):
    items: list[EventDocument]
    next: str | None


@router.get(f"{WORKSPACE}/events", response=EventList)
def list_events(request: HttpRequest, org: str, ws: str, filters: Query[EventFilters]) -> HttpResponse:
    """The workspace's events on all clusters, newest first. With `Accept: text/event-stream` or `application/x-ndjson`
    the answer goes on as events happen: see docs/events.md."""
    access = access_of(request, org, ws, parameters=EventFilters.model_fields)
    wanted = event_queries.wanted(filters.name, filters.kind, filters.actor)
    before = None if filters.after is None else parse_position(filters.after, "after")
    page = event_queries.newest(access.workspace.pk, wanted, before, filters.limit)
    return json_response({"items": [event_document(event) for event in page.items], "next": page.next})
