"""Placing: what the scheduler proposes is written only while it holds, and what the machine is told."""

import msgspec
import pytest

from machines.models import Assignment, Machine
from machines.orders import Order
from runs.models import Attempt, Worker
from runs.scheduling.shapes import equal_workers
from runs.services import placing
from runs.services.deleting import delete_run
from runs.services.stopping import stop_run
from runs.spec import load_spec
from tests import builders as make
from tests.builders import GIB, T0, after

pytestmark = pytest.mark.django_db


def order_of(attempt: Attempt) -> Order:
    return msgspec.msgpack.decode(bytes(Assignment.objects.get(attempt=attempt.uid).order), type=Order)


def test_a_placed_worker_holds_its_room_and_its_machine_is_told(editor, east) -> None:
    on = make.machine(east, "gpu-07", gpus=8)
    run = make.submit(editor, east, gpus=2, cpu=0.5)
    attempt = make.place(make.workers(run)[0], on, gpus=[3, 5], now=after(1))
    assert attempt is not None
    assert (attempt.number, attempt.cpu_milli, attempt.memory_bytes, attempt.gpu_indexes) == (1, 1000, 2 * GIB, [3, 5])
    run.refresh_from_db()
    assert (run.state, run.reason) == ("Starting", "0 of 1 workers running")
    assert make.moves_of(make.workers(run)[0])[-1] == ("Preparing", "Placed on gpu-07")
    order = order_of(attempt)
    assert (order.attempt, order.number, order.gpu_indexes) == (attempt.uid.hex, 1, [3, 5])
    on.refresh_from_db()
    assert on.revision == 1
    make.check_invariants()


@pytest.mark.parametrize(
    "change",
    [{"cpu_milli": 999}, {"memory_bytes": GIB - 1}, {"state": "Lost"}, {"state": "Stopping"}, {"cordoned_at": T0}],
)
def test_a_machine_that_has_changed_is_not_given_the_worker(editor, east, change) -> None:
    on = make.machine(east)
    worker = make.workers(make.submit(editor, east))[0]
    Machine.objects.filter(pk=on.pk).update(**change)
    assert make.place(worker, on) is None
    worker.refresh_from_db()
    assert worker.state == "Pending"
    assert not Assignment.objects.exists()


def test_a_gpu_that_is_held_or_unhealthy_is_not_given_again(editor, east) -> None:
    on = make.machine(east, gpus=2)
    on.gpus.filter(index=1).update(healthy=False)
    first, second, third = (make.workers(make.submit(editor, east, gpus=1))[0] for _ in range(3))
    assert make.place(first, on, gpus=[0])
    assert make.place(second, on, gpus=[0]) is None
    assert make.place(third, on, gpus=[1]) is None


def test_a_worker_is_placed_once_however_often_it_is_proposed(editor, east) -> None:
    on, other = make.machine(east), make.machine(east)
    worker = make.workers(make.submit(editor, east))[0]
    assert make.place(worker, on)
    assert make.place(worker, other) is None
    assert Attempt.objects.count() == 1


def test_workers_of_deleted_and_of_stopped_runs_are_not_placed(editor, east) -> None:
    on = make.machine(east)
    deleted, stopped = make.submit(editor, east), make.submit(editor, east)
    delete_run(editor, deleted, T0)
    stop_run(editor, stopped, "", T0)
    assert make.place(make.workers(deleted)[0], on) is None
    assert make.place(make.workers(stopped)[0], on) is None
    make.check_invariants()


def test_arguments_and_environment_reach_the_machine_untouched(editor, east) -> None:
    args = ["--nodes=$WORLD_SIZE", "a b", '"quoted"', ";", "a,b=c", "", "line\nbreak", "🙂"]
    template = {"command": "python", "args": args, "env": {"RANK": "mine", "GREETING": "a, b=c $HOME"}}
    run = make.submit(editor, east, template=template)
    attempt = make.place(make.workers(run)[0], make.machine(east))
    order = order_of(attempt)
    assert (order.command, order.args) == ("python", args)
    assert order.env["GREETING"] == "a, b=c $HOME"
    assert order.env["RANK"] == "mine"


def test_a_worker_is_told_its_place_in_the_run(editor, east) -> None:
    on = make.machine(east, "gpu-07")
    run = make.submit(editor, east, "ddp", node_selection={"count": 2})
    zero, one = (make.place(worker, on) for worker in make.workers(run))
    assert order_of(zero).env | {"MASTER_PORT": "any"} == {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "NNODES": "2",
        "NODE_RANK": "0",
        "MASTER_ADDR": "gpu-07.example",
        "MASTER_PORT": "any",
        "ASTRA_RUN": "ddp",
        "ASTRA_WORKER": "ddp-0",
        "ASTRA_ATTEMPT": "1",
        "ASTRA_GPU_COUNT": "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "void",
    }
    assert order_of(one).env["RANK"] == "1"
    assert order_of(one).env["MASTER_ADDR"] == "gpu-07.example"
    assert order_of(one).env["MASTER_PORT"] == order_of(zero).env["MASTER_PORT"]


def test_the_master_is_where_its_machine_said_that_others_reach_it(editor, east) -> None:
    first, second = make.machine(east, address="10.0.0.7"), make.machine(east, address="10.0.0.8")
    run = make.submit(editor, east, node_selection={"count": 2})
    zero, one = make.workers(run)
    assert order_of(make.place(zero, first)).env["MASTER_ADDR"] == "10.0.0.7"
    assert order_of(make.place(one, second)).env["MASTER_ADDR"] == "10.0.0.7"


def test_no_master_is_named_while_rank_0_has_no_machine(editor, east) -> None:
    run = make.submit(editor, east, node_selection={"count": 2})
    attempt = make.place(make.workers(run)[1], make.machine(east))
    assert "MASTER_ADDR" not in order_of(attempt).env


def test_each_worker_of_an_array_is_a_world_of_its_own(editor, east) -> None:
    run = make.submit(editor, east, array={"count": 3})
    env = order_of(make.place(make.workers(run)[2], make.machine(east))).env
    assert (env["ASTRA_ARRAY_INDEX"], env["RANK"], env["WORLD_SIZE"]) == ("2", "0", "1")


def test_gpus_are_named_to_the_worker_that_holds_them(editor, east) -> None:
    run = make.submit(editor, east, gpus=2)
    env = order_of(make.place(make.workers(run)[0], make.machine(east, gpus=4), gpus=[1, 3])).env
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["ASTRA_GPU_COUNT"]) == ("1,3", "2")


def test_limits_follow_the_form_of_the_resources(editor, east) -> None:
    on = make.machine(east, gpus=4)
    fixed = order_of(make.place(make.workers(make.submit(editor, east, cpu=1.5, memory=GIB))[0], on))
    per_gpu = order_of(make.place(make.workers(make.submit(editor, east, cpu=1, memory=GIB, gpus=2))[0], on, [0, 1]))
    share = make.submit(editor, east, template={"requested_resources": {"node_fraction": 0.25}})
    fraction = order_of(make.place(make.workers(share)[0], on))
    assert [(o.cpu_milli, o.memory_bytes) for o in (fixed, per_gpu, fraction)] == [(1500, GIB), (2000, 2 * GIB), (0, 0)]


def test_planning_again_replaces_workers_of_which_nothing_has_started(editor, east) -> None:
    make.machine(east, cpu=64, memory=512 * GIB, gpus=8)
    run = make.submit(editor, east, "llama", gpus=8)
    assert len(make.workers(run)) == 1
    assert placing.plan_run(run.id, equal_workers(load_spec(run.spec), "llama", 2), after(5))
    assert [worker.gpus for worker in make.workers(run)] == [4, 4]
    make.check_invariants()


def test_planning_again_leaves_a_run_that_has_started_alone(editor, east) -> None:
    on = make.machine(east, cpu=64, memory=512 * GIB, gpus=8)
    run = make.submit(editor, east, "llama", gpus=8)
    make.place(make.workers(run)[0], on, gpus=range(8))
    assert not placing.plan_run(run.id, equal_workers(load_spec(run.spec), "llama", 2), after(5))
    assert len(make.workers(run)) == 1


def test_planning_what_is_planned_already_keeps_the_workers(editor, east) -> None:
    make.machine(east, cpu=64, memory=512 * GIB, gpus=8)
    run = make.submit(editor, east, "llama", gpus=8)
    before = Worker.objects.get(run=run).id
    assert placing.plan_run(run.id, equal_workers(load_spec(run.spec), "llama", 1), after(5))
    assert Worker.objects.get(run=run).id == before


def test_why_a_run_waits_is_stored_while_it_waits_and_cleared_when_it_is_placed(editor, east) -> None:
    run = make.submit(editor, east)
    placing.store_pending([(run.id, "parallelism", {"limit": 2})], make.T0)
    run.refresh_from_db()
    assert (run.pending_code, run.pending_numbers) == ("parallelism", {"limit": 2})
    make.place(make.workers(run)[0], make.machine(east))
    run.refresh_from_db()
    assert run.pending_code == ""
