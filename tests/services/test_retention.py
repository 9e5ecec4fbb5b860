"""Records that are kept no longer: ended runs, then their tombstones, with everything that hangs on them."""

import pytest
from django.apps import apps
from django.db.models import SET_NULL

from machines.models import Assignment, Machine
from machines.protocol import EndReason, Phase
from runs import queries
from runs.models import Attempt, Firing, Run, Stem, Transition, Worker
from runs.saved import read_schedule
from runs.services import retention
from runs.services.deleting import delete_run
from runs.services.schedules import save_schedule
from tests import builders as make
from tests.builders import T0, after

pytestmark = pytest.mark.django_db
DAY = 86400


@pytest.fixture(autouse=True)
def _kept(settings) -> None:
    settings.ENDED_RUNS_KEEP_SECONDS = 90 * DAY
    settings.DELETED_RUNS_KEEP_SECONDS = 30 * DAY


def ended(editor, east, on, name: str = "old", at: float = 60):
    """A run that has completed, with two attempts behind it."""
    run = make.submit(editor, east, name)
    worker = make.workers(run)[0]
    attempt = make.run_on(worker, on)
    make.report_end(attempt, at=after(at))
    return run, attempt


def forget(attempt, at: float) -> None:
    """Its machine has removed all traces."""
    make.report(attempt, (Phase.ENDED, 2.0), (Phase.FORGOTTEN, 1.0), at=after(at))


def test_an_ended_run_is_deleted_after_its_time_and_not_before(editor, east, on) -> None:
    run, attempt = ended(editor, east, on)
    waiting = make.submit(editor, east, "waiting")
    retention.keep_no_longer(after(90 * DAY + 59))
    assert not Run.objects.exclude(deleted_at=None).exists()
    retention.keep_no_longer(after(90 * DAY + 61))
    run.refresh_from_db()
    waiting.refresh_from_db()
    assert (run.deleted_at, waiting.deleted_at) == (after(90 * DAY + 61), None)
    assert make.moves_of(run)[-1] == ("Completed", "Deleted by the console: it ended more than 90d ago")
    assert Assignment.objects.get(attempt=attempt.uid).order is None
    assert make.submit(editor, east, "old").name == "old"
    make.check_invariants()


def test_a_tombstone_is_listed_until_its_time_and_then_nothing_of_it_is_left(editor, east, on) -> None:
    run, attempt = ended(editor, east, on)
    kept, _ = ended(editor, east, on, "kept")
    delete_run(editor, run, after(100))
    forget(attempt, 101)
    retention.keep_no_longer(after(30 * DAY + 99))
    assert run in queries.list_runs(editor, state="all", deleted=True).items
    retention.keep_no_longer(after(30 * DAY + 101))
    assert list(Run.objects.all()) == [kept]
    for model in (Worker, Attempt, Transition, Stem):
        assert model.objects.exists()
        owner = "worker__run" if model is Attempt else "run"
        assert not model.objects.exclude(**{owner: kept}).exists()
    make.check_invariants()


def test_a_tombstone_stays_while_its_machine_has_something_to_do_about_it(editor, east, on) -> None:
    run = make.submit(editor, east)
    attempt = make.run_on(make.workers(run)[0], on)
    delete_run(editor, run, after(100))
    retention.keep_no_longer(after(40 * DAY))
    assert Run.objects.count() == 1
    make.report_end(attempt, exit_code=143, reason=EndReason.STOPPED, at=after(40 * DAY))
    retention.keep_no_longer(after(40 * DAY + 1))
    assert Run.objects.count() == 1
    forget(attempt, 40 * DAY + 2)
    retention.keep_no_longer(after(40 * DAY + 3))
    assert not Run.objects.exists()


def test_a_removed_machine_has_nothing_more_to_do(editor, east, on) -> None:
    run = make.submit(editor, east)
    make.run_on(make.workers(run)[0], on)
    delete_run(editor, run, after(100))
    Machine.objects.update(state="Removed")
    retention.keep_no_longer(after(40 * DAY))
    assert not Run.objects.exists()
    assert not Assignment.objects.exists()


def test_nothing_goes_where_the_settings_say_so(editor, east, on, settings) -> None:
    settings.ENDED_RUNS_KEEP_SECONDS = settings.DELETED_RUNS_KEEP_SECONDS = 0
    ended(editor, east, on)
    gone, attempt = ended(editor, east, on, "gone")
    delete_run(editor, gone, after(100))
    forget(attempt, 101)
    retention.keep_no_longer(after(10_000 * DAY))
    assert Run.objects.count() == 2


def test_many_go_in_batches(editor, east, on, monkeypatch, django_assert_max_num_queries) -> None:
    monkeypatch.setattr(retention, "BATCH", 4)
    for number in range(10):
        make.report_end(make.run_on(make.workers(make.submit(editor, east, f"r{number}"))[0], on), at=after(60))
    with django_assert_max_num_queries(3 * 25):
        retention.keep_no_longer(after(91 * DAY))
    assert not Run.objects.filter(deleted_at=None).exists()
    Assignment.objects.all().delete()
    with django_assert_max_num_queries(3 * 13):
        retention.keep_no_longer(after(200 * DAY))
    assert not Run.objects.exists()


def test_a_schedule_outlives_the_runs_that_it_started(editor, east, on) -> None:
    body = {"name": "nightly", "cluster": "gpu-east", "cron": "0 3 * * *", "spec": make.body()["spec"]}
    schedule, _ = save_schedule(editor, read_schedule(body), T0)
    run, attempt = ended(editor, east, on)
    Firing.objects.create(schedule=schedule, due_at=T0, fired_at=T0, outcome="Started", run=run, actor="schedule")
    delete_run(editor, run, after(100))
    forget(attempt, 101)
    retention.keep_no_longer(after(40 * DAY))
    assert Firing.objects.get().run is None


def test_every_table_that_hangs_on_a_run_goes_with_it() -> None:
    """One that is added later has to be added there, too."""
    owners = {Run, Worker, Attempt}
    hanging = {
        model._meta.db_table
        for model in apps.get_models()
        for field in model._meta.get_fields()
        if (field.many_to_one or field.one_to_one) and field.concrete and field.related_model in owners
        if field.remote_field.on_delete is not SET_NULL
    }
    assert hanging | {"runs_run", "machines_assignment"} == set(retention.DELETIONS)
