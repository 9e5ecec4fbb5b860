"""What must not move a worker: reports that are late, come again, or are of other machines or given-up attempts."""

import pytest

from machines.models import Assignment
from machines.protocol import EndReason, Phase
from runs.models import Transition
from runs.services import lost, reports
from runs.services.deleting import delete_run
from tests import builders as make
from tests.builders import T0, after, state_of

pytestmark = pytest.mark.django_db


def test_a_report_that_comes_again_or_late_changes_nothing_and_is_acknowledged(running, on) -> None:
    worker, attempt = running()
    make.report_end(attempt, exit_code=0, at=after(60))
    before = Transition.objects.count()
    late = make.told(attempt, (Phase.RUNNING, 0.0), seq=1)
    twice = make.told(attempt, (Phase.ENDED, 0.0), seq=2, exit_code=1, end_reason=EndReason.EXITED)
    acknowledged = reports.apply([make.entry(on, after(90), late), make.entry(on, after(90), twice)], after(90))
    assert acknowledged == [(on.uid, attempt.uid, 1), (on.uid, attempt.uid, 2)]
    assert Transition.objects.count() == before
    assert state_of(worker) == ("Completed", "Exited with code 0")


def test_of_a_batch_in_any_order_the_newest_report_counts(running, on) -> None:
    worker, attempt = running()
    ended = make.told(
        attempt, (Phase.RUNNING, 5.0), (Phase.ENDED, 1.0), seq=5, exit_code=0, end_reason=EndReason.EXITED
    )
    older = make.told(attempt, (Phase.RUNNING, 5.0), seq=4)
    reports.apply([make.entry(on, after(60), ended), make.entry(on, after(61), older)], after(61))
    assert state_of(worker)[0] == "Completed"
    make.check_invariants()


def test_an_unknown_attempt_is_acknowledged(running, on) -> None:
    _, attempt = running()
    attempt.uid = "0" * 32
    attempt.uid = type(attempt)().uid
    said = make.told(attempt, (Phase.RUNNING, 0.0), seq=9)
    assert reports.apply([make.entry(on, T0, said)], T0) == [(on.uid, attempt.uid, 9)]


def test_a_machine_cannot_speak_for_another_machines_attempt(running, east) -> None:
    worker, attempt = running()
    other = make.machine(east)
    said = make.told(attempt, (Phase.ENDED, 0.0), exit_code=1, end_reason=EndReason.EXITED)
    reports.apply([make.entry(other, after(60), said)], after(60))
    assert state_of(worker) == ("Running", "Container running")


def test_a_superseded_attempt_only_frees_its_room(running, east, on) -> None:
    worker, attempt = running()
    lost.machines_lost([on.pk], after(30))
    elsewhere = make.run_on(worker, make.machine(east), after(40))
    make.report_end(attempt, exit_code=1, at=after(60))
    attempt.refresh_from_db()
    assert attempt.released_at == after(60)
    assert state_of(worker) == ("Running", "Container running")
    assert elsewhere.number == 2
    make.check_invariants()


def test_a_deleted_runs_room_is_held_until_its_machine_says_it_is_gone(running, editor) -> None:
    worker, attempt = running()
    delete_run(editor, worker.run, after(30))
    attempt.refresh_from_db()
    assert attempt.released_at is None
    assert Assignment.objects.get(attempt=attempt.uid).order is None
    make.report_end(attempt, exit_code=143, reason=EndReason.STOPPED, at=after(40))
    attempt.refresh_from_db()
    assert attempt.released_at == after(40)
    assert Assignment.objects.filter(attempt=attempt.uid).exists()
    make.report(attempt, (Phase.ENDED, 2.0), (Phase.FORGOTTEN, 0.0), at=after(42))
    assert not Assignment.objects.exists()
    make.check_invariants()
