"""The API of templates and schedules."""

from typing import Any

import pytest
from django.test import Client

from astraconsole.tenancy.permissions import Role
from runs.models import Run, Schedule, Template
from tests import builders
from tests.world import TEMPLATE_ID, World, make_world

BASE = "/api/v1/orgs/acme/workspaces/vision"


@pytest.fixture
def world(db: None) -> World:
    return make_world()


def ask(world: World, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    options: dict[str, Any] = {} if body is None else {"data": body, "content_type": "application/json"}
    answer = getattr(Client(), method)(f"{BASE}/{path}", headers={}, **options, **world.bearer(Role.EDITOR))
    assert answer.status_code == status, answer.content
    return answer.json() if answer.content else None


def test_a_template_is_kept_as_given_replaced_by_name_and_removed_by_id(world: World) -> None:
    spec = {"z": 1, "task_template": {"no": ["such", "field"]}, "a": {"é": "\u0000"}}
    made = ask(world, "post", "templates", {"name": "resnet50", "description": "1 GPU, 12 h", "spec": spec}, 201)
    assert list(made["spec"]) == ["z", "task_template", "a"]
    assert (made["spec"], made["description"], made["saved_by"]) == (spec, "1 GPU, 12 h", "editor")
    again = ask(world, "post", "templates", {"name": "resnet50", "spec": {}}, 200)
    assert (again["id"], again["spec"], again["description"]) == (made["id"], {}, "")
    assert [item["name"] for item in ask(world, "get", "templates")["items"]] == ["llama-70b finetune", "resnet50"]
    ask(world, "delete", f"templates/{made['id']}", status=204)
    ask(world, "delete", f"templates/{made['id']}", status=404)
    ask(world, "delete", "templates/resnet50", status=404)


def test_templates_come_page_by_page(world: World) -> None:
    ask(world, "post", "templates", {"name": "b", "spec": {}}, 201)
    first = ask(world, "get", "templates?limit=1")
    assert ([item["name"] for item in first["items"]], first["next"]) == (["b"], "b")
    rest = ask(world, "get", "templates?limit=1&after=b")
    assert ([item["id"] for item in rest["items"]], rest["next"]) == ([TEMPLATE_ID], None)


@pytest.mark.parametrize(
    ("body", "code", "fields"),
    [
        ([], "VALIDATION_ERROR", ["body"]),
        ({}, "VALIDATION_ERROR", ["name", "spec"]),
        ({"name": "x" * 101, "spec": []}, "VALIDATION_ERROR", ["name", "spec"]),
        ({"name": "a\nb", "description": 7, "spec": {}}, "VALIDATION_ERROR", ["name", "description"]),
        ({"name": "a", "spec": {"x": "y" * 256 * 1024}}, "VALIDATION_ERROR", ["spec"]),
        ({"name": "a", "spec": {}, "labels": {}}, "UNKNOWN_FIELD", ["labels"]),
    ],
)
def test_a_template_that_breaks_rules_is_refused_with_all_of_them(
    world: World, body: Any, code: str, fields: list[str]
) -> None:
    answer = ask(world, "post", "templates", body, 400)
    assert (answer["code"], [item["field"] for item in answer["detail"]]) == (code, fields)
    assert Template.objects.count() == 1


def test_a_template_of_just_256_kib_is_kept(world: World) -> None:
    ask(world, "post", "templates", {"name": "a", "spec": {"x": "y" * (256 * 1024 - len('{"x": ""}'))}}, 201)


def test_a_schedule_is_saved_shown_with_its_next_times_and_run_by_hand(world: World) -> None:
    spec = builders.body()["spec"]
    body = {"name": "hourly", "cluster": "gpu-east", "cron": "0 * * * *", "zone": "Europe/Berlin", "spec": spec}
    made = ask(world, "post", "schedules", {**body, "overlap": "Replace"}, 201)
    assert (made["overlap"], made["enabled"], len(made["next_at"]), made["last"]) == ("Replace", True, 5, None)
    assert ask(world, "post", "schedules/hourly/disable")["next_at"] == []
    fired = ask(world, "post", "schedules/hourly/run", status=201)
    assert (fired["outcome"], fired["run"], fired["actor"]) == ("Started", "hourly-1", "editor")
    assert Run.objects.filter(name="hourly-1").exists()
    assert ask(world, "get", "schedules/hourly")["last"] == fired
    assert ask(world, "post", "schedules/hourly/enable")["enabled"] is True
    assert [item["name"] for item in ask(world, "get", "schedules")["items"]] == ["hourly", "nightly"]
    ask(world, "delete", "schedules/hourly", status=204)
    assert ask(world, "get", "schedules/hourly", status=404)["code"] == "NOT_FOUND"
    assert Run.objects.filter(name="hourly-1", deleted_at=None).exists()


def test_a_schedule_that_breaks_rules_is_refused_with_all_of_them(world: World) -> None:
    body = {"name": "-a", "cron": "* *", "zone": "Mars", "overlap": "x", "enabled": 1, "spec": 3}
    answer = ask(world, "post", "schedules", body, 400)
    named = [item["field"] for item in answer["detail"]]
    assert named == ["name", "cron", "zone", "overlap", "enabled", "cluster", "spec"]
    assert Schedule.objects.count() == 1
