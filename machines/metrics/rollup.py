"""Samples grow coarser with age: a minute each, then ten, and go. Runs every few minutes in Celery, safe to repeat."""

from collections.abc import Iterator, Sequence
from uuid import UUID

import numpy as np
from django.conf import settings
from django.db import transaction

from astraconsole.sql import fetch
from machines.metrics.align import Array, rolled
from machines.metrics.names import METRICS, Kind, Metric, series_of
from machines.metrics.store import MINUTE, SPANS, TEN_MINUTES, Keys, Piece, insert, oldest_kept, part_of, read_part
from machines.models import SampleBlock, SampleRollUp

LATE_SECONDS = 360.0  # samples may come so much later than they were taken: an agent keeps five minutes of them
ATTEMPTS_AT_ONCE = 200
FINER = {MINUTE: 0, TEN_MINUTES: MINUTE}


def roll_up(now: float) -> int:
    """Roll up every stretch that is complete; returns how many stretches there were. One transaction for each."""
    done = 0
    for resolution in (MINUTE, TEN_MINUTES):
        while _next_stretch(resolution, now):
            done += 1
    return done


@transaction.atomic
def _next_stretch(resolution: int, now: float) -> bool:
    """Whether there was one to roll up."""
    if not fetch("SELECT pg_try_advisory_xact_lock(hashtext('roll up'), %s)", [resolution])[0][0]:
        return False
    mark, _ = SampleRollUp.objects.get_or_create(resolution=resolution, defaults={"until": _begin(resolution, now)})
    start, stop = mark.until, mark.until + SPANS[resolution]
    if stop > _complete(FINER[resolution], now):
        return False
    attempts = _attempts_between(FINER[resolution], start, stop)
    for first in range(0, len(attempts), ATTEMPTS_AT_ONCE):
        _roll_up(resolution, attempts[first : first + ATTEMPTS_AT_ONCE], start, stop)
    mark.until = stop
    mark.save(update_fields=["until"])
    return True


def _begin(resolution: int, now: float) -> float:
    """With the first samples there are."""
    span = SPANS[resolution]
    oldest = SampleBlock.objects.filter(resolution__in=_parts(FINER[resolution])).order_by("start")
    return float(np.floor((oldest.values_list("start", flat=True).first() or now) / span) * span)


def _complete(finer: int, now: float) -> float:
    """Until when all finer samples are there."""
    if not finer:
        return now - LATE_SECONDS
    return SampleRollUp.objects.filter(resolution=finer).values_list("until", flat=True).first() or 0.0


def _parts(resolution: int) -> list[int]:
    """The numbers of its rows."""
    return sorted({part_of(resolution, metric) for metric in METRICS})


def _attempts_between(resolution: int, start: float, stop: float) -> list[UUID]:
    parts = SampleBlock.objects.filter(resolution__in=_parts(resolution))
    found = parts.filter(start__gt=start - SPANS[resolution], start__lt=stop)
    return list(found.values_list("attempt", flat=True).distinct())


def _roll_up(resolution: int, attempts: Sequence[UUID], start: float, stop: float) -> None:
    pieces = [piece for part in _parts(FINER[resolution]) for piece in read_part(attempts, part, start, stop)]
    for metric in METRICS:
        rows = list(_rows(resolution, metric, pieces, start))
        if rows:
            insert(part_of(resolution, metric), rows)


def _rows(
    resolution: int, metric: Metric, pieces: Sequence[Piece], start: float
) -> Iterator[tuple[UUID, float, Keys, Array]]:
    """A block for each attempt; where its layout changed within the stretch several, which start apart."""
    seen: dict[UUID, int] = {}
    for piece in pieces:
        keys, table = _columns(piece, metric)
        if keys:
            place = seen[piece.attempt] = seen.get(piece.attempt, -1) + 1
            counters = np.full(len(keys), metric.kind == Kind.COUNTER)
            yield piece.attempt, start + place * 1e-3, keys, rolled(table, counters, resolution)


def _columns(piece: Piece, metric: Metric) -> tuple[Keys, Array]:
    """The part of a table that is of one metric, of the same shape as the whole."""
    places = [place for place, key in enumerate(piece.keys) if (found := series_of(key)) and found[0] is metric]
    width = len(piece.keys)
    planes = range(0, piece.table.shape[1] - 1, width)
    wanted = [0, *(1 + plane + place for plane in planes for place in places)]
    return tuple(piece.keys[place] for place in places), piece.table[:, wanted]


def expire(now: float) -> None:
    """Delete what is older than its resolution is kept for, once it is rolled up."""
    for resolution in SPANS:
        coarser = {0: MINUTE, MINUTE: TEN_MINUTES}.get(resolution) if not settings.METRICS_URL else None
        before = oldest_kept(resolution, now) - SPANS[resolution]
        if coarser is not None:
            before = min(before, _complete(coarser, now) - SPANS[resolution])
        SampleBlock.objects.filter(resolution__in=_parts(resolution), start__lt=before).delete()
