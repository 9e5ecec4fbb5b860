"""`metrics/range`: one question about the workers' metrics, and its answer, wherever the samples are kept.

A point is [milliseconds, value], named by the start of its step. A step in which nothing is known is null between
points, and left out before the first and after the last.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
from django.conf import settings
from django.http import QueryDict

from astraconsole.errors import Detail, ValidationError
from machines.metrics import align, engine, store
from machines.metrics.align import Agg, Array
from machines.metrics.names import BY_NAME, Kind, Metric

PARAMETERS = ("metric", "match", "by", "agg", "rate", "start", "end", "step")
LABELS = ("job", "task", "attempt", "machine", "gpu")
DEFAULT_SECONDS = 3600
MAX_POINTS = 11_000  # of a series
MAX_SERIES = 1_000
MAX_ATTEMPTS = 2_000
GAP_LOOKS = 2.5  # raw samples further apart than so many looks of the agent have a gap between them
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII)
_LATEST = 1e11  # Unix seconds: a larger number is milliseconds

Labels: TypeAlias = Mapping[str, str]
Matches: TypeAlias = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Ask:
    """A question that was read. `matches`: of each label named, any of these values; of different labels, all."""

    metric: Metric
    matches: Matches
    by: tuple[str, ...]
    agg: Agg
    rate: bool
    start: float
    end: float
    step: float

    @property
    def edges(self) -> Array:
        return align.edges_of(self.start, self.end, self.step)


# ---- reading the question --------------------------------------------------------------------------------------------


def parse(parameters: QueryDict, now: float) -> Ask:
    """Every broken rule at once. Raises ValidationError."""
    reader = _Reader(parameters)
    metric = reader.metric()
    matches, by, agg, rate = reader.matches(metric), reader.by(metric), reader.agg(), reader.rate(metric)
    end = reader.moment("end", now)
    start = reader.moment("start", end - DEFAULT_SECONDS)
    if start >= end and not reader.broken:
        reader.refuse("start", "must be before end")
    step = reader.step(start, end)
    if reader.broken or metric is None:
        told = "; ".join(f"{entry['field']} {entry['rule']}" for entry in reader.broken)
        raise ValidationError(told, reader.broken)
    return Ask(metric, matches, by, agg, rate, start, end, possible_step(step, start, end, now))


def possible_step(step: float | None, start: float, end: float, now: float) -> float:
    """As asked, or a round one that makes a few hundred points; not finer than what is kept so far back."""
    least = settings.METRICS_SAMPLE_SECONDS
    if not settings.METRICS_URL:
        for resolution in (store.MINUTE, store.TEN_MINUTES):
            finer = 0 if resolution == store.MINUTE else store.MINUTE
            if start < store.oldest_kept(finer, now):
                least = max(least, resolution)
    return align.automatic_step(end - start, least) if step is None else max(step, least)


class _Reader:
    """The parameters of one request, and what is wrong with them."""

    def __init__(self, parameters: QueryDict) -> None:
        self._parameters = parameters
        self.broken: list[Detail] = []

    def refuse(self, field: str, rule: str) -> None:
        self.broken.append({"field": field, "rule": rule})

    def _one(self, name: str) -> str | None:
        given = self._parameters.getlist(name)
        if len(given) > 1:
            self.refuse(name, "must be given once")
        return given[-1].strip() if given else None

    def metric(self) -> Metric | None:
        name = self._one("metric")
        if not name:
            self.refuse("metric", "is required: the name of a metric")
        elif name not in BY_NAME:
            self.refuse("metric", f"must be one of {', '.join(BY_NAME)}")
        return BY_NAME.get(name or "")

    def matches(self, metric: Metric | None) -> Matches:
        found: dict[str, set[str]] = {}
        for given in self._parameters.getlist("match"):
            label, colon, value = given.partition(":")
            if not colon or not value:
                self.refuse("match", "must be label:value, as task:llama-sft-0")
            elif self._is_label("match", label, metric):
                found.setdefault(label, set()).add(value.replace("\0", ""))
        return {label: frozenset(values) for label, values in found.items()}

    def by(self, metric: Metric | None) -> tuple[str, ...]:
        given = [label.strip() for label in (self._one("by") or "").split(",") if label.strip()]
        return tuple(dict.fromkeys(label for label in given if self._is_label("by", label, metric)))

    def _is_label(self, field: str, label: str, metric: Metric | None) -> bool:
        if label not in LABELS:
            self.refuse(field, f"knows the labels {', '.join(LABELS)}, not {label[:40] or 'an empty one'}")
        elif label == "gpu" and metric is not None and not metric.per_gpu:
            self.refuse(field, f"cannot be gpu: {metric.name} is not told for each GPU")
        else:
            return True
        return False

    def agg(self) -> Agg:
        given = self._one("agg") or Agg.AVG
        if given not in list(Agg):
            self.refuse("agg", "must be sum, avg, max or min")
            return Agg.AVG
        return Agg(given)

    def rate(self, metric: Metric | None) -> bool:
        given = (self._one("rate") or "false").lower()
        if given not in ("true", "false", "1", "0"):
            self.refuse("rate", "must be true or false")
        wanted = given in ("true", "1")
        if wanted and metric is not None and metric.kind != Kind.COUNTER:
            self.refuse("rate", f"is for counters (…_total): {metric.name} is a gauge")
        return wanted

    def moment(self, name: str, default: float) -> float:
        given = self._one(name)
        if not given:
            return default
        if not _NUMBER.fullmatch(given) or float(given) > _LATEST:
            self.refuse(name, "must be Unix seconds")
            return default
        return float(given)

    def step(self, start: float, end: float) -> float | None:
        given = self._one("step")
        if not given:
            return None
        if not _NUMBER.fullmatch(given) or not 1 <= float(given) <= 366 * 86400:
            self.refuse("step", "must be seconds: at least 1, at most 366 days")
            return None
        if (end - start) / float(given) > MAX_POINTS:
            self.refuse("step", f"is too short: it makes more than {MAX_POINTS} points a series")
        return float(given)


# ---- answering it ----------------------------------------------------------------------------------------------------


def query(ask: Ask, attempts: Mapping[UUID, Labels]) -> dict[str, Any]:
    """The documented answer. `attempts`: those that were matched, with what names them: job, task, attempt, machine.

    Raises ValidationError where that is too much; Unavailable where the engine at METRICS_URL does not answer."""
    if len(attempts) > MAX_ATTEMPTS:
        rule = f"must select fewer workers: at most {MAX_ATTEMPTS} attempts"
        raise ValidationError(f"match {rule}", [{"field": "match", "rule": rule}])
    groups: dict[tuple[tuple[str, str], ...], list[Array]] = {}
    for attempt, gpu, values in _series(ask, attempts):
        labels = {**attempts[attempt], **({"gpu": str(gpu)} if gpu is not None else {})}
        if gpu is not None and "gpu" in ask.matches and labels["gpu"] not in ask.matches["gpu"]:
            continue
        groups.setdefault(tuple((name, labels[name]) for name in ask.by), []).append(values)
    if len(groups) > MAX_SERIES:
        rule = f"makes {len(groups)} series: at most {MAX_SERIES}"
        raise ValidationError(f"by {rule}", [{"field": "by", "rule": rule}])
    edges = ask.edges
    milliseconds = np.rint(edges[:-1] * 1000).astype(np.int64)
    return {
        "metric": ask.metric.name,
        "kind": ask.metric.kind.value,
        "unit": f"{ask.metric.unit}/s" if ask.rate else ask.metric.unit,
        "start": _plain(edges[0]),
        "end": _plain(edges[-1]),
        "step": _plain(ask.step),
        "series": [
            {"labels": dict(labels), "points": points}
            for labels, rows in sorted(groups.items(), key=lambda group: [natural_key(value) for _, value in group[0]])
            if (points := _points(milliseconds, align.combine(np.stack(rows), ask.agg)))
        ],
    }


def _series(ask: Ask, attempts: Mapping[UUID, Labels]) -> Iterator[tuple[UUID, int | None, Array]]:
    """Each series of each attempt, on the question's grid."""
    if not attempts:
        return
    if settings.METRICS_URL:
        yield from _from_engine(ask, attempts)
        return
    resolution = max((level for level in store.SPANS if level <= ask.step), default=0)
    edges = ask.edges
    margin = _longest_gap(resolution)  # for the rate of the first step
    found: dict[tuple[UUID, int | None], list[tuple[Array, Array]]] = {}
    for piece in store.read(list(attempts), ask.metric, float(edges[0]) - margin, float(edges[-1]), resolution):
        for gpu, times, values in _columns(piece, ask):
            found.setdefault((piece.attempt, gpu), []).append((times, values))
    for (attempt, gpu), parts in found.items():
        times, values = _joined(parts)
        yield attempt, gpu, _aligned(ask, times, values, edges, resolution)


def _longest_gap(resolution: float) -> float:
    """Seconds between samples that follow each other; further apart, some are missing. Of rolled ones each stretch of
    their resolution has one, somewhere in it."""
    looks: float = settings.METRICS_SAMPLE_SECONDS
    return 1.5 * resolution + looks if resolution else GAP_LOOKS * looks


def _columns(piece: store.Piece, ask: Ask) -> Iterator[tuple[int | None, Array, Array]]:
    if ask.metric.kind == Kind.GAUGE:
        plane = {Agg.MIN: 1, Agg.MAX: 2}.get(ask.agg, 0)
        for gpu, values in piece.columns(ask.metric, plane):
            yield gpu, piece.times, values
    else:
        when = piece.columns(ask.metric, 2) if piece.resolution else None
        for place, (gpu, values) in enumerate(piece.columns(ask.metric, 0)):
            yield gpu, when[place][1] if when else piece.times, values


def _joined(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """In the order of time, known values only."""
    times, values = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    known = ~(np.isnan(values) | np.isnan(times))
    times, values = times[known], values[known]
    order = np.argsort(times, kind="stable")
    return times[order], values[order]


def _aligned(ask: Ask, times: Array, values: Array, edges: Array, resolution: float) -> Array:
    if ask.rate:
        return align.rate(times, values, edges, _longest_gap(resolution))
    if ask.metric.kind == Kind.COUNTER:
        return align.last(times, values, edges, _longest_gap(0))
    return align.gauge(times, values, edges, ask.agg, _longest_gap(0))


def _from_engine(ask: Ask, attempts: Mapping[UUID, Labels]) -> Iterator[tuple[UUID, int | None, Array]]:
    """The engine combines samples within each step; the rest is done here, so that both give the same answer."""
    edges = ask.edges
    for attempt, gpu, times, values in engine.read(ask.metric, ask.agg, list(attempts), edges, ask.step):
        yield attempt, gpu, _aligned(ask, times, values, edges, ask.step)


def _points(milliseconds: Any, values: Array) -> list[list[float | None]]:
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return []
    inside = slice(known[0], known[-1] + 1)
    pairs = zip(milliseconds[inside].tolist(), np.round(values[inside], 6).tolist(), strict=True)
    return [[at, None if math.isnan(value) else value] for at, value in pairs]


def _plain(number: float) -> float:
    return int(number) if float(number).is_integer() else float(number)


def natural_key(text: str) -> tuple[Any, ...]:
    """Sorts names with numbers as people do: gpu 10 after gpu 9, llama-10 after llama-9."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text))
