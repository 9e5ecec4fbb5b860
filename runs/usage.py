"""GPU-hours held, by month and person: from placements, and from what was summed up before records were removed.

An attempt holds its GPUs from its placement until its machine has given them back, or until the console has given the
attempt up (its machine was lost, its run deleted); what still runs, until now. Months are those of UTC.
"""

import calendar
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from astraconsole.sql import execute, fetch
from astraconsole.tenancy.models import Organisation
from astraconsole.tenancy.queries import Access

# Each attempt with GPUs, cut at the ends of months.
_HELD = """
SELECT spans.workspace_id, spans.username, month::date AS month,
       sum(spans.gpus * extract(epoch FROM LEAST(spans.until, month + interval '1 month')
                                         - GREATEST(spans.since, month)))::float8 AS gpu_seconds
FROM (
    SELECT r.workspace_id, coalesce(u.username, '') AS username, cardinality(a.gpu_indexes) AS gpus,
           GREATEST(a.placed_at, %(begin)s) AS since,
           LEAST(coalesce(LEAST(a.released_at, a.superseded_at), %(now)s), %(end)s) AS until
    FROM runs_run r
    JOIN runs_worker w ON w.run_id = r.id
    JOIN runs_attempt a ON a.worker_id = w.id
    LEFT JOIN tenancy_user u ON u.id = r.created_by_id
    WHERE {which} AND cardinality(a.gpu_indexes) > 0 AND a.placed_at < %(end)s
) spans
CROSS JOIN LATERAL generate_series(date_trunc('month', spans.since, 'UTC'), spans.until, interval '1 month') month
WHERE spans.until > GREATEST(spans.since, month)
GROUP BY 1, 2, 3
"""
_ALL = f"""
SELECT o.slug, s.slug, found.month, found.username, sum(found.gpu_seconds) FROM (
    {_HELD.format(which="r.workspace_id = ANY(%(workspaces)s)")}
    UNION ALL
    SELECT workspace_id, username, month, gpu_seconds FROM runs_usagemonth
    WHERE workspace_id = ANY(%(workspaces)s) AND month >= %(begin)s::date AND month < %(end)s::date
) found
JOIN tenancy_workspace s ON s.id = found.workspace_id JOIN tenancy_organisation o ON o.id = s.organisation_id
GROUP BY 1, 2, 3, 4 ORDER BY 3 DESC, 5 DESC, 2, 4
"""
EVER = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))


@dataclass(frozen=True)
class Used:
    """`user`: "" for somebody who has left. `month`: its first day."""

    organisation: str
    workspace: str
    month: date
    user: str
    gpu_hours: float


def usage_of(access: Access, first: date, last: date, now: datetime, everywhere: bool = False) -> list[Used]:
    """From the month of `first` to that of `last`, both whole, newest first, most first. `everywhere`: of all
    workspaces of the organisation, for staff. One query, or two.

    Raises Forbidden."""
    ids = _workspaces(access) if everywhere else [access.workspace.pk]
    begin, end = _months(first, last)
    rows = fetch(_ALL, {"workspaces": ids, "begin": begin, "end": end, "now": now})
    return [Used(org, ws, month, user, seconds / 3600) for org, ws, month, user, seconds in rows]


def _workspaces(access: Access) -> list[int]:
    access.require_staff()
    organisation = Organisation(pk=access.workspace.organisation_id)
    return list(organisation.workspaces.values_list("pk", flat=True))


def _months(first: date, last: date) -> tuple[datetime, datetime]:
    after = date(last.year + last.month // 12, last.month % 12 + 1, 1)
    return datetime(first.year, first.month, 1, tzinfo=UTC), datetime(after.year, after.month, 1, tzinfo=UTC)


def months_before(day: date, count: int) -> date:
    """The first day of the month `count` months before that of `day`."""
    index = day.year * 12 + day.month - 1 - count
    return date(index // 12, index % 12 + 1, 1)


def month_name(month: date) -> str:
    return f"{calendar.month_name[month.month]} {month.year}"


def keep(run_ids: Sequence[int], now: datetime) -> None:
    """Sum up what these runs held: their records are about to be removed, in this transaction."""
    begin, end = EVER
    execute(
        f"""
        INSERT INTO runs_usagemonth (workspace_id, username, month, gpu_seconds)
        {_HELD.format(which="r.id = ANY(%(runs)s)")}
        ON CONFLICT (workspace_id, month, username)
        DO UPDATE SET gpu_seconds = runs_usagemonth.gpu_seconds + excluded.gpu_seconds
        """,
        {"runs": list(run_ids), "begin": begin, "end": end, "now": now},
    )
