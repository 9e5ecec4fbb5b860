"""What the run's and the worker's page show, from rows that were read already."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.conf import settings

from runs.queries import PlaceOf
from runs.spec import RunSpec
from runs.state_machine import RUN_ENDED, WorkerState

if TYPE_CHECKING:
    from runs.models import Attempt, Run

STARTS = {"Independent": "independent", "Gang": "together"}
FAILS = {"RestartTask": "restart the worker", "RestartJob": "restart all", "FailJob": "fail at once"}
ENDED_ORDER = (WorkerState.FAILED, WorkerState.CANCELLED, WorkerState.COMPLETED)
LOOPS_FROM = 2  # failures in a row, while it runs again


@dataclass(frozen=True)
class Readout:
    """The numbers of a run. `time_left`, `runtime` and `limit` are seconds; `deadline` is when the first worker's
    time is over."""

    running: int
    workers: int
    ended: str  # "1 failed, 3 completed", once all have
    gpus: int
    machines: tuple[str, ...]
    limit: int | None
    deadline: datetime | None
    runtime: float | None
    now: datetime
    starts: str
    fails: str

    @property
    def time_left(self) -> float | None:
        return None if self.deadline is None else (self.deadline - self.now).total_seconds()

    @property
    def time_used(self) -> float | None:
        left = self.time_left
        return None if left is None or self.limit is None else min(float(self.limit), self.limit - left)


def readout(run: "Run", spec: RunSpec, counts: Mapping[str, int], places: Sequence[PlaceOf], now: datetime) -> Readout:
    """`counts`: its workers by state. `places`: where they are, or were."""
    ended = run.state in RUN_ENDED
    shown = [place for place in places if place.live or ended]
    began = [place.since for place in places if place.live and place.since is not None]
    limit = _common_limit(spec)
    return Readout(
        running=counts.get(WorkerState.RUNNING, 0),
        workers=sum(counts.values()),
        ended=_how_ended(counts) if ended else "",
        gpus=run.gpus,
        machines=tuple(dict.fromkeys(place.machine for place in shown)),
        limit=limit,
        deadline=min(began) + timedelta(seconds=limit) if limit and began and not ended else None,
        runtime=((run.ended_at or now) - run.started_at).total_seconds() if run.started_at else None,
        now=now,
        starts=STARTS[spec.effective_start],
        fails=_when_it_fails(spec),
    )


def _common_limit(spec: RunSpec) -> int | None:
    """The time limit of its workers; None where there is none, or groups differ: their workers' pages tell theirs."""
    limits = {template.time_limit_seconds for template in spec.templates}
    return limits.pop() if len(limits) == 1 else None


def _when_it_fails(spec: RunSpec) -> str:
    never = all(template.restart_policy == "Never" for template in spec.templates)
    never = never and spec.effective_on_failure == "RestartTask" and spec.effective_lifetime != "Service"
    return "no restart" if never else FAILS[spec.effective_on_failure]


def _how_ended(counts: Mapping[str, int]) -> str:
    """`failed`, or `1 failed, 3 completed`."""
    shown = [state for state in ENDED_ORDER if counts.get(state)]
    if len(shown) == 1:
        return shown[0].lower()
    return ", ".join(f"{counts[state]} {state.lower()}" for state in shown)


@dataclass(frozen=True)
class Retry:
    """The rules of restarts. `budget`: failures in a row; None: a service's. `longest_wait`, `reset`: seconds."""

    budget: int | None
    longest_wait: float
    reset: float


def retry(spec: RunSpec) -> Retry:
    budget = None if spec.effective_lifetime == "Service" else settings.RESTART_BUDGET
    return Retry(budget, settings.RESTART_BACKOFF_MAX_SECONDS, settings.RESTART_RESET_SECONDS)


def ran_for(attempt: "Attempt", now: datetime) -> float | None:
    """Seconds that an attempt has been Running, or ran."""
    if attempt.running_at is None:
        return None
    return ((attempt.ended_at or attempt.superseded_at or now) - attempt.running_at).total_seconds()
