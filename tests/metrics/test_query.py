"""`metrics/range` and `metrics`: from what a machine sent to what is answered, and who may see it."""

import asyncio
import json
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis.asyncio
from django.conf import settings
from django.test import Client
from django.utils import timezone

from astraconsole.tenancy.permissions import Role
from machines.metrics import lane, rollup, store
from machines.metrics.names import BY_NAME, METRICS
from machines.models import GpuUse, SampleBlock, SampleRollUp
from machines.protocol import GpuUse as Told
from runs import metrics
from runs.models import Attempt
from runs.services.deleting import delete_run
from tests import builders as make
from tests.metrics.samples import frame, item, sampled
from tests.world import World, make_world

pytestmark = pytest.mark.django_db
CPU, MEMORY, GPU = "task_cpu_usage_cores", "task_memory_used_bytes", "task_gpu_utilization_ratio"
RECEIVED = "task_network_receive_bytes_total"
API = "/api/v1/orgs/acme/workspaces/vision/clusters/gpu-east/api"


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def now() -> float:
    """A whole ten minutes."""
    return timezone.now().timestamp() // 600 * 600


@pytest.fixture
def attempt(world, now) -> Attempt:
    """resnet50-0, running for a day on a machine with eight GPUs, of which it holds 2 and 10."""
    machine = make.machine(world.cluster, "gpu-08", cpu=128, memory=1024 * make.GIB, gpus=12)
    began = datetime.fromtimestamp(now - 86400, tz=timezone.get_current_timezone())
    return make.run_on(make.workers(world.run)[0], machine, now=began, gpus=(2,))


def asked(client: Client, world: World, who: Any = Role.VIEWER, **parameters: Any) -> Any:
    return client.get(f"{API}/metrics/range", parameters, **world.bearer(who))


def answered(client: Client, world: World, **parameters: Any) -> Any:
    answer = asked(client, world, **parameters)
    assert answer.status_code == 200, answer.content
    return answer.json()


# ---- the documented answer


def test_the_answer_has_the_documented_shape(client, world, attempt, now):
    sampled(attempt, now - 600, now, lambda at: {CPU: 2.5})
    found = answered(client, world, metric=CPU, match="task:resnet50-0", start=now - 600, end=now, step=60)
    assert list(found) == ["metric", "kind", "unit", "start", "end", "step", "series"]
    assert {**found, "series": []} == {
        "metric": CPU, "kind": "gauge", "unit": "cores", "start": now - 600, "end": now, "step": 60, "series": [],
    }  # fmt: skip
    [series] = found["series"]
    assert series == {"labels": {}, "points": [[(now - 600 + 60 * n) * 1000, 2.5] for n in range(10)]}


def test_by_keeps_labels_and_agg_combines_the_rest(client, world, attempt, now):
    sampled(attempt, now - 120, now, lambda at: {(GPU, 2): 0.5, (GPU, 10): 0.9})
    asks = {"metric": GPU, "start": now - 120, "end": now, "step": 60}
    by_gpu = answered(client, world, by="gpu,task", **asks)["series"]
    assert [series["labels"] for series in by_gpu] == [
        {"gpu": "2", "task": "resnet50-0"},
        {"gpu": "10", "task": "resnet50-0"},
    ]
    means = {
        agg: answered(client, world, agg=agg, **asks)["series"][0]["points"][0][1] for agg in ("max", "min", "sum")
    }
    assert means == {"max": 0.9, "min": 0.5, "sum": 1.4}
    only = answered(client, world, match=["gpu:2", "job:resnet50"], **asks)["series"]
    assert only[0]["points"][0][1] == 0.5


def test_missing_samples_are_null_and_a_zero_is_a_zero(client, world, attempt, now):
    sampled(attempt, now - 600, now - 540, lambda at: {CPU: 0.0})
    sampled(attempt, now - 120, now - 60, lambda at: {CPU: 1.0})
    [series] = answered(client, world, metric=CPU, start=now - 600, end=now, step=60)["series"]
    assert [value for _, value in series["points"]] == [0, *[None] * 7, 1]


def test_a_rate_survives_a_counter_that_begins_anew(client, world, attempt, now):
    sampled(attempt, now - 600, now - 300, lambda at: {RECEIVED: 100 * (at - now + 600)})
    sampled(attempt, now - 300, now, lambda at: {RECEIVED: 100 * (at - now + 300)})
    found = answered(client, world, metric=RECEIVED, rate="true", start=now - 600, end=now, step=60)
    assert found["unit"] == "bytes/s"
    values = [value for _, value in found["series"][0]["points"]]
    assert values == pytest.approx([100] * 10, rel=0.2)
    assert min(values) >= 0


def test_without_a_step_the_last_hour_is_told_in_a_few_hundred_points(client, world, attempt):
    found = answered(client, world, metric=CPU)
    assert found["step"] == 10
    assert found["end"] - found["start"] in (3600, 3610)
    assert found["series"] == []


# ---- roll-ups


def test_a_day_is_read_from_what_was_rolled_up_and_the_rest_from_what_was_not(client, world, attempt, now):
    sampled(attempt, now - 7200 - 2400, now, lambda at: {CPU: 2.0, (GPU, 2): 0.25 + 0.5 * (at % 60 < 30)}, every=10)
    before = answered(client, world, metric=GPU, agg="max", start=now - 9600, end=now, step=60)["series"]
    assert rollup.roll_up(now) >= 2
    raw_until = SampleRollUp.objects.get(resolution=60).until
    assert raw_until <= now - rollup.LATE_SECONDS
    after = answered(client, world, metric=GPU, agg="max", start=now - 9600, end=now, step=60)["series"]
    assert after == before
    SampleBlock.objects.filter(resolution=0, start__lt=raw_until - 901).delete()
    assert answered(client, world, metric=GPU, agg="max", start=now - 9600, end=now, step=60)["series"] == before
    assert rollup.roll_up(now) == 0


def test_a_rate_over_rolled_up_samples_is_that_over_raw_ones(client, world, attempt, now):
    sampled(attempt, now - 9600, now, lambda at: {RECEIVED: 50 * (at - now + 9600)})
    asks = {"metric": RECEIVED, "rate": "1", "start": now - 9600, "end": now, "step": 300}
    before = answered(client, world, **asks)["series"][0]["points"]
    rollup.roll_up(now)
    after = answered(client, world, **asks)["series"][0]["points"]
    assert [at for at, _ in after] == [at for at, _ in before]
    assert [value for _, value in after] == pytest.approx([value for _, value in before], rel=0.05)


def test_samples_go_when_their_time_is_over_but_never_before_they_are_rolled_up(attempt, now, settings):
    settings.METRICS_RAW_SECONDS = 3600
    sampled(attempt, now - 9600, now, lambda at: {CPU: 1})
    rollup.expire(now)
    assert SampleBlock.objects.filter(resolution=0, start__lt=now - 8000).exists()
    rollup.roll_up(now)
    rollup.expire(now)
    assert not SampleBlock.objects.filter(resolution=0, start__lt=now - 3600 - 900 - 1800).exists()
    assert SampleBlock.objects.filter(resolution=0, start__gt=now - 3600).exists()
    rollup.expire(now + settings.METRICS_TEN_MINUTE_SECONDS + 200_000)
    assert SampleBlock.objects.filter(resolution=0).count() > 0, "not rolled up yet"


def test_a_step_is_no_finer_than_what_is_kept_so_far_back(client, world, attempt, now):
    long_ago = answered(client, world, metric=CPU, start=now - 30 * 86400, end=now - 30 * 86400 + 3600, step=10)
    assert long_ago["step"] == 600
    yesterday = answered(client, world, metric=CPU, start=now - 86400, end=now - 82800, step=10)
    assert yesterday["step"] == 60


# ---- bad questions


@pytest.mark.parametrize(
    ("parameters", "field", "rule"),
    [
        ({}, "metric", "is required"),
        ({"metric": "cpu"}, "metric", "must be one of task_cpu_usage_cores"),
        ({"metric": ["task_cpu_usage_cores"] * 2}, "metric", "must be given once"),
        ({"match": "resnet50-0"}, "match", "must be label:value"),
        ({"match": "task:"}, "match", "must be label:value"),
        ({"match": "host:a"}, "match", "knows the labels job, task, attempt, machine, gpu, not host"),
        ({"match": "gpu:0"}, "match", "is not told for each GPU"),
        ({"by": "task,host"}, "by", "knows the labels"),
        ({"by": "gpu"}, "by", "is not told for each GPU"),
        ({"agg": "median"}, "agg", "must be sum, avg, max or min"),
        ({"rate": "yes"}, "rate", "must be true or false"),
        ({"rate": "true"}, "rate", "is for counters"),
        ({"start": "yesterday"}, "start", "must be Unix seconds"),
        ({"start": "nan"}, "start", "must be Unix seconds"),
        ({"start": "1e5"}, "start", "must be Unix seconds"),
        ({"end": "1780000000000"}, "end", "must be Unix seconds"),
        ({"end": "-5"}, "end", "must be Unix seconds"),
        ({"start": "2000000000", "end": "1900000000"}, "start", "must be before end"),
        ({"step": "0"}, "step", "must be seconds"),
        ({"step": "1m"}, "step", "must be seconds"),
        ({"start": "1700000000", "end": "1800000000", "step": "60"}, "step", "is too short"),
    ],
)
def test_each_bad_parameter_is_named_with_its_rule(client, world, parameters, field, rule):
    answer = asked(client, world, **{"metric": CPU, **parameters} if parameters else {})
    assert answer.status_code == 400
    body = answer.json()
    assert body["code"] == "VALIDATION_ERROR"
    assert [entry["field"] for entry in body["detail"]] == [field]
    assert rule in body["detail"][0]["rule"]


def test_all_that_is_wrong_is_told_at_once_and_a_parameter_that_is_none_is_refused(client, world):
    body = asked(client, world, metric=CPU, agg="x", rate="x", by="x").json()
    assert {entry["field"] for entry in body["detail"]} == {"agg", "rate", "by"}
    assert asked(client, world, metric=CPU, limit=3).json()["code"] == "UNKNOWN_FIELD"


# ---- whose they are


def test_another_workspace_on_the_same_cluster_sees_nothing_of_them(client, world, attempt, now):
    sampled(attempt, now - 120, now, lambda at: {CPU: 2.5})
    nlp = API.replace("vision", "nlp")
    answer = client.get(f"{nlp}/metrics/range", {"metric": CPU, "by": "task"}, **world.bearer(world.neighbour))
    assert answer.status_code == 200
    assert answer.json()["series"] == []


def test_a_machine_speaks_for_what_was_placed_on_it_alone(world, attempt, now):
    other = make.machine(world.cluster, "gpu-09")
    row = {5.0: {CPU: 1.0}}
    frames = [frame(other, now, item(attempt.uid, row)), frame(attempt.machine, now, item(uuid.uuid4(), row))]
    assert metrics._keep(frames)
    assert not SampleBlock.objects.exists()


def test_samples_go_with_their_run(world, attempt, now):
    sampled(attempt, now - 120, now, lambda at: {CPU: 2.5})
    delete_run(world.access(), world.run, timezone.now())
    assert not SampleBlock.objects.exists()
    sampled(attempt, now - 60, now, lambda at: {CPU: 2.5})
    assert not SampleBlock.objects.exists(), "what its machine still sends is not kept"


# ---- what comes in


def test_what_no_machine_should_send_is_left_out(world, attempt, now):
    bad = item(attempt.uid, {20.0: {CPU: float("inf"), MEMORY: -1.0}, 10.0: {CPU: 1.0, MEMORY: None}, 5000.0: {CPU: 9}})
    bad.keys.append(250)  # a metric of a newer agent
    for row in bad.rows:
        row.values.append(7.0)
    broken = (attempt.machine.pk, now, b"\xc1 no message")
    assert metrics._keep([broken, frame(attempt.machine, now, bad)])
    [piece] = store.read([attempt.uid], BY_NAME[CPU], now - 9000, now + 1, 0)
    assert piece.table[:, 0].tolist() == [now - 20, now - 10]
    assert [value == value for value in piece.table[:, 1]] == [False, True]


def test_the_same_frame_twice_is_stored_once(attempt, now):
    for _ in range(2):
        sampled(attempt, now - 60, now, lambda at: {CPU: 1.0})
    assert SampleBlock.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_the_lane_carries_frames_to_the_store_and_is_empty_afterwards(world, attempt):
    now, machine = timezone.now().timestamp(), attempt.machine

    async def send() -> None:
        client = redis.asyncio.Redis.from_url(settings.REDIS_URL)
        one = frame(machine, now, item(attempt.uid, {1.0: {CPU: 3.0}}), gpus=[Told(2, 0.5, 7, 1)])
        await lane.append(client, {machine.cluster_id: [one]})
        await client.aclose()

    asyncio.run(send())
    assert lane.lengths([attempt.machine.cluster_id]) == {attempt.machine.cluster_id: 1}
    assert metrics.take_in(attempt.machine.cluster_id) == 1
    assert lane.lengths([attempt.machine.cluster_id]) == {attempt.machine.cluster_id: 0}
    assert metrics.using_now(world.run.pk) == metrics.Using(None, 3.0, None)
    assert GpuUse.objects.get().gpus == [{"index": 2, "utilization": 0.5, "memory_bytes": 7, "processes": 1}]


# ---- the newest


def test_a_workers_document_holds_what_it_uses_now(client, world, attempt):
    now = timezone.now().timestamp()
    sampled(attempt, now - 40, now, lambda at: {CPU: 1.5, (GPU, 2): 0.5, (GPU, 10): 1.0})
    document = client.get(f"{API}/tasks/resnet50-0", **world.bearer(Role.VIEWER)).json()
    assert document["metrics"] == {CPU: 1.5, GPU: 0.75}
    listed = client.get(f"{API}/tasks", {"job": "resnet50"}, **world.bearer(Role.VIEWER)).json()
    assert listed["items"][0]["metrics"] == document["metrics"]


def test_what_is_old_is_not_what_it_uses_now(client, world, attempt):
    now = timezone.now().timestamp()
    sampled(attempt, now - 300, now - 120, lambda at: {CPU: 1.5})
    assert client.get(f"{API}/tasks/resnet50-0", **world.bearer(Role.VIEWER)).json()["metrics"] == {}
    assert metrics.using_now(world.run.pk) is None


def test_every_metric_of_the_table_is_answered(client, world, attempt, now):
    def values(at: float) -> dict[Any, float]:
        return {(metric.name, 2) if metric.per_gpu else metric.name: 1.0 for metric in METRICS}

    sampled(attempt, now - 60, now, values)
    for metric in METRICS:
        found = answered(client, world, metric=metric.name, start=now - 60, end=now, step=60)
        assert found["series"][0]["points"] == [[(now - 60) * 1000, 1]], metric.name
        assert (found["kind"], found["unit"]) == (metric.kind, metric.unit)


# ---- GPUs


def test_the_list_of_gpus_tells_model_use_health_and_holder(client, world, attempt, now):
    recent = timezone.now()
    GpuUse.objects.create(
        machine=attempt.machine, at=recent,
        gpus=[{"index": 2, "utilization": 0.97, "memory_bytes": 5, "processes": 1}],
    )  # fmt: skip
    sick = attempt.machine.gpus.get(index=3)
    sick.healthy, sick.health_reason = False, "XID 79 was reported by the driver"
    sick.save()
    found = client.get(f"{API}/gpus", **world.bearer(Role.VIEWER)).json()
    items = {(gpu["machine"], gpu["index"]): gpu for gpu in found["items"]}
    held = items["gpu-08", 2]
    assert (held["held_by"], held["worker"], held["utilization"]) == ("resnet50", "resnet50-0", 0.97)
    assert (held["model"], held["health"], held["unused"]) == ("NVIDIA H100 80GB HBM3", "ok", "")
    assert items["gpu-08", 3]["health"] == "XID 79 was reported by the driver"
    assert items["gpu-08", 3]["held_by"] is None
    assert [index for _, index in items] == sorted(index for _, index in items)


def test_gpu_10_stands_after_gpu_9(client, world):
    for name in ("gpu-10", "gpu-9", "gpu-1"):
        make.machine(world.cluster, name, gpus=1)
    found = client.get(f"{API}/gpus", **world.bearer(Role.VIEWER)).json()["items"]
    assert [gpu["machine"] for gpu in found] == ["gpu-1", "gpu-9", "gpu-10"]


def test_another_workspaces_run_is_not_named(client, world, attempt):
    nlp = API.replace("vision", "nlp")
    found = client.get(f"{nlp}/gpus", **world.bearer(world.neighbour)).json()["items"]
    held = next(gpu for gpu in found if gpu["index"] == 2)
    assert (held["held_by"], held["worker"]) == ("another workspace's run", None)
    assert "resnet50" not in json.dumps(found)


@pytest.mark.parametrize(
    ("told", "unused"),
    [
        ({"utilization": 0.9, "processes": 1}, ""),
        ({"utilization": 0.0, "processes": 0}, "Held, and no process uses it"),
        ({"utilization": 0.01, "processes": 2}, "Held, and idle"),
        ({"utilization": None, "processes": None}, ""),
    ],
)
def test_a_gpu_that_is_held_for_nothing_is_marked(client, world, attempt, told, unused):
    gpus = [{"index": 2, "memory_bytes": 0, **told}]
    GpuUse.objects.create(machine=attempt.machine, at=timezone.now(), gpus=gpus)
    found = client.get(f"{API}/gpus", **world.bearer(Role.VIEWER)).json()["items"]
    assert next(gpu for gpu in found if gpu["index"] == 2)["unused"] == unused


def test_a_worker_that_has_only_begun_is_given_time_to_use_its_gpu(client, world, attempt):
    Attempt.objects.update(running_at=timezone.now() - timedelta(seconds=5))
    GpuUse.objects.create(
        machine=attempt.machine, at=timezone.now(), gpus=[{"index": 2, "utilization": 0, "processes": 0}]
    )
    found = client.get(f"{API}/gpus", **world.bearer(Role.VIEWER)).json()["items"]
    assert next(gpu for gpu in found if gpu["index"] == 2)["unused"] == ""
