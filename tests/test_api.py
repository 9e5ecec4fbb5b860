"""The JSON API to the letter: its documents, and what stopping, deleting and reading logs answer."""

import argparse
import json
import re
import shlex
import string
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from machines.protocol import EndReason, Phase
from runs.models import Run, Worker
from tests import builders
from tests.api_calls import API, MOMENT, RESNET50, Caller, refused, run_resnet50
from tests.world import World, make_world


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def api(world: World) -> Caller:
    return Caller(world)


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
    document, read = answer.json(), api.get(f"{API}/jobs/resnet50-b").json()
    assert document["status"].pop("pending")["code"] == read["status"].pop("pending")["code"]
    assert read == document


def test_runs_is_an_alias_of_jobs(api: Caller) -> None:
    assert api.post(f"{API}/runs", RESNET50).status_code == 201
    assert api.get(f"{API}/runs/resnet50-b").json() == api.get(f"{API}/jobs/resnet50-b").json()
    assert api.get(f"{API}/runs").json() == api.get(f"{API}/jobs").json()
    assert api.delete(f"{API}/runs/resnet50-b").status_code == 204


def test_a_slash_at_the_end_changes_nothing(api: Caller) -> None:
    assert api.post(f"{API}/jobs/", RESNET50).status_code == 201
    assert api.get(f"{API}/jobs/resnet50-b/").status_code == 200


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
        "ready": True,
        "image": {"reference": "docker.io/library/busybox:latest", "digest": None},
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
    builders.machine(world.cluster, "gpu-01", gpus=1)
    builders.submit(world.access(), world.cluster, "huge", gpus=9, machines=1)
    status = api.get(f"{API}/jobs/huge").json()["status"]
    assert status["state"] == "Pending"
    assert status["reason"].startswith("No machine fits")
    pending = status["pending"]
    assert (pending["ahead"], pending["starts_by"]) == (0, None)
    assert [(group["count"], group["machines"]) for group in pending["machines"]] == [(1, ["gpu-01"])]
    assert pending["quota"]["gpus"] == {"used": 0, "limit": None}
    (listed,) = api.get(f"{API}/jobs?name=huge").json()["items"]
    assert listed["status"]["pending"] == {name: pending[name] for name in ("code", "numbers")}


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


def test_stopping_again_is_answered_alike_and_what_has_completed_cannot_be_stopped(api: Caller) -> None:
    first = api.post(f"{API}/jobs/resnet50/stop")
    assert first.json()["status"]["state"] == "Cancelled"
    assert api.post(f"{API}/jobs/resnet50/stop").json() == first.json()
    assert api.post(f"{API}/tasks/resnet50-0/stop").status_code == 200
    Run.objects.update(state="Completed")
    Worker.objects.update(state="Completed")
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


# ---- the lines that the documentation prints -------------------------------------------------------------------------

TOKEN = '-H "Authorization: Bearer $ASTRA_TOKEN"'
LINES = [
    (f"curl -sS -X POST \"$API/jobs\" {TOKEN} -H 'Content-Type: application/json' --data-binary @resnet50.json", 201),
    (f'curl -sS "$API/jobs/resnet50-b" {TOKEN}', 200),
    (f'curl -sS "$API/tasks?job=resnet50-b" {TOKEN}', 200),
    (f'curl -sS "$API/tasks/resnet50-b-0" {TOKEN}', 200),
    (f'curl -sS "$API/tasks/resnet50-b-0/logs?tail=200" {TOKEN}', 409),  # not placed yet
    (f'curl -sS -X POST "$API/tasks/resnet50-b-0/stop" {TOKEN} -d \'{{"reason": "wrong data"}}\'', 200),
    (f'curl -sS "$API/jobs/resnet50-b" {TOKEN}', 200),
    (f'curl -sS -X DELETE "$API/jobs/resnet50-b" {TOKEN}', 204),
]


def curl(line: str, variables: dict[str, str]) -> Any:
    """Send what a line of the documentation would. A body without a type goes as a form's, as curl has it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-sS", action="store_true")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", "--data-binary", dest="body", default="")
    asked = parser.parse_args(shlex.split(string.Template(line).substitute(variables))[1:])
    headers = dict(header.split(": ", 1) for header in asked.headers)
    body = json.dumps(RESNET50) if asked.body == "@resnet50.json" else asked.body
    kind = headers.pop("Content-Type", "application/x-www-form-urlencoded")
    return Client().generic(asked.method or "GET", asked.url, body, content_type=kind, headers=headers)


def test_the_documentations_lines_do_what_it_says(world: World) -> None:
    variables = {"API": API, "ASTRA_TOKEN": world.secrets["editor"]}
    answers = []
    for line, status in LINES:
        answers.append(curl(line, variables))
        assert answers[-1].status_code == status, (line, answers[-1].content)
    assert answers[0].json()["metadata"]["name"] == "resnet50-b"
    history = [[moved["transition_at"], moved["state"], moved["reason"]] for moved in answers[-2].json()["history"]]
    assert [state for _, state, _ in history] == ["Pending", "Cancelled"]
    assert all(MOMENT.fullmatch(at) for at, _, _ in history)
