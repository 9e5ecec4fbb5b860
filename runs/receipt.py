"""What a run cost, at its end: where its time went, what its GPUs did, how much of what it asked for it used. Pure.

The time of a run is parted, without overlap: at each moment the run is where its workers are. A gang is where the last
of its workers is; a run whose workers start apart, where the first is. Workers that have ended count no more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runs import sizes
from runs.spec import RunSpec
from runs.state_machine import WorkerState
from runs.units import TIME_LIMIT_MIN, format_cores, format_duration, format_memory

AT_BARRIER = "Ready: waits for the others"
HEADROOM = 1.25  # of the most that was used
QUARTER_HOUR = 900


class Spent(IntEnum):
    """What a worker's time goes into, in the order in which a worker gets on."""

    QUEUE = 0  # until it is placed for the first time
    QUEUED_AGAIN = 1  # after it was preempted, given back or restarted
    RESTARTS = 2  # the waits before restarts
    PREPARING = 3
    PULLING = 4
    BARRIER = 5  # ready, and waiting for the others; with the start that follows
    STARTING = 6
    RUNNING = 7


ENDED = len(Spent)


def spent_on(state: str, reason: str, placed_before: bool) -> int:
    """What a worker's time goes into from a move on: a Spent, or ENDED."""
    if state == WorkerState.PENDING:
        return Spent.QUEUED_AGAIN if placed_before else Spent.QUEUE
    if state == WorkerState.STARTING:
        return Spent.BARRIER if reason == AT_BARRIER else Spent.STARTING
    plain = {
        WorkerState.RESTARTING: Spent.RESTARTS,
        WorkerState.PREPARING: Spent.PREPARING,
        WorkerState.PULLING: Spent.PULLING,
        WorkerState.RUNNING: Spent.RUNNING,
    }
    return next((spent for known, spent in plain.items() if state == known), ENDED)


@dataclass(frozen=True)
class Moves:
    """The moves of a run's workers, those of a worker together and in their order: whose, when (Unix seconds), into
    what (`spent_on`)."""

    workers: NDArray[np.int64]
    times: NDArray[np.float64]
    spent: NDArray[np.int64]


def where_time_went(moves: Moves, gang: bool, begin: float, end: float) -> dict[Spent, float]:
    """Seconds of each, which add up to `end - begin`. Time in which a run has no workers yet is spent in the queue."""
    seconds = np.zeros(ENDED)
    if len(moves.times) == 0:
        seconds[Spent.QUEUE] = end - begin
        return _named(seconds)
    last = np.append(moves.workers[1:] != moves.workers[:-1], True)
    until = np.where(last, end, np.append(moves.times[1:], end))
    there = moves.spent < ENDED
    times = np.clip(np.concatenate([moves.times[there], until[there]]), begin, end)
    changes = np.concatenate([np.ones(there.sum(), dtype=np.int64), -np.ones(there.sum(), dtype=np.int64)])
    kinds = np.concatenate([moves.spent[there], moves.spent[there]])
    order = np.argsort(times, kind="stable")
    counts = np.zeros((len(order) + 1, ENDED), dtype=np.int64)
    counts[np.arange(1, len(order) + 1), kinds[order]] = changes[order]
    present = np.cumsum(counts, axis=0) > 0
    lengths = np.diff(np.concatenate([[begin], times[order], [end]]))
    first, last_kind = present.argmax(axis=1), ENDED - 1 - present[:, ::-1].argmax(axis=1)
    where = np.where(present.any(axis=1), first if gang else last_kind, Spent.QUEUE)
    np.add.at(seconds, where, lengths)
    return _named(seconds)


def _named(seconds: NDArray[np.float64]) -> dict[Spent, float]:
    return {spent: float(seconds[spent]) for spent in Spent}


# ---- what was measured -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stay:
    """One attempt: how long it held its GPUs, how long it ran (seconds), and what was sampled of it: the mean busy
    share of its GPUs and for how many seconds that is known. `busy` None: nothing is."""

    gpus: int
    held: float
    ran: float
    busy: float | None = None
    known: float = 0.0


@dataclass(frozen=True)
class Peak:
    """The most that one worker used, of what it asked for (None: a share of its machine)."""

    worker: str
    used: float
    asked: float | None
    gpus: int


@dataclass(frozen=True)
class GpuTime:
    """GPU-seconds. `used`: busy share times time; None: nothing was sampled. `known`: the share of the running time of
    which samples tell."""

    held: float
    used: float | None
    known: float


def gpu_time(stays: Sequence[Stay]) -> GpuTime:
    """Until an attempt runs, its GPUs do nothing; while it runs they do what samples say."""
    held = sum(stay.gpus * stay.held for stay in stays)
    ran = sum(stay.gpus * stay.ran for stay in stays)
    told = [stay for stay in stays if stay.gpus and stay.busy is not None]
    known = sum(stay.gpus * min(stay.known, stay.ran) for stay in told)
    used = sum(stay.gpus * min(stay.known, stay.ran) * (stay.busy or 0.0) for stay in told)
    return GpuTime(held, used if told and known else None, known / ran if ran else 0.0)


def largest(peaks: Sequence[Peak]) -> Peak | None:
    """The one that came nearest to what it asked for."""
    return max(peaks, key=lambda peak: (peak.used / peak.asked if peak.asked else 0.0, peak.used), default=None)


# ---- run again with these sizes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """One right-sized amount. `key`: a change of `runs.scheduling.changes`; `how`: how it was derived, a sentence."""

    key: str
    label: str
    how: str


def right_sizes(
    spec: RunSpec, memory: Peak | None, cores: Peak | None, longest: float | None, ran_out: bool
) -> list[Size]:
    """What the run would ask for by what it used: a quarter more than the most of any worker. `longest`: seconds that
    its longest attempt ran, of a run that completed. `ran_out`: it was killed for memory."""
    if spec.worker_groups or spec.task_template.requested_resources.node_fraction is not None:
        return []
    found = [_memory(spec, memory, ran_out), _cores(spec, cores), _limit(spec, longest)]
    return [size for size in found if size is not None]


def _shares(spec: RunSpec, peak: Peak) -> int:
    """In how many parts a worker's amount is written down."""
    return max(peak.gpus, 1) if spec.task_template.requested_resources.per_gpu else 1


def _memory(spec: RunSpec, peak: Peak | None, ran_out: bool) -> Size | None:
    asked = sizes.asked_memory(spec)
    if asked is None:
        return None
    if ran_out:
        more = sizes.more_memory(spec)
        how = f"it ran out of {format_memory(asked)}: half as much again"
        return Size(more.key, f"Memory {more.label}", how) if more else None
    if peak is None:
        return None
    size = sizes.rounded(peak.used * HEADROOM / _shares(spec, peak))
    resize = sizes.memory(spec, size)
    how = f"the most that a worker used is {format_memory(round(peak.used))} ({peak.worker}), and a quarter more"
    return Size(resize.key, f"Memory {resize.label}", how) if size != asked else None


def _cores(spec: RunSpec, peak: Peak | None) -> Size | None:
    resources = spec.task_template.requested_resources
    asked = (resources.per_gpu or resources).cpu_cores
    if peak is None or asked is None or peak.used <= 0:
        return None
    need = peak.used * HEADROOM / _shares(spec, peak)
    milli = math.ceil(need) * 1000 if need > 1 else math.ceil(need * 4) * 250
    each = " per GPU" if resources.per_gpu else ""
    how = f"the most that a worker used is {peak.used:.1f} cores ({peak.worker}), and a quarter more"
    if milli == round(asked * 1000) or peak.used >= 0.9 * (peak.asked or math.inf):
        return None  # what a limit holds back says nothing of what it would use without
    return Size(f"cores={milli}", f"{format_cores(milli)} cores{each}", how)


def _limit(spec: RunSpec, longest: float | None) -> Size | None:
    """A shorter time limit lets a run start sooner, in room that is held for a larger one."""
    limit = spec.task_template.time_limit_seconds
    if limit is None or longest is None:
        return None
    seconds = max(math.ceil(longest * 1.5 / QUARTER_HOUR) * QUARTER_HOUR, TIME_LIMIT_MIN)
    how = f"it ran for {format_duration(round(longest))}: half as much again, in quarters of an hour"
    return Size(f"time={seconds}", f"Time limit {format_duration(seconds)}", how) if seconds < limit / 2 else None


def document(
    went: dict[Spent, float],
    gpus: GpuTime,
    memory: Peak | None,
    cores: Peak | None,
    restarts: int,
    preemptions: int,
    sized: Sequence[Size],
) -> dict[str, Any]:
    """As it is kept, and told by the API. Seconds, GPU-hours, bytes and cores; null: not known."""
    return {
        "total_seconds": round(sum(went.values()), 3),
        "waited_seconds": {spent.name.lower(): round(went[spent], 3) for spent in Spent if spent not in NOT_WAITED},
        "pulled_seconds": round(went[Spent.PULLING], 3),
        "ran_seconds": round(went[Spent.RUNNING], 3),
        "gpu_hours": {
            "held": round(gpus.held / 3600, 4),
            "used": None if gpus.used is None else round(gpus.used / 3600, 4),
            "sampled": round(gpus.known, 4),
        },
        "memory": memory and {"worker": memory.worker, "peak_bytes": round(memory.used), "asked_bytes": memory.asked},
        "cores": cores and {"worker": cores.worker, "peak": round(cores.used, 3), "asked": cores.asked},
        "restarts": restarts,
        "preemptions": preemptions,
        "right_sizes": [{"change": size.key, "label": size.label, "how": size.how} for size in sized],
    }


NOT_WAITED = (Spent.PULLING, Spent.RUNNING)
