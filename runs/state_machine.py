"""States of runs and workers, and the legal moves. Pure. What the end of an attempt leads to: `runs.outcomes`.

A worker moves only along WORKER_MOVES; `runs.services.moves` is the only code that moves one. A run's state is never
moved: it is derived from its workers (`derive_run`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class WorkerState(StrEnum):
    PENDING = "Pending"
    PREPARING = "Preparing"
    PULLING = "Pulling"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


class RunState(StrEnum):
    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


_S = WorkerState
ENDED: frozenset[WorkerState] = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED})
RUN_ENDED: frozenset[RunState] = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})
WAITING: frozenset[WorkerState] = frozenset({_S.PENDING, _S.RESTARTING})
PLACED: frozenset[WorkerState] = frozenset({_S.PREPARING, _S.PULLING, _S.STARTING, _S.RUNNING})

# A phase may be skipped forwards (an image that is there is not pulled), never taken back but through Pending.
# Completed is final but for a run whose workers restart together: one that has completed starts again with the others.
WORKER_MOVES: dict[WorkerState, frozenset[WorkerState]] = {
    _S.PENDING: frozenset({_S.PREPARING, _S.RESTARTING, _S.CANCELLED, _S.FAILED}),
    _S.PREPARING: frozenset({_S.PULLING, _S.STARTING, _S.RUNNING, _S.PENDING, _S.RESTARTING}) | ENDED,
    _S.PULLING: frozenset({_S.STARTING, _S.RUNNING, _S.PENDING, _S.RESTARTING}) | ENDED,
    _S.STARTING: frozenset({_S.RUNNING, _S.PENDING, _S.RESTARTING}) | ENDED,
    _S.RUNNING: frozenset({_S.PENDING, _S.RESTARTING}) | ENDED,
    _S.RESTARTING: frozenset({_S.PENDING, _S.CANCELLED, _S.FAILED}),
    _S.COMPLETED: frozenset({_S.RESTARTING}),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}

# Reasons that are also matched, not only shown.
CREATED = "Run created"
CONTAINER_RUNNING = "Container running"
NOT_READY_PREFIX = "Running, not ready"
TIME_LIMIT_PREFIX = "Exceeded its time limit"
FAILS_WITH_IT = "failed, and the run fails with it"  # of workers that are stopped because one failed


class IllegalMove(Exception):
    """A move outside WORKER_MOVES: a defect of ours, never a caller's mistake."""


def check_move(before: WorkerState, after: WorkerState) -> None:
    if after not in WORKER_MOVES[before]:
        raise IllegalMove(f"{before} → {after}")


def is_ready(state: str, reason: str) -> bool:
    """Whether a worker does its work: it runs, its readiness probe (if it has one) succeeds, and nobody stops it."""
    return state == WorkerState.RUNNING and reason == CONTAINER_RUNNING


# ---- a run, from its workers ---------------------------------------------------------------------


@dataclass(frozen=True)
class FirstFailure:
    """The first worker that failed for good. `machine`: "" when it was on none."""

    worker: str
    machine: str
    reason: str


@dataclass(frozen=True)
class RunFacts:
    """All that a run's state depends on. `counts`: its workers by state. `waiting_reason`: the newest reason of a
    worker that waits. `stop_requested`: of the run itself, which may have no workers yet. `together`: a failure of one
    is all workers' (`on_failure` is not RestartTask). `restarting`: why all its workers stop to start again."""

    counts: Mapping[WorkerState, int]
    gang: bool = False
    together: bool = False
    restarting: str = ""
    stop_requested: bool = False
    failure: FirstFailure | None = None
    waiting_reason: str = CREATED


@dataclass(frozen=True)
class Derived:
    state: RunState
    reason: str


def derive_run(facts: RunFacts) -> Derived:
    """The run's state and the API's reason for it."""
    counts = facts.counts
    total = sum(counts.values())
    if total == 0:
        if facts.stop_requested:
            return Derived(RunState.CANCELLED, "Stopped before it had workers")
        return Derived(RunState.PENDING, facts.waiting_reason)
    ended = sum(counts.get(state, 0) for state in ENDED)
    if ended == total:
        return _ended(facts, total)
    if counts.get(_S.RUNNING, 0) or ended:
        return Derived(RunState.RUNNING, _progress(facts, total))
    if any(counts.get(state, 0) for state in PLACED):
        return Derived(RunState.STARTING, _progress(facts, total))
    return Derived(RunState.PENDING, _waiting(facts, total))


def _ended(facts: RunFacts, total: int) -> Derived:
    if facts.counts.get(_S.FAILED, 0):
        return Derived(RunState.FAILED, failure_sentence(facts))
    if facts.counts.get(_S.CANCELLED, 0):
        return Derived(RunState.CANCELLED, "All workers ended; some were cancelled")
    return Derived(RunState.COMPLETED, f"{total} of {total} workers completed")


def failure_sentence(facts: RunFacts) -> str:
    failure = facts.failure
    if failure is None:
        return "A worker failed"
    sentence = worker_failed(failure)
    if failure.reason.startswith(TIME_LIMIT_PREFIX):
        return sentence
    return f"{sentence}; the gang does not run without it" if facts.gang else sentence


def worker_failed(failure: FirstFailure) -> str:
    """Which worker, where, and why."""
    if failure.reason.startswith(TIME_LIMIT_PREFIX):
        return f"Worker {failure.worker}: {failure.reason}"
    where = f" on {failure.machine}" if failure.machine else ""
    return f"Worker {failure.worker} failed{where}: {failure.reason}"


def _progress(facts: RunFacts, total: int) -> str:
    running = facts.counts.get(_S.RUNNING, 0)
    if facts.restarting:
        stopped = sum(facts.counts.get(state, 0) for state in WAITING)
        return f"{facts.restarting}; all workers restart together, {stopped} of {total} stopped"
    if facts.counts.get(_S.FAILED, 0) and (facts.gang or facts.together):
        return f"{failure_sentence(facts)}; stopping the others"
    ready = running + facts.counts.get(_S.STARTING, 0)
    if facts.gang and 1 < total > running and not any(facts.counts.get(state) for state in ENDED):
        return f"Starting together: {ready} of {total} ready"
    parts = [f"{running} of {total} workers running"]
    for state, word in ((_S.COMPLETED, "done"), (_S.FAILED, "failed"), (_S.CANCELLED, "cancelled")):
        if count := facts.counts.get(state, 0):
            parts.append(f"{count} {word}")
    return ", ".join(parts)


def _waiting(facts: RunFacts, total: int) -> str:
    restarting = facts.counts.get(_S.RESTARTING, 0)
    if facts.restarting and total > 1:
        return f"Restarting all {total} workers: {facts.restarting}"
    if total == 1:
        return f"Restarting: {facts.waiting_reason}" if restarting else facts.waiting_reason
    if restarting:
        return f"{restarting} of {total} workers restarting: {facts.waiting_reason}"
    return facts.waiting_reason
