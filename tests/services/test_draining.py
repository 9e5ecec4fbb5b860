"""Draining a machine: no new work, what runs is given back in order, until it is empty."""

import pytest

from astraconsole.errors import Forbidden
from astraconsole.tenancy.permissions import Role
from machines import services as machine_services
from machines.models import Machine
from machines.protocol import EndReason
from runs.services.draining import drain_machine, give_back_drained
from tests import builders as make
from tests.builders import after

REASON = "Machine gpu-08 is drained: new firmware"


@pytest.fixture
def admin(editor):
    return make.access(editor.workspace, Role.ADMIN)


def told(worker):
    worker.refresh_from_db()
    return worker.state, worker.reason


def test_what_runs_is_given_back_and_nothing_new_comes(admin, editor, east, on, running) -> None:
    worker, attempt = running()
    drain_machine(admin, on, "new firmware", after(30))
    assert told(worker) == ("Running", f"Stopping: {REASON}")
    assert worker.transitions.last().actor == admin.actor
    assert make.place(make.workers(make.submit(editor, east))[0], on) is None
    make.report_end(attempt, exit_code=143, reason=EndReason.STOPPED, at=after(40))
    assert told(worker) == ("Pending", REASON)
    assert make.place(worker, on) is None
    make.check_invariants()


def test_only_who_may_manage_the_machine_drains_it(editor, on, running) -> None:
    worker, _ = running()
    with pytest.raises(Forbidden):
        drain_machine(editor, on, "new firmware", after(30))
    assert told(worker) == ("Running", "Container running")


def test_a_drain_cut_short_is_made_good(admin, on, running) -> None:
    worker, _ = running()
    machine_services.drain(admin, on, "new firmware", after(30))
    assert told(worker) == ("Running", "Container running")
    give_back_drained(after(35))
    assert told(worker) == ("Running", f"Stopping: {REASON}")
    assert worker.transitions.last().actor == admin.actor
    history = make.moves_of(worker)
    give_back_drained(after(40))
    assert make.moves_of(worker) == history


def test_a_cordon_gives_nothing_back(admin, on, running) -> None:
    worker, _ = running()
    machine_services.cordon(admin, on, "a fan rattles", after(30))
    give_back_drained(after(35))
    assert told(worker) == ("Running", "Container running")


def test_a_machine_that_resumes_while_it_drains_takes_work_again(admin, on, running) -> None:
    worker, attempt = running()
    drain_machine(admin, on, "new firmware", after(30))
    machine_services.uncordon(admin, on, after(31))
    make.report_end(attempt, exit_code=143, reason=EndReason.STOPPED, at=after(32))
    assert make.place(worker, on, now=after(33)) is not None
    make.check_invariants()


def test_a_drained_machine_that_comes_back_from_the_dead_stays_drained(admin, on, running) -> None:
    running()
    drain_machine(admin, on, "new firmware", after(30))
    Machine.objects.filter(pk=on.pk).update(state="Lost")
    give_back_drained(after(35))
    on.refresh_from_db()
    assert (on.draining, on.cordon_reason) == (True, "new firmware")
