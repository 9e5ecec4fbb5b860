"""METRICS_URL: the same questions, answered from a real Prometheus."""

import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.utils import timezone

from machines.metrics import engine
from machines.models import SampleBlock
from runs import metrics
from tests import builders as make
from tests.metrics.samples import frame, item, sampled
from tests.metrics.test_query import API, CPU, GPU, RECEIVED, answered, asked
from tests.world import World, make_world

pytestmark = [pytest.mark.django_db, pytest.mark.prometheus]
START_SECONDS = 60


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus of the tests' own that takes remote writes, on loopback."""
    program = shutil.which("prometheus")
    assert program is not None
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text("global: {scrape_interval: 1h}\n")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    options = [f"--web.listen-address={address}", "--web.enable-remote-write-receiver", "--log.level=warn"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([*command, *options], stdout=log, stderr=log)
    try:
        wait_until_ready(f"http://{address}/-/ready", process, folder / "log")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    pytest.fail(log.read_text())


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def now() -> float:
    return timezone.now().timestamp() // 60 * 60


@pytest.fixture
def attempt(world, now):
    machine = make.machine(world.cluster, "gpu-08", cpu=128, memory=1024 * make.GIB, gpus=12)
    return make.run_on(make.workers(world.run)[0], machine, now=datetime.fromtimestamp(now - 3600, tz=UTC), gpus=(2,))


@pytest.mark.parametrize(
    "question",
    [
        {"metric": CPU, "step": 60},
        {"metric": CPU, "step": 60, "agg": "max", "by": "task,machine"},
        {"metric": CPU, "step": 30, "agg": "min"},
        {"metric": GPU, "step": 60, "by": "gpu"},
        {"metric": GPU, "step": 60, "agg": "sum", "match": ["gpu:10", "task:resnet50-0"]},
        {"metric": RECEIVED, "step": 60},
        {"metric": RECEIVED, "step": 60, "rate": "true"},
    ],
)
def test_the_engine_gives_the_same_answer_as_the_console_itself(
    client, world, attempt, now, prometheus, settings, question
):
    def values(at: float):
        return {CPU: 1 + (at % 120) / 60, (GPU, 2): 0.5, (GPU, 10): 0.9, RECEIVED: 100 * (at - now + 1200)}

    settings.METRICS_URL = prometheus
    sampled(attempt, now - 1194, now - 600, values)
    sampled(attempt, now - 294, now, values)  # and five minutes of nothing before
    asks = {"start": now - 1200, "end": now, **question}
    theirs = answered(client, world, **asks)
    settings.METRICS_URL = ""
    ours = answered(client, world, **asks)
    assert {**theirs, "series": []} == {**ours, "series": []}
    assert [one["labels"] for one in theirs["series"]] == [one["labels"] for one in ours["series"]]
    for one, other in zip(theirs["series"], ours["series"], strict=True):
        there, here = dict(one["points"]), dict(other["points"])
        assert any(value is None for value in here.values())
        known = {at for at in there.keys() & here.keys() if there[at] is not None and here[at] is not None}
        assert len(known) >= 0.75 * sum(value is not None for value in here.values())
        assert [there[at] for at in sorted(known)] == pytest.approx([here[at] for at in sorted(known)], rel=0.25)
        assert sum(there[at] for at in known) == pytest.approx(sum(here[at] for at in known), rel=0.05)


def test_samples_that_were_written_twice_are_there_once(client, world, attempt, now, prometheus, settings):
    settings.METRICS_URL = prometheus
    for _ in range(2):
        sampled(attempt, now - 120, now, lambda at: {CPU: 2.0})
    [series] = answered(client, world, metric=CPU, start=now - 120, end=now, step=60)["series"]
    assert [value for _, value in series["points"]] == [2, 2]


def test_another_workspace_gets_nothing_from_the_engine_either(client, world, attempt, now, prometheus, settings):
    settings.METRICS_URL = prometheus
    sampled(attempt, now - 120, now, lambda at: {CPU: 2.0})
    answer = client.get(
        f"{API.replace('vision', 'nlp')}/metrics/range", {"metric": CPU, "by": "task"}, **world.bearer(world.neighbour)
    )
    assert answer.json()["series"] == []


def test_what_the_engine_refuses_for_good_is_dropped_and_not_sent_for_ever(attempt, now, prometheus, settings):
    settings.METRICS_URL = prometheus
    sampled(attempt, now - 60, now, lambda at: {CPU: 2.0})
    ancient = frame(attempt.machine, now - 10 * 86400, item(attempt.uid, {1.0: {CPU: 1.0}}))
    assert metrics._keep([ancient])


def test_while_the_engine_is_away_samples_wait_and_questions_are_told_so(client, world, attempt, now, settings):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        settings.METRICS_URL = f"http://127.0.0.1:{closed.getsockname()[1]}"
        one = frame(attempt.machine, now, item(attempt.uid, {1.0: {CPU: 1.0}}))
        assert metrics._keep([one]) is False
        assert SampleBlock.objects.count() == 1, "what it uses now is known all the same"
        answer = asked(client, world, metric=CPU)
    assert (answer.status_code, answer.json()["code"]) == (503, "UNAVAILABLE")


def test_the_frame_of_snappy_is_what_its_format_says():
    assert engine._snappy(b"abc") == b"\x03\xf4\x02\x00abc"
    long = bytes(100_000)
    framed = engine._snappy(long)
    assert framed[:3] == b"\xa0\x8d\x06"
    assert len(framed) == 3 + 2 * 3 + len(long)
