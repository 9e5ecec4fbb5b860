"""Pages of runs, workers and machines, as browsers get them."""

import json
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from astraconsole.tenancy.permissions import Role
from astraconsole.tenancy.queries import Access
from machines.models import Machine
from machines.protocol import EndReason
from runs.models import Run
from runs.scheduling.loop import run_once
from tests import builders
from tests.builders import GIB

pytestmark = pytest.mark.django_db
HTMX = {"HTTP_HX_REQUEST": "true"}


class Place:
    """One workspace on one cluster with a machine of 8 GPUs, seen by somebody signed in."""

    def __init__(self, role: Role = Role.EDITOR) -> None:
        self.workspace = builders.workspace(builders.organisation("acme"))
        self.cluster = builders.cluster(self.workspace, quota_gpus=64, weight=2, pools=["train"])
        self.machine = builders.machine(
            self.cluster, "gpu-07", cpu=96, memory=1024 * GIB, gpus=8, labels={"pool": "train"}
        )
        self.access = builders.access(self.workspace, role)
        self.client = signed_in(self.access)
        self.base = "/o/acme/w/vision"

    def submit(self, name: str, **asked: Any) -> Run:
        return builders.submit(self.access, self.cluster, name, now=timezone.now(), **asked)

    def get(self, path: str, **options: Any) -> str:
        answer = self.client.get(self.base + path, **options)
        assert answer.status_code == 200, answer.content
        return answer.content.decode()

    def post(self, path: str, **data: Any) -> Any:
        return self.client.post(self.base + path, data)


@pytest.fixture
def place() -> Place:
    return Place()


def signed_in(access: Access) -> Client:
    client = Client()
    client.force_login(access.user)
    return client


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def notes_of(html: str, field: str) -> str:
    """What stands under a field of the form."""
    found = re.search(rf'<div [^>]*id="notes-{field}".*?</div>', html, re.DOTALL)
    assert found is not None
    return text_of(found[0])


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


# ---- New run ----

FORM = {
    "cluster": "gpu-east",
    "name": "resnet50",
    "image": "busybox",
    "command": "echo",
    "args": "hello",
    "gpus": "0",
    "cpu": "1",
    "memory": "1Gi",
}


def test_the_form_starts_a_run_and_leads_to_its_page(place: Place) -> None:
    answer = place.post("/new-run", **{**FORM, "args": "'two words' $X"})
    assert answer.url == "/o/acme/w/vision/jobs/gpu-east/resnet50"
    assert Run.objects.get().spec["task_template"]["args"] == ["two words", "$X"]


@pytest.mark.parametrize(
    ("field", "text", "told"),
    [
        ("name", "Resnet", "lower case"),
        ("image", "", "required"),
        ("gpus", "x", "not a whole number"),
        ("memory", "64Q", "not a size"),
        ("time_limit", "never", "not a duration"),
        ("priority", "50", "above"),
        ("env", "nothing", "not KEY=value"),
    ],
)
def test_an_error_stands_beside_its_field_and_what_was_typed_stays(
    place: Place, field: str, text: str, told: str
) -> None:
    answer = place.post("/new-run", **{**FORM, field: text})
    assert answer.status_code in (400, 403)
    html = answer.content.decode()
    assert told in notes_of(html, field)
    assert all(
        not re.search('class="error"', notes_of(html, other)) for other in FORM if other not in ("cluster", field)
    )
    assert 'value="busybox"' in html or field == "image"
    assert not Run.objects.exists()


def test_a_name_that_is_taken_is_told_beside_the_name(place: Place) -> None:
    place.submit("resnet50")
    answer = place.post("/new-run", **FORM)
    assert answer.status_code == 409
    assert "resnet50" in notes_of(answer.content.decode(), "name")


def test_fields_whose_feature_does_not_exist_are_not_shown(place: Place) -> None:
    assert not re.search("Drives|Credentials", place.get("/new-run"))


def test_the_panel_shows_quota_weight_priority_and_pools(place: Place) -> None:
    panel = text_of(place.get("/new-run").split('id="aside"')[1])
    assert "0 of 64 GPUs" in panel
    assert "Weight 2" in panel
    assert "Max priority 0" in panel
    assert "Pools train" in panel


def test_while_typing_values_are_echoed_and_errors_told(place: Place) -> None:
    html = place.post(
        "/new-run/check", **{**FORM, "gpus": "2", "memory": "64G", "cpu": "x", "name": ""}
    ).content.decode()
    assert notes_of(html, "memory") == "64 GiB each, 128 GiB in all"
    assert "not a number of cores" in notes_of(html, "cpu")
    assert "required" not in notes_of(html, "name")
    assert notes_of(html, "args") == "[&quot;hello&quot;]"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"gpus": "8"}, "1 worker 8 GPUs"),
        ({"gpus": "9"}, "Can never run as it is"),
        ({"cpu": "97"}, "Can never run as it is"),
        ({"gpus": "4", "machines": "3"}, "Can never run as it is Cannot plan workers"),
    ],
)
def test_the_form_foretells_what_would_become_of_the_run(place: Place, changes: dict[str, str], told: str) -> None:
    html = place.post("/new-run/check", **{**FORM, "cpu": "", "memory": "", **changes}).content.decode()
    assert told in text_of(html.split('id="aside"')[1])


def test_edit_as_json_shows_the_forms_run_as_the_apis_body(place: Place) -> None:
    html = place.post("/new-run", **FORM, action="json").content.decode()
    assert json_of(html)["spec"]["task_template"] == {
        "image": "busybox",
        "command": "echo",
        "args": ["hello"],
        "requested_resources": {"cpu_cores": 1, "memory_bytes": GIB},
    }


def json_of(html: str) -> Any:
    found = re.search(r"<textarea[^>]*>(.*)</textarea>", html, re.DOTALL)
    assert found is not None
    text = found[1]
    for code, sign in (("&quot;", '"'), ("&#x27;", "'"), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(code, sign)
    return json.loads(text)


def test_a_run_is_started_from_json(place: Place) -> None:
    body = json.dumps(builders.body("from-json"))
    answer = place.post("/new-run", mode="json", cluster="gpu-east", body=body)
    assert answer.url == "/o/acme/w/vision/jobs/gpu-east/from-json"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("{", "this is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("1" * 5000, "this is not JSON"),
        ('{"a": 1, "a": 2}', "the field a is there twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[]", "object"),
        (json.dumps({**builders.body(), "x": 1}), "fields this API does not know: x"),
        (json.dumps(builders.body("Upper")), "lower case"),
        (json.dumps(builders.body(start="Gang")), "does not work yet"),
    ],
)
def test_bad_json_is_refused_with_its_reason_and_stays(place: Place, body: str, told: str) -> None:
    answer = place.post("/new-run", mode="json", cluster="gpu-east", body=body)
    assert answer.status_code == 400
    assert told in text_of(answer.content.decode())
    assert not Run.objects.exists()


def test_run_again_opens_the_runs_json_under_a_new_name(place: Place) -> None:
    run = place.submit("resnet50", gpus=1, template={"args": ["a b"]})
    body = json_of(place.get(f"/new-run?again=gpu-east/{run.name}"))
    assert body["metadata"]["name"] == "resnet50-again"
    assert body["spec"] == run.spec
    assert place.post("/new-run", mode="json", cluster="gpu-east", body=json.dumps(body)).status_code == 302


def test_run_again_shortens_the_longest_name(place: Place) -> None:
    run = place.submit("r" * 55)
    name = json_of(place.get(f"/new-run?again=gpu-east/{run.name}"))["metadata"]["name"]
    assert name == "r" * 51 + "-again"


# ---- a run's page ----


def test_a_waiting_run_says_why_by_machine(place: Place) -> None:
    first = place.submit("first", gpus=8)
    builders.run_on(first.workers.get(), place.machine, timezone.now(), gpus=range(8))
    run = place.submit("second", gpus=8)
    run_once(place.cluster.pk, timezone.now())
    run.refresh_from_db()
    html = text_of(place.get("/jobs/gpu-east/second"))
    assert run.status_reason in html
    assert "Why it waits No run is ahead of it" in html
    assert "1 8 GPUs wanted, at most 0 free gpu-07" in html


def test_a_run_that_can_never_start_is_told_apart_from_one_that_waits(place: Place) -> None:
    place.submit("wide", gpus=9)
    run_once(place.cluster.pk, timezone.now())
    html = text_of(place.get("/jobs/gpu-east/wide"))
    assert "It can never start as it is" in html
    assert "ahead" not in html


def test_a_running_run_shows_workers_machines_gpus_and_time_left(place: Place) -> None:
    run = place.submit("llama", gpus=8, template={"time_limit_seconds": 43200})
    builders.run_on(run.workers.get(), place.machine, timezone.now(), gpus=range(8))
    html = text_of(place.get("/jobs/gpu-east/llama"))
    assert "Workers 1 of 1 running GPUs 8" in html
    assert "Machines 1 gpu-07 Time left" in html
    assert "of 12h" in html


def failed(place: Place, name: str = "oom", **asked: Any) -> Run:
    run = place.submit(name, template={"restart_policy": "Never"}, **asked)
    attempt = builders.run_on(run.workers.get(), place.machine, timezone.now())
    now = timezone.now()
    builders.report_end(attempt, 137, EndReason.OOM_KILLED, at=now, log_tail="step 4410 loss 1.402\n<Killed>\n")
    return run


def test_a_failed_run_leads_with_what_happened_what_to_do_and_its_log(place: Place) -> None:
    failed(place)
    html = place.get("/jobs/gpu-east/oom")
    panel = html.split('aria-label="Failure"')[1].split("</section>")[0]
    assert "It ran out of memory" in panel
    assert "OOMKilled: the container exceeded its memory limit" in panel
    assert "exit code 137" in panel
    assert "step 4410 loss 1.402" in panel
    assert "&lt;Killed&gt;" in panel
    assert "?tab=logs&amp;worker=oom-0" in panel


def test_a_worker_that_restarts_in_a_loop_is_shown_with_its_next_try(place: Place) -> None:
    run = place.submit("loop")
    attempt = builders.run_on(run.workers.get(), place.machine, timezone.now())
    builders.report_end(attempt, 1, at=timezone.now(), log_tail="Connection refused\n")
    panel = text_of(place.get("/jobs/gpu-east/loop").split('aria-label="Restarting in a loop"')[1])
    assert "1 of 10 tries failed in a row; the next begins" in panel
    assert "Connection refused" in panel


def test_history_is_oldest_first_for_a_run_and_newest_first_for_a_worker(place: Place) -> None:
    failed(place)
    run_states = re.findall(
        r"</svg>(\w+)</span></td><td class=\"reason\">", place.get("/jobs/gpu-east/oom?tab=history")
    )
    worker_states = re.findall(
        r"</svg>(\w+)</span></td><td class=\"reason\">", place.get("/workers/gpu-east/oom-0?tab=history")
    )
    assert run_states[0] == worker_states[-1] == "Pending"
    assert run_states[-1] == worker_states[0] == "Failed"


def test_a_workers_page_shows_how_it_was_started(place: Place) -> None:
    template = {"command": "python", "args": ["two words", "$X"], "env": {"A": "<1>"}, "user": "1000"}
    run = place.submit("web", template=template)
    builders.run_on(run.workers.get(), place.machine, timezone.now())
    html = place.get("/workers/gpu-east/web-0?tab=started")
    for shown_text in (
        "busybox",
        "python",
        "[&quot;two words&quot;, &quot;$X&quot;]",
        "A=&lt;1&gt;",
        "1000",
        "OnFailure",
    ):
        assert shown_text in html
    assert "not used by this machine" in text_of(html)


def test_the_fragment_of_a_live_page_is_the_part_of_the_page_that_it_replaces(place: Place) -> None:
    failed(place)
    for path in ("/jobs/gpu-east/oom", "/jobs/gpu-east/oom?tab=history", "/workers/gpu-east/oom-0?tab=history"):
        page, fragment = place.get(path), place.get(path, **HTMX)
        assert "<html" not in fragment
        assert without_times(fragment.strip()) in without_times(page)


def without_times(html: str) -> str:
    """But for the numbers that move with the clock."""
    return re.sub(r">[\dhms]+(?= ?<)", ">", html)


def test_the_page_has_the_same_for_a_terminal(place: Place) -> None:
    place.submit("resnet50")
    html = place.get("/jobs/gpu-east/resnet50")
    assert "API=http://testserver/api/v1/orgs/acme/workspaces/vision/clusters/gpu-east/api" in html
    assert "astra astraeus status resnet50" in html


# ---- stop and delete ----


def test_the_delete_dialog_says_what_stops_and_is_freed(place: Place) -> None:
    run = place.submit("llama", gpus=8)
    builders.run_on(run.workers.get(), place.machine, timezone.now(), gpus=range(8))
    dialog = place.get("/jobs/gpu-east/llama/delete", **HTMX)
    assert "<html" not in dialog
    assert "1 worker will be stopped and 8 GPUs freed." in dialog


def test_delete_needs_the_typed_name(place: Place) -> None:
    place.submit("resnet50")
    refused = place.post("/jobs/gpu-east/resnet50/delete", typed="resnet5")
    assert "resnet5 is not its name" in refused.content.decode()
    assert Run.objects.get().deleted_at is None
    assert place.post("/jobs/gpu-east/resnet50/delete", typed="resnet50").url == "/o/acme/w/vision/runs"
    assert Run.objects.get().deleted_at is not None


def test_stop_keeps_the_run(place: Place) -> None:
    place.submit("resnet50")
    answer = place.post("/jobs/gpu-east/resnet50/stop", reason="enough")
    assert answer.url == "/o/acme/w/vision/jobs/gpu-east/resnet50"
    run = Run.objects.get()
    assert run.state == "Cancelled"
    assert run.deleted_at is None


def test_a_reason_that_cannot_be_kept_whole_is_refused(place: Place) -> None:
    run = place.submit("resnet50", gpus=1)
    for reason in ("x" * 301, "a\0b"):
        assert place.post("/jobs/gpu-east/resnet50/stop", reason=reason).status_code == 400
    run.refresh_from_db()
    assert run.state == "Pending"


def test_a_worker_is_stopped_alone(place: Place) -> None:
    place.submit("grid", array={"count": 2})
    place.post("/workers/gpu-east/grid-1/stop")
    assert sorted(Run.objects.get().workers.values_list("state", flat=True)) == ["Cancelled", "Pending"]


def test_picked_runs_are_stopped_or_deleted_together_after_a_question(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.submit(name)
    picked = ["gpu-east/a", "gpu-east/b"]
    question = place.post("/runs/bulk", do="delete", run=picked)
    assert "Delete 2 runs?" in question.content.decode()
    assert not Run.objects.exclude(deleted_at=None).exists()
    place.post("/runs/bulk", do="delete", run=picked, confirmed="1")
    assert set(Run.objects.filter(deleted_at=None).values_list("name", flat=True)) == {"c"}


@pytest.mark.parametrize("data", [{}, {"do": "delete"}, {"do": "explode", "run": "gpu-east/a"}])
def test_a_bulk_request_that_makes_no_sense_is_refused(place: Place, data: dict[str, str]) -> None:
    assert place.post("/runs/bulk", **data).status_code == 400


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


def test_the_workers_of_a_large_array_are_paged(place: Place) -> None:
    place.submit("grid", array={"count": 250})
    pages, path = [], "/jobs/gpu-east/grid"
    while path:
        html = place.get(path)
        assert "Workers 250" in text_of(html).replace("Workers <", "Workers ")
        pages.append(re.findall(r'id="worker-\w+" href="[^"]*">grid-(\d+)<', html))
        following = re.search(r'href="/o/acme/w/vision(/jobs/gpu-east/grid\?after=\d+)">Next', html)
        path = following[1] if following else ""
    assert [len(ranks) for ranks in pages] == [100, 100, 50]
    assert [int(rank) for ranks in pages for rank in ranks] == list(range(250))


def test_the_first_failure_is_shown_though_others_failed_after_it(place: Place) -> None:
    run = place.submit("grid", array={"count": 3}, template={"restart_policy": "Never"})
    for rank in (2, 0):
        attempt = builders.run_on(run.workers.get(rank=rank), place.machine, timezone.now())
        builders.report_end(attempt, rank + 1, at=timezone.now())
    panel = text_of(place.get("/jobs/gpu-east/grid").split('aria-label="Failure"')[1])
    assert panel.lstrip("> ").startswith("grid-2 on gpu-07")
