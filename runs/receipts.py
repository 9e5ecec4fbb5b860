"""Receipts of ended runs: kept, or measured from their history, their attempts and their samples."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from astraconsole.errors import Unavailable
from astraconsole.sql import fetch
from machines.metrics.align import Agg
from machines.metrics.names import BY_NAME
from machines.metrics.query import Ask, possible_step, query
from machines.protocol import EndReason
from runs.models import Receipt, Run
from runs.receipt import Moves, Peak, Stay, document, gpu_time, largest, right_sizes, spent_on, where_time_went
from runs.spec import load_spec
from runs.state_machine import RunState

ATTEMPTS_MAX = 2000  # of one run whose samples are read: of larger ones what they used is not known
AT_ONCE = 500
LONG_ENOUGH = 60  # seconds that a run must have run to its end, for what it used to say what it needs


class Placement(NamedTuple):
    """An attempt of the run. `until`: when its room was given back or given up; times are Unix seconds."""

    uid: UUID
    worker: str
    number: int
    gpus: int
    memory_bytes: int
    cpu_milli: int
    placed: float
    began: float | None
    ended: float
    until: float
    end_reason: str


def receipt_of(run: Run, now: datetime) -> dict[str, Any] | None:
    """As `runs.receipt.document`; None of a run that has not ended. One query where it has been written, which is soon
    after the end."""
    if run.ended_at is None:
        return None
    kept = Receipt.objects.filter(run=run).values_list("document", flat=True).first()
    if kept is not None:
        return kept
    try:
        return measured(run, now)
    except Unavailable:
        return measured(run, now, sampled=False)


def measured(run: Run, now: datetime, sampled: bool = True) -> dict[str, Any]:
    """Of a run that has ended. Raises Unavailable where the metrics' engine does not answer."""
    assert run.ended_at is not None
    spec = load_spec(run.spec)
    placements = _placements(run, now)
    read = placements if sampled and len(placements) <= ATTEMPTS_MAX else []
    memory = largest(_peaks(read, "task_memory_used_bytes", lambda one: one.memory_bytes, now))
    cores = largest(_peaks(read, "task_cpu_usage_cores", lambda one: one.cpu_milli / 1000, now))
    ran = [one.ended - one.began for one in placements if one.began is not None]
    longest = max(ran, default=0.0) if run.state == RunState.COMPLETED else 0.0
    told = longest >= LONG_ENOUGH
    ran_out = any(one.end_reason == EndReason.OOM_KILLED for one in placements)
    return document(
        where_time_went(_moves(run), run.gang, run.created_at.timestamp(), run.ended_at.timestamp()),
        gpu_time(_stays(placements, read, now)),
        memory,
        cores,
        run.restarts,
        run.preemptions,
        right_sizes(spec, *((memory, cores, longest) if told else (None, None, None)), ran_out),
    )


def _placements(run: Run, now: datetime) -> list[Placement]:
    rows = fetch(
        """
        SELECT a.uid, w.name, a.number, cardinality(a.gpu_indexes),
               CASE WHEN w.node_fraction IS NULL THEN a.memory_bytes ELSE 0 END,
               CASE WHEN w.node_fraction IS NULL THEN a.cpu_milli ELSE 0 END,
               extract(epoch FROM a.placed_at)::float8, extract(epoch FROM a.running_at)::float8,
               extract(epoch FROM coalesce(LEAST(a.ended_at, a.superseded_at), a.released_at, %(now)s))::float8,
               extract(epoch FROM coalesce(LEAST(a.released_at, a.superseded_at), %(now)s))::float8, a.end_reason
        FROM runs_attempt a JOIN runs_worker w ON w.id = a.worker_id
        WHERE w.run_id = %(run)s ORDER BY w.rank, a.number
        """,
        {"run": run.pk, "now": now},
    )
    return [Placement(*row) for row in rows]


def _moves(run: Run) -> Moves:
    rows = fetch(
        """
        SELECT t.worker_id, extract(epoch FROM t.at)::float8, t.state, t.reason, t.attempt_number IS NOT NULL
        FROM runs_transition t JOIN runs_worker w ON w.id = t.worker_id
        WHERE w.run_id = %s ORDER BY t.worker_id, t.id
        """,
        [run.pk],
    )
    spent = [spent_on(state, reason, placed) for _, _, state, reason, placed in rows]
    return Moves(
        np.array([row[0] for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows], dtype=np.float64),
        np.array(spent, dtype=np.int64),
    )


def _stays(placements: Sequence[Placement], read: Sequence[Placement], now: datetime) -> list[Stay]:
    with_gpus = [one for one in read if one.gpus]
    busy: dict[tuple[str, int], tuple[float, float]] = {}
    for one, step, values in _sampled(with_gpus, "task_gpu_utilization_ratio", Agg.AVG, now):
        busy[one.worker, one.number] = (float(np.mean(values)), len(values) * step)
    stays = []
    for one in placements:
        mean, known = busy.get((one.worker, one.number), (None, 0.0))
        ran = 0.0 if one.began is None else max(0.0, one.ended - one.began)
        stays.append(Stay(one.gpus, max(0.0, one.until - one.placed), ran, mean, known))
    return stays


def _peaks(read: Sequence[Placement], metric: str, asked_of: Callable[[Placement], float], now: datetime) -> list[Peak]:
    return [
        Peak(one.worker, max(values), asked_of(one) or None, one.gpus)
        for one, _, values in _sampled(read, metric, Agg.MAX, now)
    ]


def _sampled(
    read: Sequence[Placement], metric: str, agg: Agg, now: datetime
) -> Iterator[tuple[Placement, float, list[float]]]:
    """(attempt, seconds a value, known values) of those of which anything is known."""
    began = [one for one in read if one.began is not None]
    for first in range(0, len(began), AT_ONCE):
        some = began[first : first + AT_ONCE]
        start = min(one.began for one in some if one.began is not None)
        end = max(max(one.ended for one in some), start + 1)
        step = possible_step(None, start, end, now.timestamp())
        ask = Ask(BY_NAME[metric], {}, ("task", "attempt"), agg, False, start, end, step)
        labels = {one.uid: {"job": "", "task": one.worker, "attempt": str(one.number), "machine": ""} for one in some}
        by_name = {(one.worker, str(one.number)): one for one in some}
        for series in query(ask, labels)["series"]:
            values = [value for _, value in series["points"] if value is not None]
            yield by_name[series["labels"]["task"], series["labels"]["attempt"]], step, values
