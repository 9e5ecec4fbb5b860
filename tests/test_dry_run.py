"""Trying a run: every rule of submitting, its plan and its forecast, and not a row of it."""

import json
from typing import Any

import pytest
from django.test import Client

from astraconsole.tenancy.permissions import Role
from runs.models import Run, Stem, Worker
from tests.world import World, make_world

pytestmark = pytest.mark.django_db
GIB = 1024**3


@pytest.fixture
def world() -> World:
    return make_world()


def body(name: str, **spec: Any) -> dict[str, Any]:
    resources = {"gpu_requests": {"count": 2}, "per_gpu": {"cpu_cores": 1, "memory_bytes": GIB}}
    return {
        "metadata": {"name": name},
        "spec": {"task_template": {"image": "pytorch", "requested_resources": resources}, **spec},
    }


def try_out(world: World, document: Any, role: Role = Role.EDITOR, query: str = "dry_run=true", **where: str) -> Any:
    place = {"cluster": "gpu-east", **where}["cluster"]
    address = f"/api/v1/orgs/acme/workspaces/vision/clusters/{place}/api/jobs?{query}"
    content = json.dumps(document)
    return Client().post(address, content, content_type="application/json", **world.bearer(role))


def rows() -> tuple[int, int, int]:
    return Run.objects.count(), Worker.objects.count(), Stem.objects.count()


def test_a_dry_run_names_its_workers_and_when_they_start_and_creates_nothing(world: World) -> None:
    before = rows()
    answer = try_out(world, body("new", node_selection={"count": 2}))
    assert answer.status_code == 200
    tried = answer.json()
    assert tried["dry_run"] is True
    assert [worker["name"] for worker in tried["workers"]] == ["new-0", "new-1"]
    assert set(tried["forecast"]) == {"starts", "text"}
    assert tried["spec"]["node_selection"] == {"count": 2}
    assert rows() == before


def test_a_run_that_can_never_start_is_told_so(world: World) -> None:
    tried = try_out(world, body("wide", machines=9), cluster="lab").json()
    assert tried["forecast"]["starts"] == "never"
    assert tried["forecast"]["text"].startswith("can never run")


@pytest.mark.parametrize(
    ("document", "status", "code"),
    [
        ({"metadata": {"name": "new"}, "spec": {"replicas": 2}}, 400, "UNKNOWN_FIELD"),
        (body("new", priority=50), 403, "PRIORITY_NOT_ALLOWED"),
        (body("resnet50"), 409, "JOB_ALREADY_EXISTS"),
        (body("_a"), 400, "NAME_NOT_DNS_SAFE"),
    ],
)
def test_what_submitting_would_refuse_is_refused_alike(world: World, document: Any, status: int, code: str) -> None:
    tried, submitted = try_out(world, document), try_out(world, document, query="")
    assert (tried.status_code, tried.json()["code"]) == (status, code)
    assert tried.json() == submitted.json()


def test_a_viewer_cannot_even_try_and_a_misspelt_parameter_submits_nothing(world: World) -> None:
    assert try_out(world, body("new"), Role.VIEWER).status_code == 403
    assert try_out(world, body("new"), query="dryrun=true").json()["code"] == "UNKNOWN_FIELD"
    assert try_out(world, body("new"), query="dry_run=perhaps").json()["code"] == "VALIDATION_ERROR"
    assert not Run.objects.filter(name="new").exists()
