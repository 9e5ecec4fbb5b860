"""States of runs and workers, the legal moves, and what a reason leads to. Pure.

A worker moves only along WORKER_MOVES; `runs.services.moves` is the only code that moves one. A run's state is never
moved: it is derived from its workers (`derive_run`).
"""

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
PLACED: frozenset[WorkerState] = frozenset({_S.PREPARING, _S.PULLING, _S.STARTING, _S.RUNNING})

# A phase may be skipped forwards (an image that is there is not pulled), never taken back but through Pending.
WORKER_MOVES: dict[WorkerState, frozenset[WorkerState]] = {
    _S.PENDING: frozenset({_S.PREPARING, _S.CANCELLED, _S.FAILED}),
    _S.PREPARING: frozenset({_S.PULLING, _S.STARTING, _S.RUNNING, _S.PENDING, _S.RESTARTING}) | ENDED,
    _S.PULLING: frozenset({_S.STARTING, _S.RUNNING, _S.PENDING, _S.RESTARTING}) | ENDED,
    _S.STARTING: frozenset({_S.RUNNING, _S.PENDING, _S.RESTARTING}) | ENDED,
    _S.RUNNING: frozenset({_S.PENDING, _S.RESTARTING}) | ENDED,
    _S.RESTARTING: frozenset({_S.PENDING, _S.CANCELLED, _S.FAILED}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}


class IllegalMove(Exception):
    """A move outside WORKER_MOVES: a defect of ours, never a caller's mistake."""
