"""Arithmetic of samples: onto a grid of times, into rates, together, and down to coarser ones. Pure, vectorised.

Times are Unix seconds, ascending. A missing value is NaN, never 0; a bucket [t, t + step) is named by its start.
"""

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
STEPS = (10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)
POINTS_WANTED = 400  # of an automatic step


class Agg(StrEnum):
    SUM = "sum"
    AVG = "avg"
    MAX = "max"
    MIN = "min"


def automatic_step(seconds: float, least: float) -> float:
    """The finest round step of at least `least` that makes no more than POINTS_WANTED points."""
    fitting = (step for step in STEPS if step >= least and seconds / step <= POINTS_WANTED)
    return float(next(fitting, max(least, np.ceil(seconds / POINTS_WANTED / 86400) * 86400)))


def edges_of(start: float, end: float, step: float) -> Array:
    """The edges of the buckets that touch [start, end): whole multiples of the step, one more than buckets."""
    first, last = np.floor(start / step), np.ceil(end / step)
    return np.arange(first, max(last, first + 1) + 1) * step


def gauge(times: Array, values: Array, edges: Array, agg: Agg, longest_gap: float) -> Array:
    """One value a bucket: the largest or the least in it where those are asked for, else the mean.

    A bucket without a sample keeps the value before it if the samples around it are at most `longest_gap` apart (the
    step is finer than the sampling then); otherwise it is NaN.
    """
    times, values = _known(times, values)
    result, bounds, filled = _buckets(times, edges)
    starts = bounds[:-1][filled]
    if len(starts):
        inside = slice(0, bounds[-1])
        match agg:
            case Agg.MAX:
                result[filled] = np.maximum.reduceat(values[inside], starts)
            case Agg.MIN:
                result[filled] = np.minimum.reduceat(values[inside], starts)
            case _:
                result[filled] = np.add.reduceat(values[inside], starts) / (bounds[1:] - bounds[:-1])[filled]
    return _bridged(result, times, values, bounds, longest_gap)


def last(times: Array, values: Array, edges: Array, longest_gap: float) -> Array:
    """A counter as it stood at the end of each bucket."""
    times, values = _known(times, values)
    result, bounds, filled = _buckets(times, edges)
    result[filled] = values[bounds[1:][filled] - 1]
    return _bridged(result, times, values, bounds, longest_gap)


def _known(times: Array, values: Array) -> tuple[Array, Array]:
    known = ~np.isnan(values)
    return times[known], values[known]


def _buckets(times: Array, edges: Array) -> tuple[Array, NDArray[np.intp], NDArray[np.bool_]]:
    """NaN for each bucket, where in the samples each edge lies, and which buckets hold any."""
    bounds = np.searchsorted(times, edges)
    return np.full(len(edges) - 1, np.nan), bounds, bounds[1:] > bounds[:-1]


def _bridged(result: Array, times: Array, values: Array, bounds: NDArray[np.intp], longest_gap: float) -> Array:
    empty = np.flatnonzero((bounds[1:] == bounds[:-1]) & (bounds[1:] > 0) & (bounds[1:] < len(times)))
    following = bounds[1:][empty]
    near = times[following] - times[following - 1] <= longest_gap
    result[empty[near]] = values[following[near] - 1]
    return result


def rate(times: Array, values: Array, edges: Array, longest_gap: float) -> Array:
    """Increase of a counter per second in each bucket, over the part of it that is known.

    A counter that has fallen began anew from 0. What it grew between two samples is spread evenly between them, so the
    buckets add up to what it grew in all; between samples further apart than `longest_gap` nothing is known.
    """
    times, values = _known(times, values)
    if len(times) < 2:
        return np.full(len(edges) - 1, np.nan)
    passed = np.diff(times)
    grown = np.where(np.diff(values) >= 0, np.diff(values), values[1:])
    near = passed <= longest_gap
    seconds = _at(edges, times, np.where(near, passed, 0.0))
    increase = _at(edges, times, np.where(near, grown, 0.0))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(seconds > 1e-9 * longest_gap, increase / seconds, np.nan)


def _at(edges: Array, times: Array, each: Array) -> Array:
    """How much of `each` (what belongs to the time between two samples) falls into every bucket."""
    until = np.concatenate(([0.0], np.cumsum(each)))
    return np.diff(np.interp(edges, times, until))


def combine(rows: Array, agg: Agg) -> Array:
    """Series (one a row) into one: of what is known in each bucket; NaN where nothing is."""
    known = ~np.isnan(rows)
    count = known.sum(axis=0)
    match agg:
        case Agg.MAX:
            result = np.where(known, rows, -np.inf).max(axis=0)
        case Agg.MIN:
            result = np.where(known, rows, np.inf).min(axis=0)
        case _:
            result = np.where(known, rows, 0.0).sum(axis=0)
            if agg == Agg.AVG:
                result = result / np.maximum(count, 1)
    return np.where(count > 0, result, np.nan)


# ---- roll-ups --------------------------------------------------------------------------------------------------------
# A table of raw samples has a column of times and one for each series; a rolled one has three for each, plane by plane:
# of a gauge mean, least and largest; of a counter its value at the last sample, at the first, and the last one's time.

PLANES = 3


def rolled(table: Array, counters: NDArray[np.bool_], resolution: float) -> Array:
    """A raw or rolled table, by time, as one row for each stretch of `resolution` that has samples."""
    width = len(counters)
    is_raw = table.shape[1] == 1 + width
    means, least, largest = (table[:, 1:],) * PLANES if is_raw else np.split(table[:, 1:], PLANES, axis=1)
    stretch = np.floor(table[:, 0] / resolution)
    starts = np.flatnonzero(np.concatenate(([True], stretch[1:] != stretch[:-1])))
    result = np.full((len(starts), 1 + PLANES * width), np.nan)
    result[:, 0] = stretch[starts] * resolution
    mean, low, high = (result[:, 1 + plane * width : 1 + (plane + 1) * width] for plane in range(PLANES))
    gauges = ~counters
    known = ~np.isnan(means)
    count = np.add.reduceat(known, starts, axis=0, dtype=np.float64)
    total = np.add.reduceat(np.where(known, means, 0.0), starts, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean[:] = total / count
    low[:] = np.fmin.reduceat(least, starts, axis=0)
    high[:] = np.fmax.reduceat(largest, starts, axis=0)
    if not gauges.all():
        when = np.broadcast_to(table[:, :1], means.shape) if is_raw else largest
        _roll_counters(means, least, when, starts, np.flatnonzero(counters), (mean, low, high))
    return result


def _roll_counters(
    values: Array,
    firsts: Array,
    when: Array,
    starts: NDArray[np.intp],
    columns: NDArray[np.intp],
    planes: tuple[Array, Array, Array],
) -> None:
    stops = np.append(starts[1:], len(values))
    for column in columns:
        known = np.flatnonzero(~np.isnan(values[:, column]))
        low, high = np.searchsorted(known, starts), np.searchsorted(known, stops)
        there = high > low
        for plane in planes:
            plane[:, column] = np.nan
        planes[0][there, column] = values[known[high[there] - 1], column]
        planes[1][there, column] = firsts[known[low[there]], column]
        planes[2][there, column] = when[known[high[there] - 1], column]
