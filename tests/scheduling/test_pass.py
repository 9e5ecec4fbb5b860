"""A whole pass on the real database: load, plan, apply, and what happens when the world moves in between."""

from datetime import timedelta

import pytest
from django.db import connection, transaction

from machines.connections import disconnected
from machines.models import Assignment, DataOnMachine, Machine, Volume
from runs.models import Attempt, Run, Worker
from runs.scheduling import load, loop
from runs.scheduling.apply import LOCK_SPACE, apply_plan, try_lock
from runs.scheduling.explain import sentence
from runs.scheduling.load import load_snapshot
from runs.scheduling.loop import run_once
from runs.scheduling.planner import make_plan
from runs.scheduling.types import Refusal
from tests.scheduling.database import GIB, NOW, make_machine, make_namespace, make_run

pytestmark = pytest.mark.django_db

AT = NOW.timestamp()


def placed() -> dict[str, str]:
    live = Attempt.objects.filter(released_at=None)
    return dict(live.values_list("worker__name", "machine__name"))


def test_a_pass_places_a_waiting_run_and_tells_its_machine() -> None:
    namespace = make_namespace()
    machine = make_machine(namespace.cluster, "gpu-1", gpus=8)
    make_run(namespace, "train", gpus=2)
    assert run_once(namespace.cluster_id, NOW) is False
    worker = Worker.objects.get()
    attempt = Attempt.objects.get()
    assert (worker.state, worker.attempt_number) == ("Preparing", 1)
    assert (attempt.machine, attempt.gpu_indexes) == (machine, [0, 1])
    assert (attempt.cpu_milli, attempt.memory_bytes) == (2000, 2 * GIB)
    assert Assignment.objects.get().machine == machine


def test_a_machine_gets_no_new_work_from_the_moment_its_agent_has_gone() -> None:
    namespace = make_namespace()
    machine = make_machine(namespace.cluster, "m0")
    make_run(namespace, "before")
    run_once(namespace.cluster_id, NOW)
    make_run(namespace, "after")
    proposed = make_plan(load_snapshot(namespace.cluster_id), AT)
    disconnected([(machine.id, machine.connection)])
    assert apply_plan(namespace.cluster_id, proposed, NOW) == [], "decided before, written after"
    run_once(namespace.cluster_id, NOW)
    assert placed() == {"before-0": "m0"}, "what runs there stays"
    Machine.objects.update(connection="again")
    run_once(namespace.cluster_id, NOW)
    assert placed() == {"before-0": "m0", "after-0": "m0"}


def test_deleted_and_ended_runs_do_not_wait() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0")
    deleted, ended = make_run(namespace, "deleted"), make_run(namespace, "ended")
    Run.objects.filter(id=deleted.id).update(deleted_at=NOW)
    Run.objects.filter(id=ended.id).update(state="Completed")
    assert load_snapshot(namespace.cluster_id).waiting == ()


def test_a_long_array_is_loaded_and_placed_worker_by_worker() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", cpu_milli=3000)
    run = make_run(namespace, "sweep", array={"count": 5, "parallelism": 4})
    run_once(namespace.cluster_id, NOW)
    assert sorted(placed()) == ["sweep-0", "sweep-1", "sweep-2"]
    (waiting,) = load_snapshot(namespace.cluster_id).waiting
    assert (waiting.id, waiting.placed, waiting.parallelism, len(waiting.workers)) == (run.id, 3, 4, 2)


def test_workers_asked_for_by_machines_go_to_different_ones() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    make_machine(namespace.cluster, "m1", gpus=8)
    make_run(namespace, "train", gpus=4, machines=2)
    run_once(namespace.cluster_id, NOW)
    assert sorted(placed().values()) == ["m0", "m1"]


def test_why_a_run_waits_is_stored_as_code_and_numbers_once() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    make_run(namespace, "train", gpus=9, node_selection={"count": 1})
    run_once(namespace.cluster_id, NOW)
    run = Run.objects.get()
    assert sentence(run.pending_code, run.pending_numbers) == "No machine fits: no machine has 9 GPUs; the most is 8"
    snapshot = load_snapshot(namespace.cluster_id)
    assert snapshot.waiting[0].stored == Refusal(run.pending_code, run.pending_numbers)
    assert make_plan(snapshot, AT).changed == ()


def test_a_run_is_planned_again_when_the_machines_changed_and_then_placed() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=4)
    run = make_run(namespace, "train", gpus=8)
    assert run.workers.count() == 0
    run_once(namespace.cluster_id, NOW)
    assert Run.objects.get().pending_code == "plan_too_few"
    make_machine(namespace.cluster, "m1", gpus=4)
    assert run_once(namespace.cluster_id, NOW) is True
    run_once(namespace.cluster_id, NOW)
    assert placed() == {"train-0": "m0", "train-1": "m1"}


def test_a_run_that_has_started_is_not_planned_again() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=4)
    make_machine(namespace.cluster, "m1", gpus=4, cordoned_at=NOW)
    make_run(namespace, "train", gpus=8)
    run_once(namespace.cluster_id, NOW)
    assert placed() == {"train-0": "m0"}
    make_machine(namespace.cluster, "m2", gpus=8)
    assert load_snapshot(namespace.cluster_id).waiting[0].split is None


def test_a_plan_applied_twice_is_applied_once() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    make_run(namespace, "train", gpus=2)
    plan = make_plan(load_snapshot(namespace.cluster_id), AT)
    assert len(apply_plan(namespace.cluster_id, plan, NOW)) == 1
    assert apply_plan(namespace.cluster_id, plan, NOW) == []
    assert Attempt.objects.count() == 1


def test_a_placement_on_a_machine_cordoned_meanwhile_is_dropped() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    make_run(namespace, "train", gpus=2)
    plan = make_plan(load_snapshot(namespace.cluster_id), AT)
    Machine.objects.update(cordoned_at=NOW)
    assert apply_plan(namespace.cluster_id, plan, NOW) == []
    assert Worker.objects.get().state == "Pending"


def test_a_placement_above_a_quota_lowered_meanwhile_is_dropped() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    make_run(namespace, "first", age=2, gpus=2)
    make_run(namespace, "second", age=1, gpus=2)
    plan = make_plan(load_snapshot(namespace.cluster_id), AT)
    namespace.quota_gpus = 3
    namespace.save()
    apply_plan(namespace.cluster_id, plan, NOW)
    assert list(placed()) == ["first-0"]


def test_a_quota_lowered_below_what_is_in_use_stops_only_who_asks_for_more_of_it() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8, cpu_milli=8000)
    make_run(namespace, "sweep", array={"count": 2})
    make_run(namespace, "train", gpus=4)
    Worker.objects.filter(name="sweep-1").update(state="Restarting")
    run_once(namespace.cluster_id, NOW)
    Worker.objects.filter(name="sweep-1").update(state="Pending")
    type(namespace).objects.update(quota_gpus=2, quota_runs=1)
    make_run(namespace, "more", gpus=1)
    run_once(namespace.cluster_id, NOW)
    assert sorted(placed()) == ["sweep-0", "sweep-1", "train-0"], "its run is counted already"
    type(namespace).objects.update(quota_runs=None)
    make_run(namespace, "plain")
    run_once(namespace.cluster_id, NOW)
    assert sorted(placed()) == ["plain-0", "sweep-0", "sweep-1", "train-0"], "it asks for no GPU"


def test_a_pass_keeps_the_quota_in_use_by_earlier_ones() -> None:
    namespace = make_namespace(quota_runs=1)
    make_machine(namespace.cluster, "m0")
    make_run(namespace, "first", age=2)
    run_once(namespace.cluster_id, NOW)
    make_run(namespace, "second", age=1)
    run_once(namespace.cluster_id, NOW)
    run = Run.objects.get(name="second")
    assert sentence(run.pending_code, run.pending_numbers) == "Waits for namespace quota: 1 of 1 runs in use"


def test_what_waits_is_placed_when_room_is_released() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=1)
    make_run(namespace, "first", age=2, gpus=1)
    make_run(namespace, "second", age=1, gpus=1)
    run_once(namespace.cluster_id, NOW)
    assert list(placed()) == ["first-0"]
    Attempt.objects.update(released_at=NOW)
    run_once(namespace.cluster_id, NOW + timedelta(seconds=1))
    assert list(placed()) == ["second-0"]
    assert Run.objects.get(name="second").pending_code == ""


@pytest.mark.django_db(transaction=True)
def test_a_pass_leaves_at_once_when_another_holds_the_lock() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0")
    make_run(namespace, "train")
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [LOCK_SPACE, namespace.cluster_id])
        assert run_once(namespace.cluster_id, NOW) is False
        assert placed() == {}
        with other.cursor() as cursor:
            cursor.execute("COMMIT")
        run_once(namespace.cluster_id, NOW)
        assert placed() == {"train-0": "m0"}
    finally:
        other.close()


@pytest.mark.django_db(transaction=True)
def test_clusters_do_not_wait_for_each_others_lock() -> None:
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [LOCK_SPACE, 1])
        with transaction.atomic():
            assert try_lock(1) is False
            assert try_lock(2) is True
    finally:
        other.close()


def test_a_run_whose_specification_cannot_be_read_holds_nobody_up() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0")
    poisoned = make_run(namespace, "poisoned", age=5)
    Run.objects.filter(id=poisoned.id).update(spec={"task_template": {"requested_resources": {"cpu_cores": -1}}})
    make_run(namespace, "train")
    run_once(namespace.cluster_id, NOW)
    assert placed() == {"train-0": "m0"}


def test_a_gang_larger_than_what_a_pass_loads_of_others_is_loaded_and_placed_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "WORKERS_LOADED", 2)
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    make_run(namespace, "gang", start="Gang", node_selection={"count": 4}, age=5)
    make_run(namespace, "array", array={"count": 4})
    gang, array = load_snapshot(namespace.cluster_id).waiting
    assert (len(gang.workers), len(array.workers), gang.again) == (4, 2, False)
    run_once(namespace.cluster_id, NOW)
    assert sorted(name for name in placed() if name.startswith("gang")) == [f"gang-{rank}" for rank in range(4)]


def test_a_gang_whose_machine_goes_away_between_plan_and_apply_is_not_halved() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    other = make_machine(namespace.cluster, "m1", gpus=8)
    make_run(namespace, "gang", gpus=16, start="Gang", node_selection={"count": 2})
    plan = make_plan(load_snapshot(namespace.cluster_id), AT)
    assert len(plan.placements) == 2
    Machine.objects.filter(id=other.id).update(cordoned_at=NOW)
    assert apply_plan(namespace.cluster_id, plan, NOW) == []
    assert placed() == {}


@pytest.fixture
def long_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two waiting runs make a queue long."""
    monkeypatch.setattr(loop, "LONG_QUEUE", 1)
    monkeypatch.setattr(loop, "_long_queues", set())


def test_in_a_long_queue_the_run_that_room_is_kept_for_starts_before_the_others_are_looked_at(
    long_queue: None,
) -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=2)
    make_run(namespace, "busy", age=9, gpus=2, node_selection={"count": 1})
    first, second, third = (make_run(namespace, name, age=5 - n, gpus=1) for n, name in enumerate(("a", "b", "c")))
    run_once(namespace.cluster_id, NOW)
    assert [Run.objects.get(id=run.id).pending_code for run in (first, second, third)] == ["next", "queued", "queued"]
    Attempt.objects.update(released_at=NOW)
    assert run_once(namespace.cluster_id, NOW) is True
    assert list(placed()) == ["a-0"]
    assert run_once(namespace.cluster_id, NOW) is False
    assert sorted(placed()) == ["a-0", "b-0"]
    assert Run.objects.get(name="c").pending_code == "next"


def test_a_new_run_of_higher_priority_goes_before_a_promise(long_queue: None) -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=1)
    make_run(namespace, "busy", age=9, gpus=1)
    for name in ("a", "b"):
        make_run(namespace, name, age=5, gpus=1)
    run_once(namespace.cluster_id, NOW)
    make_run(namespace, "urgent", age=1, gpus=1, priority=5)
    make_run(namespace, "new", age=1, gpus=1)
    Attempt.objects.update(released_at=NOW)
    run_once(namespace.cluster_id, NOW)
    assert list(placed()) == ["urgent-0"]


def test_a_long_queue_without_room_is_looked_at_as_a_whole(long_queue: None) -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=1)
    for name in ("busy", "a", "b"):
        make_run(namespace, name, age=5, gpus=1)
    run_once(namespace.cluster_id, NOW)
    make_run(namespace, "wide", age=1, gpus=9, node_selection={"count": 1})
    assert run_once(namespace.cluster_id, NOW) is False
    assert Run.objects.get(name="wide").pending_code == "never_gpus"


def test_a_worker_goes_where_its_drive_is_ready_and_only_its_own_workspaces_counts() -> None:
    namespace = make_namespace()
    other = make_namespace("nlp", namespace.cluster)
    machines = [make_machine(namespace.cluster, f"m{number}", runtime="docker") for number in range(3)]
    told = {"kind": "drive", "changed_at": NOW}
    for owner, machine, state in ((other, machines[0], "Ready"), (namespace, machines[1], "Filling")):
        volume = Volume.objects.create(
            workspace=owner.workspace, kind="drive", name="imagenet", form="copy", created_at=NOW
        )
        DataOnMachine.objects.create(machine=machine, uid=volume.uid, state=state, **told)
    DataOnMachine.objects.create(machine=machines[2], uid=volume.uid, state="Ready", **told)
    template = {"datavolume_refs": [{"name": "imagenet", "mount_path": "/data"}]}
    make_run(namespace, "train", template=template)
    snapshot = load_snapshot(namespace.cluster_id)
    assert [machine.data for machine in snapshot.machines] == [
        (f"{other.pk}/drive/imagenet",), (), (f"{namespace.pk}/drive/imagenet",)
    ]  # fmt: skip
    run_once(namespace.cluster_id, NOW)
    assert placed() == {"train-0": "m2"}


def test_drives_and_models_are_for_machines_that_run_containers() -> None:
    namespace = make_namespace()
    for runtime in ("process", "simulated"):
        make_machine(namespace.cluster, runtime, runtime=runtime)
    run = make_run(namespace, "train", template={"model_refs": [{"name": "llama", "mount_path": "/model"}]})
    run_once(namespace.cluster_id, NOW)
    run.refresh_from_db()
    assert placed() == {}
    assert run.pending_code == "never_containers"
