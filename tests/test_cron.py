"""When a schedule is due, over the changes of clocks."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs.cron import faults_of_expression, faults_of_zone, latest_due, upcoming

BERLIN = "Europe/Berlin"


def local(zone: str, text: str, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)


def shown(expression: str, zone: str, after: datetime, count: int = 3) -> list[str]:
    """In local time, with the offset."""
    times = upcoming(expression, zone, after, count)
    return [at.astimezone(ZoneInfo(zone)).strftime("%d %H:%M %z") for at in times]


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        ("30 2 * * *", BERLIN, "2026-03-28T12:00", ["29 03:00 +0200", "30 02:30 +0200", "31 02:30 +0200"]),
        ("*/30 * * * *", BERLIN, "2026-03-29T01:10", ["29 01:30 +0100", "29 03:00 +0200", "29 03:30 +0200"]),
        ("30 2 * * *", BERLIN, "2026-10-24T12:00", ["25 02:30 +0200", "26 02:30 +0100", "27 02:30 +0100"]),
        ("0 * * * *", BERLIN, "2026-10-25T01:10", ["25 02:00 +0200", "25 02:00 +0100", "25 03:00 +0100"]),
        ("*/30 2 * * *", BERLIN, "2026-10-25T02:10", ["25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100"]),
        ("0 9 * * 1-5", "America/New_York", "2026-03-06T10:00", ["09 09:00 -0400", "10 09:00 -0400", "11 09:00 -0400"]),
        ("0 12 31 * *", "UTC", "2026-01-31T12:00", ["31 12:00 +0000", "31 12:00 +0000", "31 12:00 +0000"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00", ["29 00:00 +0000", "29 00:00 +0000", "29 00:00 +0000"]),
        (
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-03T12:00",
            ["04 02:30 +1100", "05 02:15 +1100", "06 02:15 +1100"],
        ),
        (
            "45 1 * * *",
            "Australia/Lord_Howe",
            "2026-04-04T12:00",
            ["05 01:45 +1100", "06 01:45 +1030", "07 01:45 +1030"],
        ),
        (
            "*/15 * * * *",
            "Australia/Lord_Howe",
            "2026-04-05T01:40",
            ["05 01:45 +1100", "05 01:30 +1030", "05 01:45 +1030"],
        ),
        ("0 0 * * *", "America/Santiago", "2026-09-05T12:00", ["06 01:00 -0300", "07 00:00 -0300", "08 00:00 -0300"]),
        ("30 23 * * *", "America/Santiago", "2026-04-03T23:45", ["04 23:30 -0300", "05 23:30 -0400", "06 23:30 -0400"]),
        ("0 1 * * *", "Antarctica/Troll", "2026-03-28T12:00", ["29 03:00 +0200", "30 01:00 +0200", "31 01:00 +0200"]),
        ("@daily", "Asia/Kathmandu", "2026-05-01T12:00", ["02 00:00 +0545", "03 00:00 +0545", "04 00:00 +0545"]),
    ],
)
def test_times_follow_the_clock_of_the_zone(expression: str, zone: str, after: str, expected: list[str]) -> None:
    assert shown(expression, zone, local(zone, after)) == expected


def test_a_fixed_hour_comes_once_in_an_hour_that_is_there_twice() -> None:
    second = local(BERLIN, "2026-10-25T02:10", fold=1)
    assert shown("30 2 * * *", BERLIN, second, 1) == ["26 02:30 +0100"]


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("", "(0 fields, not 5)"),
        ("* * * *", "(4 fields, not 5)"),
        ("0 0 3 * * *", "(6 fields, not 5)"),
        ("60 * * * *", "(Bad minute)"),
        ("0 0 30 2 *", "(Bad day-of-month)"),
        ("*/0 * * * *", "(Bad minute)"),
        ("5-1 * * * *", "(Bad minute)"),
        ("@often", "(1 fields, not 5)"),
        ("0 " * 60, "must be at most 100 characters"),
    ],
)
def test_an_expression_that_is_none_is_told_what_it_needs(expression: str, fault: str) -> None:
    assert faults_of_expression(expression).endswith(fault)


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../etc/passwd", "Europe", "\0"])
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    assert faults_of_zone(zone)


def test_the_last_of_the_times_that_nobody_noticed_is_the_one_to_fire() -> None:
    since, now = datetime(2026, 5, 1, 0, 0, tzinfo=UTC), datetime(2026, 5, 9, 12, 34, 56, tzinfo=UTC)
    assert latest_due("*/10 * * * *", "UTC", since, now) == datetime(2026, 5, 9, 12, 30, tzinfo=UTC)
    assert latest_due("0 0 * * 5", "UTC", since, now) == datetime(2026, 5, 8, tzinfo=UTC)
    assert latest_due("0 0 1 * *", "UTC", since, now) == since


fields = st.tuples(
    st.sampled_from(["*", "0", "*/7", "30", "59", "1,31"]),
    st.sampled_from(["*", "2", "*/3", "1-3", "23"]),
    st.sampled_from(["*", "1", "L", "28-31"]),
    st.sampled_from(["*", "3", "10", "*/2"]),
    st.sampled_from(["*", "0", "1-5", "7", "SUN#L"]),
).map(" ".join)
zones = st.sampled_from([BERLIN, "UTC", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Tehran"])
moments = st.datetimes(datetime(2025, 1, 1), datetime(2028, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))


@settings(max_examples=40)
@given(fields, zones, moments)
def test_times_come_in_order_each_once_whatever_clocks_do(expression: str, zone: str, after: datetime) -> None:
    if faults_of_expression(expression):
        return
    times = upcoming(expression, zone, after, 8)
    assert all(before < at for before, at in zip([after, *times], times, strict=False))
    assert all(at.second == at.microsecond == 0 for at in times)


@settings(max_examples=40)
@given(fields, zones, moments, st.timedeltas(timedelta(0), timedelta(days=3)))
def test_going_on_from_any_moment_skips_no_time(expression: str, zone: str, after: datetime, later: timedelta) -> None:
    if faults_of_expression(expression):
        return
    times = upcoming(expression, zone, after, 8)
    left = [at for at in times if at > after + later]
    if left:
        assert upcoming(expression, zone, after + later, len(left)) == left


@settings(max_examples=40)
@given(fields, zones, moments, st.timedeltas(timedelta(0), timedelta(days=40)))
def test_nothing_is_due_between_the_latest_and_now(
    expression: str, zone: str, after: datetime, gone: timedelta
) -> None:
    if faults_of_expression(expression):
        return
    [since] = upcoming(expression, zone, after, 1)
    now = since + gone
    due = latest_due(expression, zone, since, now)
    assert since <= due <= now
    assert upcoming(expression, zone, due, 1)[0] > now
