"""Lists of the JSON API: filters, pages, machines, and how many queries a request takes."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astraconsole.tenancy.permissions import Role
from machines.models import Namespace
from machines.protocol import EndReason
from runs import queries
from runs.models import Run
from tests import builders
from tests.api_calls import API, MOMENT, RESNET50, WORKSPACE, Caller, refused, run_resnet50
from tests.builders import GIB, after
from tests.world import World, make_world


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def api(world: World) -> Caller:
    return Caller(world)


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


def test_a_run_in_a_list_is_its_document_without_history_names_and_why_it_waits_in_full(api: Caller) -> None:
    [item] = api.get(f"{API}/jobs").json()["items"]
    document = api.get(f"{API}/jobs/resnet50").json()
    pending = document["status"]["pending"]
    document["status"]["pending"] = {name: pending[name] for name in ("code", "numbers")}  # the rest is worked out
    assert item == {key: document[key] for key in ("metadata", "spec", "status", "task_counts")}


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


@pytest.mark.parametrize(
    ("parameter", "value", "rule"),
    [
        ("limit", "0", "must be at least 1"),
        ("limit", "501", "must be at most 500"),
        ("limit", "ten", "must be a whole number"),
        ("mine", "perhaps", "must be true or false"),
        ("name", "x" * 201, "must be at most 200 characters"),
    ],
)
def test_a_refused_parameter_is_told_the_rule_in_the_words_of_a_refused_body(
    api: Caller, parameter: str, value: str, rule: str
) -> None:
    body = refused(api.get(f"{API}/jobs", **{parameter: value}), 400, "VALIDATION_ERROR")
    assert body["detail"] == [{"field": parameter, "rule": rule}]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_the_workers_of_a_large_run_come_in_pages(world: World, api: Caller) -> None:
    builders.submit(world.access(), world.cluster, "grid", array={"count": 7})
    seen, after_this = [], None
    while True:
        page = api.get(f"{API}/tasks", job="grid", limit=3, **({"after": after_this} if after_this else {}))
        seen += names(page)
        after_this = page.json()["next"]
        if after_this is None:
            break
    assert seen == [f"grid-{rank}" for rank in range(7)]


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
    assert document.pop("history") == []
    assert api.get(LAB).json() == {"items": [document], "next": None}
    assert document["metadata"]["name"] == "gpu-07"
    assert document["status"] == {
        "state": "Ready",
        "reason": "",
        "cordoned": None,
        "drain": None,
        "connected_at": None,
        "last_seen_at": "2026-10-01T01:02:11.402117Z",
        "clock_skew_seconds": None,
    }
    assert document["boot_id"] == ""
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
    machine = admin.post(f"{LAB}/gpu-07/uncordon").json()
    assert (machine["status"]["cordoned"], machine["status"]["drain"]) == (None, None)
    assert [(move["state"], move["reason"], move["actor"]) for move in machine["history"]] == [
        ("Cordoned", "a fan rattles", "admin"),
        ("Ready", "Takes work again", "admin"),
    ]


def test_an_admin_drains_a_machine_and_sees_when_it_is_empty(world: World) -> None:
    admin = Caller(world, Role.ADMIN)
    run = builders.submit(world.access(), world.machine.cluster, "busy")
    attempt = builders.run_on(builders.workers(run)[0], world.machine)
    refused(admin.post(f"{LAB}/gpu-07/drain"), 400, "VALIDATION_ERROR")
    status = admin.post(f"{LAB}/gpu-07/drain", {"reason": "new firmware"}).json()["status"]
    assert (status["drain"], status["cordoned"]["reason"]) == ("Draining", "new firmware")
    builders.report_end(attempt, exit_code=143, reason=EndReason.STOPPED, at=builders.after(9))
    assert admin.get(f"{LAB}/gpu-07").json()["status"]["drain"] == "Drained"
    assert [item["status"]["drain"] for item in admin.get(LAB).json()["items"]] == ["Drained"]
    moves = admin.get(f"{LAB.replace('machines', 'tasks')}/busy-0").json()["history"]
    reason = "Machine gpu-07 is drained: new firmware"
    told = [(move["state"], move["reason"], move["actor"]) for move in moves[-2:]]
    assert told == [("Running", f"Stopping: {reason}", "admin"), ("Pending", reason, "machine gpu-07")]


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
    f"{LAB}/gpu-07": 5,
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
