"""The Metrics tabs and the GPUs page: what they show, what they say when there is nothing, whom they name."""

import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from astraconsole.tenancy.permissions import Role
from machines.models import GpuUse
from runs.models import Attempt
from tests import builders as make
from tests.metrics.samples import sampled
from tests.world import World, make_world

pytestmark = pytest.mark.django_db
WS = "/o/acme/w/vision"
RUN, WORKER = f"{WS}/jobs/gpu-east/resnet50", f"{WS}/workers/gpu-east/resnet50-0"
CPU, GPU = "task_cpu_usage_cores", "task_gpu_utilization_ratio"


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def client(world) -> Client:
    client = Client()
    client.force_login(world.members[Role.VIEWER])
    return client


@pytest.fixture
def attempt(world) -> Attempt:
    machine = make.machine(world.cluster, "gpu-08", cpu=128, memory=1024 * make.GIB, gpus=4)
    return make.run_on(make.workers(world.run)[0], machine, now=timezone.now() - timedelta(minutes=10), gpus=(2,))


def test_the_charts_of_a_run_are_those_of_the_documentation_in_their_order(client, world, attempt):
    now = timezone.now().timestamp()
    sampled(attempt, now - 300, now, lambda at: {CPU: 1.5, (GPU, 2): 0.9})
    found = client.get(f"{RUN}/charts").json()
    assert [chart["title"] for chart in found["charts"]] == [
        "CPU", "Memory", "GPU utilisation", "GPU memory", "Tensor cores", "SM activity", "Memory bandwidth",
    ]  # fmt: skip
    shown = {chart["title"]: chart for chart in found["charts"]}
    assert [series["name"] for series in shown["CPU"]["series"]] == ["resnet50-0"]
    assert shown["CPU"]["series"][0]["points"][-2][1] == 1.5
    assert shown["Tensor cores"]["series"] == []
    assert "Hopper" in shown["Tensor cores"]["empty"]


def test_the_charts_of_a_worker_are_by_gpu_with_the_limit_beside_the_memory(client, world, attempt):
    now = timezone.now().timestamp()
    sampled(
        attempt, now - 300, now,
        lambda at: {(GPU, 2): 0.9, "task_memory_used_bytes": 5.0, "task_memory_limit_bytes": 9.0},
    )  # fmt: skip
    shown = {chart["title"]: chart for chart in client.get(f"{WORKER}/charts?range=15m").json()["charts"]}
    assert list(shown) == ["CPU", "Memory", "GPU utilisation", "GPU memory", "Tensor cores", "Network received"]
    assert [series["name"] for series in shown["GPU utilisation"]["series"]] == ["GPU 2"]
    assert [series["bound"] for series in shown["Memory"]["series"]] == [False, True]
    assert "host" in shown["Network received"]["empty"]


def test_a_chart_without_samples_says_why(client, world):
    assert client.get(f"{RUN}/charts").json()["charts"][0]["empty"] == "No samples yet: the run has not started"
    page = client.get(f"{RUN}?tab=metrics").content.decode()
    assert "No samples yet: the run has not started" in page
    worker = client.get(f"{WORKER}?tab=metrics").content.decode()
    assert "No samples yet: the worker has no machine yet" in worker


def test_a_machine_that_is_away_is_named_as_the_reason(client, world, attempt):
    attempt.machine.connection = ""
    attempt.machine.save()
    assert client.get(f"{WORKER}/charts").json()["charts"][0]["empty"] == "No samples now: gpu-08 is not connected"


def test_the_tab_shows_the_latest_values_without_a_script(client, world, attempt):
    now = timezone.now().timestamp()
    sampled(attempt, now - 40, now, lambda at: {CPU: 1.25, (GPU, 2): 0.5})
    page = client.get(f"{RUN}?tab=metrics")
    text = page.content.decode()
    assert "1.25" in text
    assert "50%" in text
    assert "plotly.min.js" in text
    assert "'unsafe-inline'" not in page.headers["Content-Security-Policy"]
    assert "plotly" not in client.get(RUN).content.decode()


def test_the_readout_says_what_a_run_uses_now(client, world, attempt):
    now = timezone.now().timestamp()
    assert "no samples yet" in client.get(f"{RUN}/using").content.decode()
    sampled(attempt, now - 40, now, lambda at: {CPU: 1.25, (GPU, 2): 0.97, "task_memory_used_bytes": 2.0**31})
    for address in (f"{RUN}/using", RUN):
        text = client.get(address).content.decode()
        assert "Using now" in text
        assert "97%" in text
        assert "1.25 cores · 2 GiB" in text


@pytest.mark.parametrize(
    "asked", ["range=soon", "from=x&to=y", "from=2026-13-40T00:00", "from=2030-01-01T00:00&to=2020-01-01T00:00"]
)
def test_a_range_that_is_none_is_the_last_hour(client, world, attempt, asked):
    found = client.get(f"{WORKER}/charts?{asked}").json()
    assert found["end"] - found["start"] == pytest.approx(3600_000, abs=1)


def test_ones_own_times_are_taken(client, world, attempt):
    found = client.get(f"{WORKER}/charts?from=2026-10-01T00:00&to=2026-10-02T00:00").json()
    assert (found["end"] - found["start"], found["live"]) == (86_400_000, False)


def test_the_gpus_page_maps_machines_and_marks_what_is_held_for_nothing(client, world, attempt):
    gpus = [{"index": 2, "utilization": 0.0, "memory_bytes": 0, "processes": 0}]
    GpuUse.objects.create(machine=attempt.machine, at=timezone.now(), gpus=gpus)
    text = client.get(f"{WS}/gpus").content.decode()
    assert "Held, and no process uses it" in text
    assert 'data-mark="unused"' in text
    assert text.count('data-mark="free" title') == 3 + 8  # the machine of lab has eight
    only = client.get(f"{WS}/gpus?look=1").content.decode()
    assert only.count("Held, and no process uses it") == 2  # in the map's words, and the one line
    assert "resnet50" in only


def test_the_gpus_page_names_no_run_of_another_workspace(world, attempt):
    client = Client()
    client.force_login(world.neighbour)
    text = client.get("/o/acme/w/nlp/gpus").content.decode()
    assert "another workspace&#x27;s run" in text
    assert "resnet50" not in text


def test_gpus_take_the_same_number_of_queries_however_many_there_are(client, world, attempt):
    def count() -> int:
        with CaptureQueriesContext(connection) as found:
            assert client.get(f"{WS}/gpus").status_code == 200
        return len(found)

    before = count()
    for _ in range(3):
        make.machine(world.cluster, gpus=8)
    assert count() == before


def test_the_data_of_charts_is_json_that_a_script_can_read(client, world, attempt):
    answer = client.get(f"{RUN}/charts?range=all")
    assert answer.headers["Content-Type"] == "application/json"
    assert json.loads(answer.content)["live"] is True
