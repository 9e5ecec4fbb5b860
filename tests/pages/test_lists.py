"""Every page, the runs list and the machines, as browsers get them."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.utils import timezone

from astraconsole.tenancy.permissions import Role
from machines.models import Machine
from machines.protocol import EndReason
from runs.scheduling.loop import run_once
from tests import builders
from tests.pages.place import HTMX, Place, signed_in, text_of

pytestmark = pytest.mark.django_db


# ---- every page ----


def test_pages_hold_nothing_inline_and_say_so_to_the_browser(place: Place) -> None:
    place.submit("resnet50")
    for path in ("/runs", "/new-run", "/jobs/gpu-east/resnet50", "/machines", "/members", "/nowhere"):
        answer = place.client.get(place.base + path)
        assert "default-src 'self'" in answer["Content-Security-Policy"]
        html = answer.content.decode()
        assert not re.search(r"<script(?![^>]* src=)|<style|<[^>]+ (style|on\w+)=", html), path


# ---- the runs list ----


def test_the_list_shows_each_run_with_state_reason_cluster_and_owner(place: Place) -> None:
    place.submit("resnet50", gpus=1)
    row = text_of(place.get("/runs").split("<tbody>")[1])
    assert row.startswith("resnet50 Pending Run created gpu-east 1 " + place.access.actor)


def test_an_empty_list_says_how_to_begin(place: Place) -> None:
    assert "No runs yet" in place.get("/runs")
    assert "No run matches" in place.get("/runs?search=x")


def test_the_list_is_narrowed_by_group_state_name_owner_and_cluster(place: Place) -> None:
    place.submit("active-1")
    builders.submit(builders.access(place.workspace), place.cluster, "theirs")
    assert shown(place, "") == {"active-1", "theirs"}
    assert shown(place, "?mine=1") == {"active-1"}
    assert shown(place, "?search=ACTIVE") == {"active-1"}
    assert shown(place, "?state=Pending&search=the") == {"theirs"}
    assert shown(place, "?state=ended") == shown(place, "?state=Failed") == shown(place, "?cluster=other") == set()


def shown(place: Place, query: str) -> set[str]:
    return set(re.findall(r'id="run-\w+" href="[^"]*">([^<]*)<', place.get(f"/runs{query}")))


def test_htmx_gets_the_list_alone_with_the_counts_of_the_groups(place: Place) -> None:
    place.submit("resnet50")
    fragment = place.get("/runs?search=res", **HTMX)
    assert "<html" not in fragment
    assert fragment.lstrip().startswith('<section class="live-region" id="runs"')
    assert "Active 1" in text_of(fragment)


def test_pages_follow_each_other_without_gap_or_overlap(place: Place) -> None:
    names = {place.submit(f"run-{number:03}").name for number in range(55)}
    first = place.get("/runs")
    following = re.search(r'href="(\?after=[^"]*)"', first)
    assert following is not None
    rest = shown(place, following[1].replace("&amp;", "&"))
    assert len(shown(place, "")) == 50
    assert shown(place, "") | rest == names
    assert not shown(place, "") & rest


def test_a_viewer_is_offered_nothing_to_change() -> None:
    place = Place(Role.EDITOR)
    run = place.submit("resnet50")
    viewer = builders.access(place.workspace, Role.VIEWER)
    for path in ("/runs", f"/jobs/gpu-east/{run.name}", "/workers/gpu-east/resnet50-0?tab=history"):
        html = signed_in(viewer).get(place.base + path).content.decode()
        for offer in ("New run", "Delete", "Stop", "Run again", "data-pick-all"):
            assert offer not in html, (path, offer)


QUERIES = {
    "/runs": 9,
    "/runs?state=all": 9,
    "/jobs/gpu-east/first": 14,
    "/jobs/gpu-east/first?tab=history": 15,
    "/machines": 11,
    "/new-run": 9,
}


@pytest.mark.parametrize("path", QUERIES)
def test_a_page_costs_as_many_queries_for_many_rows_as_for_few(
    place: Place, path: str, django_assert_max_num_queries: Any
) -> None:
    fill(place, "first", machines=1)
    with django_assert_max_num_queries(QUERIES[path]) as few:
        place.get(path)
    for number in range(15):
        fill(place, f"more-{number}", machines=2)
    with django_assert_max_num_queries(QUERIES[path]) as many:
        place.get(path)
    assert len(many) == len(few)


def fill(place: Place, name: str, machines: int) -> None:
    place.submit(name, array={"count": 3}, cpu=97)
    for _ in range(machines):
        builders.machine(place.cluster, gpus=2)
    run_once(place.cluster.pk, timezone.now())


# ---- machines ----


def test_machines_show_room_slots_runtime_and_what_is_simulated(place: Place) -> None:
    place.machine.gpus.update(simulated=True)
    run = place.submit("llama", gpus=3)
    builders.run_on(run.workers.get(), place.machine, timezone.now(), gpus=[0, 1, 2])
    html = place.get("/machines")
    card = text_of(html)
    assert "Cores 3 of 96" in card
    assert "simulated 3 of 8" in card
    assert html.count("<i data-held") == 3
    assert "the image is not used. For trusted users." in card


def test_a_clock_that_is_off_is_told(place: Place) -> None:
    Machine.objects.update(clock_skew_seconds=-41)
    assert "Its clock is 41s behind" in text_of(place.get("/machines"))
    Machine.objects.update(clock_skew_seconds=0.3)
    assert "Its clock" not in place.get("/machines")


def test_a_machines_page_tells_of_its_agent(place: Place) -> None:
    at = datetime(2026, 10, 1, 1, 2, 3, tzinfo=UTC)
    Machine.objects.update(agent_version="1.2", boot_id="b0071d", connected_at=at, clock_skew_seconds=0.25)
    page = text_of(place.get("/machines/gpu-east/gpu-07"))
    assert (
        "Version 1.2 Connected since 1 Oct 2026 01:02:03 UTC Boot b0071d Clock as the console's (0.25 s) Stop grace 30s"
        in page
    )
    Machine.objects.update(connection="")
    assert "no; last since 1 Oct 2026" in text_of(place.get("/machines/gpu-east/gpu-07"))


def test_adding_a_machine_prints_the_command_with_a_token_of_its_own() -> None:
    place = Place(Role.ADMIN)
    html = place.post("/machines/add", cluster="gpu-east").content.decode()
    assert re.search(r"astra_join_[\w-]{43}", html)
    assert "astra-agent run --console http://testserver --join-token-file join-token" in html
    assert "astra_join_" not in place.get("/machines/add")


def test_a_workspace_without_a_cluster_gets_one_with_its_first_machine() -> None:
    workspace = builders.workspace(builders.organisation("acme"))
    client = signed_in(builders.access(workspace, Role.ADMIN))
    assert "has no cluster yet" in client.get("/o/acme/w/vision/new-run").content.decode()
    answer = client.post("/o/acme/w/vision/machines/add", {"cluster": "lab"})
    assert "astra_join_" in answer.content.decode()
    assert "lab" in client.get("/o/acme/w/vision/new-run").content.decode()


def test_a_cordon_needs_a_reason_and_shows_it() -> None:
    place = Place(Role.ADMIN)
    assert "must have 1 to 300 characters" in place.post("/machines/gpu-east/gpu-07/cordon").content.decode()
    place.post("/machines/gpu-east/gpu-07/cordon", reason="new firmware")
    assert "Takes no new work: new firmware" in text_of(place.get("/machines"))
    place.post("/machines/gpu-east/gpu-07/uncordon")
    assert "Takes no new work" not in place.get("/machines")


def test_removing_a_machine_needs_its_typed_name() -> None:
    place = Place(Role.ADMIN)
    for typed in ("", "gpu-0"):
        assert "is not its name" in place.post("/machines/gpu-east/gpu-07/remove", typed=typed).content.decode()
    assert place.post("/machines/gpu-east/gpu-07/remove", typed="gpu-07").url == "/o/acme/w/vision/machines"
    place.get("/machines")  # which says that it was
    assert "gpu-07" not in text_of(place.get("/machines"))


def test_a_drain_needs_a_reason_and_shows_how_far_it_is() -> None:
    place = Place(Role.ADMIN)
    assert "must have 1 to 300 characters" in place.post("/machines/gpu-east/gpu-07/drain").content.decode()
    attempt = builders.run_on(builders.workers(place.submit("busy"))[0], place.machine, timezone.now())
    place.post("/machines/gpu-east/gpu-07/drain", reason="new firmware")
    page = text_of(place.get("/machines/gpu-east/gpu-07"))
    assert "Takes no new work, and gives back what it runs: new firmware" in page
    assert "Draining new firmware" in page  # its history
    builders.report_end(attempt, exit_code=143, reason=EndReason.STOPPED, at=timezone.now())
    page = text_of(place.get("/machines"))
    assert "Drained" in page
    assert "Empty, and takes no new work: new firmware" in page
    place.post("/machines/gpu-east/gpu-07/uncordon")
    assert "Takes work again" in text_of(place.get("/machines/gpu-east/gpu-07"))
