"""Worker groups: names and ranks, what each group's workers are started with, and whose names are whose."""

import threading
from typing import Any

import msgspec
import pytest
from django.db import connection

from astraconsole.errors import JobAlreadyExists
from machines.models import Assignment
from machines.orders import Order
from machines.protocol import EndReason, Phase
from runs.models import Run, Stem
from runs.scheduling.load import load_snapshot
from runs.scheduling.shapes import equal_workers
from runs.services.deleting import delete_run
from runs.services.placing import plan_run
from runs.spec import load_spec
from tests import builders as make
from tests.builders import GIB, T0, after

pytestmark = pytest.mark.django_db

LEARNER = {"name": "learner", "count": 1}
ACTORS = {
    "name": "actors",
    "count": 2,
    "task_template": {
        "image": "actor:1",
        "command": "act",
        "env": {"ROLE": "actor", "SHARED": "theirs"},
        "time_limit_seconds": 600,
        "requested_resources": {"cpu_cores": 2, "memory_bytes": 2 * GIB},
    },
}
TEMPLATE = {"command": "learn", "env": {"SHARED": "ours"}, "time_limit_seconds": 7200}


@pytest.fixture
def on(east):
    return make.machine(east, "gpu-08", cpu=64, gpus=8)


def submit(editor, east, name: str = "rl", **asked: Any) -> Run:
    return make.submit(editor, east, name, **{"worker_groups": [LEARNER, ACTORS], "template": TEMPLATE, **asked})


def order_of(attempt) -> Order:
    return msgspec.msgpack.decode(bytes(Assignment.objects.get(attempt=attempt.uid).order), type=Order)


def test_workers_are_named_by_group_and_ranked_through_the_run(editor, east) -> None:
    workers = make.workers(submit(editor, east))
    assert [(worker.name, worker.group, worker.rank) for worker in workers] == [
        ("rl-learner-0", "learner", 0),
        ("rl-actors-0", "actors", 1),
        ("rl-actors-1", "actors", 2),
    ]
    assert [(worker.cpu_milli, worker.memory_bytes) for worker in workers] == [(1000, GIB)] + [(2000, 2 * GIB)] * 2
    make.check_invariants()


def test_each_worker_is_started_from_its_groups_template(editor, east, on) -> None:
    learner, _, actor = (make.place(worker, on) for worker in make.workers(submit(editor, east)))
    order = order_of(learner)
    assert (order.image, order.command, order.time_limit_seconds, order.cpu_milli) == ("busybox", "learn", 7200, 1000)
    assert order.env["SHARED"] == "ours"
    order = order_of(actor)
    assert (order.image, order.command, order.time_limit_seconds, order.cpu_milli) == ("actor:1", "act", 600, 2000)
    assert (order.env["SHARED"], order.env["ROLE"]) == ("theirs", "actor")


def test_ranks_are_counted_through_all_groups_and_the_group_is_told(editor, east, on) -> None:
    orders = [order_of(make.place(worker, on)) for worker in make.workers(submit(editor, east))]
    injected = ("RANK", "NODE_RANK", "WORLD_SIZE", "NNODES", "ASTRA_GROUP", "ASTRA_WORKER")
    assert [tuple(order.env[name] for name in injected) for order in orders] == [
        ("0", "0", "3", "3", "learner", "rl-learner-0"),
        ("1", "1", "3", "3", "actors", "rl-actors-0"),
        ("2", "2", "3", "3", "actors", "rl-actors-1"),
    ]
    assert len({(order.env["MASTER_ADDR"], order.env["MASTER_PORT"]) for order in orders}) == 1


def test_a_groups_own_restart_policy_and_time_limit_count(editor, east, on) -> None:
    never = {"name": "eval", "count": 1, "task_template": {"restart_policy": "Never", "time_limit_seconds": 60}}
    trainer, evaluator = make.workers(submit(editor, east, worker_groups=[LEARNER, never], template={}))
    make.report_end(make.run_on(trainer, on), exit_code=1, at=after(5))
    make.report_end(make.run_on(evaluator, on), exit_code=143, reason=EndReason.TIME_LIMIT, at=after(65))
    trainer.refresh_from_db()
    evaluator.refresh_from_db()
    assert trainer.state == "Restarting"
    assert (evaluator.state, evaluator.reason) == ("Failed", "Exceeded its time limit of 1m")


def test_pulling_names_the_groups_image(editor, east, on) -> None:
    actor = make.workers(submit(editor, east))[1]
    attempt = make.place(actor, on)
    make.report(attempt, (Phase.PREPARING, 2.0), (Phase.PULLING, 1.0), at=after(3))
    actor.refresh_from_db()
    assert actor.reason == "Pulling docker.io/library/actor:1"


@pytest.mark.parametrize(
    ("base", "overrides", "expected", "total"),
    [
        (4, [None, None], [2, 1, 1], None),  # 4 over 3 workers
        (3, [None, None], [1, 1, 1], 3),
        (2, [None, 4], [2, 2, 2], 6),
        (None, [2, 4], [2, 2, 2], 6),
        (7, [2, 4], [2, 2, 2], 6),  # every group has its own: the run's is nobody's
    ],
)
def test_a_groups_gpus_are_its_own_total_and_the_rest_share_the_runs(
    editor, east, base: int | None, overrides: list[int | None], expected: list[int], total: int | None
) -> None:
    def resources(gpus: int) -> dict[str, Any]:
        return {"cpu_cores": 1, "memory_bytes": GIB, "gpu_requests": {"count": gpus}}

    groups = [
        {"name": name, "count": count} | ({"task_template": {"requested_resources": resources(gpus)}} if gpus else {})
        for name, count, gpus in zip("ab", (1, 2), overrides, strict=True)
    ]
    run = make.submit(editor, east, worker_groups=groups, template={"requested_resources": resources(base or 1)})
    if total is None:
        assert run.status_reason == "Cannot plan workers: 4 GPUs do not split evenly over 3 workers"
        return
    assert [worker.gpus for worker in make.workers(run)] == expected
    assert run.gpus == total


def test_the_scheduler_reads_each_groups_own_limits(editor, east, on) -> None:
    workers = make.workers(submit(editor, east))
    waiting = load_snapshot(east.pk).waiting[0]
    assert waiting.time_limit == 7200  # what may run longest
    assert [ask.ask.cpu_milli for ask in waiting.workers] == [1000, 2000, 2000]
    for worker in workers:
        make.run_on(worker, on, T0)
    holds = load_snapshot(east.pk).holds
    assert sorted(hold.ends_by - T0.timestamp() for hold in holds) == pytest.approx([600, 600, 7200])


def test_a_group_without_a_limit_leaves_the_run_without_one(editor, east) -> None:
    limited = {"name": "b", "count": 1, "task_template": {"time_limit_seconds": 60}}
    submit(editor, east, worker_groups=[LEARNER, limited], template={})
    assert load_snapshot(east.pk).waiting[0].time_limit is None


# ---- names -----------------------------------------------------------------------------------------------------------


def groups(*names: str) -> dict[str, Any]:
    return {"worker_groups": [{"name": name, "count": 1} for name in names]} if names else {}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [
        (("a", "b"), ("a-b",), "the name a-b is taken by the run a, whose workers are called a-b-…"),
        (("a-b",), ("a", "b"), "the name a-b is taken by a run of that name"),
        (("a", "b-c"), ("a-b", "c"), "the name a-b-c is taken by the run a, whose workers are called a-b-c-…"),
        (("a", "b-c"), ("a-b", "c", "d"), "the name a-b-c is taken by the run a, whose workers are called a-b-c-…"),
        (("a", "b"), ("a", "c"), "a run named a already exists on gpu-east"),
        (("a", "b"), ("a-c", "b"), None),
        (("a",), ("a-0",), None),  # a-0-0 is nobody else's
        (("a", "0"), ("a-1",), None),
    ],
)
def test_names_of_workers_begin_differently_in_every_run(
    editor, east, first: tuple[str, ...], second: tuple[str, ...], clash: str | None
) -> None:
    made = make.submit(editor, east, first[0], **groups(*first[1:]))
    if clash is None:
        make.submit(editor, east, second[0], **groups(*second[1:]))
        return
    with pytest.raises(JobAlreadyExists, match=clash):
        make.submit(editor, east, second[0], **groups(*second[1:]))
    assert Run.objects.count() == 1
    delete_run(editor, made, after(1))
    make.submit(editor, east, second[0], **groups(*second[1:]))


def test_another_workspace_may_use_the_same_names(editor, east) -> None:
    other = make.access(make.workspace(editor.workspace.organisation, "nlp"))
    make.cluster(other.workspace, slug="gpu-west")
    elsewhere = make.cluster(other.workspace, slug="gpu-north")
    submit(editor, east)
    submit(other, elsewhere)
    assert Stem.objects.filter(stem="rl-actors").count() == 2


@pytest.mark.django_db(transaction=True)
def test_of_runs_whose_names_clash_exactly_one_is_accepted_when_they_come_at_once(editor, east) -> None:
    answers: list[str] = []
    barrier = threading.Barrier(8)

    def submit_as(name: str, *names: str) -> None:
        barrier.wait()
        try:
            make.submit(editor, east, name, **groups(*names))
            answers.append(name)
        except JobAlreadyExists:
            pass
        finally:
            connection.close()

    asked = [("x", "y-z", "w"), ("x-y", "z", "v"), ("x-y-z",), ("x", "y-z"), ("x-y", "z"), ("x-y-z", "a")]
    threads = [threading.Thread(target=submit_as, args=each) for each in [*asked, *asked[:2]]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 1
    assert Run.objects.count() == 1
    make.check_invariants()


@pytest.mark.django_db(transaction=True)
def test_workers_that_are_planned_later_find_their_names_free(editor, east) -> None:
    """What a run may be split into is known only in a pass, where nobody could be told of a clash."""
    run = make.submit(editor, east, "ddp", gpus=10, machines=3)
    assert make.workers(run) == []
    with pytest.raises(JobAlreadyExists):
        make.submit(editor, east, "ddp")
    shapes = equal_workers(load_spec(make.body(gpus=10)["spec"]), "ddp", 2)
    assert isinstance(shapes, list)
    assert plan_run(run.pk, shapes, after(1))
    assert [worker.name for worker in make.workers(run)] == [shape.name for shape in shapes]
