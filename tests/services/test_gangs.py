"""Gangs: placed whole, started together, given back together."""

from collections.abc import Sequence

import pytest

from machines.models import Assignment, DataOnMachine, Machine, Volume
from machines.orders import DataKind
from machines.protocol import EndReason, Phase
from runs.models import Attempt, Run
from runs.scheduling.types import Placement
from runs.services import gangs, placing
from runs.services.stopping import stop_run
from runs.state_machine import WorkerState
from tests import builders as make
from tests.builders import GIB, after

pytestmark = pytest.mark.django_db

READY = ((Phase.PREPARING, 1.0), (Phase.READY, 0.0))
RUNNING = ((Phase.PREPARING, 3.0), (Phase.READY, 2.0), (Phase.STARTING, 1.0), (Phase.RUNNING, 0.0))


@pytest.fixture
def editor():
    return make.access(make.workspace())


@pytest.fixture
def east(editor):
    return make.cluster(editor.workspace)


@pytest.fixture
def machines(east):
    return [make.machine(east, cpu=8, memory=8 * GIB) for _ in range(2)]


def gang(editor, east, count: int = 2, **spec) -> Run:
    return make.submit(editor, east, node_selection={"count": count}, start="Gang", **spec)


def place_all(run: Run, machines: Sequence[Machine], seconds: float = 1) -> list[Attempt]:
    """One worker on each."""
    placements = [
        Placement(worker.id, machine.id, (), worker.cpu_milli, worker.memory_bytes, run.id, run.namespace_id)
        for worker, machine in zip(make.workers(run), machines, strict=True)
    ]
    placing.place_workers(machines[0].cluster_id, placements, after(seconds))
    return [make.newest_attempt(worker) for worker in make.workers(run) if worker.attempt_number]


def waits() -> list[bool]:
    return list(Assignment.objects.order_by("machine_id").values_list("waits", flat=True))


def told(run: Run) -> tuple[str, str]:
    run.refresh_from_db()
    return run.state, run.reason


def test_no_worker_starts_before_all_are_ready(editor, east, machines) -> None:
    run = gang(editor, east)
    zero, one = place_all(run, machines)
    assert told(run) == ("Starting", "Starting together: 0 of 2 ready")
    make.report(zero, *READY, at=after(5))
    assert told(run) == ("Starting", "Starting together: 1 of 2 ready")
    assert make.workers(run)[0].reason == "Ready: waits for the others"
    assert waits() == [True, True]
    make.report(one, *READY, at=after(6))
    assert told(run) == ("Starting", "Starting together: 2 of 2 ready")
    assert waits() == [False, False]
    assert [worker.reason for worker in make.workers(run)] == ["All workers are ready: starting"] * 2
    for attempt in (zero, one):
        make.report(attempt, *RUNNING, at=after(8))
    assert told(run) == ("Running", "2 of 2 workers running")
    make.check_invariants()


def test_machines_are_told_that_the_barrier_is_open(editor, east, machines) -> None:
    run = gang(editor, east)
    attempts = place_all(run, machines)
    before = [machine.revision for machine in Machine.objects.order_by("id")]
    make.report(attempts[0], *READY, at=after(5))
    assert [machine.revision for machine in Machine.objects.order_by("id")] == before
    make.report(attempts[1], *READY, at=after(6))
    assert [machine.revision for machine in Machine.objects.order_by("id")] == [number + 1 for number in before]


def test_an_agent_that_knows_no_barrier_counts_as_ready_when_it_runs(editor, east, machines) -> None:
    zero, one = place_all(gang(editor, east), machines)
    make.report(zero, (Phase.PREPARING, 1.0), (Phase.RUNNING, 0.0), at=after(5))
    make.report(one, *READY, at=after(6))
    assert not Assignment.objects.get(attempt=one.uid).waits


@pytest.mark.parametrize("columns", [{"cordoned_at": make.T0}, {"cpu_milli": 500}, {"state": "Lost"}])
def test_a_gang_is_dropped_whole_when_one_placement_is_stale(editor, east, machines, columns) -> None:
    Machine.objects.filter(pk=machines[1].pk).update(**columns)
    assert place_all(gang(editor, east), machines) == []
    assert not Attempt.objects.exists()
    other = make.submit(editor, east, cpu=8)
    assert make.place(make.workers(other)[0], machines[0]) is not None  # its room was given back
    make.check_invariants()


def test_what_is_at_the_barrier_for_too_long_is_given_back_and_waits_again(editor, east, machines) -> None:
    run = gang(editor, east, on_failure="RestartTask")
    zero, one = place_all(run, machines, 0)
    make.report(zero, *READY, at=after(5))
    gangs.give_back_late(after(904))
    assert waits() == [True, True]
    gangs.give_back_late(after(905))
    assert not Assignment.objects.exclude(order=None).exists()
    for attempt in (zero, one):
        ended = ((Phase.PREPARING, 5.0), (Phase.ENDED, 0.0))
        make.report(attempt, *ended, at=after(910), end_reason=EndReason.STOPPED)
    assert told(run) == ("Pending", "Only 1 of 2 workers were ready within 15m")
    assert [(worker.state, worker.failures_in_row) for worker in make.workers(run)] == [("Pending", 0)] * 2
    make.check_invariants()


def is_given_back(seconds: float) -> bool:
    gangs.give_back_late(after(seconds))
    return not Assignment.objects.exclude(order=None).exists()


def test_preparing_does_not_count_while_nobody_is_at_the_barrier(editor, east, machines) -> None:
    zero, one = place_all(gang(editor, east), machines, 0)
    for attempt in (zero, one):
        make.report(attempt, (Phase.PREPARING, 0.0), at=after(1), waiting="waiting for external secret hf-token")
    assert not is_given_back(5_000)
    make.report(zero, *READY, at=after(5_000))
    assert not is_given_back(5_899)
    assert is_given_back(5_900)


@pytest.mark.parametrize("kind", [DataKind.DRIVE, DataKind.MODEL])
def test_what_its_machine_is_filling_is_waited_for_and_for_as_long_again_after_that(
    editor, east, machines, kind
) -> None:
    zero, one = place_all(gang(editor, east), machines, 0)
    make.report(one, (Phase.PREPARING, 0.0), at=after(1))
    make.report(zero, *READY, at=after(5))
    copy = Volume.objects.create(
        workspace=editor.workspace, kind=kind, name="imagenet", form="copy", created_at=make.T0
    )
    DataOnMachine.objects.create(machine=machines[1], kind=kind, uid=copy.uid, state="Filling", changed_at=make.T0)
    assert not is_given_back(9_000)
    DataOnMachine.objects.update(state="Ready", changed_at=after(9_000))
    make.report(one, (Phase.PREPARING, 9_000.0), (Phase.PULLING, 0.0), at=after(9_001))
    assert not is_given_back(9_899)
    assert is_given_back(9_900)


@pytest.mark.parametrize("where", ["elsewhere", "another workspace's", "failed"])
def test_no_other_copy_keeps_a_gang_at_its_barrier(editor, east, machines, where) -> None:
    zero, _ = place_all(gang(editor, east), machines, 0)
    make.report(zero, *READY, at=after(5))
    owner = make.workspace(slug="other") if where == "another workspace's" else editor.workspace
    copy = Volume.objects.create(workspace=owner, kind="drive", name="imagenet", form="copy", created_at=make.T0)
    DataOnMachine.objects.create(
        machine=machines[0 if where == "elsewhere" else 1],
        kind="drive",
        uid=copy.uid,
        state="Failed" if where == "failed" else "Filling",
        changed_at=after(800),
    )
    assert is_given_back(905)


def test_engines_may_take_as_long_as_they_may_to_start(editor, east, machines, settings) -> None:
    settings.ENGINE_IMAGE, settings.ENGINE_START_SECONDS = "vllm/vllm-openai:v1", 1_800
    zero, one = place_all(gang(editor, east, engine={"model": "llama"}), machines, 0)
    make.report(one, (Phase.PREPARING, 0.0), at=after(1), waiting="Waiting for the engine to serve llama")
    make.report(zero, *READY, at=after(5))
    assert not is_given_back(2_704)
    assert is_given_back(2_705)


def test_a_gang_whose_last_worker_became_ready_unseen_starts_instead(editor, east, machines) -> None:
    run = gang(editor, east)
    zero, one = place_all(run, machines, 0)
    make.report(zero, *READY, at=after(5))
    make.report(one, *READY, at=after(6))
    Assignment.objects.update(waits=True)
    gangs.give_back_late(after(905))
    assert waits() == [False, False]
    assert run.workers.filter(stop_requested_at=None).count() == 2


def test_a_worker_that_restarts_alone_waits_for_nobody_who_runs(editor, east, machines) -> None:
    run = gang(editor, east, on_failure="RestartTask")
    attempts = place_all(run, machines)
    for attempt in attempts:
        make.report(attempt, *READY, at=after(5))
    for attempt in attempts:
        make.report(attempt, *RUNNING, at=after(8))
    make.report_end(attempts[0], exit_code=1, at=after(20))
    worker = make.workers(run)[0]
    worker.__class__.objects.filter(pk=worker.pk).update(state=WorkerState.PENDING, restart_at=None)
    again = make.place(worker, machines[0], now=after(40))
    assert again is not None
    assert Assignment.objects.get(attempt=again.uid).waits
    make.report(again, *READY, at=after(45))
    assert not Assignment.objects.get(attempt=again.uid).waits


def test_a_gang_of_one_waits_for_nobody(editor, east, machines) -> None:
    place_all(gang(editor, east, count=1), machines[:1])
    assert waits() == [False]


def test_a_gang_that_is_being_stopped_does_not_start(editor, east, machines) -> None:
    run = gang(editor, east)
    zero, one = place_all(run, machines)
    make.report(zero, *READY, at=after(5))
    stop_run(editor, run, "", after(6))
    make.report(one, *READY, at=after(7))
    assert not Assignment.objects.filter(waits=False).exclude(order=None).exists()
