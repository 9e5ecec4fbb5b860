"""Which machines can take a worker: the filters, in order, each with the numbers of its refusal. Pure.

The order is written once, in `STAGES`: the first filter that a machine fails is the one it is listed under. A worker
that no machine passes up to `Level.EVER` can never run as asked; one that none passes up to `Level.AVAILABLE` waits for
a machine to come back; else it waits for room.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from runs.scheduling.ledger import Ints, Ledger, Mask
from runs.scheduling.types import Ask, Constraints, Numbers


class Level(IntEnum):
    EVER = 0  # what the machine is
    AVAILABLE = 1  # whether it takes work
    ROOM = 2  # what is free on it


class Need(NamedTuple):
    """An ask against a ledger: arrays where a node fraction makes it differ by machine."""

    ask: Ask
    kinds: tuple[int, ...]  # the GPU kinds that serve
    cpu_milli: Ints | int
    memory_bytes: Ints | int


Passes: TypeAlias = Callable[[Ledger, Need], Mask | None]  # None: it does not matter to this ask, all pass


class Stage(NamedTuple):
    code: str
    level: Level
    passes: Passes


@lru_cache(maxsize=4096)
def gpu_model_matches(wanted: str, model: str) -> bool:
    """Whether `H100` or `h100-80gb` asks for `NVIDIA H100 80GB HBM3`: each word asked for is a word of the model."""
    return _words(wanted) <= _words(model)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def kinds_of(ledger: Ledger, limits: Constraints) -> tuple[int, ...]:
    """The GPU kinds that serve."""
    return tuple(
        number
        for number, kind in enumerate(ledger.kinds)
        if _model_serves(kind.model, limits) and kind.memory_bytes >= limits.gpu_min_memory_bytes
    )


def need_of(ledger: Ledger, ask: Ask) -> Need:
    kinds = kinds_of(ledger, ask.constraints)
    if ask.node_fraction is None:
        return Need(ask, kinds, ask.cpu_milli, ask.memory_bytes)
    cpu_milli = (ledger.cpu_milli * ask.node_fraction).astype(np.int64)
    return Need(ask, kinds, cpu_milli, (ledger.memory_bytes * ask.node_fraction).astype(np.int64))


def _model_serves(model: str, limits: Constraints) -> bool:
    return not limits.gpu_models or any(gpu_model_matches(wanted, model) for wanted in limits.gpu_models)


def count_gpus(by_kind: Ints, kinds: Sequence[int]) -> Ints:
    """Per machine, the GPUs of these kinds."""
    counts: Ints = by_kind[kinds[0]] if len(kinds) == 1 else by_kind[list(kinds)].sum(axis=0, dtype=np.int64)
    return counts


def _is_named(ledger: Ledger, need: Need) -> Mask | None:
    names = need.ask.constraints.names
    return ledger.mask_of([ledger.row_named[n] for n in names if n in ledger.row_named]) if names else None


def _in_pool(pools: Callable[[Constraints], Sequence[str]]) -> Passes:
    def passes(ledger: Ledger, need: Need) -> Mask | None:
        wanted = pools(need.ask.constraints)
        masks = [ledger.labelled("pool", pool) for pool in wanted]
        return np.logical_or.reduce(masks) if masks else None

    return passes


def _has_labels(ledger: Ledger, need: Need) -> Mask | None:
    masks = [ledger.labelled(*label) for label in need.ask.constraints.labels]
    return np.logical_and.reduce(masks) if masks else None


def _can_mount(ledger: Ledger, need: Need) -> Mask | None:
    return ledger.runs_containers if need.ask.constraints.mounts else None


def _has_model(ledger: Ledger, need: Need) -> Mask | None:
    if not need.ask.gpus or not need.ask.constraints.gpu_models:
        return None
    kinds = [number for number, kind in enumerate(ledger.kinds) if _model_serves(kind.model, need.ask.constraints)]
    return count_gpus(ledger.gpus, kinds) > 0


def _has_gpu_memory(ledger: Ledger, need: Need) -> Mask | None:
    if not need.ask.gpus or not need.ask.constraints.gpu_min_memory_bytes:
        return None
    return count_gpus(ledger.gpus, need.kinds) > 0


def _enough_gpus(by_kind: Callable[[Ledger], Ints]) -> Passes:
    def passes(ledger: Ledger, need: Need) -> Mask | None:
        return count_gpus(by_kind(ledger), need.kinds) >= need.ask.gpus if need.ask.gpus else None

    return passes


# Cheapest and plainest first: where it may run, what the machine has, whether it takes work, what is free on it.
STAGES: tuple[Stage, ...] = (
    Stage("name", Level.EVER, _is_named),
    Stage("pool", Level.EVER, _in_pool(lambda limits: limits.pools)),
    Stage("namespace_pool", Level.EVER, _in_pool(lambda limits: limits.namespace_pools)),
    Stage("labels", Level.EVER, _has_labels),
    Stage("containers", Level.EVER, _can_mount),
    Stage("gpu_model", Level.EVER, _has_model),
    Stage("gpu_memory", Level.EVER, _has_gpu_memory),
    Stage("gpus", Level.EVER, _enough_gpus(lambda ledger: ledger.gpus)),
    Stage("cpu", Level.EVER, lambda ledger, need: ledger.cpu_milli >= need.cpu_milli),
    Stage("memory", Level.EVER, lambda ledger, need: ledger.memory_bytes >= need.memory_bytes),
    Stage("not_ready", Level.AVAILABLE, lambda ledger, need: ledger.ready),
    Stage("cordoned", Level.AVAILABLE, lambda ledger, need: ~ledger.cordoned | ledger.draining),
    Stage("draining", Level.AVAILABLE, lambda ledger, need: ~ledger.draining),
    Stage("gpu_health", Level.AVAILABLE, _enough_gpus(lambda ledger: ledger.healthy_gpus)),
    Stage("not_connected", Level.ROOM, lambda ledger, need: ledger.connected),
    Stage("free_gpus", Level.ROOM, _enough_gpus(lambda ledger: ledger.free_gpus)),
    Stage("free_cpu", Level.ROOM, lambda ledger, need: ledger.free_cpu >= need.cpu_milli),
    Stage("free_memory", Level.ROOM, lambda ledger, need: ledger.free_memory >= need.memory_bytes),
)
REASONS_SHOWN = 3  # why machines take no work; the others' are on their page
PLACE_STAGES = STAGES[:5]  # depend on the constraints alone
SIZE_STAGES = STAGES[5:10]


def narrowed(mask: Mask, ledger: Ledger, need: Need, stages: Iterable[Stage]) -> Mask:
    """What of a mask passes these stages; the mask itself is left as it is."""
    for stage in stages:
        passed = stage.passes(ledger, need)
        if passed is not None:
            mask = mask & passed
    return mask


class MachineGroup(NamedTuple):
    """Machines that refuse an ask for the same reason; numbers: what was wanted, and the most that any of them has."""

    code: str
    numbers: Numbers
    machines: tuple[str, ...]


def refusals_by_machine(ledger: Ledger, ask: Ask) -> list[MachineGroup]:
    """Each machine under the first filter that refuses it, in the filters' order; machines that fit are in none."""
    need = need_of(ledger, ask)
    left = np.ones(len(ledger.machines), dtype=bool)
    groups = []
    for stage in STAGES:
        passed = narrowed(left, ledger, need, (stage,))
        refused = left & ~passed
        if refused.any():
            rows = np.flatnonzero(refused)
            names = tuple(ledger.machines[int(row)].name for row in rows)
            groups.append(MachineGroup(stage.code, refusal_numbers(ledger, need, stage.code, rows), names))
            left = passed
    return groups


def first_emptying(ledger: Ledger, need: Need, level: Level) -> tuple[str, Numbers]:
    """The filter up to `level` after which no machine is left, and its numbers. One must be such. Where machines take
    no work for several reasons, `also_<code>` counts those that earlier filters refused."""
    left = np.ones(len(ledger.machines), dtype=bool)
    also: Numbers = {}
    for stage in STAGES:
        passed = narrowed(left, ledger, need, (stage,))
        if stage.level == level and not passed.any():
            return stage.code, refusal_numbers(ledger, need, stage.code, np.flatnonzero(left)) | also
        if stage.level == Level.AVAILABLE and (refused := int((left & ~passed).sum())):
            also[f"also_{stage.code}"] = refused
        left = passed
    raise ValueError("a machine passes every filter of this level")


def refusal_numbers(ledger: Ledger, need: Need, code: str, rows: Ints) -> Numbers:
    """How many machines a filter refuses, what it wanted, and the most that one of them has."""
    numbers: Numbers = {"machines": len(rows)}
    limits = need.ask.constraints
    amounts: dict[str, tuple[Ints | int, Ints]] = {
        "gpus": (need.ask.gpus, count_gpus(ledger.gpus, need.kinds)),
        "gpu_health": (need.ask.gpus, count_gpus(ledger.healthy_gpus, need.kinds)),
        "free_gpus": (need.ask.gpus, count_gpus(ledger.free_gpus, need.kinds)),
        "cpu": (need.cpu_milli, ledger.cpu_milli),
        "free_cpu": (need.cpu_milli, ledger.free_cpu),
        "memory": (need.memory_bytes, ledger.memory_bytes),
        "free_memory": (need.memory_bytes, ledger.free_memory),
    }
    if code in amounts:
        wanted, has = amounts[code]
        numbers["wanted"] = wanted if isinstance(wanted, int) else min(wanted[rows].tolist(), default=0)
        numbers["most"] = int(has[rows].max(initial=0))
    texts: dict[str, tuple[str, ...]] = {
        "name": limits.names,
        "pool": limits.pools,
        "namespace_pool": limits.namespace_pools,
        "labels": tuple(f"{key}={value}" for key, value in limits.labels),
        "containers": limits.mounts,
        "gpu_model": limits.gpu_models,
    }
    if code in texts:
        numbers["wanted"] = list(texts[code])
    if code in ("cordoned", "draining"):
        reasons = dict.fromkeys(ledger.machines[int(row)].cordon_reason for row in rows)
        numbers["reasons"] = [reason for reason in reasons if reason][:REASONS_SHOWN]
    if code == "gpu_memory":
        numbers["wanted"] = limits.gpu_min_memory_bytes
        numbers["most"] = max((kind.memory_bytes for kind in ledger.kinds), default=0)
    return numbers
