"""Submitting: what is accepted, what is refused with which words, and what is written."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from astraconsole.errors import Forbidden, JobAlreadyExists, NotFound, PriorityNotAllowed
from astraconsole.tenancy.permissions import Role
from machines.models import Namespace
from runs.models import Run
from runs.services.deleting import delete_run
from tests import builders as make
from tests.builders import GIB, T0

pytestmark = pytest.mark.django_db


def test_a_run_is_accepted_as_pending_with_its_workers() -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    run = make.submit(editor, east, "resnet50", node_selection={"count": 2})
    run.refresh_from_db()
    assert (run.state, run.reason, run.created_by) == ("Pending", "Run created", editor.user)
    assert [worker.name for worker in make.workers(run)] == ["resnet50-0", "resnet50-1"]
    assert make.moves_of(run) == [("Pending", "Run created")]
    assert make.moves_of(make.workers(run)[0]) == [("Pending", "Run created")]
    make.check_invariants()


def test_a_viewer_cannot_submit() -> None:
    viewer = make.access(make.workspace(), Role.VIEWER)
    east = make.cluster(viewer.workspace)
    with pytest.raises(Forbidden):
        make.submit(viewer, east)
    assert not Run.objects.exists()


def test_a_cluster_without_a_namespace_is_not_found() -> None:
    editor, other = make.access(make.workspace()), make.workspace()
    east = make.cluster(other)
    with pytest.raises(NotFound, match="the workspace has no cluster gpu-east"):
        make.submit(editor, east)


def test_a_priority_above_the_maximum_is_refused_in_the_documented_words() -> None:
    editor = make.access(make.workspace(make.organisation("acme")))
    east = make.cluster(editor.workspace)
    with pytest.raises(PriorityNotAllowed) as refused:
        make.submit(editor, east, priority=50)
    assert refused.value.message == "priority 50 is above namespace acme/vision on gpu-east's maximum of 0"
    Namespace.objects.update(max_priority=50)
    assert make.submit(editor, east, priority=50).priority == 50


def test_a_taken_name_is_refused_and_free_again_after_deletion() -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    first = make.submit(editor, east, "resnet50")
    with pytest.raises(JobAlreadyExists, match="a run named resnet50 already exists on gpu-east"):
        make.submit(editor, east, "resnet50")
    delete_run(editor, first, T0)
    assert make.submit(editor, east, "resnet50").uid != first.uid


def test_the_same_name_serves_two_workspaces_of_one_cluster() -> None:
    org = make.organisation()
    one, two = make.access(make.workspace(org, "vision")), make.access(make.workspace(org, "nlp"))
    east = make.cluster(one.workspace, two.workspace)
    make.submit(one, east, "resnet50")
    make.submit(two, east, "resnet50")
    assert Run.objects.count() == 2


def test_a_gpu_total_is_split_over_the_fewest_machines() -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    for _ in range(2):
        make.machine(east, cpu=64, memory=512 * GIB, gpus=8)
    run = make.submit(editor, east, gpus=16)
    assert [worker.gpus for worker in make.workers(run)] == [8, 8]


def test_a_count_that_cannot_be_split_waits_without_workers_and_says_so() -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    make.machine(east, cpu=64, memory=512 * GIB, gpus=8)
    run = make.submit(editor, east, gpus=10, machines=3)
    assert run.state == "Pending"
    assert run.status_reason.startswith("Cannot plan workers: ")
    assert make.workers(run) == []
    make.check_invariants()


def test_a_run_that_no_machine_can_ever_hold_says_so_in_the_answer() -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    make.machine(east, cpu=8)
    run = make.submit(editor, east, cpu=64)
    assert run.state == "Pending"
    assert run.status_reason.startswith("No machine fits: no machine has 64 cores")
    run.refresh_from_db()
    assert run.status_reason.startswith("No machine fits: no machine has 64 cores")


def test_a_run_that_only_has_to_wait_claims_nothing_at_submit() -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    on = make.machine(east, cpu=1)
    make.run_on(make.workers(make.submit(editor, east))[0], on)
    assert make.submit(editor, east).status_reason == "Run created"


def statements_of_submit(**asked: Any) -> int:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    with CaptureQueriesContext(
        connection,
    ) as captured:
        make.submit(editor, east, **asked)
    return len(captured)


def test_an_array_of_a_thousand_costs_as_many_statements_as_a_single_run() -> None:
    single = statements_of_submit()
    assert single <= 3
    assert statements_of_submit(array={"count": 1000}) == single


@pytest.mark.django_db(transaction=True)
def test_of_runs_submitted_at_once_under_one_name_exactly_one_is_accepted() -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    answers: list[str] = []
    barrier = threading.Barrier(8)

    def submit() -> None:
        barrier.wait()
        try:
            make.submit(editor, east, "resnet50", array={"count": 20})
            answers.append("accepted")
        except JobAlreadyExists:
            answers.append("refused")
        finally:
            connection.close()

    for thread in started(submit, 8):
        thread.join()
    assert sorted(answers) == ["accepted"] + ["refused"] * 7
    make.check_invariants()


def started(target: Any, count: int) -> Iterator[threading.Thread]:
    threads = [threading.Thread(target=target) for _ in range(count)]
    for thread in threads:
        thread.start()
    return iter(threads)
