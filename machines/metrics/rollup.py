"""Samples grow coarser with age: a minute each, then ten, and go. Runs every few minutes in Celery, safe to repeat."""

from collections.abc import Sequence
from uuid import UUID

import numpy as np
from django.conf import settings
from django.db import transaction

from astraconsole.sql import fetch
from machines.metrics.align import rolled
from machines.metrics.names import Kind, series_of
from machines.metrics.store import MINUTE, SPANS, TEN_MINUTES, Keys, Piece, insert, oldest_kept, read_level
from machines.models import SampleBlock, SampleRollUp

LATE_SECONDS = 900.0  # samples may come so much later than they were taken
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
    span = SPANS[resolution]
    mark, _ = SampleRollUp.objects.get_or_create(resolution=resolution, defaults={"until": _begin(resolution, now)})
    start, stop = mark.until, mark.until + span
    if stop > _complete(FINER[resolution], now):
        return False
    attempts = _attempts_between(FINER[resolution], start, stop)
    for first in range(0, len(attempts), ATTEMPTS_AT_ONCE):
        some = attempts[first : first + ATTEMPTS_AT_ONCE]
        _write(resolution, start, read_level(some, FINER[resolution], start, stop))
    mark.until = stop
    mark.save(update_fields=["until"])
    return True


def _begin(resolution: int, now: float) -> float:
    """With the first samples there are."""
    span = SPANS[resolution]
    oldest = SampleBlock.objects.filter(resolution=FINER[resolution]).order_by("start").values_list("start", flat=True)
    return float(np.floor((oldest.first() or now) / span) * span)


def _complete(finer: int, now: float) -> float:
    """Until when all finer samples are there."""
    if not finer:
        return now - LATE_SECONDS
    return SampleRollUp.objects.filter(resolution=finer).values_list("until", flat=True).first() or 0.0


def _attempts_between(level: int, start: float, stop: float) -> list[UUID]:
    found = SampleBlock.objects.filter(resolution=level, start__gt=start - SPANS[level], start__lt=stop)
    return list(found.values_list("attempt", flat=True).distinct())


def _write(resolution: int, start: float, pieces: Sequence[Piece]) -> None:
    """A block for each attempt and layout. Layouts of one attempt may overlap in a stretch: each starts apart."""
    rows = []
    seen: dict[UUID, int] = {}
    for piece in pieces:
        place = seen[piece.attempt] = seen.get(piece.attempt, -1) + 1
        rows.append(
            (piece.attempt, start + place * 1e-3, piece.keys, rolled(piece.table, _counters(piece.keys), resolution))
        )
    if rows:
        insert(resolution, rows)


def expire(now: float) -> None:
    """Delete what is older than its resolution is kept for, once it is rolled up."""
    for resolution in SPANS:
        coarser = {0: MINUTE, MINUTE: TEN_MINUTES}.get(resolution) if not settings.METRICS_URL else None
        before = oldest_kept(resolution, now) - SPANS[resolution]
        if coarser is not None:
            before = min(before, _complete(coarser, now) - SPANS[resolution])
        SampleBlock.objects.filter(resolution=resolution, start__lt=before).delete()


def _counters(keys: Keys) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    return np.array([(found := series_of(key)) is not None and found[0].kind == Kind.COUNTER for key in keys])
