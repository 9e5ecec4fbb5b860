"""The JSON API to the letter: its documents, its filters and pages, its refusals, and how many queries it takes."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astraconsole.tenancy.permissions import Role
from machines.models import Namespace
from machines.protocol import EndReason, Phase
from runs import queries
from runs.models import Run
from tests import builders
from tests.builders import GIB, after
from tests.world import World, make_world

API = "/api/v1/orgs/acme/workspaces/vision/clusters/gpu-east/api"
WORKSPACE = "/api/v1/orgs/acme/workspaces/vision"
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
RESNET50 = {
    "metadata": {"name": "resnet50-b"},
    "spec": {
        "task_template": {
            "image": "nvcr.io/nvidia/pytorch:24.08-py3",
            "command": "python",
            "args": ["/data/code/train.py", "--epochs", "90"],
            "time_limit_seconds": 43200,
            "requested_resources": {
                "gpu_requests": {"count": 1},
                "per_gpu": {"cpu_cores": 8, "memory_bytes": 68719476736},
            },
        }
    },
}


class Caller:
    """A member who uses the API."""

    def __init__(self, world: World, role: Role = Role.EDITOR) -> None:
        self.client = Client(raise_request_exception=False)
        self.headers = world.bearer(role)

    def get(self, address: str, **parameters: Any) -> Any:
        return self.client.get(address, parameters, **self.headers)

    def post(self, address: str, body: object = None, raw: bytes | None = None) -> Any:
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        return self.client.post(address, data, content_type="application/json", **self.headers)

    def delete(self, address: str) -> Any:
        return self.client.delete(address, **self.headers)


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def api(world: World) -> Caller:
    return Caller(world)


def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.content
    body = answer.json()
    assert body["code"] == code
    return body


def run_resnet50(world: World) -> tuple[Any, Any]:
    """Place the world's worker on a GPU of a machine and have it run; the attempt and its machine."""
    machine = builders.machine(world.cluster, "gpu-08", cpu=64, memory=512 * GIB, gpus=8)
    attempt = builders.place(builders.workers(world.run)[0], machine, gpus=[3], now=after(1))
    assert attempt is not None
    builders.report(attempt, (Phase.PREPARING, 3), (Phase.STARTING, 2), (Phase.RUNNING, 1), at=after(10))
    return attempt, machine


# ---- submitting ------------------------------------------------------------------------------------------------------


def test_a_submitted_run_is_answered_as_created(world: World, api: Caller) -> None:
    answer = api.post(f"{API}/jobs", RESNET50)
    assert answer.status_code == 201
    document = json.loads(answer.content)
    assert list(document) == ["metadata", "spec", "status", "task_counts", "history", "task_names"]
    metadata = document["metadata"]
    assert MOMENT.fullmatch(metadata.pop("created_at"))
    assert metadata.pop("uid") == str(Run.objects.get(name="resnet50-b").uid)
    assert metadata == {
        "name": "resnet50-b",
        "created_by": "editor",
        "cluster": "gpu-east",
        "workspace": "vision",
        "labels": {},
    }
    assert document["spec"] == RESNET50["spec"]
    assert document["status"]["state"] == "Pending"
    assert document["status"]["started_at"] is None
    assert document["status"]["ended_at"] is None
    assert document["status"]["restarts"] == 0
    [created] = document["history"]
    assert MOMENT.fullmatch(created.pop("transition_at"))
    assert created == {"state": "Pending", "reason": "Run created", "actor": "editor"}
    assert document["task_counts"] == {"Pending": 1}
    assert document["task_names"] == ["resnet50-b-0"]
    assert api.get(f"{API}/jobs/resnet50-b").json() == answer.json()


def test_runs_is_an_alias_of_jobs(api: Caller) -> None:
    assert api.post(f"{API}/runs", RESNET50).status_code == 201
    assert api.get(f"{API}/runs/resnet50-b").json() == api.get(f"{API}/jobs/resnet50-b").json()
    assert api.get(f"{API}/runs").json() == api.get(f"{API}/jobs").json()
    assert api.delete(f"{API}/runs/resnet50-b").status_code == 204


def test_a_slash_at_the_end_changes_nothing(api: Caller) -> None:
    assert api.post(f"{API}/jobs/", RESNET50).status_code == 201
    assert api.get(f"{API}/jobs/resnet50-b/").status_code == 200


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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=JSON | VARIANTS)
def test_any_json_is_a_run_or_a_typed_refusal(api: Caller, body: object) -> None:
    answer = api.post(f"{API}/jobs", body)
    assert answer.status_code in (201, 400, 403, 409), answer.content
    if answer.status_code == 201:
        assert api.delete(f"{API}/jobs/{answer.json()['metadata']['name']}").status_code == 204
    else:
        assert set(answer.json()) <= {"code", "message", "detail"}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=100))
def test_any_bytes_are_a_typed_refusal(api: Caller, raw: bytes) -> None:
    for address in (f"{API}/jobs", f"{API}/tasks/resnet50-9/stop"):
        answer = api.post(address, raw=raw)
        assert 400 <= answer.status_code < 500
        assert answer.json()["code"]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(min_size=1).filter(lambda name: name.isprintable() and name not in (".", "..")))
def test_a_name_that_nothing_has_is_not_found(api: Caller, name: str) -> None:
    for path in ("jobs", "tasks", "machines"):
        answer = api.get(f"{API}/{path}/{quote(name, safe='')}")
        assert answer.status_code in (200, 404), answer.content


# ---- one run, one worker ---------------------------------------------------------------------------------------------


def test_a_running_run_and_its_worker(world: World, api: Caller) -> None:
    _, machine = run_resnet50(world)
    run = api.get(f"{API}/jobs/resnet50").json()
    assert run["status"]["state"] == "Running"
    assert run["status"]["reason"] == "1 of 1 workers running"
    assert "pending" not in run["status"]
    assert MOMENT.fullmatch(run["status"]["started_at"])
    assert run["task_counts"] == {"Running": 1}
    assert [moved["state"] for moved in run["history"]] == ["Pending", "Starting", "Running"]
    times = [moved["transition_at"] for moved in run["history"]]
    assert times == sorted(times)
    assert times[0] == "2026-10-01T01:02:11.402117Z"

    worker = api.get(f"{API}/tasks/resnet50-0").json()
    history = worker.pop("history")
    assert [moved["state"] for moved in history] == ["Pending", "Preparing", "Starting", "Running"]
    assert all(MOMENT.fullmatch(moved["transition_at"]) for moved in history)
    assert worker == {
        "metadata": {"name": "resnet50-0", "job": "resnet50", "rank": 0, "group": ""},
        "status": {"state": "Running", "reason": "Container running"},
        "exit_code": None,
        "restarts": 0,
        "restart_at": None,
        "last_failure": None,
        "placement": {
            "machine": "gpu-08",
            "gpu_ids": [3],
            "gpu_uuids": [machine.gpus.get(index=3).uuid],
        },
        "metrics": {},
    }
    assert api.get(f"{API}/tasks", job="resnet50").json() == {"items": [worker], "next": None}


def test_a_worker_before_its_first_placement_is_nowhere(api: Caller) -> None:
    assert api.get(f"{API}/tasks/resnet50-0").json()["placement"] is None


def test_the_last_failure_is_in_the_workers_document(world: World, api: Caller) -> None:
    attempt, _ = run_resnet50(world)
    builders.report(
        attempt,
        (Phase.PREPARING, 13),
        (Phase.STARTING, 12),
        (Phase.RUNNING, 11),
        (Phase.ENDED, 1),
        at=datetime(2026, 10, 1, 3, 12, 45, 118202, UTC),
        exit_code=137,
        end_reason=EndReason.OOM_KILLED,
        log_tail="[rank1]: step 4410 loss 1.402\n",
    )
    worker = api.get(f"{API}/tasks/resnet50-0").json()
    failure = worker["last_failure"]
    assert list(failure) == ["reason", "failed_at", "exit_code", "log_tail"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", failure["failed_at"])
    assert failure["reason"] == "OOMKilled: the container exceeded its memory limit"
    assert failure["exit_code"] == 137
    assert failure["log_tail"] == "[rank1]: step 4410 loss 1.402\n"
    assert worker["status"]["state"] == "Restarting"
    assert MOMENT.fullmatch(worker["restart_at"])


def test_times_without_a_fraction_have_six_decimals_all_the_same(world: World, api: Caller) -> None:
    builders.submit(world.access(), world.cluster, "whole", now=datetime(2026, 10, 1, tzinfo=UTC))
    assert api.get(f"{API}/jobs/whole").json()["metadata"]["created_at"] == "2026-10-01T00:00:00.000000Z"


def test_a_waiting_run_says_why_in_words_and_numbers(world: World, api: Caller) -> None:
    builders.machine(world.cluster, gpus=1)
    builders.submit(world.access(), world.cluster, "huge", gpus=9, machines=1)
    status = api.get(f"{API}/jobs/huge").json()["status"]
    assert status["state"] == "Pending"
    assert status["reason"].startswith("No machine fits")
    assert status["pending"]["code"]


@pytest.mark.parametrize(
    "address", ["jobs/nothing", "tasks/nothing", "tasks/nothing/logs", "machines/nothing", "tasks?job=nothing"]
)
def test_what_does_not_exist_is_not_found(api: Caller, address: str) -> None:
    refused(api.client.get(f"{API}/{address}", **api.headers), 404, "NOT_FOUND")


# ---- stopping and deleting -------------------------------------------------------------------------------------------


def test_a_deleted_run_is_not_found_and_its_name_is_free(api: Caller) -> None:
    answer = api.delete(f"{API}/jobs/resnet50")
    assert (answer.status_code, answer.content) == (204, b"")
    for address in ("jobs/resnet50", "tasks/resnet50-0", "tasks/resnet50-0/logs"):
        refused(api.get(f"{API}/{address}"), 404, "NOT_FOUND")
    refused(api.delete(f"{API}/jobs/resnet50"), 404, "NOT_FOUND")
    assert api.post(f"{API}/jobs", {**RESNET50, "metadata": {"name": "resnet50"}}).status_code == 201


def test_stopping_a_waiting_worker_cancels_it_and_its_run(api: Caller) -> None:
    answer = api.post(f"{API}/tasks/resnet50-0/stop", {"reason": "wrong data"})
    assert answer.status_code == 200
    assert answer.json()["status"] == {"state": "Cancelled", "reason": "Stopped by editor: wrong data"}
    run = api.get(f"{API}/jobs/resnet50").json()
    assert run["status"]["state"] == "Cancelled"
    assert run["status"]["reason"] == "All workers ended; some were cancelled"
    assert MOMENT.fullmatch(run["status"]["ended_at"])


def test_stopping_a_run_needs_no_body_and_answers_the_run(api: Caller) -> None:
    answer = api.post(f"{API}/jobs/resnet50/stop")
    assert answer.status_code == 200
    assert answer.json()["status"]["state"] == "Cancelled"
    assert answer.json()["task_counts"] == {"Cancelled": 1}


def test_what_has_ended_cannot_be_stopped(api: Caller) -> None:
    api.post(f"{API}/jobs/resnet50/stop")
    refused(api.post(f"{API}/jobs/resnet50/stop"), 409, "ALREADY_ENDED")
    refused(api.post(f"{API}/tasks/resnet50-0/stop"), 409, "ALREADY_ENDED")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"why": "x"}, "UNKNOWN_FIELD"),
        ({"reason": 3}, "VALIDATION_ERROR"),
        ({"reason": "x" * 301}, "VALIDATION_ERROR"),
        ({"reason": "a\0b"}, "VALIDATION_ERROR"),
        (["reason"], "VALIDATION_ERROR"),
    ],
)
def test_a_reason_that_is_none_stops_nothing(api: Caller, body: object, code: str) -> None:
    for address in ("tasks/resnet50-0", "jobs/resnet50"):
        refused(api.post(f"{API}/{address}/stop", body), 400, code)
    assert api.get(f"{API}/jobs/resnet50").json()["status"]["state"] == "Pending"


# ---- logs ------------------------------------------------------------------------------------------------------------


def test_the_log_of_a_worker_that_is_nowhere_yet_is_a_typed_answer(api: Caller) -> None:
    refused(api.get(f"{API}/tasks/resnet50-0/logs"), 409, "TASK_NOT_PLACED")


@pytest.mark.parametrize("tail", ["0", "-1", "10001", "many", "1.5", ""])
def test_a_tail_out_of_range_is_a_validation_error(api: Caller, tail: str) -> None:
    body = refused(api.get(f"{API}/tasks/resnet50-0/logs", tail=tail), 400, "VALIDATION_ERROR")
    assert [entry["field"] for entry in body["detail"]] == ["tail"]


# ---- lists -----------------------------------------------------------------------------------------------------------


def many(world: World, count: int) -> None:
    for number in range(count):
        builders.submit(world.access(), world.cluster, f"many-{number}", now=after(1 + number // 2))


def names(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [item["metadata"]["name"] for item in answer.json()["items"]]


def test_the_list_is_newest_first_and_its_pages_join_without_a_gap_or_a_repeat(world: World, api: Caller) -> None:
    many(world, 7)  # pairs share their moment
    seen, after_this = [], None
    while True:
        page = api.get(f"{API}/jobs", limit=3, **({"after": after_this} if after_this else {}))
        seen += names(page)
        after_this = page.json()["next"]
        if after_this is None:
            break
        builders.submit(world.access(), world.cluster, f"later-{len(seen)}", now=after(100))
    assert seen == [f"many-{number}" for number in range(6, -1, -1)] + ["resnet50"]


def test_a_run_in_a_list_is_its_document_without_history_and_names(api: Caller) -> None:
    [item] = api.get(f"{API}/jobs").json()["items"]
    document = api.get(f"{API}/jobs/resnet50").json()
    assert item == {key: document[key] for key in ("metadata", "spec", "status", "task_counts")}


def test_the_code_of_a_run_is_not_in_a_list(world: World, api: Caller) -> None:
    Run.objects.filter(pk=world.run.pk).update(spec={**world.run.spec, "code": "A" * 100_000})
    assert "code" not in api.get(f"{API}/jobs").json()["items"][0]["spec"]
    assert len(api.get(f"{API}/jobs/resnet50").json()["spec"]["code"]) == 100_000


def test_lists_are_filtered_by_state_name_owner_and_deletion(world: World, api: Caller) -> None:
    admin = world.access(Role.ADMIN)
    builders.submit(admin, world.cluster, "llama-sft", now=after(1))
    builders.submit(admin, world.cluster, "llama-old", now=after(2))
    api.post(f"{API}/jobs/llama-old/stop")
    builders.submit(admin, world.cluster, "gone", now=after(3))
    api.delete(f"{API}/jobs/gone")
    assert names(api.get(f"{API}/jobs")) == ["llama-old", "llama-sft", "resnet50"]
    assert names(api.get(f"{API}/jobs", state="active")) == ["llama-sft", "resnet50"]
    assert names(api.get(f"{API}/jobs", state="ended")) == ["llama-old"]
    assert names(api.get(f"{API}/jobs", state="Cancelled")) == ["llama-old"]
    assert names(api.get(f"{API}/jobs", name="LLAMA")) == ["llama-old", "llama-sft"]
    assert names(api.get(f"{API}/jobs", search="editor")) == ["resnet50"]
    assert names(api.get(f"{API}/jobs", mine="true")) == ["resnet50"]
    assert names(api.get(f"{API}/jobs", deleted="true", name="gone")) == ["gone"]


@pytest.mark.parametrize(
    ("parameter", "value", "code"),
    [
        ("state", "Sleeping", "VALIDATION_ERROR"),
        ("limit", "0", "VALIDATION_ERROR"),
        ("limit", "501", "VALIDATION_ERROR"),
        ("limit", "ten", "VALIDATION_ERROR"),
        ("limit", "9" * 40, "VALIDATION_ERROR"),
        ("mine", "perhaps", "VALIDATION_ERROR"),
        ("after", "nonsense", "VALIDATION_ERROR"),
        ("after", "\N{GRINNING FACE}", "VALIDATION_ERROR"),
        ("name", "x" * 201, "VALIDATION_ERROR"),
        ("status", "Running", "UNKNOWN_FIELD"),
    ],
)
def test_a_parameter_that_selects_nothing_sensible_is_refused_by_name(
    api: Caller, parameter: str, value: str, code: str
) -> None:
    for address in (f"{API}/jobs", f"{WORKSPACE}/jobs"):
        body = refused(api.get(address, **{parameter: value}), 400, code)
        assert [entry["field"] for entry in body["detail"]] == [parameter]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parameters=st.dictionaries(
        st.sampled_from(["state", "name", "search", "mine", "deleted", "limit", "after", "other"]),
        st.text(st.characters(exclude_categories=["Cs"])),
    )
)
def test_any_parameters_are_a_list_or_a_typed_refusal(api: Caller, parameters: dict[str, str]) -> None:
    answer = api.get(f"{API}/jobs", **parameters)
    assert answer.status_code in (200, 400), answer.content


def test_the_job_whose_workers_to_list_must_be_named(api: Caller) -> None:
    body = refused(api.get(f"{API}/tasks"), 400, "VALIDATION_ERROR")
    assert [entry["field"] for entry in body["detail"]] == ["job"]


def test_workers_are_listed_by_rank(world: World, api: Caller) -> None:
    builders.submit(world.access(), world.cluster, "grid", array={"count": 12})
    items = api.get(f"{API}/tasks", job="grid").json()["items"]
    assert [item["metadata"]["name"] for item in items] == [f"grid-{rank}" for rank in range(12)]
    assert [item["metadata"]["rank"] for item in items] == list(range(12))


def test_the_workspaces_list_spans_its_clusters_and_only_its_own_runs(world: World, api: Caller) -> None:
    lab = world.machine.cluster
    builders.submit(world.access(), lab, "here", now=after(5))
    neighbours = Namespace.objects.get(workspace__slug="nlp")
    access = queries.Access(world.neighbour, neighbours.workspace, Role.ADMIN)
    builders.submit(access, world.cluster, "theirs", now=after(6))
    listed = api.get(f"{WORKSPACE}/jobs").json()["items"]
    assert [(item["metadata"]["name"], item["metadata"]["cluster"]) for item in listed] == [
        ("here", "lab"),
        ("resnet50", "gpu-east"),
    ]
    assert api.get(f"{WORKSPACE}/runs").json()["items"] == listed


def test_a_workspaces_clusters_are_listed_with_its_share(world: World, api: Caller) -> None:
    Namespace.objects.filter(workspace=world.workspace, cluster=world.cluster).update(
        quota_gpus=16, quota_cpu_milli=64_500, max_priority=10, weight=2, pools=["train"]
    )
    answer = api.get(f"{WORKSPACE}/clusters").json()
    assert [item["name"] for item in answer["items"]] == ["gpu-east", "lab"]
    assert answer["items"][0] == {
        "name": "gpu-east",
        "quota": {"gpus": 16, "cpu_cores": 64.5, "memory_bytes": None, "runs": None},
        "weight": 2.0,
        "max_priority": 10,
        "pools": ["train"],
    }


# ---- machines --------------------------------------------------------------------------------------------------------

LAB = f"{WORKSPACE}/clusters/lab/api/machines"


def test_a_machine_is_described_with_its_gpus(world: World, api: Caller) -> None:
    document = api.get(f"{LAB}/gpu-07").json()
    assert api.get(LAB).json() == {"items": [document], "next": None}
    assert document["metadata"]["name"] == "gpu-07"
    assert document["status"] == {
        "state": "Ready",
        "reason": "",
        "cordoned": None,
        "last_seen_at": "2026-10-01T01:02:11.402117Z",
        "clock_skew_seconds": None,
    }
    assert document["capacity"]["cpu_cores"] == 128
    assert document["capacity"]["memory_bytes"] == 1024 * GIB
    assert [gpu["index"] for gpu in document["capacity"]["gpus"]] == list(range(8))
    assert document["capacity"]["gpus"][0] == {
        "index": 0,
        "uuid": world.machine.gpus.get(index=0).uuid,
        "model": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 80 * GIB,
        "healthy": True,
        "health_reason": "",
        "simulated": False,
    }


def test_an_admin_cordons_a_machine_with_a_reason_and_takes_it_back(world: World) -> None:
    admin = Caller(world, Role.ADMIN)
    refused(admin.post(f"{LAB}/gpu-07/cordon"), 400, "VALIDATION_ERROR")
    cordoned = admin.post(f"{LAB}/gpu-07/cordon", {"reason": "a fan rattles"}).json()["status"]["cordoned"]
    assert MOMENT.fullmatch(cordoned.pop("at"))
    assert cordoned == {"by": "admin", "reason": "a fan rattles"}
    assert admin.post(f"{LAB}/gpu-07/uncordon").json()["status"]["cordoned"] is None


# ---- how many queries ------------------------------------------------------------------------------------------------

# Of a request, the token and the membership included. Not more with more rows.
QUERIES = {
    f"{API}/jobs": 5,
    f"{API}/jobs/resnet50": 5,
    f"{API}/tasks?job=grid": 6,
    f"{API}/tasks/resnet50-0": 6,
    f"{WORKSPACE}/jobs": 4,
    f"{WORKSPACE}/clusters": 3,
    LAB: 5,
    f"{LAB}/gpu-07": 4,
}


@pytest.mark.parametrize("address", QUERIES)
@pytest.mark.parametrize("size", [1, 9])
def test_a_request_takes_the_same_number_of_queries_however_much_there_is(
    world: World, api: Caller, django_assert_num_queries: Callable[..., Any], address: str, size: int
) -> None:
    run_resnet50(world)
    many(world, size)
    builders.submit(world.access(), world.cluster, "grid", gpus=4, array={"count": 4})
    for number in range(size):
        machine = builders.machine(world.machine.cluster, gpus=4)
        east = builders.machine(world.cluster, cpu=64, gpus=4)
        if number < 4:
            builders.place(Run.objects.get(name="grid").workers.get(rank=number), east, gpus=[0])
    assert machine is not None
    api.get(f"{WORKSPACE}/clusters")  # notes the token's use
    with django_assert_num_queries(QUERIES[address]):
        assert api.get(address).status_code == 200


def test_submitting_takes_few_queries(world: World, api: Caller, django_assert_max_num_queries: Any) -> None:
    api.get(f"{WORKSPACE}/clusters")  # notes the token's use
    with django_assert_max_num_queries(12):
        assert api.post(f"{API}/jobs", RESNET50).status_code == 201


# ---- documentation ---------------------------------------------------------------------------------------------------


def test_the_documentation_page_loads_nothing_from_elsewhere(client: Client) -> None:
    page = client.get("/api/v1/docs").content.decode()
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert sources
    assert all(source.startswith("/static/") for source in sources)
    assert client.get("/api/v1").url == "/api/v1/docs"


def test_openapi_names_every_part_that_it_refers_to(client: Client) -> None:
    schema = client.get("/api/v1/openapi.json").json()
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(schema)))
    assert "RunRequest" in referred
    assert referred <= set(schema["components"]["schemas"])
    assert (
        f"{API}/jobs".replace("acme", "{org}").replace("vision", "{ws}").replace("gpu-east", "{cluster}")
        in schema["paths"]
    )
    assert not any("/api/runs" in path for path in schema["paths"])
