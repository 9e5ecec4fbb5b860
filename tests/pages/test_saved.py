"""Pages of templates and schedules, and the ways from and to New run."""

import json
import re
from html import unescape

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runs import saved_queries
from runs.models import Run, Schedule, Template
from runs.services import schedules
from runs.spec import parse_run
from tests import builders
from tests.pages.place import Place

SPEC = builders.body()["spec"]


def text_of(page: str) -> str:
    """What the JSON box of a page holds."""
    [text] = re.findall(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)
    return unescape(text)


def save(place: Place, name: str = "llama-70b finetune", spec: object = SPEC) -> Template:
    answer = place.client.post(
        (place.base + "/save-template"), {"name": name, "description": "16 H100", "spec": json.dumps(spec)}
    )
    assert answer.status_code == 302, answer.content
    return Template.objects.get(name=name)


def test_a_run_is_saved_as_a_template_and_started_from_it(place: Place) -> None:
    run = builders.submit(place.access, place.cluster, "resnet50", cpu=2)
    page = place.get(f"/jobs/{place.cluster.slug}/resnet50")
    assert f'/save-template?of={place.cluster.slug}/resnet50">' in page
    page = place.get(f"/save-template?of={place.cluster.slug}/resnet50")
    assert json.loads(text_of(page)) == run.spec
    template = save(place, spec=json.loads(text_of(page)))
    form = place.get("/new-run")
    assert "Start from a template…" in form
    assert f"?template={template.uid}" in form
    body = json.loads(text_of(place.get(f"/new-run?template={template.uid}")))
    assert body == {"metadata": {"name": "llama-70b-finetune"}, "spec": run.spec}
    start = {"mode": "json", "cluster": place.cluster.slug, "body": json.dumps(body), "action": "start"}
    assert place.client.post(place.base + ("/new-run"), start).status_code == 302
    assert Run.objects.filter(name="llama-70b-finetune").exists()


def test_what_the_form_or_the_json_holds_is_saved_unchecked(place: Place) -> None:
    form = {"mode": "form", "name": "a", "image": "busybox", "cpu": "1", "memory": "1Gi", "gpus": "0"}
    page = place.client.post(place.base + ("/new-run"), {**form, "action": "template"}).content.decode()
    assert json.loads(text_of(page))["task_template"]["image"] == "busybox"
    body = json.dumps({"metadata": {"name": "b"}, "spec": {"replicas": 2}})
    posted = {"mode": "json", "body": body, "action": "template"}
    page = place.client.post(place.base + ("/new-run"), posted).content.decode()
    assert json.loads(text_of(page)) == {"replicas": 2}
    assert 'value="b"' in page


@pytest.mark.parametrize(("spec", "told"), [("{", "this is not JSON"), ("[]", "must be an object"), ("", "not JSON")])
def test_a_template_that_is_no_object_is_told_so_and_kept_in_the_box(place: Place, spec: str, told: str) -> None:
    answer = place.client.post(place.base + ("/save-template"), {"name": "a", "spec": spec})
    assert answer.status_code == 400
    assert told in answer.content.decode()
    assert text_of(answer.content.decode()) == spec
    assert not Template.objects.exists()


def test_a_template_is_removed_after_a_question(place: Place) -> None:
    template = save(place)
    address = place.base + f"/templates/{template.uid}/remove"
    assert "Remove the template llama-70b finetune?" in place.client.get(address).content.decode()
    assert place.client.post(address).url.endswith("/templates")
    assert "No templates yet" in place.get("/templates")


def test_the_lists_take_the_same_queries_however_long(place: Place) -> None:
    def counts() -> list[int]:
        counted = []
        for path in ("/templates", "/schedules", "/new-run"):
            with CaptureQueriesContext(connection) as queries:
                place.get(path)
            counted.append(len(queries))
        return counted

    save(place)
    add(place, "s0")
    schedules.run_now(place.access, Schedule.objects.get(name="s0"), builders.T0)
    before = counts()
    for number in range(1, 4):
        save(place, f"t{number}")
        add(place, f"s{number}")
        schedules.run_now(place.access, Schedule.objects.get(name=f"s{number}"), builders.T0)
    assert counts() == before


def add(place: Place, name: str = "nightly") -> None:
    fields = {"name": name, "cluster": place.cluster.slug, "cron": "0 3 * * *", "zone": "UTC", "overlap": "Skip"}
    answer = place.client.post((place.base + "/new-schedule"), {**fields, "spec": json.dumps(SPEC), "enabled": "1"})
    assert answer.status_code == 302, answer.content


def test_a_run_leads_to_the_schedule_that_started_it_while_there_is_one(place: Place) -> None:
    add(place)
    schedules.run_now(place.access, Schedule.objects.get(name="nightly"), builders.T0)
    run = f"/jobs/{place.cluster.slug}/nightly-1"
    link = f'Started by the schedule <a href="{place.base}/schedules/nightly">nightly</a> for '
    assert link in place.get(run)
    builders.submit(place.access, place.cluster, "other")
    assert "by the schedule" not in place.get(f"/jobs/{place.cluster.slug}/other")
    schedules.remove_schedule(place.access, Schedule.objects.get(name="nightly"), builders.T0)
    assert "by the schedule" not in place.get(run)


def test_a_schedule_is_made_shown_run_disabled_and_removed(place: Place) -> None:
    add(place)
    page = place.get("/schedules/nightly")
    assert len(re.findall(r'<li><time datetime="[\d-]+T03:00:00', page)) == 5
    for action, told in {"run": "nightly-1", "disable": "It is disabled", "enable": "T03:00:00"}.items():
        assert place.client.post(place.base + f"/schedules/nightly/{action}").status_code == 302
        assert told in place.get("/schedules/nightly")
    assert "nightly-1" in place.get("/schedules")
    assert place.client.post(place.base + "/schedules/nightly/disable").status_code == 302
    assert 'name="enabled" value="0"' in place.get("/new-schedule?edit=nightly")
    edit = place.get("/new-schedule?edit=nightly")
    assert 'value="0 3 * * *"' in edit
    assert json.loads(text_of(edit)) == SPEC
    assert place.client.post(place.base + "/schedules/nightly/remove").status_code == 302
    assert not Schedule.objects.exists()


def test_a_schedule_starts_from_a_template_or_a_run(place: Place) -> None:
    template = save(place)
    assert json.loads(text_of(place.get(f"/new-schedule?template={template.uid}"))) == SPEC
    run = builders.submit(place.access, place.cluster, "resnet50")
    assert json.loads(text_of(place.get(f"/new-schedule?of={place.cluster.slug}/resnet50"))) == run.spec


def test_every_broken_rule_of_a_schedule_stands_beside_its_field(place: Place) -> None:
    given = {"name": "-", "cluster": place.cluster.slug, "cron": "often", "zone": "Mars", "overlap": "Skip"}
    answer = place.client.post(place.base + ("/new-schedule"), {**given, "spec": '{"machines": 1}'})
    page = unescape(answer.content.decode())
    assert answer.status_code == 400
    for told in ("(1 fields, not 5)", "must be a time zone", "with no - at either end"):
        assert told in page
    good = {**given, "name": "a", "cron": "@daily", "zone": "UTC", "spec": '{"machines": 1}'}
    answer = place.client.post(place.base + ("/new-schedule"), good)
    assert "spec.task_template</code> is required" in answer.content.decode()


def test_a_failed_schedule_says_why_on_both_pages(place: Place) -> None:
    add(place)
    Schedule.objects.update(spec='{"replicas": 1}', next_at=builders.T0)
    schedules.fire_due(builders.T0)
    for path in ("/schedules", "/schedules/nightly"):
        assert "UNKNOWN_FIELD: fields this API does not know: spec.replicas" in place.get(path)
    assert saved_queries.firings_of(Schedule.objects.get())[0].outcome == "Failed"


@pytest.mark.parametrize("page", ["/save-template", "/new-schedule"])
def test_an_empty_box_shows_a_specification_that_works(place: Place, page: str) -> None:
    [example] = re.findall(r'<textarea[^>]*placeholder="([^"]*)"', place.get(page))
    body = {"metadata": {"name": "a"}, "spec": json.loads(unescape(example))}
    assert parse_run(body).spec.task_template.image == "python:3.11-slim"
