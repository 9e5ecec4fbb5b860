"""Schedules: the one writer, and what happens when one is due.

Whoever notices that a schedule is due (a task at its time, beat's tick, both at once on several workers) takes its row,
looks again, and writes the firing, whose uniqueness makes the time count once. Times that nobody noticed are not made
up for: the last of them is fired, once.
"""

import json
import logging
from datetime import datetime
from typing import Any

from django.db import transaction

from astraconsole.errors import AlreadyEnded, AstraError, Forbidden, JobAlreadyExists, NotFound
from astraconsole.tenancy import audit
from astraconsole.tenancy.audit import Did, Kind
from astraconsole.tenancy.models import Membership
from astraconsole.tenancy.permissions import Action, Role
from astraconsole.tenancy.queries import Access
from astraconsole.tenancy.services import hold
from runs import saved_queries
from runs.cron import latest_due, upcoming
from runs.models import Firing, Run, Schedule
from runs.queries import get_namespace
from runs.saved import Outcome, Overlap, ScheduleFields
from runs.services.stopping import stop_run
from runs.services.submit import submit_run
from runs.services.templates import require_room
from runs.spec import parse_run

BATCH = 200
NAME_TRIES = 20
FIRINGS_KEPT = 1000  # of each schedule
BY_ITSELF = "schedule"
log = logging.getLogger(__name__)


@transaction.atomic
def save_schedule(access: Access, fields: ScheduleFields, now: datetime) -> tuple[Schedule, bool]:
    """The schedule, and whether it is new: one of this name is replaced, and goes on counting its runs. Its runs are
    this person's from now on.

    Raises Forbidden, NotFound (no such cluster), Conflict (too many), and what its specification breaks.
    """
    access.require(Action.WRITE)
    hold(access.workspace)
    require_room(Schedule.objects.filter(workspace=access.workspace), fields.name, "schedules")
    namespace = get_namespace(access, fields.cluster)
    parse_run(_body(fields.name, 1, fields.spec))
    values = {
        "namespace": namespace,
        "cron": fields.cron,
        "zone": fields.zone,
        "overlap": fields.overlap,
        "spec": fields.spec,
        "enabled": fields.enabled,
        "next_at": next_time(fields.cron, fields.zone, now) if fields.enabled else None,
        "error": "",
        "saved_by": access.user,
        "saved_at": now,
    }
    schedule, is_new = Schedule.objects.update_or_create(workspace=access.workspace, name=fields.name, defaults=values)
    timetable = f"{fields.cron} ({fields.zone}) on {fields.cluster}"
    audit.record(access, Kind.SCHEDULE, schedule.name, Did.ADDED if is_new else Did.REPLACED, timetable, now)
    return schedule, is_new


def next_time(cron: str, zone: str, now: datetime) -> datetime | None:
    times = upcoming(cron, zone, now, 1)
    return times[0] if times else None


@transaction.atomic
def set_enabled(access: Access, schedule: Schedule, enabled: bool, now: datetime) -> None:
    """Enabled again it goes on with the next time from now. Asking again changes nothing. Raises Forbidden,
    NotFound."""
    access.require(Action.WRITE)
    schedule = _locked(schedule)
    if schedule.enabled != enabled:
        schedule.enabled = enabled
        schedule.next_at = next_time(schedule.cron, schedule.zone, now) if enabled else None
        schedule.save(update_fields=["enabled", "next_at"])
        audit.record(access, Kind.SCHEDULE, schedule.name, Did.ENABLED if enabled else Did.DISABLED, "", now)


@transaction.atomic
def remove_schedule(access: Access, schedule: Schedule, now: datetime) -> None:
    """Its runs stay. Raises Forbidden, NotFound."""
    access.require(Action.WRITE)
    _locked(schedule).delete()
    audit.record(access, Kind.SCHEDULE, schedule.name, Did.REMOVED, "", now)


def run_now(access: Access, schedule: Schedule, now: datetime) -> Firing:
    """Beside its timetable, whatever its overlap policy says. Raises Forbidden, NotFound, what submitting raises."""
    access.require(Action.WRITE)
    with transaction.atomic():
        locked = _locked(schedule)
        run = _submit(access, locked, now)
        return _record(locked, now, now, Outcome.STARTED, f"Started by {access.actor}", access.actor, run)


def _locked(schedule: Schedule) -> Schedule:
    """Its row as it is now, locked. Raises NotFound: it may have been removed since it was read."""
    rows = Schedule.objects.select_for_update(of=("self",)).select_related("namespace__cluster")
    found = rows.filter(pk=schedule.pk).first()
    if found is None:
        raise NotFound(f"the workspace has no schedule {schedule.name}")
    return found


# ---- due ----


def fire_due(now: datetime) -> int:
    """Every schedule whose time has come; how many. One that fails says so, and the others go on."""
    due = saved_queries.due_schedule_ids(now, BATCH)
    for schedule_id in due:
        fire(schedule_id, now)
    return len(due)


def fire(schedule_id: int, now: datetime) -> None:
    """Fire one schedule, if it is due and nobody else is at it."""
    try:
        with transaction.atomic():
            _fire_locked(schedule_id, now)
    except Exception as error:
        log.exception("schedule %s", schedule_id)
        _set_aside(schedule_id, f"unexpected: {type(error).__name__}", now)


def _fire_locked(schedule_id: int, now: datetime) -> None:
    schedule = _take(schedule_id, now)
    if schedule is None or schedule.next_at is None:
        return
    due_at = latest_due(schedule.cron, schedule.zone, schedule.next_at, now)
    missed = due_at != schedule.next_at
    schedule.next_at = next_time(schedule.cron, schedule.zone, max(due_at, now))
    schedule.save(update_fields=["next_at"])
    if schedule.firings.filter(due_at=due_at).exists():
        return
    running = saved_queries.active_runs_of(schedule)
    if running and schedule.overlap == Overlap.SKIP:
        message = f"{running[0].name} has not ended"
        _record(schedule, due_at, now, Outcome.SKIPPED, message, BY_ITSELF)
        return
    before = schedule.started
    try:
        with transaction.atomic():
            access = _owner(schedule)
            if schedule.overlap == Overlap.REPLACE:
                _stop(access, running, schedule, now)
            run = _submit(access, schedule, now)
    except AstraError as error:
        schedule.started = before
        _record(schedule, due_at, now, Outcome.FAILED, f"{error.code}: {error.message}", BY_ITSELF)
        return
    message = "Earlier times were missed" if missed else ""
    _record(schedule, due_at, now, Outcome.STARTED, message, BY_ITSELF, run)


def _take(schedule_id: int, now: datetime) -> Schedule | None:
    """Its row, locked; None where it is not due any more, or another process is at it."""
    due = Schedule.objects.filter(pk=schedule_id, enabled=True, next_at__lte=now)
    locked = due.select_for_update(skip_locked=True, of=("self",))
    return locked.select_related("namespace__cluster", "workspace__organisation", "saved_by").first()


def _owner(schedule: Schedule) -> Access:
    """Who its runs are started by. Raises Forbidden for somebody who may no longer."""
    member = Membership.objects.filter(workspace=schedule.workspace, user=schedule.saved_by).first()
    if schedule.saved_by is None or member is None or not schedule.saved_by.is_active:
        raise Forbidden("who saved it is no member of the workspace any more: save it again")
    return Access(schedule.saved_by, schedule.workspace, Role(member.role))


def _stop(access: Access, running: list[Run], schedule: Schedule, now: datetime) -> None:
    for run in running:
        try:
            stop_run(access, run, f"replaced by schedule {schedule.name}", now)
        except AlreadyEnded:  # meanwhile
            continue


def _submit(access: Access, schedule: Schedule, now: datetime) -> Run:
    """Its next run: `<name>-<n>`, passing over names that are taken. Raises what submitting raises."""
    for left in reversed(range(NAME_TRIES)):
        schedule.started += 1
        try:
            with transaction.atomic():
                request = parse_run(_body(schedule.name, schedule.started, schedule.spec))
                return submit_run(access, schedule.namespace.cluster.slug, request, now)
        except JobAlreadyExists:
            if not left:
                raise
    raise AssertionError("not reached")


def _record(
    schedule: Schedule,
    due_at: datetime,
    now: datetime,
    outcome: Outcome,
    message: str,
    actor: str,
    run: Run | None = None,
) -> Firing:
    schedule.error = message if outcome is Outcome.FAILED else ""
    schedule.save(update_fields=["started", "error"])
    _forget_old(schedule)
    return Firing.objects.create(
        schedule=schedule, due_at=due_at, fired_at=now, outcome=outcome, message=message, actor=actor, run=run
    )


def _forget_old(schedule: Schedule) -> None:
    """Firings beyond the newest FIRINGS_KEPT, but for those whose runs go on: overlaps are told by them."""
    oldest = schedule.firings.order_by("-due_at").values_list("due_at", flat=True)[FIRINGS_KEPT:].first()
    if oldest is not None:
        going_on = saved_queries.active_runs_of(schedule)
        schedule.firings.filter(due_at__lte=oldest).exclude(run__in=[run.pk for run in going_on]).delete()


def _set_aside(schedule_id: int, message: str, now: datetime) -> None:
    """A defect of one schedule must not come again every few seconds: it waits for its next time, and shows."""
    schedule = Schedule.objects.filter(pk=schedule_id).first()
    if schedule is None:
        return
    try:
        next_at = next_time(schedule.cron, schedule.zone, now)
    except ValueError as error:
        next_at, message = None, str(error)
    Schedule.objects.filter(pk=schedule_id).update(next_at=next_at, error=message)


def _body(name: str, number: int, spec: str) -> dict[str, Any]:
    labels = {"schedule": name}
    return {"metadata": {"name": f"{name}-{number}", "labels": labels}, "spec": json.loads(spec)}
