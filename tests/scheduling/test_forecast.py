"""When a run would start, what would start it, and the words for both. The time in the pure cases is 1000."""

from typing import Any

import pytest

from machines.models import Machine
from runs.models import Run
from runs.scheduling.changes import Question, changed, changes_that_start
from runs.scheduling.forecast import about, later, starts_by
from runs.scheduling.loop import run_once
from runs.scheduling.outlook import outlook
from runs.scheduling.pending import pending_details
from runs.scheduling.shapes import plan_workers
from runs.spec import load_spec
from tests.scheduling.database import NOW, make_machine, make_namespace, make_run, make_spec
from tests.scheduling.harness import Case, cluster

# ---- when


def start_of(case: Case, name: str) -> float | None:
    case.plan()
    return starts_by(case.snapshot(), 1000.0, case.runs[name].id)


def test_a_run_starts_now_where_there_is_room() -> None:
    assert start_of(cluster().machine(gpus=8).run("a", gpus=8), "a") == 1000


def test_a_run_starts_when_what_runs_there_has_used_its_time() -> None:
    case = cluster().machine(gpus=8, count=2).holding("m0", gpus=8, ends_by=1500).holding("m1", gpus=8, ends_by=1300)
    assert start_of(case.run("a", gpus=8), "a") == 1300


def test_the_runs_before_it_use_their_time_too() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=8, ends_by=1300)
    case.run("a", gpus=8, time_limit=100.0).run("b", gpus=4, time_limit=50.0).run("c", gpus=4).run("d", gpus=8)
    assert (start_of(case, "b"), start_of(case, "c"), start_of(case, "d")) == (1400, 1400, None)


def test_a_gang_starts_when_all_its_machines_are_free() -> None:
    case = cluster().machine(gpus=8, count=2).holding("m0", gpus=8, ends_by=1500).holding("m1", gpus=1, ends_by=1300)
    assert start_of(case.run("a", gpus=8, workers=2, gang=True), "a") == 1500


def test_work_without_a_time_limit_in_the_way_leaves_it_open() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=8)
    assert start_of(case.run("a", gpus=1), "a") is None


def test_what_can_never_run_is_in_nobodys_way_and_has_no_start() -> None:
    case = cluster().machine(gpus=8).run("never", gpus=9).run("a", gpus=8)
    assert (start_of(case, "never"), start_of(case, "a")) == (None, 1000)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "about 1 min"),
        (1500, "about 25 min"),
        (3 * 3600, "about 3 h"),
        (47 * 3600, "about 47 h"),
        (2e5, "about 2 days"),
    ],
)
def test_a_guess_is_told_roughly(seconds: float, text: str) -> None:
    assert about(seconds) == text


def test_the_words_say_how_many_are_ahead_and_what_is_assumed() -> None:
    assert later(3 * 3600, 4) == "about 3 h, behind 4 runs, if all use their limits"
    assert later(600, 0) == "about 10 min, next, if all use their limits"
    assert later(None, 1) == "behind 1 run; nothing says when, since work without a time limit is before it"
    assert later(None, 0, away=True) == "next; nothing says when, since a machine is not connected"


# ---- what would start it


def question(case: Case, stored: dict[str, Any], **facts: Any) -> Question:
    """The run as it waits, from its stored specification, youngest in the queue of the case."""
    spec = load_spec(stored)
    shapes = plan_workers(spec, "a", case.machines)
    (shape, *_) = shapes if isinstance(shapes, list) and shapes else [None]
    case.run(
        "a",
        gpus=shape.gpus if shape else 0,
        cores=shape.cpu_milli / 1000 if shape else 1,
        memory=shape.memory_bytes / 1024**3 if shape else 1,
        workers=len(shapes) if isinstance(shapes, list) else 1,
        gang=spec.effective_start == "Gang",
        distinct_machines=spec.machines is not None,
        time_limit=spec.task_template.time_limit_seconds,
        **facts,
    )
    case.plan()
    return Question(case.runs["a"], "a", stored, (), case.snapshot(), 1000.0)


def offers(asked: Question) -> dict[str, str]:
    return {change.label: change.outcome for change in changes_that_start(asked)}


def test_the_most_gpus_that_are_free_would_start_it() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=3, ends_by=9e9)
    assert offers(question(case, make_spec(gpus=8, node_selection={"count": 1}))) == {
        "With 5 GPUs instead of 8": "starts at once on m0"
    }


def test_room_that_whoever_waits_behind_would_take_is_not_offered() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=4)
    asked = question(case, make_spec(gpus=8, node_selection={"count": 1}))
    case.run("behind", gpus=1).expect()
    assert offers(asked._replace(snapshot=case.snapshot())) == {"With 3 GPUs instead of 8": "starts at once on m0"}
    case.run("too", gpus=3).expect()
    assert offers(asked._replace(snapshot=case.snapshot())) == {}


def test_fewer_machines_would_start_a_run_that_asks_for_several() -> None:
    case = cluster().machine(gpus=8, count=3).holding("m0", gpus=8)
    found = offers(question(case, make_spec(gpus=24, machines=3, start="Gang")))
    assert found["On 2 machines with 16 GPUs in all instead of 3"] == "starts at once on m1 and m2"


def test_a_size_of_which_only_a_part_would_start_is_not_offered_as_a_start() -> None:
    case = cluster().machine(gpus=8, count=4).holding("m0", gpus=8).holding("m1", gpus=8).holding("m2", gpus=8)
    stored = make_spec(gpus=34)
    case.splitting("a", gpus=34).plan()
    asked = Question(case.runs["a"], "a", stored, (), case.snapshot(), 1000.0)
    assert offers(asked) == {"With 8 GPUs instead of 34": "starts at once on m3"}


def test_another_pool_would_start_it() -> None:
    case = cluster().machine(gpus=8, labels={"pool": "a"}).machine(gpus=8, labels={"pool": "b"}).holding("m0", gpus=8)
    asked = question(case, make_spec(gpus=8, node_selection={"count": 1, "pools": ["a"]}))
    where = case.runs["a"]
    assert where.workers[0].ask.gpus == 8
    assert offers(asked)["In pool b"] == "starts at once on m1"


def test_a_time_limit_that_ends_before_the_reservation_would_start_it() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=6, ends_by=1000 + 3600).run("first", gpus=8)
    found = offers(question(case, make_spec(gpus=2, node_selection={"count": 1})))
    assert found["With a time limit of 1h"] == "starts at once on m0"


def test_less_memory_and_fewer_cores_would_start_it() -> None:
    case = cluster().machine(cores=8, memory=64).holding("m0", cores=2, memory=40)
    stored = make_spec(resources={"cpu_cores": 4, "memory_bytes": 32 * 1024**3})
    assert offers(question(case, stored)) == {"With 24 GiB instead of 32 GiB": "starts at once on m0"}
    case = cluster().machine(cores=8, memory=64).holding("m0", cores=5, memory=1)
    stored = make_spec(resources={"cpu_cores": 4, "memory_bytes": 1024**3})
    assert offers(question(case, stored)) == {"With 3 cores instead of 4": "starts at once on m0"}


def test_what_can_never_run_is_told_what_could() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=8)
    assert offers(question(case, make_spec(gpus=9, node_selection={"count": 1}))) == {
        "With 8 GPUs instead of 9": "can run, when there is room"
    }


def test_nothing_is_offered_where_nothing_would_help() -> None:
    case = cluster().machine(gpus=1).holding("m0", gpus=1, cores=64)
    assert offers(question(case, make_spec(gpus=1, node_selection={"count": 1}))) == {}


@pytest.mark.parametrize("key", ["", "gpus", "gpus=x", "machines=1", "image=evil", "pool=a", "workers=3"])
def test_a_link_that_is_no_change_of_the_run_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        changed(make_spec(), key)


def test_a_change_leaves_the_rest_of_the_specification_as_it_is() -> None:
    stored = make_spec(gpus=8, node_selection={"count": 1})
    after = changed(stored, "gpus=4")
    assert after["task_template"]["requested_resources"]["gpu_requests"] == {"count": 4}
    assert stored["task_template"]["requested_resources"]["gpu_requests"] == {"count": 8}
    after["task_template"]["requested_resources"]["gpu_requests"]["count"] = 8
    assert after == stored


# ---- on the database


@pytest.mark.django_db
def test_a_waiting_run_is_told_what_would_start_it_and_when_it_starts() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    make_run(namespace, "busy", age=60, gpus=6, node_selection={"count": 1}, template={"time_limit_seconds": 3600})
    make_run(namespace, "first", age=50, gpus=8, node_selection={"count": 1}, template={"time_limit_seconds": 600})
    run = make_run(namespace, "train", age=10, gpus=4, node_selection={"count": 1})
    run_once(namespace.cluster_id, NOW)
    details = pending_details(Run.objects.get(id=run.id), NOW)
    assert details is not None
    assert details["starts_by"] == NOW.timestamp() + 3600 + 600
    assert [change["label"] for change in details["would_start"]] == []
    run = Run.objects.get(name="first")
    details = pending_details(run, NOW)
    assert details is not None
    assert details["would_start"] == [
        {"key": "gpus=2", "label": "With 2 GPUs instead of 8", "outcome": "starts at once on m0"}
    ]


def told(namespace: Any, **asked: Any) -> tuple[str, bool, bool]:
    spec = load_spec(make_spec(**asked))
    planned = plan_workers(spec, "new", ())
    seen = outlook(namespace, spec, planned, NOW)
    return seen.text, seen.waits, seen.never


@pytest.mark.django_db
def test_the_outlook_of_a_run_that_is_not_there_yet() -> None:
    namespace = make_namespace(quota_gpus=16)
    for name in ("gpu-07", "gpu-08"):
        make_machine(namespace.cluster, name, gpus=8)
    one = {"count": 1}
    assert told(namespace, gpus=8, node_selection=one) == ("starts at once on gpu-07", False, False)
    assert told(namespace, gpus=16, machines=2) == ("starts at once on gpu-07 and gpu-08", False, False)
    assert told(namespace, gpus=9, node_selection=one) == (
        "can never run: no machine has 9 GPUs; the most is 8", False, True,
    )  # fmt: skip
    for number in range(2):
        make_run(namespace, f"busy-{number}", gpus=7, node_selection=one, template={"time_limit_seconds": 3 * 3600})
    run_once(namespace.cluster_id, NOW)
    assert told(namespace, gpus=2, node_selection=one)[:2] == (
        "about 3 h, next, if all use their limits", True,
    )  # fmt: skip
    assert told(namespace, gpus=4, node_selection=one)[0].startswith("Waits for namespace quota: 14 of 16 GPUs in use")
    Machine.objects.update(cordoned_at=NOW)
    assert told(namespace, gpus=2, node_selection=one)[1:] == (True, False)


@pytest.mark.django_db
def test_an_outlook_counts_those_ahead_and_plays_their_limits() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    for number in range(3):
        limit = {"time_limit_seconds": 3600}
        make_run(namespace, f"busy-{number}", age=9 - number, gpus=8, node_selection={"count": 1}, template=limit)
    run_once(namespace.cluster_id, NOW)
    assert told(namespace, gpus=1, node_selection={"count": 1}) == (
        "about 3 h, behind 2 runs, if all use their limits", True, False,
    )  # fmt: skip


@pytest.mark.django_db
def test_an_outlook_tells_who_gives_way_and_how_many_of_its_workers_start() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    make_run(namespace, "busy", gpus=6, node_selection={"count": 1})
    run_once(namespace.cluster_id, NOW)
    assert told(namespace, gpus=8, node_selection={"count": 1}, priority=1) == (
        "starts as soon as work of lower priority has stopped", True, False,
    )  # fmt: skip
    assert told(namespace, gpus=5, node_selection={"count": 5}) == (
        "starts at once with 2 of 5 workers on m0", False, False,
    )  # fmt: skip
    make_run(namespace, "new", gpus=8, node_selection={"count": 1}, priority=1)
    run_once(namespace.cluster_id, NOW)
    assert Run.objects.get(name="new").pending_code == "preempting", "as was foretold"


@pytest.mark.django_db
def test_an_offer_to_the_first_in_the_queue_counts_on_who_comes_next() -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0", gpus=8)
    one = {"node_selection": {"count": 1}}
    make_run(namespace, "busy", age=9, gpus=4, **one)
    first = make_run(namespace, "first", age=8, gpus=8, **one)
    make_run(namespace, "next", age=7, gpus=3, **one)
    run_once(namespace.cluster_id, NOW)
    first.refresh_from_db()
    waits = pending_details(first, NOW)
    assert waits is not None
    assert [offer["label"] for offer in waits["would_start"]] == ["With 1 GPU instead of 8"]
