"""States of runs and workers, the legal moves, and what a reason leads to. Pure.

A worker moves only along WORKER_MOVES; `runs.services.moves` is the only code that moves one. A run's state is never
moved: it is derived from its workers (`derive_run`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from machines import leases
from machines.protocol import EndReason
from runs.units import format_duration


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
TIME_LIMIT_PREFIX = "Exceeded its time limit"


class IllegalMove(Exception):
    """A move outside WORKER_MOVES: a defect of ours, never a caller's mistake."""


def check_move(before: WorkerState, after: WorkerState) -> None:
    if after not in WORKER_MOVES[before]:
        raise IllegalMove(f"{before} → {after}")


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


# ---- what the end of an attempt leads to ---------------------------------------------------------


class EndCause(StrEnum):
    """Why an attempt ended: what a machine reports (`protocol.EndReason`), and what only the console can know."""

    EXITED = EndReason.EXITED.value
    STOPPED = EndReason.STOPPED.value
    OOM_KILLED = EndReason.OOM_KILLED.value
    TIME_LIMIT = EndReason.TIME_LIMIT.value
    IMAGE_PULL = EndReason.IMAGE_PULL.value
    IMAGE_MISSING = EndReason.IMAGE_MISSING.value
    START_FAILED = EndReason.START_FAILED.value
    MACHINE_REBOOTED = EndReason.MACHINE_REBOOTED.value
    REFUSED = EndReason.REFUSED.value
    MACHINE_LOST = "MachineLost"
    UNKNOWN_TO_MACHINE = "UnknownToMachine"  # it was there, and its machine no longer knows it


class Retry(StrEnum):
    NEVER = "never"  # the next attempt would end the same way
    BUDGETED = "budgeted"  # under the restart policy, after a growing wait, so many times in a row
    FREE = "free"  # under the restart policy, at once, at no cost: the worker did nothing wrong


RETRY: dict[EndCause, Retry] = {
    EndCause.EXITED: Retry.BUDGETED,
    EndCause.STOPPED: Retry.BUDGETED,
    EndCause.OOM_KILLED: Retry.BUDGETED,
    EndCause.TIME_LIMIT: Retry.NEVER,
    EndCause.IMAGE_PULL: Retry.NEVER,  # but for a registry out of reach, see `_retry_of`
    EndCause.IMAGE_MISSING: Retry.NEVER,
    EndCause.START_FAILED: Retry.BUDGETED,
    EndCause.MACHINE_REBOOTED: Retry.FREE,
    EndCause.REFUSED: Retry.BUDGETED,
    EndCause.MACHINE_LOST: Retry.FREE,
    EndCause.UNKNOWN_TO_MACHINE: Retry.FREE,
}

# What engines say when the registry could not be asked: no fault of the name or the login, so worth another try.
REGISTRY_AWAY = (
    "timeout",
    "timed out",
    "deadline exceeded",
    "connection refused",
    "connection reset",
    "no such host",
    "unreachable",
    "temporary failure",
    "unexpected eof",
    "too many requests",
    "toomanyrequests",
    "service unavailable",
    "bad gateway",
    "tls handshake",
)


@dataclass(frozen=True)
class End:
    """How an attempt ended. `exit_code` null: unknown. `stop_reason`: set when its stop had been asked for before, and
    `after_stop` is what for: to be Cancelled, Pending (given back in order) or Restarting (with its whole run).
    `ran_seconds`: how long it was Running."""

    cause: EndCause
    exit_code: int | None = None
    message: str = ""
    ran_seconds: float = 0
    stop_reason: str | None = None
    after_stop: WorkerState = WorkerState.CANCELLED


@dataclass(frozen=True)
class Policy:
    """What a run says about ends, with the console's settings. Durations are seconds. `whole`: none of its workers was
    stopped or has failed for good, so that all could restart together."""

    image: str = ""
    restart_policy: str = "OnFailure"
    on_failure: str = "RestartTask"
    lifetime: str = "Batch"
    time_limit_seconds: int | None = None
    budget: int = 10
    backoff_seconds: float = 10
    backoff_max_seconds: float = 300
    reset_seconds: float = 600
    whole: bool = True


@dataclass(frozen=True)
class Outcome:
    """What becomes of the worker. `failure`: the cause to keep as its last failure, null when it did not fail.
    `wait_seconds`: until it restarts. `fails_run`: its siblings must stop. `restarts_run`: and start again with it."""

    state: WorkerState
    reason: str
    failures_in_row: int
    failure: str | None = None
    wait_seconds: float = 0
    fails_run: bool = False
    restarts_run: bool = False


def outcome(end: End, policy: Policy, failures_in_row: int) -> Outcome:
    """Completed only from an observed 0; what was asked to stop becomes what it was stopped for, whatever its exit code
    says. `failures_in_row`: the worker's; of the whole run where all restart together."""
    succeeded = end.cause is EndCause.EXITED and end.exit_code == 0
    if end.stop_reason is not None and not (succeeded and _stays_completed(end, policy)):
        return Outcome(end.after_stop, end.stop_reason, failures_in_row)
    if succeeded:
        return _success(end, policy)
    return _failure(end, policy, 0 if end.ran_seconds >= policy.reset_seconds else failures_in_row)


def _stays_completed(end: End, policy: Policy) -> bool:
    """Whether a worker that completed by itself, just before it was stopped, is done: not where all start again."""
    if end.after_stop is WorkerState.CANCELLED:
        return True
    return end.after_stop is WorkerState.PENDING and not _is_forever(policy)


def _is_forever(policy: Policy) -> bool:
    return policy.lifetime == "Service" or policy.restart_policy == "Always"


def _success(end: End, policy: Policy) -> Outcome:
    reason = end_sentence(end, policy)
    if not _is_forever(policy) or end.stop_reason is not None:
        return Outcome(WorkerState.COMPLETED, reason, 0)
    return Outcome(WorkerState.RESTARTING, reason, 0, wait_seconds=policy.backoff_seconds)


def _failure(end: End, policy: Policy, failures: int) -> Outcome:
    cause = end_sentence(end, policy)
    service = policy.lifetime == "Service"
    retry = _retry_of(end)
    together = policy.on_failure == "RestartJob"
    if policy.on_failure == "FailJob" or (together and not policy.whole):
        return Outcome(WorkerState.FAILED, cause, failures, failure=cause, fails_run=True)
    if retry is Retry.NEVER or (policy.restart_policy == "Never" and not service):
        return Outcome(WorkerState.FAILED, cause, failures, failure=cause, fails_run=together)
    if retry is Retry.FREE:
        state = WorkerState.RESTARTING if together else WorkerState.PENDING
        return Outcome(state, cause, failures, failure=cause, restarts_run=together)
    if failures >= policy.budget and not service:
        exhausted = f"Retry budget exhausted after {policy.budget}/{policy.budget} restarts"
        return Outcome(WorkerState.FAILED, exhausted, failures, failure=cause, fails_run=together)
    wait = backoff(failures, policy)
    return Outcome(WorkerState.RESTARTING, cause, failures + 1, failure=cause, wait_seconds=wait, restarts_run=together)


def backoff(failures: int, policy: Policy) -> float:
    """Seconds to wait after this many failures in a row before this one."""
    return float(min(policy.backoff_seconds * 2 ** min(failures, 30), policy.backoff_max_seconds))


def _retry_of(end: End) -> Retry:
    if end.cause is EndCause.IMAGE_PULL and any(words in end.message.lower() for words in REGISTRY_AWAY):
        return Retry.BUDGETED
    return RETRY[end.cause]


def end_sentence(end: End, policy: Policy) -> str:
    """The worker's reason, as the API says it."""
    limit = format_duration(policy.time_limit_seconds) if policy.time_limit_seconds else "its run"
    sentences = {
        EndCause.EXITED: f"Exited with code {end.exit_code}",
        EndCause.STOPPED: "Stopped by its machine",
        EndCause.OOM_KILLED: "OOMKilled: the container exceeded its memory limit",
        EndCause.TIME_LIMIT: f"{TIME_LIMIT_PREFIX} of {limit}",
        EndCause.IMAGE_PULL: f"ErrImagePull: {end.message}",
        EndCause.IMAGE_MISSING: f"Image {policy.image} is not present and the pull policy is None",
        EndCause.START_FAILED: f"Could not start: {end.message}",
        EndCause.MACHINE_REBOOTED: "Machine rebooted while it ran; its exit code is unknown",
        EndCause.REFUSED: f"Refused by the machine: {end.message}",
        EndCause.MACHINE_LOST: leases.LOST_REASON,
        EndCause.UNKNOWN_TO_MACHINE: "Its machine no longer knows it; its exit code is unknown",
    }
    if end.cause is EndCause.EXITED and end.exit_code is None:
        return "Ended; its exit code could not be observed"
    return sentences[end.cause]
