"""From a specification to its workers: each way of planning them, with each form of resources."""

from typing import Any

import pytest

from runs.scheduling.shapes import ask_of, plan_workers
from runs.scheduling.types import GpuView, MachineView, Refusal, WorkerShape
from runs.spec import load_spec
from tests.scheduling.database import GIB, make_spec

AMOUNTS = {"cpu_cores": 2, "memory_bytes": 4 * GIB}
FORMS: dict[str, dict[str, Any]] = {
    "per worker": AMOUNTS,
    "per GPU": {"per_gpu": AMOUNTS},
    "node fraction": {"node_fraction": 0.5},
}
WAYS: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    "one": ({}, 1, ["a-0"]),
    "machines": ({"machines": 2}, 4, ["a-0", "a-1"]),
    "count": ({"node_selection": {"count": 2}}, 4, ["a-0", "a-1"]),
    "array": ({"array": {"count": 4, "parallelism": 2}}, 4, ["a-0", "a-1", "a-2", "a-3"]),
    "groups": (
        {"worker_groups": [{"name": "x", "count": 1}, {"name": "y", "count": 3}]},
        4,
        ["a-x-0", "a-y-0", "a-y-1", "a-y-2"],
    ),
    "split": ({}, 4, ["a-0", "a-1"]),  # two GPUs a machine
}
GPUS = tuple(GpuView(index, "NVIDIA H100", 80 * GIB) for index in range(2))
INVENTORY = tuple(MachineView(number, f"m{number}", 64_000, 512 * GIB, GPUS) for number in range(4))


def planned(way: str, form: str) -> list[WorkerShape]:
    spec, gpus, _ = WAYS[way]
    resources = {**FORMS[form], "gpu_requests": {"count": gpus}}
    shapes = plan_workers(load_spec(make_spec(resources=resources, **spec)), "a", INVENTORY)
    assert not isinstance(shapes, Refusal)
    return shapes


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", WAYS)
def test_workers_are_planned_in_each_way_with_each_form_of_resources(way: str, form: str) -> None:
    shapes = planned(way, form)
    _, gpus, names = WAYS[way]
    assert [shape.name for shape in shapes] == names
    assert [shape.rank for shape in shapes] == list(range(len(names)))
    each = gpus // len(names)
    amounts = {
        "per worker": (2000, 4 * GIB, None),
        "per GPU": (2000 * each, 4 * GIB * each, None),
        "node fraction": (0, 0, 0.5),
    }[form]
    assert {(shape.gpus, shape.cpu_milli, shape.memory_bytes, shape.node_fraction) for shape in shapes} == {
        (each, *amounts)
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_node_fraction_is_what_is_asked_for_however_the_workers_are_planned(way: str) -> None:
    spec, gpus, _ = WAYS[way]
    parsed = load_spec(make_spec(resources={"node_fraction": 0.5, "gpu_requests": {"count": gpus}}, **spec))
    asks = {ask_of(parsed, shape) for shape in planned(way, "node fraction")}
    assert {(ask.node_fraction, ask.cpu_milli, ask.memory_bytes) for ask in asks} == {(0.5, 0, 0)}


def test_a_split_leaves_no_more_workers_on_a_machine_than_its_fraction_allows() -> None:
    """0.6 of a machine each: one on each, however many GPUs it has."""
    machines = tuple(
        MachineView(n, f"m{n}", 64_000, GIB, tuple(GpuView(i, "X", GIB) for i in range(8))) for n in (0, 1)
    )
    resources = {"node_fraction": 0.6, "gpu_requests": {"count": 16}}
    shapes = plan_workers(load_spec(make_spec(resources=resources)), "a", machines)
    assert [shape.gpus for shape in shapes] == [8, 8] if isinstance(shapes, list) else False
    few = {"node_fraction": 0.6, "gpu_requests": {"count": 18}}
    refusal = plan_workers(load_spec(make_spec(resources=few)), "a", machines)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "plan_too_few"
