"""What a pass reads of the database."""

import pytest

from machines.models import MachineState
from runs.models import Attempt, Run
from runs.scheduling.load import load_inventory, load_snapshot
from runs.scheduling.loop import run_once
from runs.scheduling.types import Ask, Constraints, Hold, SplitAsk
from tests.scheduling.database import GIB, NOW, make_machine, make_namespace, make_run

pytestmark = pytest.mark.django_db


AT = NOW.timestamp()


def test_a_snapshot_holds_what_the_rows_say() -> None:
    namespace = make_namespace(pools=["a"], quota_gpus=5, weight=2)
    make_machine(namespace.cluster, "m0", gpus=1, labels={"pool": "a"}, cordoned_at=NOW)
    make_machine(namespace.cluster, "gone", state=MachineState.REMOVED)
    make_machine(namespace.cluster, "new", state=MachineState.JOINING)
    make_machine(namespace.cluster, "lost", state=MachineState.LOST)
    selection = {"pools": ["a", "b"], "labels": {"x": "y"}, "names": ["m0"]}
    run = make_run(
        namespace,
        "train",
        age=60,
        resources={"node_fraction": 0.5, "gpu_requests": {"count": 1, "models": ["H100"], "min_memory_bytes": GIB}},
        node_selection=selection,
        template={"time_limit_seconds": 600},
    )
    snapshot = load_snapshot(namespace.cluster_id)
    facts = {
        machine.name: (machine.ready, machine.cordoned, len(machine.gpus), machine.pool)
        for machine in snapshot.machines
    }
    assert facts == {"m0": (True, True, 1, "a"), "lost": (False, False, 0, "")}
    (waiting,) = snapshot.waiting
    limits = Constraints(("a", "b"), ("a",), (("x", "y"),), ("m0",), ("H100",), GIB)
    assert [worker.ask for worker in waiting.workers] == [Ask(1, 0, 0, 0.5, limits)]
    assert (waiting.id, waiting.queued_at, waiting.time_limit) == (run.id, AT - 60, 600)
    assert snapshot.namespaces[0].quota_gpus == 5
    assert snapshot.namespaces[0].weight == 2


def test_what_a_group_has_mounted_is_loaded_with_its_workers() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", runtime="process")
    make_machine(namespace.cluster, "m1", runtime="docker")
    variable = {"external_secret_name": "hf", "env_vars": {"token": "HF_TOKEN"}}
    file = {"external_secret_name": "gcs", "mount_path": "/var/secrets/gcs"}
    volume = {"name": "imagenet", "mount_path": "/data"}
    groups = [
        {"name": "a", "count": 1},
        {"name": "b", "count": 1, "task_template": {"secret_refs": [file], "datavolume_refs": [volume]}},
    ]
    make_run(namespace, "train", worker_groups=groups, template={"secret_refs": [variable]})
    snapshot = load_snapshot(namespace.cluster_id)
    assert [machine.runs_containers for machine in snapshot.machines] == [False, True]
    (waiting,) = snapshot.waiting
    assert [worker.ask.constraints.mounts for worker in waiting.workers] == [(), ("file secrets", "drives")]
    Run.objects.all().delete()
    make_run(namespace, "eval", template={"secret_refs": [file]})
    make_run(namespace, "plain", template={"secret_refs": [variable]})
    waiting = load_snapshot(namespace.cluster_id).waiting
    assert [run.workers[0].ask.constraints.mounts for run in waiting] == [("file secrets",), ()]
    Run.objects.all().delete()
    make_run(namespace, "chat", engine={"model": "llama"})
    make_run(namespace, "plain")
    waiting = load_snapshot(namespace.cluster_id).waiting
    assert [run.workers[0].ask.constraints.mounts for run in waiting] == [("engines",), ()]
    assert waiting[0].workers[0].ask.constraints.data == (f"{namespace.id}/model/llama",)


def test_a_live_attempt_is_loaded_as_a_hold_until_it_is_released() -> None:
    namespace = make_namespace()
    machine = make_machine(namespace.cluster, "m0", gpus=2)
    run = make_run(namespace, "train", gpus=1, priority=3, template={"time_limit_seconds": 600})
    run_once(namespace.cluster_id, NOW)
    held = Hold(run.id, namespace.id, machine.id, 1000, GIB, (0,), 3, AT, AT + 600)
    assert load_snapshot(namespace.cluster_id).holds == (held,)
    Attempt.objects.update(released_at=NOW)
    assert load_snapshot(namespace.cluster_id).holds == ()


def test_another_clusters_runs_and_machines_are_not_seen() -> None:
    one = make_namespace()
    make_machine(one.cluster, "m0")
    make_run(one, "a")
    other = type(one.cluster).objects.create(organisation=one.cluster.organisation, slug="west")
    assert load_snapshot(other.id).waiting == ()
    assert load_inventory(other.id) == ()


def test_the_split_of_a_gpu_total_is_loaded_with_its_form() -> None:
    namespace = make_namespace(pools=["a"])
    make_machine(namespace.cluster, "m0", gpus=8, labels={"pool": "a"})
    make_run(namespace, "train", gpus=16)
    (waiting,) = load_snapshot(namespace.cluster_id).waiting
    limits = Constraints(namespace_pools=("a",))
    assert waiting.split == SplitAsk(16, cpu_milli_per_gpu=1000, memory_bytes_per_gpu=GIB, constraints=limits)
