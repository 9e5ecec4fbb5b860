"""A specification and the machines there are → the workers of a run. Pure.

The count is stated by the specification, or follows from a GPU total: the fewest equal workers that the eligible
machines can hold when they are empty.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from runs.names import worker_name
from runs.scheduling.feasible import count_gpus, need_of
from runs.scheduling.ledger import Ints, Ledger
from runs.scheduling.places import Places
from runs.scheduling.types import (
    Ask,
    Constraints,
    MachineView,
    Refusal,
    SplitAsk,
    WaitingRun,
    WaitingWorker,
    WorkerShape,
)
from runs.spec import Resources, RunSpec, TaskTemplate, template_of


def plan_workers(
    spec: RunSpec, name: str, inventory: Sequence[MachineView], namespace_pools: Sequence[str] = ()
) -> list[WorkerShape] | Refusal:
    """The workers of a run named `name`, in rank order; a refusal (`plan_…`) where the GPUs cannot be split.

    `inventory` matters only for a GPU total whose split is left to the scheduler (`split_ask`).
    """
    split = split_ask(spec, namespace_pools)
    if split is None:
        return stated_workers(spec, name)
    count = split_count(split, Places(Ledger(inventory, ())))
    return count if isinstance(count, Refusal) else equal_workers(spec, name, count)


def split_ask(spec: RunSpec, namespace_pools: Sequence[str] = ()) -> SplitAsk | None:
    """The GPU total to be split, where its workers follow from the machines; None where the count is known."""
    resources = spec.task_template.requested_resources
    if spec.stated_workers is not None or resources.gpus < 2:
        return None
    per_gpu = resources.per_gpu
    return SplitAsk(
        gpus=resources.gpus,
        cpu_milli=0 if per_gpu else resources.cpu_milli_of(0),
        memory_bytes=0 if per_gpu else resources.memory_bytes_of(0),
        cpu_milli_per_gpu=per_gpu.cpu_milli if per_gpu else 0,
        memory_bytes_per_gpu=per_gpu.memory_bytes if per_gpu else 0,
        node_fraction=resources.node_fraction,
        constraints=constraints_of(spec, "", namespace_pools),
    )


def constraints_of(
    spec: RunSpec, group: str, namespace_pools: Sequence[str] = (), namespace_id: int = 0
) -> Constraints:
    """Which machines and GPUs the workers of a group may use, and what they had better find there."""
    selection = spec.node_selection
    template = template_of(spec, group)
    gpus = template.requested_resources.gpu_requests
    return Constraints(
        pools=tuple(selection.pools) if selection else (),
        namespace_pools=tuple(namespace_pools),
        labels=tuple(sorted(selection.labels.items())) if selection else (),
        names=tuple(selection.names) if selection else (),
        gpu_models=tuple(gpus.models) if gpus else (),
        gpu_min_memory_bytes=(gpus.min_memory_bytes or 0) if gpus else 0,
        mounts=mounts_of(spec, template),
        data=(
            *(f"{namespace_id}/drive/{ref.name}" for ref in template.datavolume_refs),
            *(f"{namespace_id}/model/{name}" for name in _models(spec, template)),
        ),
    )


def _models(spec: RunSpec, template: TaskTemplate) -> Iterable[str]:
    served = [spec.engine.model] if spec.engine else []
    return dict.fromkeys([*(ref.name for ref in template.model_refs), *served])


def mounts_of(spec: RunSpec, template: TaskTemplate) -> tuple[str, ...]:
    """What only a container can have, in words."""
    kinds = {
        "file secrets": any(ref.mount_path is not None for ref in template.secret_refs),
        "drives": bool(template.datavolume_refs),
        "models": bool(template.model_refs),
        "engines": spec.engine is not None,
    }
    return tuple(kind for kind, is_asked in kinds.items() if is_asked)


def ask_of(spec: RunSpec, shape: WorkerShape, namespace_pools: Sequence[str] = ()) -> Ask:
    """What a planned worker needs of one machine."""
    return Ask(
        gpus=shape.gpus,
        cpu_milli=shape.cpu_milli,
        memory_bytes=shape.memory_bytes,
        node_fraction=shape.node_fraction,
        constraints=constraints_of(spec, shape.group, namespace_pools),
    )


def waiting_run(
    spec: RunSpec, shapes: Sequence[WorkerShape], namespace_id: int, namespace_pools: Sequence[str], queued_at: float
) -> WaitingRun:
    """A run as it would wait, with no number (0) yet. Its equal workers share one ask."""
    asks: dict[Ask, Ask] = {}
    workers = []
    for shape in shapes:
        ask = ask_of(spec, shape, namespace_pools)
        workers.append(WaitingWorker(-1 - shape.rank, asks.setdefault(ask, ask)))
    limits = [template.time_limit_seconds for template in spec.templates]
    return WaitingRun(
        id=0,
        namespace_id=namespace_id,
        queued_at=queued_at,
        workers=tuple(workers),
        priority=spec.priority,
        gang=spec.effective_start == "Gang",
        distinct_machines=spec.machines is not None,
        parallelism=spec.array.parallelism if spec.array else None,
        time_limit=max(limit for limit in limits if limit is not None) if all(limits) else None,
    )


def stated_workers(spec: RunSpec, name: str) -> list[WorkerShape] | Refusal:
    """The workers whose count the specification itself gives (1 where it says nothing)."""
    if spec.worker_groups:
        return _grouped_workers(spec, name)
    return equal_workers(spec, name, spec.stated_workers or 1)


def equal_workers(spec: RunSpec, name: str, count: int) -> list[WorkerShape] | Refusal:
    """`count` workers with equal shares of the run's GPUs."""
    resources = spec.task_template.requested_resources
    if resources.gpus % count:
        over = "machines" if spec.machines is not None else "workers"
        return Refusal("plan_uneven", {"gpus": resources.gpus, "count": count, "over": over})
    return [_shape(resources, name, "", rank, rank, resources.gpus // count) for rank in range(count)]


def _grouped_workers(spec: RunSpec, name: str) -> list[WorkerShape] | Refusal:
    """A group's own GPU count is its total; the run's is shared by all workers of the groups without one."""
    inheriting = sum(group.count for group in spec.worker_groups if group.task_template.requested_resources is None)
    shapes: list[WorkerShape] = []
    for group in spec.worker_groups:
        resources = template_of(spec, group.name).requested_resources
        count = inheriting if group.task_template.requested_resources is None else group.count
        if resources.gpus % count:
            over = "workers" if count != group.count else f"workers of the group {group.name}"
            return Refusal("plan_uneven", {"gpus": resources.gpus, "count": count, "over": over})
        first = len(shapes)
        shapes += [
            _shape(resources, name, group.name, rank, first + rank, resources.gpus // count)
            for rank in range(group.count)
        ]
    return shapes


def _shape(resources: Resources, run: str, group: str, rank_in_group: int, rank: int, gpus: int) -> WorkerShape:
    return WorkerShape(
        name=worker_name(run, rank_in_group, group),
        group=group,
        rank=rank,
        gpus=gpus,
        cpu_milli=resources.cpu_milli_of(gpus),
        memory_bytes=resources.memory_bytes_of(gpus),
        node_fraction=resources.node_fraction,
    )


def split_count(split: SplitAsk, places: Places) -> int | Refusal:
    """The fewest equal workers that the machines can hold when empty. Where no machine can hold even a one-GPU share
    it is one, so that the wait is explained by the machines."""
    one = need_of(places.ledger, _share(split, 1))
    if not places.ever(one).any():
        return 1
    healthy = _eligible_gpus(split, places)
    for count in _divisors(split.gpus):
        if int(_held_workers(split, count, places).sum()) >= count:
            return count
    total, machines = int(healthy.sum()), int((healthy > 0).sum())
    code = "plan_too_few" if total < split.gpus else "plan_split"
    return Refusal(code, {"gpus": split.gpus, "total": total, "most": int(healthy.max()), "machines": machines})


def _share(split: SplitAsk, gpus: int) -> Ask:
    """What one worker with so many of the GPUs asks."""
    return Ask(
        gpus=gpus,
        cpu_milli=split.cpu_milli + split.cpu_milli_per_gpu * gpus,
        memory_bytes=split.memory_bytes + split.memory_bytes_per_gpu * gpus,
        node_fraction=split.node_fraction,
        constraints=split.constraints,
    )


def _eligible_gpus(split: SplitAsk, places: Places) -> Ints:
    """Healthy GPUs that serve, by machine; 0 on machines that may not be used."""
    anywhere = places.ever(need_of(places.ledger, Ask(constraints=split.constraints)))
    need = need_of(places.ledger, _share(split, 1))
    return np.where(anywhere, count_gpus(places.ledger.healthy_gpus, need.kinds), 0)


def _held_workers(split: SplitAsk, count: int, places: Places) -> Ints:
    """How many of `count` equal workers each machine can hold at once when empty."""
    ledger = places.ledger
    ask = _share(split, split.gpus // count)
    need = need_of(ledger, ask)
    fits = count_gpus(ledger.healthy_gpus, need.kinds) // ask.gpus
    if ask.node_fraction is not None:
        fits = np.minimum(fits, int(1 / ask.node_fraction))
    else:
        fits = np.minimum(fits, ledger.cpu_milli // max(1, ask.cpu_milli))
        fits = np.minimum(fits, ledger.memory_bytes // max(1, ask.memory_bytes))
    return np.where(places.ever(need), fits, 0)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
