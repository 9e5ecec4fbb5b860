"""The Usage page: GPU-hours by month and person, also as CSV."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from astraconsole.tenancy.pages import context_of
from astraconsole.tenancy.queries import get_access
from runs.usage import Used, month_name, months_before, usage_of

MONTHS = 12


@dataclass(frozen=True)
class Month:
    """`share`: of the month with the most, 0 to 1."""

    name: str
    slug: str
    hours: float
    share: float
    people: Sequence[tuple[Used, float]]  # with their shares of the month


@require_GET
def usage(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    everywhere = request.GET.get("scope") == "organisation"
    now = timezone.now()
    today = now.date()
    found = usage_of(access, months_before(today, MONTHS - 1), today, now, everywhere)
    if request.GET.get("format") == "csv":
        return _csv(found, org if everywhere else f"{org}-{ws}")
    context = context_of(
        access,
        everywhere=everywhere,
        months=_months(found),
        this_month=month_name(today),
        held_now=_total(found, today.replace(day=1)),
        held_before=_total(found, months_before(today, 1)),
        last_month=month_name(months_before(today, 1)),
        total=sum(used.gpu_hours for used in found),
        count=MONTHS,
    )
    return render(request, "runs/usage.html", context)


def _total(found: Sequence[Used], month: date) -> float:
    return sum(used.gpu_hours for used in found if used.month == month)


def _months(found: Sequence[Used]) -> list[Month]:
    """Newest first; months without any are left out."""
    grouped = [(month, list(its)) for month, its in groupby(found, key=lambda used: used.month)]
    sums = {month: sum(used.gpu_hours for used in its) for month, its in grouped}
    most = max(sums.values(), default=0.0)
    return [
        Month(
            month_name(month),
            f"{month:%Y-%m}",
            sums[month],
            sums[month] / most if most else 0.0,
            [(used, used.gpu_hours / sums[month] if sums[month] else 0.0) for used in its],
        )
        for month, its in grouped
    ]


def _csv(found: Sequence[Used], name: str) -> HttpResponse:
    answer = HttpResponse(content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="gpu-hours-{name}.csv"'
    writer: Any = csv.writer(answer)
    writer.writerow(["month", "organisation", "workspace", "user", "gpu_hours"])
    for used in found:
        writer.writerow([f"{used.month:%Y-%m}", used.organisation, used.workspace, used.user, f"{used.gpu_hours:.4f}"])
    return answer
