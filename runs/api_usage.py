"""The JSON API of GPU-hours."""

import re
from datetime import date
from typing import Literal

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router, Schema
from pydantic import Field
from typing_extensions import TypedDict

from astraconsole.errors import Detail, ValidationError
from astraconsole.json_bodies import json_response, refuse_unknown_parameters
from astraconsole.tenancy.queries import get_access
from runs.usage import months_before, usage_of

WORKSPACE = "/orgs/{slug:org}/workspaces/{slug:ws}"
MONTHS = 12
_MONTH = re.compile(r"([12]\d{3})-(0[1-9]|1[0-2])", re.ASCII)

router = Router(tags=["Usage"])


class UsageFilters(Schema):
    start: str = Field("", alias="from", max_length=10, description="the first month, as 2026-01; a year back without")
    end: str = Field("", alias="to", max_length=10, description="the last month; this one without")
    scope: Literal["workspace", "organisation"] = Field(
        "workspace", description="organisation: of all its workspaces, for staff"
    )


class UsedDocument(TypedDict):
    """`user`: null for somebody who has left."""

    month: str
    organisation: str
    workspace: str
    user: str | None
    gpu_hours: float


class UsageList(TypedDict):
    items: list[UsedDocument]
    next: None


@router.get(f"{WORKSPACE}/usage", response=UsageList)
def usage(request: HttpRequest, org: str, ws: str, filters: Query[UsageFilters]) -> HttpResponse:
    """GPU-hours held, by month (of UTC, newest first) and by who started the runs (most first)."""
    access = get_access(request.auth, org, ws)  # type: ignore[attr-defined]
    refuse_unknown_parameters(request, ("from", "to", "scope"))
    now = timezone.now()
    last = _month("to", filters.end) or now.date()
    first = _month("from", filters.start) or months_before(last, MONTHS - 1)
    if first > last:
        raise _invalid("from", "must not be after to")
    found = usage_of(access, first, last, now, filters.scope == "organisation")
    items = [
        {
            "month": f"{used.month:%Y-%m}",
            "organisation": used.organisation,
            "workspace": used.workspace,
            "user": used.user or None,
            "gpu_hours": round(used.gpu_hours, 4),
        }
        for used in found
    ]
    return json_response({"items": items, "next": None})


def _month(field: str, text: str) -> date | None:
    if not text:
        return None
    match = _MONTH.fullmatch(text)
    if match is None:
        raise _invalid(field, "must be a month, as 2026-01")
    return date(int(match[1]), int(match[2]), 1)


def _invalid(field: str, rule: str) -> ValidationError:
    detail: list[Detail] = [{"field": field, "rule": rule}]
    return ValidationError(f"{field} {rule}", detail)
