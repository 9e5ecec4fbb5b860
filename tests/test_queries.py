"""Reads: scoped to the workspace, paged by key, filtered and counted in SQL, in a constant number of queries."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from astraconsole.errors import NotFound, ValidationError
from machines.protocol import Phase
from runs import queries
from runs.models import Run
from runs.services.deleting import delete_run
from runs.services.stopping import stop_run
from tests import builders as make
from tests.builders import GIB, T0, after

pytestmark = pytest.mark.django_db


@pytest.fixture
def editor():
    return make.access(make.workspace(), username="anna")


@pytest.fixture
def east(editor):
    return make.cluster(editor.workspace)


def names(page: queries.Page) -> list[str]:
    return [run.name for run in page.items]


# ---- lists ----


def test_pages_follow_each_other_without_gap_or_repeat_newest_first(editor, east) -> None:
    for number in range(7):
        make.submit(editor, east, f"run-{number}", now=after(number // 2))  # several in the same instant
    seen, after_cursor = [], None
    while True:
        page = queries.list_runs(editor, after=after_cursor, limit=3)
        seen += names(page)
        if page.next is None:
            break
        after_cursor = page.next
    assert seen == [f"run-{number}" for number in reversed(range(7))]


def test_a_page_of_exactly_all_runs_has_no_next(editor, east) -> None:
    make.submit(editor, east)
    assert queries.list_runs(editor, limit=1).next is None


@pytest.mark.parametrize("after_cursor", ["x", "!!", "MjAyNg", "\x00", "é", "YWJjIDE", "MjAyNi0xMC0wMSAx", "a" * 5000])
def test_a_cursor_that_nobody_gave_is_a_validation_error(editor, after_cursor) -> None:
    with pytest.raises(ValidationError):
        queries.list_runs(editor, after=after_cursor)


@pytest.mark.parametrize("asked", [{"state": "Sleeping"}, {"limit": 0}, {"limit": 501}])
def test_an_unknown_filter_is_a_validation_error(editor, asked) -> None:
    with pytest.raises(ValidationError):
        queries.list_runs(editor, **asked)


def test_lists_filter_by_state_owner_name_label_and_cluster(editor, east) -> None:
    other = make.access(editor.workspace, username="bob")
    west = make.cluster(editor.workspace, slug="gpu-west")
    make.submit(editor, east, "resnet50")
    make.submit(other, west, "llama-sft")
    stop_run(editor, make.submit(editor, east, "old"), "", T0)
    Run.objects.filter(name="llama-sft").update(labels={"team": "nlp"})
    listed = lambda **asked: sorted(names(queries.list_runs(editor, **asked)))  # noqa: E731
    assert listed() == ["llama-sft", "resnet50"]
    assert listed(state="ended") == ["old"]
    assert listed(state="Cancelled") == ["old"]
    assert listed(state="all") == ["llama-sft", "old", "resnet50"]
    assert listed(mine=True) == ["resnet50"]
    assert listed(search="RESNET") == ["resnet50"]
    assert listed(search="bob") == ["llama-sft"]
    assert listed(search="team") == listed(search="team=nlp") == ["llama-sft"]
    assert listed(search="team=vision") == []
    assert listed(search="100%_\x00'") == []
    assert listed(cluster="gpu-west") == ["llama-sft"]
    assert queries.state_counts(editor) == {"active": 2, "ended": 1, "all": 3}
    assert queries.state_counts(editor, search="resnet") == {"active": 1, "ended": 0, "all": 1}


def test_deleted_runs_are_listed_only_when_asked_for(editor, east) -> None:
    delete_run(editor, make.submit(editor, east, "gone"), T0)
    assert names(queries.list_runs(editor, state="all")) == []
    assert names(queries.list_runs(editor, state="all", deleted=True)) == ["gone"]


def test_nothing_of_another_workspace_is_seen(editor, east) -> None:
    stranger = make.access(make.workspace(editor.workspace.organisation, "nlp"))
    make.submit(editor, east, "secret")
    assert names(queries.list_runs(stranger, state="all", deleted=True)) == []
    assert queries.state_counts(stranger)["all"] == 0
    for read in (queries.get_run, queries.get_worker):
        with pytest.raises(NotFound):
            read(stranger, "gpu-east", "secret" if read is queries.get_run else "secret-0")
    with pytest.raises(NotFound):
        queries.get_namespace(stranger, "gpu-east")


def test_a_deleted_run_and_its_workers_are_not_found(editor, east) -> None:
    run = make.submit(editor, east, "gone")
    delete_run(editor, run, T0)
    with pytest.raises(NotFound):
        queries.get_run(editor, "gpu-east", "gone")
    with pytest.raises(NotFound):
        queries.get_worker(editor, "gpu-east", "gone-0")


# ---- pages ----


def test_workers_come_by_rank_with_their_newest_attempt(editor, east) -> None:
    on = make.machine(east, "gpu-07")
    run = make.submit(editor, east, array={"count": 3})
    first = make.run_on(make.workers(run)[1], on)
    make.report_end(first, exit_code=1)
    workers = queries.workers_of(run)
    assert [worker.rank for worker in workers] == [0, 1, 2]
    assert [worker.newest and worker.newest.machine.name for worker in workers] == [None, "gpu-07", None]
    assert queries.get_worker(editor, "gpu-east", workers[1].name).newest == first
    assert queries.attempts_of(workers[1]) == [first]


def test_histories_are_told_oldest_first(editor, east) -> None:
    run = make.submit(editor, east)
    make.run_on(make.workers(run)[0], make.machine(east), after(5))
    assert [move.state for move in queries.history_of_run(run)] == ["Pending", "Starting", "Running"]
    assert [move.state for move in queries.history_of_worker(make.workers(run)[0])][0] == "Pending"


def test_use_counts_what_live_attempts_hold(editor, east) -> None:
    on = make.machine(east, cpu=8, gpus=4)
    run = make.submit(editor, east, gpus=2, cpu=1)
    attempt = make.place(make.workers(run)[0], on, gpus=[1, 3])
    namespace = queries.get_namespace(editor, "gpu-east")
    assert queries.use_of(namespace) == queries.Use(gpus=2, cpu_milli=2000, memory_bytes=2 * GIB, runs=1)
    assert queries.use_of_machines([on.pk]) == {on.pk: (2000, 2 * GIB, [1, 3])}
    assert queries.held_by([run]) == queries.Held(workers=1, gpus=2)
    make.report(attempt, (Phase.FORGOTTEN, 0.0))
    assert queries.use_of(namespace) == queries.Use(0, 0, 0, 0)
    assert queries.use_of_machines([on.pk]) == {on.pk: (0, 0, [])}


def test_the_number_of_queries_does_not_grow_with_the_rows(editor, east) -> None:
    on = make.machine(east, cpu=100, memory=100 * GIB)

    def cost() -> list[int]:
        page, counts = queries.list_runs(editor, state="all"), []
        run = page.items[0]
        reads = (
            lambda: queries.list_runs(editor, state="all").items[0].namespace.cluster.slug,
            lambda: queries.state_counts(editor),
            lambda: queries.task_counts(page.items),
            lambda: [worker.newest and worker.newest.machine.name for worker in queries.workers_of(run)],
            lambda: queries.history_of_run(run),
            lambda: queries.get_worker(editor, "gpu-east", f"{run.name}-0").run.namespace.cluster.slug,
            lambda: queries.use_of(run.namespace),
        )
        for read in reads:
            with CaptureQueriesContext(connection) as captured:
                read()
            counts.append(len(captured))
        return counts

    make.run_on(make.workers(make.submit(editor, east))[0], on)
    few = cost()
    for number in range(3):
        for worker in make.workers(make.submit(editor, east, now=after(number), array={"count": 5})):
            make.run_on(worker, on)
    assert cost() == few == [1, 1, 1, 2, 1, 2, 1]
