"""What the samples before a failure say, as plain sentences. Pure: points in, sentences out; where nothing is known or
nothing is out of the ordinary there is no sentence.

Points are (seconds before the failure, value), oldest first, known ones only.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TypeAlias

from runs.units import counted, format_duration, format_memory

Points: TypeAlias = Sequence[tuple[float, float]]

FRESH_SECONDS = 120  # an older last sample says nothing of the failure
LONG_ENOUGH = 60  # seconds of doing nothing
IDLE, BUSY = 0.005, 0.05  # of a GPU's time
NEAR_LIMIT, MUCH = 0.95, 0.5
CLIMBED = 0.1  # of the limit
SILENT, TALKING = 1024, 100 * 1024  # bytes a second


def about_memory(used: Points, limit: float | None) -> str | None:
    """Near its limit, or climbing towards it."""
    if not _fresh(used) or not limit:
        return None
    first, last, most = used[0][1], used[-1][1], max(value for _, value in used)
    of = f"{format_memory(round(most))} of its limit of {format_memory(round(limit))}"
    climbed = last - first >= CLIMBED * limit and last >= MUCH * limit and last >= 0.9 * most
    if climbed:
        return f"Memory climbed from {format_memory(round(first))} to {of} in the {_ago(used[0][0])} before it."
    return f"Memory was up to {of}." if most >= NEAR_LIMIT * limit else None


def about_gpus(busy: Mapping[str, Points]) -> list[str]:
    """GPUs at 0 % until the failure. `busy`: by GPU, 0 to 1."""
    idle: dict[str, list[str]] = {}
    for gpu, points in busy.items():
        if _fresh(points) and (since := _quiet_for(points, IDLE)) >= LONG_ENOUGH:
            always = max(value for _, value in points) < BUSY
            span = f"in the {_ago(points[0][0])} before it" if always else f"for the last {_ago(since)} before it"
            idle.setdefault(span, []).append(gpu)
    return [f"{_gpus(gpus, len(busy))} at 0% {span}." for span, gpus in idle.items()]


def about_others(busy: Mapping[str, Points]) -> str | None:
    """Of the run's other workers: those whose GPUs did nothing until the failure. `busy`: by worker."""
    told = {name: points for name, points in busy.items() if _fresh(points)}
    quiet = [since for points in told.values() if (since := _quiet_for(points, IDLE)) >= LONG_ENOUGH]
    if not quiet:
        return None
    which = "Another worker's" if len(told) == 1 else f"{len(quiet)} of the {len(told)} other workers'"
    return f"{which} GPUs were at 0% for the last {_ago(min(quiet))} before it, too."


def about_network(received: Points) -> str | None:
    """Traffic that stopped. `received`: bytes a second."""
    if not _fresh(received):
        return None
    since = _quiet_for(received, SILENT)
    if since < LONG_ENOUGH or max(value for _, value in received) < TALKING:
        return None
    return f"Network traffic stopped {_ago(since)} before it."


def plainly(busy: Mapping[str, Points], used: Points) -> str | None:
    """Where nothing was out of the ordinary: what there was."""
    parts = []
    values = [value for points in busy.values() if _fresh(points) for _, value in points]
    if values:
        parts.append(f"GPUs {sum(values) / len(values):.0%} busy")
    if _fresh(used):
        parts.append(f"memory up to {format_memory(round(max(value for _, value in used)))}")
    return f"Nothing out of the ordinary before it: {', '.join(parts)}." if parts else None


def _fresh(points: Points) -> bool:
    return bool(points) and points[-1][0] <= FRESH_SECONDS


def _quiet_for(points: Points, at_most: float) -> float:
    """Seconds before the failure since when no value was larger."""
    quiet = [ago for ago, _ in takewhile(lambda point: point[1] <= at_most, reversed(points))]
    return quiet[-1] if quiet else 0.0


def _gpus(gpus: Sequence[str], of: int) -> str:
    if len(gpus) == of and of > 1:
        return f"All {counted(of, 'GPU')} were"
    return f"GPU {gpus[0]} was" if len(gpus) == 1 else f"GPUs {', '.join(gpus[:-1])} and {gpus[-1]} were"


def _ago(seconds: float) -> str:
    whole = max(1, round(seconds))
    return format_duration(whole // 60 * 60 if whole >= 600 else whole)
