"""Reads of templates and schedules, each from an `Access`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q, QuerySet

from astraconsole.errors import NotFound
from astraconsole.tenancy.queries import Access
from runs.cron import upcoming
from runs.models import ACTIVE, Firing, Run, Schedule, Template

LIMIT_MAX = 500
FIRINGS_SHOWN = 20
TIMES_SHOWN = 5


@dataclass(frozen=True)
class Templates:
    """By name. `next`: what to pass as `after` for the following page; None at the end."""

    items: list[Template]
    next: str | None


def list_templates(access: Access, after: str = "", limit: int = LIMIT_MAX) -> Templates:
    found = Template.objects.filter(workspace=access.workspace).select_related("saved_by").order_by("name")
    items = list(found.filter(name__gt=after.replace("\0", ""))[: limit + 1] if after else found[: limit + 1])
    return Templates(items[:limit], items[limit - 1].name if len(items) > limit else None)


def templates_shown(access: Access) -> list[Template]:
    """By name, without their specifications: what pages list."""
    found = Template.objects.filter(workspace=access.workspace).select_related("saved_by").defer("spec")
    return list(found.order_by("name")[:LIMIT_MAX])


def get_template(access: Access, uid: str) -> Template:
    """Raises NotFound."""
    found = Template.objects.filter(workspace=access.workspace, uid=_uid(uid)).select_related("saved_by").first()
    if found is None:
        raise NotFound(f"the workspace has no template {uid}")
    return found


def schedules_for(access: Access) -> QuerySet[Schedule]:
    """With their clusters and owners, by name."""
    found = Schedule.objects.filter(workspace=access.workspace)
    return found.select_related("namespace__cluster", "saved_by").order_by("name")


def schedule_of(run: Run) -> Schedule | None:
    """That started it; None also where it was removed meanwhile. No query for a run that bears no such label."""
    return Schedule.objects.filter(firings__run=run).first() if "schedule" in run.labels else None


def get_schedule(access: Access, name: str) -> Schedule:
    """Raises NotFound."""
    found = schedules_for(access).filter(name=name.replace("\0", "")).first()
    if found is None:
        raise NotFound(f"the workspace has no schedule {name}")
    return found


def newest_firings(schedules: Sequence[Schedule]) -> dict[int, Firing]:
    """Of each schedule, by its id: one query."""
    found = Firing.objects.filter(schedule__in=schedules).select_related("run")
    return {firing.schedule_id: firing for firing in found.order_by("schedule_id", "-due_at").distinct("schedule_id")}


def firings_of(schedule: Schedule, limit: int = FIRINGS_SHOWN) -> list[Firing]:
    """The newest, newest first."""
    return list(schedule.firings.select_related("run").order_by("-due_at")[:limit])


def active_runs_of(schedule: Schedule) -> list[Run]:
    """Its runs that have not ended and are not deleted."""
    firings = Firing.objects.filter(schedule=schedule, run__isnull=False).values("run_id")
    return list(Run.objects.filter(ACTIVE, id__in=firings).order_by("id"))


def due_schedule_ids(now: datetime, limit: int) -> list[int]:
    due = Schedule.objects.filter(Q(enabled=True, next_at__lte=now)).order_by("next_at")
    return list(due.values_list("id", flat=True)[:limit])


def schedule_ids_due_before(now: datetime, until: datetime, limit: int) -> list[tuple[int, datetime]]:
    """(id, when) of those due soon, and not yet."""
    found = Schedule.objects.filter(enabled=True, next_at__gt=now, next_at__lte=until).order_by("next_at")
    return [(pk, at) for pk, at in found.values_list("id", "next_at")[:limit] if at is not None]


def next_times(schedule: Schedule, now: datetime) -> list[datetime]:
    """When it starts runs next; never while it is disabled."""
    return upcoming(schedule.cron, schedule.zone, now, TIMES_SHOWN) if schedule.enabled else []


def _uid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
