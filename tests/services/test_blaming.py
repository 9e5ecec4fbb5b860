"""A machine that fails whatever it is given is cordoned; a run that fails everywhere does it no harm."""

import pytest

from astraconsole.tenancy.permissions import Role
from machines import queries as machine_queries
from machines import services as machine_services
from machines.models import Machine
from machines.protocol import EndReason, Phase
from runs.models import Attempt
from runs.services.stopping import stop_worker
from tests import builders as make
from tests.builders import GIB, after

REASON = "3 different runs failed here within 1m of their start, and nothing went well since"


@pytest.fixture
def other(east):
    """So that it is not the last machine."""
    return make.machine(east, "gpu-09", cpu=64, memory=64 * GIB)


@pytest.fixture
def fails(editor, east, on, other, django_capture_on_commit_callbacks):
    """A run that fails on the machine soon after its start, by default because it could not be started."""

    def fail(at, reason=EndReason.START_FAILED, exit_code=None, machine=on, by=editor, ran=0.0, worker=None, **asked):
        asked = {"template": {"restart_policy": "Never"}, **asked}
        worker = worker or make.workers(make.submit(by, machine.cluster, now=after(at), **asked))[0]
        attempt = make.place(worker, machine, now=after(at))
        assert attempt is not None, f"{machine} took no work"
        phases = [(Phase.PREPARING, ran + 1.0), *([(Phase.RUNNING, ran)] if ran else []), (Phase.ENDED, 0.0)]
        with django_capture_on_commit_callbacks(execute=True):
            make.report(attempt, *phases, at=after(at + ran), end_reason=reason, exit_code=exit_code, message="why")
        return worker

    return fail


def is_cordoned(machine: Machine) -> bool:
    machine.refresh_from_db()
    return machine.cordoned_at is not None


def test_three_different_runs_cordon_the_machine_with_a_sentence(on, fails) -> None:
    for at in (0, 10):
        fails(at)
    assert not is_cordoned(on)
    fails(20)
    assert is_cordoned(on)
    assert (on.cordon_reason, on.cordoned_by, on.cordoned_at) == (REASON, None, after(20))
    event = machine_queries.history_of(on)[-1]
    assert (event.state, event.reason, event.actor) == ("Cordoned", REASON, "console")


def test_one_run_alone_cordons_nothing_however_often_it_fails(editor, east, on, fails) -> None:
    run = make.submit(editor, east, array={"count": 8})
    for number, worker in enumerate(make.workers(run)):
        fails(number, worker=worker)
    assert Attempt.objects.exclude(blame="").count() == 8
    assert not is_cordoned(on)


def test_one_program_that_ends_with_an_error_again_and_again_cordons_nothing(on, fails) -> None:
    for at in range(6):
        fails(at, EndReason.EXITED, exit_code=1, ran=5, template={"restart_policy": "Never", "args": [str(at)]})
    assert not is_cordoned(on)


def test_programs_of_different_people_that_end_with_an_error_do(editor, on, fails) -> None:
    for at in range(3):
        fails(at, EndReason.EXITED, exit_code=1, ran=5, by=make.access(editor.workspace))
    assert is_cordoned(on)


@pytest.mark.parametrize(
    ("reason", "exit_code", "ran"),
    [
        (EndReason.OOM_KILLED, 137, 5),
        (EndReason.IMAGE_PULL, None, 0),
        (EndReason.REFUSED, None, 0),
        (EndReason.EXITED, 127, 1),
        (EndReason.EXITED, 0, 5),
        (EndReason.EXITED, None, 61),
    ],
)
def test_other_ends_cordon_nothing(on, fails, reason, exit_code, ran) -> None:
    for at in range(5):
        fails(at, reason, exit_code=exit_code, ran=ran)
    assert not is_cordoned(on)


def test_what_went_well_in_between_speaks_for_the_machine(on, fails) -> None:
    for at in (0, 10):
        fails(at)
    fails(20, EndReason.EXITED, exit_code=0, ran=5)
    for at in (30, 40):
        fails(at)
    assert not is_cordoned(on)
    fails(50)
    assert is_cordoned(on)


def test_so_does_what_has_run_for_a_minute(editor, east, on, fails) -> None:
    for at in (0, 10):
        fails(at)
    make.run_on(make.workers(make.submit(editor, east))[0], on, after(20))
    fails(100)
    assert not is_cordoned(on)


def test_a_run_that_fails_elsewhere_too_points_at_itself(editor, east, on, other, fails) -> None:
    for at in (0, 100, 200):
        worker = fails(at, array={"count": 2})
        fails(at + 50, machine=other, worker=make.workers(worker.run)[1])
    assert not is_cordoned(on)
    assert not is_cordoned(other)


def test_old_failures_are_forgotten(on, fails) -> None:
    for at in (0, 10, 3700):
        fails(at)
    assert not is_cordoned(on)


def test_what_somebody_stopped_is_no_failure(editor, east, on, other, django_capture_on_commit_callbacks) -> None:
    for at in range(4):
        worker = make.workers(make.submit(editor, east))[0]
        attempt = make.place(worker, on)
        stop_worker(editor, worker, "", after(at))
        with django_capture_on_commit_callbacks(execute=True):
            make.report_end(attempt, 137, EndReason.EXITED, at=after(at))
    assert not is_cordoned(on)


def test_taking_it_back_forgives_what_was_before(editor, on, fails) -> None:
    for at in (0, 10, 20):
        fails(at)
    machine_services.uncordon(make.access(editor.workspace, Role.ADMIN), on, after(30))
    for at in (40, 50):
        fails(at)
    assert not is_cordoned(on)
    fails(60)
    assert is_cordoned(on)


def test_the_last_machine_that_takes_work_is_left_alone(on, other, fails) -> None:
    Machine.objects.filter(pk=other.pk).update(cordoned_at=after(0))
    for at in range(5):
        fails(at)
    assert not is_cordoned(on)


def test_where_machine_after_machine_fails_it_is_not_the_machines(east, on, other, fails) -> None:
    """One of up to nine, two of ten: the rest stays open."""
    third = make.machine(east, "gpu-10")
    for at, machine in enumerate((on, on, on, third, third, third)):
        fails(at, machine=machine)
    assert (is_cordoned(on), is_cordoned(third)) == (True, False)


def test_a_cordon_of_somebodys_is_not_overwritten(editor, on, fails) -> None:
    for at in (0, 10):
        fails(at)
    worker = make.workers(make.submit(editor, on.cluster))[0]
    attempt = make.place(worker, on, now=after(20))
    machine_services.cordon(make.access(editor.workspace, Role.ADMIN), on, "a fan rattles", after(21))
    machine_services.cordon_failing(on.pk, REASON, after(22))
    assert attempt is not None
    assert is_cordoned(on)
    assert on.cordon_reason == "a fan rattles"


def test_it_can_be_turned_off(on, fails, settings) -> None:
    settings.MACHINE_CORDON_FAILURES = 0
    for at in range(5):
        fails(at)
    assert not is_cordoned(on)


def test_the_sentence_names_no_run_and_no_workspace(editor, east, on, fails) -> None:
    neighbour = make.access(make.workspace(editor.workspace.organisation, "secret-project"))
    make.cluster(neighbour.workspace, slug="elsewhere")
    for at in range(3):
        fails(at)
    on.refresh_from_db()
    assert on.cordon_reason == REASON
