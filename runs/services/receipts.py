"""Receipts are written once, when the last samples of an ended run have come in; what they say outlives the samples."""

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from astraconsole import events
from astraconsole.errors import Unavailable
from astraconsole.sql import fetch
from runs.models import Receipt, Run
from runs.receipts import measured

log = logging.getLogger(__name__)
AT_ONCE = 50  # in one pass: the next one goes on
LOOKS = 2  # after the end, until the last samples of connected machines are stored
OLDEST = timedelta(days=2)  # of runs that ended before, receipts are measured on reading


def write_due(now: datetime) -> int:
    """Periodic, safe to repeat and at once. How many were written."""
    due = fetch(
        """
        SELECT r.id FROM runs_run r
        WHERE r.deleted_at IS NULL AND r.ended_at BETWEEN %s AND %s
        AND NOT EXISTS (SELECT FROM runs_receipt c WHERE c.run_id = r.id) ORDER BY r.ended_at LIMIT %s
        """,
        [now - OLDEST, now - timedelta(seconds=LOOKS * settings.METRICS_SAMPLE_SECONDS), AT_ONCE],
    )
    written = 0
    try:
        for run in Run.objects.filter(pk__in=[run_id for (run_id,) in due]):
            written += _write(run, now)
    except Unavailable as error:
        log.warning("Receipts wait for the metrics engine: %s", error)
    return written


@transaction.atomic
def _write(run: Run, now: datetime) -> bool:
    document = measured(run, now)
    _, is_new = Receipt.objects.get_or_create(run=run, defaults={"document": document, "written_at": now})
    if is_new:
        events.runs_changed(run.workspace_id, [run.uid])
    return is_new
