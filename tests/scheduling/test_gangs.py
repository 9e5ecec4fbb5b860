"""Two gangs and two machines: whatever comes between a plan and its writing, neither ever holds half."""

import random
from collections import Counter

import pytest
from django.db.models import F

from machines.models import Machine
from runs.models import Attempt, Run, Worker
from runs.scheduling.apply import apply_plan
from runs.scheduling.load import load_snapshot
from runs.scheduling.planner import make_plan
from runs.scheduling.types import Plan
from tests.scheduling.database import NOW, make_machine, make_namespace, make_run

pytestmark = pytest.mark.django_db
INTERLEAVINGS = 1000  # of two to four acts each, the first upon a plan


def test_two_gangs_never_hold_halves() -> None:
    namespace = make_namespace()
    machines = [make_machine(namespace.cluster, f"m{number}", gpus=8) for number in range(2)]
    for number in range(2):
        make_run(namespace, f"gang{number}", gpus=16, start="Gang", node_selection={"count": 2}, priority=number)
    started: Counter[int] = Counter()
    for seed in range(INTERLEAVINGS):
        chance = random.Random(seed)
        plans = [make_plan(load_snapshot(namespace.cluster_id), NOW.timestamp())]
        for _ in range(chance.randint(2, 4)):
            _act(chance, namespace.cluster_id, machines, plans)
            held = Counter(Attempt.objects.filter(released_at=None).values_list("worker__run_id", flat=True))
            assert set(held.values()) <= {2}
            assert len(held) <= 1
            started.update(held.keys())
        _give_back()
        Machine.objects.update(cordoned_at=None)
    assert len(started) == 2
    assert min(started.values()) > INTERLEAVINGS / 4


def _give_back() -> None:
    Attempt.objects.filter(released_at=None).update(released_at=NOW, superseded_at=NOW)
    Worker.objects.exclude(state="Pending").update(state="Pending")


def _act(chance: random.Random, cluster_id: int, machines: list[Machine], plans: list[Plan]) -> None:
    """A pass begins, or writes what it planned at any time before; or the world moves."""
    act = chance.choice(("plan", "apply", "apply", "apply", "cordon", "uncordon", "give back", "turn"))
    if act == "plan":
        plans.append(make_plan(load_snapshot(cluster_id), NOW.timestamp()))
    elif act == "apply" and plans:
        apply_plan(cluster_id, plans.pop(chance.randrange(len(plans))), NOW)
    elif act == "cordon":
        Machine.objects.filter(id=chance.choice(machines).id).update(cordoned_at=NOW)
    elif act == "uncordon":
        Machine.objects.update(cordoned_at=None)
    elif act == "turn":
        Run.objects.filter(gang=True).update(priority=1 - F("priority"))
    elif act == "give back":
        _give_back()
