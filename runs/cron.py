"""When a schedule is due: cron expressions with a zone, over the clock's changes. Pure; moments are in UTC.

As Debian's cron: what is due in the hour that a clock skips comes right after it; what has a fixed hour comes once in
an hour that a clock repeats, what comes every so many minutes goes on through it.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

EXPRESSION_MAX = 100  # characters
NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_DAY = timedelta(hours=25)


def faults_of_expression(expression: str) -> str:
    """What is wrong with it, as a rule; "" for nothing."""
    if len(expression) > EXPRESSION_MAX:
        return f"must be at most {EXPRESSION_MAX} characters"
    try:
        next(CronSim(_fields(expression), datetime(2026, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        return f"must be minute, hour, day of month, month and day of week, such as 0 3 * * 1-5 ({error})"
    except StopIteration:
        return "never comes"
    return ""


def faults_of_zone(zone: str) -> str:
    """What is wrong with it, as a rule; "" for nothing."""
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "must be a time zone such as Europe/Berlin or UTC"
    return ""


def upcoming(expression: str, zone: str, after: datetime, count: int) -> list[datetime]:
    """The next `count` times after a moment; fewer where there are no more in the next fifty years."""
    times = times_after(expression, zone, after)
    return [at for at, _ in zip(times, range(count), strict=False)]


def latest_due(expression: str, zone: str, since: datetime, now: datetime) -> datetime:
    """Of the times from `since`, which is one, to `now`: the last. The others were missed."""
    back = CronSim(_fields(expression), now.astimezone(ZoneInfo(zone)), reverse=True)
    near = next(back, since).astimezone(UTC)  # within a day of it: backwards, clocks' changes count otherwise
    newest = since
    for at in times_after(expression, zone, max(since, near - _DAY)):
        if at > now:
            break
        newest = at
    return newest


def times_after(expression: str, zone: str, after: datetime) -> Iterator[datetime]:
    """In order, each once. Raises ValueError for an expression or a zone that is none."""
    try:
        times = CronSim(_fields(expression), after.astimezone(ZoneInfo(zone)))
    except (CronSimError, ZoneInfoNotFoundError) as error:
        raise ValueError(str(error)) from error
    before = after.astimezone(UTC)
    for local in times:
        at = local.astimezone(UTC)
        if at > before:  # in an hour that is there twice, the same time of day comes up again
            yield at
            before = at


def _fields(expression: str) -> str:
    """Five fields: seconds, which cronsim would take as a sixth, are no part of cron."""
    text = NICKNAMES.get(expression.strip().lower(), expression)
    if len(text.split()) != 5:
        raise CronSimError(f"{len(text.split())} fields, not 5")
    return text
