"""What would start a waiting run: small changes of its specification, tried on the very snapshot it waits in. Pure.

A change is a key such as `gpus=4`: it names itself in a link, and `changed` applies it to a specification, so that the
form it leads to is filled in with what was tried.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import msgspec
import numpy as np

from runs.scheduling.candidates import Candidates
from runs.scheduling.explain import is_for_good
from runs.scheduling.forecast import at_once
from runs.scheduling.ledger import Ledger
from runs.scheduling.places import Places
from runs.scheduling.planner import rehearse
from runs.scheduling.shapes import plan_workers, waiting_run
from runs.scheduling.types import Ask, Rehearsed, Snapshot, WaitingRun
from runs.spec import RunSpec, load_spec
from runs.units import counted, format_cores, format_duration, format_memory

TRIES = 16  # sizes tried of one kind
LEAST_SECONDS = 300  # a shorter time limit is no help to anybody
GIB = 1024**3


class Change(NamedTuple):
    """`label`: what to change, as a sentence's beginning; `outcome`: what would come of it."""

    key: str
    label: str
    outcome: str


class Question(NamedTuple):
    """A waiting run, its stored specification, and the cluster as it waits there. `pools`: those of its workspace."""

    run: WaitingRun
    name: str
    stored: Mapping[str, Any]
    pools: Sequence[str]
    snapshot: Snapshot
    now: float


def changes_that_start(question: Question) -> list[Change]:
    """Of each kind of change the smallest that would have the run start at once; where it can never run as it is, the
    smallest that would at least let it. Tried as they are followed: this run stopped, the new one the youngest."""
    question = _anew(question)
    before = rehearse(question.snapshot, question.now, [question.run])[0]
    tries = [(kind, key) for kind, keys in _keys(question, before) for key in keys]
    variants = [(kind, key, run) for kind, key in tries if (run := _variant(question, key)) is not None]
    if not variants:
        return []
    names = {machine.id: machine.name for machine in question.snapshot.machines}
    # Without workers it could not even be planned.
    hopeless = not question.run.workers or (before.refusal is not None and is_for_good(before.refusal.code))
    found: dict[str, Change] = {}
    possible: dict[str, Change] = {}
    rehearsed = rehearse(question.snapshot, question.now, [run for _, _, run in variants])
    for (kind, key, _), result in zip(variants, rehearsed, strict=True):
        if result.refusal is None:
            outcome = at_once(result.placements, names)
            found.setdefault(kind, Change(key, label(question.stored, key), outcome))
        elif hopeless and result.refusal is not None and not is_for_good(result.refusal.code):
            possible.setdefault(kind, Change(key, label(question.stored, key), "can run, when there is room"))
    return list((possible | found).values())


def _anew(question: Question) -> Question:
    """The run submitted again, and the first one gone."""
    run = msgspec.structs.replace(question.run, queued_at=question.now, again=False, claim=None)
    others = (other for other in question.snapshot.waiting if other.id != run.id)
    return question._replace(run=run, snapshot=msgspec.structs.replace(question.snapshot, waiting=(*others, run)))


def changed(stored: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The specification with the change made. Raises ValueError for a key that is no change of it."""
    what, _, value = key.partition("=")
    spec = deepcopy(dict(stored))
    resources = spec["task_template"]["requested_resources"]
    try:
        if what == "gpus":
            resources["gpu_requests"]["count"] = int(value)
        elif what == "machines":
            spec["machines"], resources["gpu_requests"]["count"] = map(int, value.split(","))
        elif what == "workers":
            spec["node_selection"]["count"] = int(value)
        elif what == "pool":
            spec["node_selection"]["pools"] = [value]
        elif what == "time":
            spec["task_template"]["time_limit_seconds"] = int(value)
        elif what == "memory":
            (resources.get("per_gpu") or resources)["memory_bytes"] = int(value)
        elif what == "cores":
            (resources.get("per_gpu") or resources)["cpu_cores"] = int(value) / 1000
        else:
            raise ValueError(f"{what} is no change of a run")
    except (KeyError, TypeError) as error:
        raise ValueError(f"the run has nothing to change for {key}") from error
    return spec


def label(stored: Mapping[str, Any], key: str) -> str:
    """`With 4 GPUs instead of 8`."""
    what, _, value = key.partition("=")
    spec = load_spec(dict(stored))
    resources = spec.task_template.requested_resources
    each = " per GPU" if resources.per_gpu else ""
    if what == "gpus":
        return f"With {counted(int(value), 'GPU')} instead of {resources.gpus}"
    if what == "machines":
        machines, gpus = map(int, value.split(","))
        return f"On {counted(machines, 'machine')} with {counted(gpus, 'GPU')} in all instead of {spec.machines}"
    if what == "workers":
        return f"With {counted(int(value), 'worker')} instead of {spec.stated_workers}"
    if what == "pool":
        return f"In pool {value}"
    if what == "time":
        return f"With a time limit of {format_duration(int(value))}"
    amounts = resources.per_gpu or resources
    if what == "memory":
        return f"With {format_memory(int(value))}{each} instead of {format_memory(amounts.memory_bytes or 0)}"
    return f"With {format_cores(int(value))} cores{each} instead of {format_cores(_cpu_milli(spec))}"


# ---- which changes are tried -----------------------------------------------------------------------------------------


def _keys(question: Question, before: Rehearsed) -> Iterator[tuple[str, list[str]]]:
    """By kind, the smallest change first."""
    spec = load_spec(dict(question.stored))
    if spec.worker_groups:
        return  # which group to change is not ours to guess
    yield "gpus", _fewer_gpus(spec, len(question.run.workers) or 1)
    yield "workers", _fewer_workers(spec)
    yield "pool", _other_pools(question, spec)
    yield "time", _shorter(question, before)
    yield from _less(question, spec)


def _fewer_gpus(spec: RunSpec, planned: int) -> list[str]:
    total = spec.task_template.requested_resources.gpus
    workers = spec.stated_workers or 1
    each = total // workers
    if total < 2 or total % workers:
        return []
    if spec.stated_workers is None and planned > 1:
        return [f"gpus={count * (total // planned)}" for count in range(planned - 1, 0, -1)][:TRIES]
    sizes = range(each - 1, 0, -1) if each <= TRIES else (each * part // TRIES for part in range(TRIES - 1, 0, -1))
    return [f"gpus={size * workers}" for size in sizes]


def _fewer_workers(spec: RunSpec) -> list[str]:
    if spec.machines is not None:
        each, left = divmod(spec.task_template.requested_resources.gpus, spec.machines)
        return [] if left or not each else [f"machines={n},{n * each}" for n in range(spec.machines - 1, 0, -1)][:TRIES]
    count = spec.node_selection.count if spec.node_selection else None
    if count is None or spec.effective_start != "Gang" or spec.task_template.requested_resources.gpus:
        return []
    return [f"workers={n}" for n in range(count - 1, 0, -1)][:TRIES]


def _other_pools(question: Question, spec: RunSpec) -> list[str]:
    asked = set(spec.node_selection.pools) if spec.node_selection else set()
    there = sorted({machine.pool for machine in question.snapshot.machines if machine.pool})
    allowed = [pool for pool in there if not question.pools or pool in question.pools]
    return [f"pool={pool}" for pool in allowed if pool not in asked][:TRIES] if asked else []


def _shorter(question: Question, before: Rehearsed) -> list[str]:
    """A limit that ends before the room reserved for the first in the queue is needed."""
    if before.reserved_from is None or before.reserved_from == float("inf"):
        return []
    seconds = int(before.reserved_from - question.now) // 60 * 60
    limit = question.run.time_limit
    return [f"time={seconds}"] if seconds >= LEAST_SECONDS and (limit is None or seconds < limit) else []


def _less(question: Question, spec: RunSpec) -> Iterator[tuple[str, list[str]]]:
    """As much memory, or as many cores, as some machine has free beside the rest of what a worker asks."""
    if not question.run.workers or spec.task_template.requested_resources.node_fraction is not None:
        return
    ask = question.run.workers[0].ask
    ledger = Ledger(question.snapshot.machines, question.snapshot.holds)
    places = Places(ledger)
    per = ask.gpus if spec.task_template.requested_resources.per_gpu else 1
    memory = _most_free(places, msgspec.structs.replace(ask, memory_bytes=0), ledger.free_memory) // per // GIB * GIB
    if 0 < memory < ask.memory_bytes // per:
        yield "memory", [f"memory={memory}"]
    cores = _most_free(places, msgspec.structs.replace(ask, cpu_milli=0), ledger.free_cpu) // per // 1000 * 1000
    if 0 < cores < ask.cpu_milli // per:
        yield "cores", [f"cores={cores}"]


def _most_free(places: Places, ask: Ask, free: "np.ndarray[Any, Any]") -> int:
    rows = np.flatnonzero(Candidates(places, ask).room())
    return int(free[rows].max(initial=0))


def _cpu_milli(spec: RunSpec) -> int:
    resources = spec.task_template.requested_resources
    return resources.cpu_milli_of(1)


def _variant(question: Question, key: str) -> WaitingRun | None:
    """The run as it would wait; None where its workers could not be planned."""
    spec = load_spec(changed(question.stored, key))
    shapes = plan_workers(spec, question.name, question.snapshot.machines, question.pools)
    if not isinstance(shapes, list):
        return None
    waiting = waiting_run(spec, shapes, question.run.namespace_id, question.pools, question.run.queued_at)
    return msgspec.structs.replace(waiting, id=question.run.id)
