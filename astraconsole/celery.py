"""The Celery app and the one table of periodic work. Every tick is a safety net: nothing depends on its rate."""

import os

from celery import Celery
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "astraconsole.settings")


def broker_url(redis_url: str) -> str:
    """Kombu's spelling of a Redis URL: a Unix socket is `redis+socket://…?virtual_host=N`, not `unix://…?db=N`."""
    if redis_url.startswith("unix://"):
        return redis_url.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=")
    return redis_url


app = Celery("astraconsole")
app.conf.update(
    broker_url=broker_url(settings.REDIS_URL),
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,  # else the traceback of a beat that cannot start is logged piece by piece
    task_serializer="json",
    accept_content=["json"],
    timezone="UTC",
    imports=["runs.tasks"],
)
app.conf.beat_schedule = {
    "tick every cluster's scheduler": {"task": "runs.tasks.tick_all", "schedule": settings.SCHEDULER_TICK_SECONDS},
    "drain every cluster's inbox": {
        "task": "runs.tasks.apply_all_reports",
        "schedule": settings.SCHEDULER_TICK_SECONDS,
    },
    "fire due schedules": {"task": "runs.tasks.fire_due_schedules", "schedule": settings.SCHEDULER_TICK_SECONDS},
    "deliver events to webhooks": {
        "task": "runs.tasks.deliver_webhooks",
        "schedule": min(2, settings.SCHEDULER_TICK_SECONDS),
    },
    "drop code of deleted runs": {"task": "runs.tasks.drop_unused_code", "schedule": 3600},
    "keep old runs no longer": {"task": "runs.tasks.keep_runs_no_longer", "schedule": 3600},
    "store samples": {"task": "runs.tasks.store_samples", "schedule": min(5, settings.METRICS_SAMPLE_SECONDS)},
    "write receipts": {"task": "runs.tasks.write_receipts", "schedule": settings.METRICS_SAMPLE_SECONDS},
    "roll samples up": {"task": "runs.tasks.roll_up_samples", "schedule": 300},
    "expire machine leases": {"task": "runs.tasks.expire_leases", "schedule": settings.MACHINE_HEARTBEAT_SECONDS},
}
