"""A workspace's events: one list over several histories, read on without loss, and nobody else's."""

import psycopg
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from astraconsole.errors import ValidationError
from astraconsole.tenancy import services as tenancy
from astraconsole.tenancy.models import Membership
from astraconsole.tenancy.permissions import Role
from machines import services as machine_services
from machines.models import Namespace
from runs import event_queries
from runs.event_positions import END, LAST, Position, Source, parse_position
from runs.event_queries import Event, Wanted
from runs.services import placing
from runs.services.deleting import delete_run
from runs.services.stopping import stop_run
from tests import builders
from tests.api_calls import MOMENT, WORKSPACE, Caller, refused, run_resnet50
from tests.builders import after
from tests.world import World, make_world

EVERYTHING = Wanted()


@pytest.fixture
def world(db: None) -> World:
    return make_world()


def listed(world: World, **filters: str) -> list[tuple[str, str, str, str]]:
    page = event_queries.newest(
        world.workspace.pk, event_queries.wanted(**{"name": "", "kind": "", "actor": ""} | filters)
    )
    return [(event.kind, event.name, event.state, event.actor) for event in page.items]


# ---- positions ----

numbers = st.integers(0, LAST)


@given(numbers, st.sampled_from(Source), numbers, numbers, st.sampled_from(Source), numbers)
def test_a_position_is_read_back_and_cuts_each_source_where_it_stands(
    tx: int, source: Source, row: int, other_tx: int, other_source: Source, other_row: int
) -> None:
    position, other = Position(tx, source, row), Position(other_tx, other_source, other_row)
    assert parse_position(str(position), "after") == position
    assert (other < position) == ((other_tx, other_row) < position.before(other_source)) or other_row in (0, LAST)


@pytest.mark.parametrize("text", ["", "1", "1.2", "1.2.3.4", "a.b.c", "1.2.-3", "²·1.1", f"1.1.{2**63}", "1.1.1 "])
def test_what_is_no_position_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_position(text, "after")
    assert caught.value.detail[0]["field"] == "after"


# ---- the list ----


def test_the_list_has_runs_workers_machines_and_what_people_did_newest_first(world_committed: World) -> None:
    world = world_committed
    run_resnet50(world)
    machine_services.cordon(world.access(Role.ADMIN), world.machine, "new cable", after(20))
    tenancy.remove_member(world.access(Role.ADMIN), world.member_id)
    found = listed(world)
    assert found[0] == ("member", "viewer", "Removed", "admin")
    assert found[1] == ("machine", "gpu-07", "Cordoned", "admin")
    assert ("worker", "resnet50-0", "Running", "machine gpu-08") in found
    assert ("run", "resnet50", "Pending", "editor") in found
    assert {("credential", "hf-token", "Added", "admin"), ("schedule", "nightly", "Added", "editor")} <= set(found)
    page = event_queries.newest(world.workspace.pk, EVERYTHING)
    assert [event.position for event in page.items] == sorted((e.position for e in page.items), reverse=True)


def test_paging_gives_every_event_once(world: World) -> None:
    run_resnet50(world)
    whole = event_queries.newest(world.workspace.pk, EVERYTHING, limit=500)
    pieces: list[Event] = []
    cursor: str | None = str(END)
    while cursor is not None:
        page = event_queries.newest(world.workspace.pk, EVERYTHING, parse_position(cursor, "after"), 3)
        pieces += page.items
        cursor = page.next
    assert pieces == whole.items
    assert whole.next is None


def test_filters_narrow_the_list(world: World) -> None:
    run_resnet50(world)
    builders.submit(world.access(), world.cluster, "other", cpu=1)
    assert {name for _, name, _, _ in listed(world, name="resnet50")} == {"resnet50", "resnet50-0"}
    assert {name for _, name, _, _ in listed(world, name="resnet50-0")} == {"resnet50-0"}
    assert {kind for kind, *_ in listed(world, name="resnet50", kind="run")} == {"run"}
    assert {kind for kind, *_ in listed(world, kind="worker")} == {"worker"}
    assert {actor for *_, actor in listed(world, actor="machine gpu-08")} == {"machine gpu-08"}
    assert {actor for *_, actor in listed(world, actor="editor")} == {"editor"}
    assert {actor for *_, actor in listed(world, actor="scheduler")} == {"scheduler"}
    assert listed(world, name="imagenet", kind="drive") == [("drive", "imagenet", "Added", "admin")]
    assert listed(world, name="resnet") == []


def test_a_deleted_runs_events_stay_under_its_name_and_its_workers(world: World) -> None:
    attempt, _ = run_resnet50(world)
    delete_run(world.access(), world.run, after(30))
    builders.report_end(attempt, at=after(31))
    assert ("run", "resnet50", "Cancelled", "editor") in listed(world, name="resnet50", kind="run")
    assert ("worker", "resnet50-0", "Cancelled", "editor") in listed(world, name="resnet50-0")


def test_a_stop_says_in_the_runs_history_who_asked_for_it(world: World) -> None:
    run_resnet50(world)
    stop_run(world.access(), world.run, "wrong data", after(20))
    stop_run(world.access(), world.run, "", after(21))
    assert builders.moves_of(world.run)[-1] == ("Running", "Stopping: Stopped by editor: wrong data")
    assert [move for move in listed(world, kind="run") if move[2] == "Running"][0][3] == "editor"


def test_another_workspace_sees_nothing_but_what_became_of_shared_machines(world: World) -> None:
    """acme/nlp shares gpu-east, and not lab."""
    run_resnet50(world)
    shared = builders.machine(world.cluster, "gpu-20")
    nlp = Membership.objects.get(user=world.neighbour).workspace
    machine_services.cordon_failing(shared.pk, "fails whatever it is given", after(40))
    machine_services.cordon(world.access(Role.ADMIN), world.machine, "of lab alone", after(41))
    seen = event_queries.newest(nlp.pk, EVERYTHING).items
    assert {(event.kind, event.name) for event in seen} <= {("machine", "gpu-20"), ("machine", "gpu-08")}
    for filters in (Wanted(name="resnet50"), Wanted(name="resnet50-0"), Wanted(name="gpu-07"), Wanted(actor="editor")):
        assert event_queries.newest(nlp.pk, filters).items == []


def test_any_page_takes_one_query(world: World) -> None:
    run_resnet50(world)
    for filters in (EVERYTHING, Wanted(name="resnet50"), Wanted(kind="worker"), Wanted(actor="editor")):
        with CaptureQueriesContext(connection) as queries:
            assert event_queries.newest(world.workspace.pk, filters).items
        assert len(queries) == 1


def test_what_staff_give_a_workspace_of_a_cluster_is_an_event(world: World) -> None:
    share = Namespace.objects.get(workspace=world.workspace, cluster=world.cluster)
    client = Client()
    client.force_login(world.staff)
    given = {"workspace": share.workspace_id, "cluster": share.cluster_id, "quota_gpus": 16, "weight": 2}
    answer = client.post(f"/admin/machines/namespace/{share.pk}/change/", {**given, "max_priority": 5, "pools": ""})
    assert answer.status_code == 302
    (event, *_) = event_queries.newest(world.workspace.pk, Wanted(kind="quota")).items
    assert (event.name, event.state, event.actor) == ("gpu-east", "Changed", "staff")
    assert event.reason == "16 GPUs, weight 2, priority at most 5"


# ---- reading on ----


def test_reading_on_passes_over_nothing_that_is_committed_later(world_committed: World) -> None:
    """A transaction takes its number, another one writes and commits: the later number is seen first."""
    world = world_committed
    start = event_queries.settled_end()
    parameters = connection.get_connection_params()
    parameters = {
        name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if name in parameters
    }
    insert = """INSERT INTO tenancy_auditevent (workspace_id, kind, name, state, reason, actor, at)
        VALUES (%s, 'member', %s, 'Added', '', 'ada', now())"""
    with psycopg.connect(**parameters) as early:
        early.execute(insert, [world.workspace.pk, "early"])
        builders.submit(world.access(), world.cluster, "late")
        step = event_queries.read_on(world.workspace.pk, EVERYTHING, start)
        assert (step.items, step.unsettled) == ([], True)
    first = event_queries.read_on(world.workspace.pk, EVERYTHING, start, limit=2)
    assert [event.name for event in first.items] == ["early", "late"]
    assert first.full
    rest = event_queries.read_on(world.workspace.pk, EVERYTHING, first.reached)
    assert [event.name for event in rest.items] == ["late-0"]
    assert event_queries.read_on(world.workspace.pk, EVERYTHING, rest.reached).items == []


@pytest.fixture
def world_committed(transactional_db: None) -> World:
    return make_world()


# ---- API and page ----


def test_the_api_lists_events_in_the_documented_shape(world: World) -> None:
    run_resnet50(world)
    caller = Caller(world)
    answer = caller.get(f"{WORKSPACE}/events", name="resnet50", limit=2).json()
    assert [set(item) for item in answer["items"]] == [
        {"id", "at", "kind", "name", "run", "cluster", "state", "reason", "actor"}
    ] * 2
    newest = answer["items"][0]
    assert (newest["run"], newest["cluster"]) == ("resnet50", "gpu-east")
    assert MOMENT.fullmatch(newest["at"])
    assert answer["next"] == answer["items"][1]["id"]
    older = caller.get(f"{WORKSPACE}/events", name="resnet50", after=answer["next"]).json()
    assert older["next"] is None
    assert not {item["id"] for item in older["items"]} & {item["id"] for item in answer["items"]}


@pytest.mark.parametrize(
    ("field", "value"),
    [("kind", "runs"), ("after", "yesterday"), ("limit", "0"), ("limit", "501"), ("limit", "x"), ("name", "a" * 201)],
)
def test_a_bad_parameter_is_named(world: World, field: str, value: str) -> None:
    body = refused(Caller(world).get(f"{WORKSPACE}/events", **{field: value}), 400, "VALIDATION_ERROR")
    assert body["detail"][0]["field"] == field


def test_an_unknown_parameter_is_refused(world: World) -> None:
    refused(Caller(world).get(f"{WORKSPACE}/events", run="x"), 400, "UNKNOWN_FIELD")


def test_the_quota_that_a_run_waits_for_stands_in_its_history_once(db: None) -> None:
    workspace = builders.workspace()
    access = builders.access(workspace)
    run = builders.submit(access, builders.cluster(workspace, quota_gpus=8), "big")
    for used in (8, 7):
        placing.store_pending([(run.pk, "quota_gpus", {"wanted": 1, "used": used, "limit": 8})], timezone.now())
    placing.store_pending([(run.pk, "queued", {})], timezone.now())
    entries = [reason for _, reason in builders.moves_of(run)]
    assert len(entries) == 2
    assert entries[1].startswith("Waits for namespace quota: 8 of 8 GPUs")


def test_the_page_shows_filters_and_pages_without_scripts(world: World) -> None:
    run_resnet50(world)
    client = Client()
    client.force_login(world.members[Role.VIEWER])
    page = client.get("/o/acme/w/vision/events").content.decode()
    assert 'href="/o/acme/w/vision/jobs/gpu-east/resnet50"' in page
    assert 'http-equiv="refresh"' in page
    fragment = client.get("/o/acme/w/vision/events?kind=worker", HTTP_HX_REQUEST="true").content.decode()
    assert "<html" not in fragment
    assert "resnet50-0" in fragment
    assert "credential" not in fragment
    bad = client.get("/o/acme/w/vision/events?kind=nothing")
    assert "kind must be one of run, worker, machine" in bad.content.decode()
