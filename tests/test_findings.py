"""What the samples before a failure say, in sentences: only what they show."""

from collections.abc import Callable

import pytest

from runs import findings
from runs.sizes import GIB


def points(value: Callable[[float], float], begin: float = 600, end: float = 0) -> list[tuple[float, float]]:
    """`value` by seconds before the failure, every 10 s."""
    return [(float(ago), value(ago)) for ago in range(int(begin), int(end) - 1, -10)]


def test_memory_that_climbs_to_its_limit_is_told_with_both_ends() -> None:
    climbing = points(lambda ago: (64 - ago / 12) * GIB)
    told = findings.about_memory(climbing, 64 * GIB)
    assert told == "Memory climbed from 14 GiB to 64 GiB of its limit of 64 GiB in the 10m before it."


def test_memory_that_stood_near_its_limit_did_not_climb() -> None:
    told = findings.about_memory(points(lambda _: 63 * GIB), 64 * GIB)
    assert told == "Memory was up to 63 GiB of its limit of 64 GiB."


@pytest.mark.parametrize(
    ("used", "limit"),
    [
        (points(lambda _: 10 * GIB), 64 * GIB),
        (points(lambda ago: (64 - ago / 12) * GIB), None),
        (points(lambda ago: (64 - ago / 12) * GIB, end=300), 64 * GIB),  # the last sample is too old
        ([], 64 * GIB),
    ],
)
def test_nothing_is_said_of_memory_that_was_enough_or_is_not_known(used: findings.Points, limit: float | None) -> None:
    assert findings.about_memory(used, limit) is None


def test_gpus_that_stopped_are_told_from_those_that_never_worked() -> None:
    busy = {
        "0": points(lambda ago: 0.9),
        "1": points(lambda ago: 0.9 if ago > 240 else 0.0),
        "2": points(lambda ago: 0.0),
        "3": points(lambda ago: 0.9 if ago > 240 else 0.0),
        "4": points(lambda ago: 0.9 if ago > 30 else 0.0),  # too short to mean anything
    }
    assert findings.about_gpus(busy) == [
        "GPUs 1 and 3 were at 0% for the last 4m before it.",
        "GPU 2 was at 0% in the 10m before it.",
    ]
    assert findings.about_gpus({"0": busy["2"], "1": busy["2"]}) == ["All 2 GPUs were at 0% in the 10m before it."]
    assert findings.about_gpus({}) == []


def test_other_workers_that_waited_for_it_are_counted() -> None:
    quiet, working = points(lambda ago: 0.9 if ago > 120 else 0.0), points(lambda _: 0.9)
    told = findings.about_others({"a-1": quiet, "a-2": working, "a-3": quiet})
    assert told == "2 of the 3 other workers' GPUs were at 0% for the last 2m before it, too."
    assert findings.about_others({"a-1": quiet}) == "Another worker's GPUs were at 0% for the last 2m before it, too."
    assert findings.about_others({"a-1": working}) is None


def test_traffic_that_stopped_is_told_and_silence_from_the_start_is_not() -> None:
    stopped = points(lambda ago: 5e6 if ago > 180 else 0.0)
    assert findings.about_network(stopped) == "Network traffic stopped 3m before it."
    assert findings.about_network(points(lambda _: 0.0)) is None
    assert findings.about_network(points(lambda _: 5e6)) is None


def test_where_nothing_stands_out_what_there_was_is_told() -> None:
    told = findings.plainly({"0": points(lambda _: 0.8)}, points(lambda _: 9 * GIB))
    assert told == "Nothing out of the ordinary before it: GPUs 80% busy, memory up to 9 GiB."
    assert findings.plainly({}, []) is None
