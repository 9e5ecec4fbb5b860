"""Sizes of a run that is started again: more of what ran out, or as much as was used. Pure.

A change is a key of `runs.scheduling.changes`, so that a link to New run can carry it. Runs with worker groups have no
one size, and a share of a machine is none of ours to change: for them there is no change.
"""

import math
from dataclasses import dataclass

from runs.spec import RunSpec
from runs.units import TIME_LIMIT_MAX, format_duration, format_memory

MIB, GIB = 1024**2, 1024**3
MORE_MEMORY = 1.5
MORE_TIME = 2


@dataclass(frozen=True)
class Resize:
    """`key`: what to change; `label`: to what, as `96 GiB per GPU`."""

    key: str
    label: str


def more_memory(spec: RunSpec) -> Resize | None:
    """Half as much again, for a run that ran out of it."""
    asked = asked_memory(spec)
    return None if asked is None else memory(spec, rounded(asked * MORE_MEMORY))


def memory(spec: RunSpec, size: int) -> Resize:
    """To `size` bytes for each GPU or worker, as the specification counts it."""
    each = " per GPU" if spec.task_template.requested_resources.per_gpu else ""
    return Resize(f"memory={size}", f"{format_memory(size)}{each}")


def more_time(spec: RunSpec) -> Resize | None:
    """Twice as long, for a run that reached its time limit."""
    limit = spec.task_template.time_limit_seconds
    if spec.worker_groups or limit is None or limit >= TIME_LIMIT_MAX:
        return None
    seconds = min(limit * MORE_TIME, TIME_LIMIT_MAX)
    return Resize(f"time={seconds}", format_duration(seconds))


def asked_memory(spec: RunSpec) -> int | None:
    """Bytes for each GPU or worker, as the specification counts it."""
    resources = spec.task_template.requested_resources
    amounts = resources.per_gpu or resources
    return None if spec.worker_groups or resources.node_fraction is not None else amounts.memory_bytes


def rounded(size: float) -> int:
    """Upwards, to whole GiB; below 4 GiB to 128 MiB."""
    unit = GIB if size >= 4 * GIB else 128 * MIB
    return math.ceil(size / unit) * unit
