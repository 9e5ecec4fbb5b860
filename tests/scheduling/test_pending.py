"""Why a run waits, as its page and the API read it."""

import json

import pytest

from machines.models import Machine
from runs.models import Run
from runs.scheduling.loop import run_once
from runs.scheduling.pending import pending_details
from tests.scheduling.database import GIB, NOW, make_machine, make_namespace, make_run

pytestmark = pytest.mark.django_db


def test_machines_are_grouped_by_what_they_refuse_with_numbers() -> None:
    namespace = make_namespace(quota_gpus=20)
    for number in range(3):
        make_machine(namespace.cluster, f"full-{number}", gpus=8)
    make_machine(namespace.cluster, "small", gpus=2)
    make_machine(namespace.cluster, "cordoned", gpus=8)
    make_machine(namespace.cluster, "draining", gpus=8)
    Machine.objects.filter(name="cordoned").update(cordoned_at=NOW, cordon_reason="a fan rattles")
    Machine.objects.filter(name="draining").update(cordoned_at=NOW, cordon_reason="new firmware", draining=True)
    for number in range(3):
        make_run(namespace, f"busy-{number}", age=10, gpus=6, node_selection={"count": 1})
    run = make_run(namespace, "train", gpus=8, node_selection={"count": 1})
    Machine.objects.filter(name="small").update(cpu_milli=1000)
    run_once(namespace.cluster_id, NOW)
    namespace.quota_gpus = None
    namespace.save()
    run_once(namespace.cluster_id, NOW)
    details = pending_details(Run.objects.get(id=run.id), NOW)
    assert details is not None
    assert details["reason"] == "Next to run: waits for 8 GPUs, 8 cores and 8 GiB on one machine"
    assert [(group["reason"], group["machines"]) for group in details["machines"]] == [
        ("8 GPUs wanted, at most 2 there", ["small"]),
        ("cordoned: a fan rattles", ["cordoned"]),
        ("draining: new firmware", ["draining"]),
        ("8 GPUs wanted, at most 2 free", ["full-0", "full-1", "full-2"]),
    ]
    assert details["quota"]["gpus"] == {"used": 18, "limit": None}
    assert details["quota"]["memory_bytes"] == {"used": 18 * GIB, "limit": None}
    assert json.dumps(details)


def test_how_many_are_ahead_is_counted_and_nobody_is_named() -> None:
    one = make_namespace()
    cluster = one.cluster
    other = make_namespace("speech", cluster)
    make_machine(cluster, "m0", gpus=1)
    make_run(one, "running", age=90, gpus=1)
    run_once(cluster.id, NOW)
    make_run(one, "mine-older", age=50, gpus=1)
    make_run(one, "mine-younger", age=10, gpus=1)
    make_run(other, "secret-urgent", age=5, gpus=1, priority=5)
    make_run(other, "secret-equal", age=5, gpus=1)
    make_run(other, "secret-never", age=60, gpus=2, node_selection={"count": 1})
    run = make_run(one, "train", age=30, gpus=1)
    run_once(cluster.id, NOW)
    details = pending_details(Run.objects.get(id=run.id), NOW)
    assert details is not None
    assert details["ahead"] == 3
    assert details["reason"] == "Queued behind 3 runs: waits for 1 GPU, 1 core and 1 GiB on one machine"
    assert "secret" not in json.dumps(details)


def test_a_run_that_no_pass_has_seen_has_no_details() -> None:
    namespace = make_namespace()
    assert pending_details(make_run(namespace, "train"), NOW) is None
