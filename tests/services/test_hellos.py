"""What a machine says that it knows when it connects, and what a batch of reports costs."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from machines import inbox
from machines.connections import disconnected
from machines.models import Assignment
from machines.protocol import EndReason, Phase
from runs.models import Transition
from runs.services import reports
from runs.services.stopping import stop_worker
from tests import builders as make
from tests.builders import after, state_of

pytestmark = pytest.mark.django_db


# ---- hellos ----


def hello(on, at, *known):
    reports.apply([make.entry(on, at, hello=[attempt.uid.hex for attempt in known])], at)


def test_a_hello_that_knows_its_attempts_changes_nothing(running, on) -> None:
    worker, attempt = running()
    before = Transition.objects.count()
    hello(on, after(60), attempt)
    assert Transition.objects.count() == before
    assert state_of(worker)[0] == "Running"


def test_a_stopped_worker_that_its_machine_never_heard_of_is_cancelled_by_the_hello(editor, east) -> None:
    away = make.machine(east)
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.place(worker, away)
    disconnected([(away.pk, away.connection)])
    stop_worker(editor, worker, "", after(5))
    assert state_of(worker)[0] == "Preparing"
    hello(away, after(60))
    attempt.refresh_from_db()
    assert state_of(worker) == ("Cancelled", f"Stopped by {editor.actor}")
    assert attempt.released_at == after(60)
    make.check_invariants()


def test_an_attempt_that_the_machine_is_yet_to_be_told_survives_its_hello(editor, east, on) -> None:
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.place(worker, on)
    hello(on, after(60))
    attempt.refresh_from_db()
    assert (attempt.released_at, state_of(worker)[0]) == (None, "Preparing")


def test_an_attempt_placed_after_the_hello_was_sent_survives_it(editor, east) -> None:
    away = make.machine(east)
    worker = make.workers(make.submit(editor, east))[0]
    attempt = make.place(worker, away, now=after(61))
    disconnected([(away.pk, away.connection)])
    stop_worker(editor, worker, "", after(62))
    hello(away, after(60))
    attempt.refresh_from_db()
    assert attempt.released_at is None


def test_a_machine_that_no_longer_knows_what_it_ran_gives_it_back(running, on) -> None:
    worker, attempt = running()
    hello(on, after(60))
    attempt.refresh_from_db()
    assert attempt.released_at == after(60)
    assert state_of(worker) == ("Pending", "Its machine no longer knows it; its exit code is unknown")
    assert worker.failures_in_row == 0
    assert not Assignment.objects.exists()
    make.check_invariants()


# ---- cost ----


def batch(editor, east, count):
    """One report of a whole life for each worker of an array."""
    on = make.machine(east, cpu=count, memory=count * make.GIB)
    run = make.submit(editor, east, array={"count": count})
    entries = []
    for worker in make.workers(run):
        attempt = make.place(worker, on)
        life = [(Phase.PREPARING, 3.0), (Phase.STARTING, 2.0), (Phase.RUNNING, 1.0), (Phase.ENDED, 0.0)]
        said = make.told(attempt, *life, exit_code=worker.rank % 2, end_reason=EndReason.EXITED)
        entries.append(make.entry(on, after(60), said))
    return entries


def test_a_batch_costs_as_many_statements_as_one_report(editor, east) -> None:
    counted = []
    for count in (2, 60):
        entries = batch(editor, east, count)
        with CaptureQueriesContext(connection) as captured:
            reports.apply(entries, after(60))
        counted.append(len(captured))
    assert counted[0] == counted[1] <= 16
    make.check_invariants()


def test_one_report_that_cannot_be_applied_does_not_stop_the_others(running, on) -> None:
    worker, attempt = running()
    poison = make.entry(on, after(60), make.told(attempt, (Phase.RUNNING, float("nan")), seq=99))
    good = make.told(attempt, (Phase.ENDED, 0.0), seq=98, exit_code=0, end_reason=EndReason.EXITED)
    inbox._apply(on.cluster_id, [make.entry(on, after(60), good), poison], reports.apply)
    assert state_of(worker)[0] == "Completed"
