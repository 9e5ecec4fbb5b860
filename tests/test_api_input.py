"""What the JSON API refuses, and that it refuses everything else in a typed way too."""

import base64
import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from astraconsole.tenancy.permissions import Role
from tests.api_calls import API, RESNET50, WORKSPACE, Caller, refused
from tests.world import World, make_world


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def api(world: World) -> Caller:
    return Caller(world)


def test_a_field_that_the_api_does_not_know_is_refused_by_name(api: Caller) -> None:
    spec = {**RESNET50["spec"], "replicas": 2}
    body = refused(api.post(f"{API}/jobs", {**RESNET50, "spec": spec}), 400, "UNKNOWN_FIELD")
    assert body["message"] == "fields this API does not know: spec.replicas"


def test_every_broken_rule_is_one_entry_of_detail(api: Caller) -> None:
    template = {**RESNET50["spec"]["task_template"], "time_limit_seconds": 1, "args": "not a list"}
    body = refused(api.post(f"{API}/jobs", {**RESNET50, "spec": {"task_template": template}}), 400, "VALIDATION_ERROR")
    assert {entry["field"] for entry in body["detail"]} == {
        "spec.task_template.time_limit_seconds",
        "spec.task_template.args",
    }


def test_a_name_whose_workers_would_have_no_host_name_is_refused(api: Caller) -> None:
    body = {**RESNET50, "metadata": {"name": "_resnet"}}
    refused(api.post(f"{API}/jobs", body), 400, "NAME_NOT_DNS_SAFE")


def test_a_name_that_is_taken_is_a_conflict(api: Caller) -> None:
    body = refused(api.post(f"{API}/jobs", {**RESNET50, "metadata": {"name": "resnet50"}}), 409, "JOB_ALREADY_EXISTS")
    assert "resnet50" in body["message"]


def test_a_priority_above_the_namespaces_maximum_is_refused(api: Caller) -> None:
    spec = {**RESNET50["spec"], "priority": 50}
    body = refused(api.post(f"{API}/jobs", {**RESNET50, "spec": spec}), 403, "PRIORITY_NOT_ALLOWED")
    assert re.fullmatch(r"priority 50 is above namespace .+'s maximum of 0", body["message"])


def test_a_cluster_that_the_workspace_does_not_have_is_not_found(api: Caller) -> None:
    for path in ("jobs", "machines", "tasks?job=x"):
        refused(api.get(f"{WORKSPACE}/clusters/moon/api/{path}"), 404, "NOT_FOUND")
    refused(api.post(f"{WORKSPACE}/clusters/moon/api/jobs", RESNET50), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-01T00:00:00", "yesterday"]
)
def test_a_cursor_that_no_page_gave_is_refused(api: Caller, moment: str) -> None:
    after = base64.urlsafe_b64encode(f"{moment} 1".encode()).decode().rstrip("=")
    for jobs in (f"{API}/jobs", f"{WORKSPACE}/jobs"):
        refused(api.get(f"{jobs}?after={after}"), 400, "VALIDATION_ERROR")


def test_a_parameter_that_a_request_does_not_know_is_refused_before_anything_is_done(api: Caller) -> None:
    body = refused(api.post(f"{API}/jobs?dryrun=true", RESNET50), 400, "UNKNOWN_FIELD")
    assert body["message"] == "parameters this request does not know: dryrun"
    for path in ("jobs/resnet50", "tasks/resnet50-0", "machines", "machines/gpu-07"):
        refused(api.get(f"{API}/{path}?verbose=1"), 400, "UNKNOWN_FIELD")
    refused(api.post(f"{API}/tasks/resnet50-0/stop?force=1"), 400, "UNKNOWN_FIELD")
    refused(api.delete(f"{API}/jobs/resnet50?force=1"), 400, "UNKNOWN_FIELD")
    assert api.get(f"{API}/jobs/resnet50").json()["status"]["state"] == "Pending"


@pytest.mark.parametrize("reason", [0, False, [], {}])
def test_a_reason_that_is_no_text_is_refused_even_when_it_is_empty(api: Caller, reason: object) -> None:
    refused(api.post(f"{API}/tasks/resnet50-0/stop", {"reason": reason}), 400, "VALIDATION_ERROR")


def test_who_may_not_submit_is_told_so_before_the_body_is_looked_at(world: World) -> None:
    refused(Caller(world, Role.VIEWER).post(f"{API}/jobs", raw=b"{"), 403, "FORBIDDEN")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=20,
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(leaf for key, child in children for leaf in leaves(child, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


VARIANTS = st.builds(replaced, st.just(RESNET50), st.sampled_from(leaves(RESNET50)), JSON)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=JSON | VARIANTS)
def test_any_json_is_a_run_or_a_typed_refusal(api: Caller, body: object) -> None:
    answer = api.post(f"{API}/jobs", body)
    assert answer.status_code in (201, 400, 403, 409), answer.content
    if answer.status_code == 201:
        assert api.delete(f"{API}/jobs/{answer.json()['metadata']['name']}").status_code == 204
    else:
        assert set(answer.json()) <= {"code", "message", "detail"}


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=100))
def test_any_bytes_are_a_typed_refusal(api: Caller, raw: bytes) -> None:
    for address in (f"{API}/jobs", f"{API}/tasks/resnet50-9/stop"):
        answer = api.post(address, raw=raw)
        assert 400 <= answer.status_code < 500
        assert answer.json()["code"]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(name="/")
@example(name="a/")
@given(name=st.text(min_size=1).filter(lambda name: name.isprintable() and name not in (".", "..")))
def test_a_name_that_nothing_has_is_not_found(api: Caller, name: str) -> None:
    for path in ("jobs", "tasks", "machines"):
        answer = api.get(f"{API}/{path}/{quote(name, safe='')}")
        assert answer.status_code in (200, 404), answer.content
