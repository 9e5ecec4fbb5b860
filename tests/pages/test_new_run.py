"""The New run form and its JSON, as browsers get them."""

import json
import re
from typing import Any

import pytest

from runs.models import Run
from tests import builders
from tests.builders import GIB
from tests.pages.place import Place, notes_of, text_of

pytestmark = pytest.mark.django_db


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


def test_credentials_are_asked_for_by_name(place: Place) -> None:
    page = place.get("/new-run")
    assert 'id="credentials"' in page
    assert 'id="registry"' in page


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
        ({"gpus": "8"}, "Starts at once on gpu-07 1 worker, 8 GPUs"),
        ({"gpus": "9"}, "Can never run: 9 GPUs asked, the machines that qualify have 8 in all"),
        ({"cpu": "97"}, "Can never run: no machine has"),
        ({"gpus": "4", "machines": "3"}, "Can never run: 4 GPUs do not split evenly over 3 machines"),
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
        (json.dumps(builders.body(lifetime="Forever")), "must be one of"),
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


def test_run_again_opens_with_a_change_that_was_offered(place: Place) -> None:
    run = place.submit("resnet50", gpus=8)
    body = json_of(place.get(f"/new-run?again=gpu-east/{run.name}&change=gpus%3D4"))
    assert body["spec"]["task_template"]["requested_resources"]["gpu_requests"]["count"] == 4
    assert json_of(place.get(f"/new-run?again=gpu-east/{run.name}&change=nonsense"))["spec"] == run.spec


def test_run_again_shortens_the_longest_name(place: Place) -> None:
    run = place.submit("r" * 55)
    name = json_of(place.get(f"/new-run?again=gpu-east/{run.name}"))["metadata"]["name"]
    assert name == "r" * 51 + "-again"
