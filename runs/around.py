"""What is known of the time around a failure: the order in which the workers of a run ended, and their samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from astraconsole.errors import Unavailable
from astraconsole.sql import fetch
from machines.metrics.align import Agg
from machines.metrics.names import BY_NAME, Kind
from machines.metrics.query import Ask, Labels, possible_step, query
from runs import findings
from runs.findings import Points
from runs.models import Attempt, Run, Worker
from runs.state_machine import FAILS_WITH_IT

BEFORE_SECONDS = 600
WORKERS_READ = 32


@dataclass(frozen=True)
class Stopped:
    """Workers that the console stopped because of the first failure. `first`, `last`: seconds after it."""

    count: int
    first: float
    last: float


def stopped_after(run: Run, failed_at: datetime) -> Stopped | None:
    """One query."""
    [(count, first, last)] = fetch(
        """
        SELECT count(*), min(ended), max(ended) FROM (
            SELECT extract(epoch FROM coalesce(a.ended_at, a.superseded_at, w.changed_at) - %s)::float8 AS ended
            FROM runs_worker w
            LEFT JOIN runs_attempt a ON a.worker_id = w.id AND a.number = w.attempt_number
            WHERE w.run_id = %s AND w.state = 'Cancelled' AND w.reason LIKE %s
        ) cancelled WHERE ended >= 0
        """,
        [failed_at, run.pk, f"%{FAILS_WITH_IT}"],
    )
    return Stopped(count, first, last) if count else None


def is_simulated(run: Run) -> bool:
    """Whether what is told of its GPUs is made up. One query, or none."""
    if not run.gpus:
        return False
    [(simulated,)] = fetch(
        """
        SELECT EXISTS (
            SELECT FROM runs_worker w JOIN runs_attempt a ON a.worker_id = w.id
            JOIN machines_gpu g ON g.machine_id = a.machine_id
            WHERE w.run_id = %s AND cardinality(a.gpu_indexes) > 0 AND g.simulated)
        """,
        [run.pk],
    )
    return bool(simulated)


def findings_of(run: Run, worker: Worker, failed_at: datetime, now: datetime) -> list[str]:
    """Sentences about the ten minutes before a worker failed; none where no samples are kept. `worker.newest` is the
    attempt that failed."""
    attempt = worker.newest
    if attempt is None or attempt.running_at is None:
        return []
    try:
        return _sentences(run, worker, attempt, _Window(failed_at.timestamp(), now.timestamp()))
    except Unavailable:
        return []


def _sentences(run: Run, worker: Worker, attempt: Attempt, window: "_Window") -> list[str]:
    own = {attempt.uid: _labels(worker.name)}
    used = window.one("task_memory_used_bytes", Agg.MAX, own)
    told = [findings.about_memory(used, worker.memory_bytes if worker.node_fraction is None else None)]
    busy: Mapping[str, Points] = {}
    if worker.gpus:
        busy = window.by("gpu", "task_gpu_utilization_ratio", own)
        told += findings.about_gpus(busy)
        if others := _others(run, worker):
            told.append(findings.about_others(window.by("task", "task_gpu_utilization_ratio", others)))
    told.append(findings.about_network(window.one("task_network_receive_bytes_total", Agg.SUM, own)))
    found = [sentence for sentence in told if sentence]
    return found or [sentence for sentence in [findings.plainly(busy, used)] if sentence]


def _others(run: Run, worker: Worker) -> dict[UUID, Labels]:
    """The newest attempts of the run's other workers, the first by rank."""
    rows = fetch(
        """
        SELECT a.uid, w.name FROM runs_worker w
        JOIN runs_attempt a ON a.worker_id = w.id AND a.number = w.attempt_number
        WHERE w.run_id = %s AND w.id <> %s AND a.running_at IS NOT NULL ORDER BY w.rank LIMIT %s
        """,
        [run.pk, worker.pk, WORKERS_READ],
    )
    return {uid: _labels(name) for uid, name in rows}


def _labels(name: str) -> Labels:
    return {"job": "", "task": name, "attempt": "", "machine": ""}


class _Window:
    """The time before a failure, and what is asked about it."""

    def __init__(self, failed: float, now: float) -> None:
        self._failed, self._start = failed, failed - BEFORE_SECONDS
        self._step = possible_step(None, self._start, failed, now)

    def one(self, metric: str, agg: Agg, attempts: Mapping[UUID, Labels]) -> Points:
        return next(iter(self._ask(metric, (), agg, attempts).values()), [])

    def by(self, label: str, metric: str, attempts: Mapping[UUID, Labels]) -> dict[str, Points]:
        return self._ask(metric, (label,), Agg.AVG, attempts)

    def _ask(self, metric: str, by: tuple[str, ...], agg: Agg, attempts: Mapping[UUID, Labels]) -> dict[str, Points]:
        rate = BY_NAME[metric].kind == Kind.COUNTER
        ask = Ask(BY_NAME[metric], {}, by, agg, rate, self._start, self._failed, self._step)
        return {
            "".join(series["labels"].values()): self._points(series["points"])
            for series in query(ask, attempts)["series"]
        }

    def _points(self, points: Sequence[tuple[float, float | None]]) -> Points:
        """A point is of its step's end, as far as that is before the failure."""
        found = [(self._failed - at / 1000 - self._step, value) for at, value in points if value is not None]
        return [(max(0.0, ago), value) for ago, value in found if ago > -self._step]
