"""Celery tasks of runs: arguments are ids; each calls a service; safe to run twice, and at once."""

from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from astraconsole import events
from astraconsole.celery import app
from machines import inbox
from machines import services as machine_services
from machines.metrics import rollup
from runs import metrics, queries, saved_queries
from runs.scheduling import loop
from runs.scheduling.passes import timed
from runs.services import codes, deliveries, draining, gangs, lost, receipts, reports, restarting, retention, schedules

# Ahead of beat's next tick: a schedule fires at its time, not at a tick after it.
SOON = timedelta(seconds=2 * settings.SCHEDULER_TICK_SECONDS)


@app.task
def tick(cluster_id: int) -> None:
    """The scheduler, woken: again as long as wakes come in."""
    events.run_while_woken(
        "schedule", cluster_id, lambda: timed(cluster_id, lambda: loop.run_once(cluster_id, timezone.now()))
    )


@app.task
def tick_all() -> None:
    """The safety net: due restarts, gangs that do not get ready, drained machines, and every cluster with work."""
    restarting.start_due(timezone.now())
    gangs.give_back_late(timezone.now())
    draining.give_back_drained(timezone.now())
    for cluster_id in queries.cluster_ids_with_work():
        tick(cluster_id)


@app.task
def apply_reports(cluster_id: int) -> None:
    """What machines reported, woken: again as long as wakes come in."""
    events.run_while_woken("reports", cluster_id, lambda: drain(cluster_id))


def drain(cluster_id: int) -> bool:
    inbox.drain(cluster_id, reports.apply)
    return False


@app.task
def apply_all_reports() -> None:
    """The safety net, as `tick_all`."""
    for cluster_id in queries.cluster_ids():
        apply_reports(cluster_id)


@app.task
def start_due_restarts() -> None:
    restarting.start_due(timezone.now())


@app.task
def expire_leases() -> None:
    """Machines unheard of become Lost, their workers are placed again: also those an earlier check did not get to."""
    if machine_ids := machine_services.expire_leases(timezone.now()):
        lost.machines_lost(machine_ids, timezone.now())


@app.task
def deliver_webhooks() -> None:
    deliveries.deliver_all()


@app.task
def drop_unused_code() -> None:
    codes.drop_unused(timezone.now())


@app.task
def keep_runs_no_longer() -> None:
    retention.keep_no_longer(timezone.now())
    deliveries.forget_old(timezone.now())


@app.task
def store_samples() -> None:
    """What machines have sampled since the last time."""
    for cluster_id in queries.cluster_ids():
        metrics.take_in(cluster_id)


@app.task
def roll_up_samples() -> None:
    """Older samples grow coarser, and the oldest go."""
    now = timezone.now().timestamp()
    if not settings.METRICS_URL:
        rollup.roll_up(now)
    rollup.expire(now)


@app.task
def write_receipts() -> None:
    """Of runs that have ended, once their last samples are there."""
    receipts.write_due(timezone.now())


@app.task
def fire_due_schedules() -> None:
    """The safety net of schedules; and each that is due before the next tick but one gets a task at its time."""
    now = timezone.now()
    schedules.fire_due(now)
    for schedule_id, at in saved_queries.schedule_ids_due_before(now, now + SOON, schedules.BATCH):
        fire_schedule.apply_async(args=[schedule_id], eta=at)


@app.task
def fire_schedule(schedule_id: int) -> None:
    schedules.fire(schedule_id, timezone.now())
