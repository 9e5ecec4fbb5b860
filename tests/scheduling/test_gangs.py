"""Two gangs and two machines: whatever comes between a plan and its writing, neither ever holds half."""

import random
from collections import Counter

import pytest

from machines.models import Machine
from runs.models import Attempt, Worker
from runs.scheduling.apply import apply_plan
from runs.scheduling.load import load_snapshot
from runs.scheduling.planner import make_plan
from runs.scheduling.types import Plan
from runs.services.deleting import delete_run
from tests import builders
from tests.scheduling.database import NOW, make_machine, make_namespace, make_run

pytestmark = pytest.mark.django_db
INTERLEAVINGS = 150  # each about eight acts; the pure core is held to the same by its properties


def test_two_gangs_never_hold_halves() -> None:
    namespace = make_namespace()
    access = builders.access(namespace.workspace)
    machines = [make_machine(namespace.cluster, f"m{number}", gpus=8) for number in range(2)]
    started = 0
    for seed in range(INTERLEAVINGS):
        chance = random.Random(seed)
        gangs = [
            make_run(namespace, f"gang{number}-{seed}", gpus=16, start="Gang", node_selection={"count": 2})
            for number in range(2)
        ]
        plans: list[Plan] = []
        for _ in range(chance.randint(4, 12)):
            _act(chance, namespace.cluster_id, machines, plans)
            held = Counter(Attempt.objects.filter(released_at=None).values_list("worker__run_id", flat=True))
            assert set(held.values()) <= {2}
            assert len(held) <= 1
            started += bool(held)
        for gang in gangs:
            delete_run(access, gang, NOW)
        Attempt.objects.update(released_at=NOW)
        Machine.objects.update(cordoned_at=None)
    assert started > INTERLEAVINGS


def _act(chance: random.Random, cluster_id: int, machines: list[Machine], plans: list[Plan]) -> None:
    """A pass begins, or writes what it planned at any time before; or the world moves."""
    act = chance.choice(("plan", "plan", "apply", "apply", "cordon", "uncordon", "give back"))
    if act == "plan":
        plans.append(make_plan(load_snapshot(cluster_id), NOW.timestamp()))
    elif act == "apply" and plans:
        apply_plan(cluster_id, plans.pop(chance.randrange(len(plans))), NOW)
    elif act == "cordon":
        Machine.objects.filter(id=chance.choice(machines).id).update(cordoned_at=NOW)
    elif act == "uncordon":
        Machine.objects.update(cordoned_at=None)
    elif act == "give back":
        Attempt.objects.update(released_at=NOW, superseded_at=NOW)
        Worker.objects.filter(state="Preparing").update(state="Pending")
