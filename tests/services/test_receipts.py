"""Receipts of ended runs, and the GPU-hours that workspaces held: from the database and the samples."""

from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from astraconsole.errors import Forbidden
from machines.metrics import rollup
from machines.models import SampleBlock
from machines.protocol import EndReason, Phase
from runs.models import Attempt, Receipt, Run, UsageMonth
from runs.receipts import receipt_of
from runs.services import receipts, retention
from runs.services.deleting import delete_run
from runs.services.stopping import stop_run
from runs.usage import months_before, usage_of
from tests import builders as make
from tests.builders import GIB, T0, after
from tests.metrics.samples import sampled

pytestmark = pytest.mark.django_db
DAY = 86400


@pytest.fixture
def on(east):
    return make.machine(east, "gpu-07", cpu=96, memory=1024 * GIB, gpus=8)


def trained(editor, east, on, name="train", seconds=600.0, end=EndReason.EXITED, **asked):
    """A run of 8 GPUs, 10 s in the queue, that ran for a while with busy GPUs."""
    run = make.submit(editor, east, name, **{"gpus": 8, "cpu": 4, "memory": 64 * GIB, **asked})
    attempt = make.run_on(make.workers(run)[0], on, after(10), gpus=range(8))
    make.report_end(attempt, 0 if end is EndReason.EXITED else 137, end, ran=seconds, at=after(10 + seconds))
    run.refresh_from_db()
    return run, attempt


def use(attempt, seconds=600.0, busy=0.5, memory=100 * GIB):
    values = {
        "task_memory_used_bytes": memory,
        "task_cpu_usage_cores": 8.0,
        **{("task_gpu_utilization_ratio", gpu): busy for gpu in range(8)},
    }
    begin = after(10).timestamp()
    sampled(attempt, begin + 1, begin + seconds, lambda _: values)


def test_a_receipt_tells_what_a_run_waited_for_held_and_used(editor, east, on) -> None:
    run, attempt = trained(editor, east, on)
    use(attempt)
    found = receipt_of(run, after(700))
    assert found["total_seconds"] == pytest.approx(610)
    assert found["waited_seconds"]["queue"] == pytest.approx(10)
    assert found["ran_seconds"] == pytest.approx(600)
    assert found["gpu_hours"]["held"] == pytest.approx(8 * 600 / 3600, rel=0.02)
    assert found["gpu_hours"]["used"] == pytest.approx(4 * 600 / 3600, rel=0.05)
    assert found["gpu_hours"]["sampled"] == pytest.approx(1, abs=0.05)
    assert found["memory"] == {"worker": "train-0", "peak_bytes": 100 * GIB, "asked_bytes": 512 * GIB}
    assert found["cores"] == {"worker": "train-0", "peak": 8.0, "asked": 32.0}
    assert [size["label"] for size in found["right_sizes"]] == ["Memory 16 GiB per GPU", "2 cores per GPU"]


def test_a_receipt_without_samples_says_that_it_does_not_know(editor, east, on) -> None:
    run, _ = trained(editor, east, on, end=EndReason.OOM_KILLED, on_failure="FailJob")
    found = receipt_of(run, after(700))
    assert found["gpu_hours"]["used"] is None
    assert (found["memory"], found["cores"]) == (None, None)
    assert [size["label"] for size in found["right_sizes"]] == ["Memory 96 GiB per GPU"]


def test_a_run_that_has_not_ended_has_no_receipt(editor, east, on) -> None:
    assert receipt_of(make.submit(editor, east), after(5)) is None


def test_restarts_and_a_cancelled_wait_are_in_the_receipt(editor, east, on) -> None:
    run = make.submit(editor, east, "again")
    make.report_end(make.run_on(make.workers(run)[0], on, after(10)), 1, ran=5, at=after(20))
    run.refresh_from_db()
    stop_run(editor, run, "", after(50))
    run.refresh_from_db()
    found = receipt_of(run, after(60))
    assert found["restarts"] == 1
    assert found["waited_seconds"]["restarts"] == pytest.approx(30)


def test_a_receipt_is_written_once_the_last_samples_are_there_and_outlives_them(editor, east, on, settings) -> None:
    run, attempt = trained(editor, east, on)
    use(attempt)
    assert receipts.write_due(after(611)) == 0
    assert receipts.write_due(after(640)) == 1
    assert receipts.write_due(after(641)) == 0
    before = receipt_of(run, after(700))
    SampleBlock.objects.all().delete()
    Attempt.objects.update(placed_at=T0)
    assert receipt_of(run, after(700)) == before
    with CaptureQueriesContext(connection) as captured:
        receipt_of(run, after(700))
    assert len(captured) == 1


def test_a_receipt_goes_on_from_rolled_up_samples(editor, east, on) -> None:
    run, attempt = trained(editor, east, on, seconds=7200)
    use(attempt, 7200)
    rollup.roll_up(after(7200 + DAY).timestamp())
    SampleBlock.objects.filter(resolution=0).delete()
    found = receipt_of(run, after(7200 + 8 * DAY))
    assert found["gpu_hours"]["used"] == pytest.approx(8, rel=0.05)


# ---- usage ----


def hours(editor, now, first=date(2026, 1, 1), last=date(2027, 12, 1)):
    return {(used.user, str(used.month)): round(used.gpu_hours, 3) for used in usage_of(editor, first, last, now)}


def test_gpu_hours_are_from_placement_to_release_cut_at_the_ends_of_months(editor, east, on) -> None:
    """T0 is 1 October 01:02:11."""
    trained(editor, east, on)
    start, end = datetime(2026, 10, 31, 20, tzinfo=UTC), datetime(2026, 12, 2, 12, tzinfo=UTC)
    Attempt.objects.update(placed_at=start, released_at=end)
    anna = editor.user.username
    assert hours(editor, after(90 * DAY)) == {
        (anna, "2026-10-01"): 8 * 4,
        (anna, "2026-11-01"): 8 * 30 * 24,
        (anna, "2026-12-01"): 8 * 36,
    }
    assert hours(editor, after(90 * DAY), date(2026, 11, 5), date(2026, 11, 20)) == {(anna, "2026-11-01"): 8 * 30 * 24}


def test_what_still_runs_counts_until_now_and_what_was_given_up_does_not_grow(editor, east, on) -> None:
    run = make.submit(editor, east, "now", gpus=2)
    attempt = make.run_on(make.workers(run)[0], on, T0, gpus=range(2))
    key = (editor.user.username, "2026-10-01")
    assert hours(editor, T0 + timedelta(hours=3)) == {key: 6}
    Attempt.objects.filter(pk=attempt.pk).update(superseded_at=T0 + timedelta(hours=1))
    assert hours(editor, T0 + timedelta(hours=3)) == {key: 2}


def test_usage_is_by_person_and_of_ones_own_workspace_but_for_staff(editor, east, on) -> None:
    other = make.access(editor.workspace, username="bob")
    elsewhere = make.access(make.workspace(editor.workspace.organisation, "nlp"))
    make.cluster(elsewhere.workspace, slug="west")
    trained(editor, east, on)
    trained(other, east, on, "his")
    assert {used.user for used in usage_of(editor, T0.date(), T0.date(), after(DAY))} == {"bob", editor.user.username}
    assert usage_of(elsewhere, T0.date(), T0.date(), after(DAY)) == []
    with pytest.raises(Forbidden):
        usage_of(elsewhere, T0.date(), T0.date(), after(DAY), everywhere=True)
    elsewhere.user.is_staff = True
    assert len(usage_of(elsewhere, T0.date(), T0.date(), after(DAY), everywhere=True)) == 2


def test_months_keep_the_hours_of_runs_that_are_removed_for_good(editor, east, on, settings) -> None:
    settings.DELETED_RUNS_KEEP_SECONDS = 30 * DAY
    for number in range(2):
        run, attempt = trained(editor, east, on, f"old-{number}")
        delete_run(editor, run, after(700))
        make.report(attempt, (Phase.ENDED, 2.0), (Phase.FORGOTTEN, 1.0), at=after(701))
    kept, _ = trained(editor, east, on, "kept")
    receipts.write_due(after(700))
    before = hours(editor, after(40 * DAY))
    retention.remove_deleted(after(40 * DAY), 30 * DAY)
    assert list(Run.objects.all()) == [kept]
    assert Receipt.objects.count() == 1
    assert UsageMonth.objects.count() == 1
    assert hours(editor, after(40 * DAY)) == pytest.approx(before)
    delete_run(editor, kept, after(800))
    make.report(Attempt.objects.get(), (Phase.ENDED, 2.0), (Phase.FORGOTTEN, 1.0), at=after(801))
    retention.remove_deleted(after(40 * DAY), 30 * DAY)
    assert not Run.objects.exists()
    assert hours(editor, after(40 * DAY)) == pytest.approx(before)


def test_months_are_counted_back_over_years() -> None:
    assert months_before(date(2026, 3, 31), 0) == date(2026, 3, 1)
    assert months_before(date(2026, 3, 31), 3) == date(2025, 12, 1)
    assert months_before(date(2026, 12, 1), 12) == date(2025, 12, 1)
