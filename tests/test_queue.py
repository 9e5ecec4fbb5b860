"""A whole console with a queue: gangs start together, and work of higher priority gets its room."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from astraconsole import embedded
from tests.console import Console, eventually, running_console

pytestmark = pytest.mark.processes

FARM = ("--runtime", "simulated", "--machines", "2", "--simulate-gpus", "8xH100-80GB")
SLEEP = "30"


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    with tempfile.TemporaryDirectory(prefix="astra-e2e-") as folder:
        Path(folder).chmod(0o711)
        servers = embedded.start(Path(folder))
        try:
            urls = {"DATABASE_URL": servers.database_url, "REDIS_URL": servers.redis_url}
            with running_console(*FARM, "--machine-cpus", "16", "--machine-memory", "64Gi", env=urls) as running:
                with psycopg.connect(servers.database_url, autocommit=True) as database:
                    database.execute("UPDATE machines_namespace SET max_priority = 10")
                yield running
        finally:
            servers.stop()


def gpus(count: int) -> dict[str, object]:
    per_gpu = {"cpu_cores": 1, "memory_bytes": 1024**3}
    return {"requested_resources": {"per_gpu": per_gpu, "gpu_requests": {"count": count}}}


def moments(console: Console, worker: str) -> dict[str, str]:
    return {move["reason"]: move["transition_at"] for move in console.task(worker)["history"]}


def test_a_gang_starts_when_its_slowest_worker_is_ready(console: Console) -> None:
    slow = {"env": {"ASTRA_SIMULATE_PULL_SECONDS": "1.5"}}
    groups = [{"name": "fast", "count": 1}, {"name": "slow", "count": 1, "task_template": slow}]
    console.submit("gang", "sleep", SLEEP, start="Gang", worker_groups=groups)
    together = "Starting together: 1 of 2 ready"
    assert eventually(lambda: console.run("gang")["status"]["reason"] == together)
    console.wait_for("gang", "Running")
    eventually(lambda: console.run("gang")["status"]["reason"] == "2 of 2 workers running")
    fast, other = moments(console, "gang-fast-0"), moments(console, "gang-slow-0")
    assert fast["Ready: waits for the others"] < other["Ready: waits for the others"] < fast["Container running"]
    console.api.delete("jobs/gang")


def test_work_of_higher_priority_gets_room_and_gives_it_back(console: Console) -> None:
    for number in range(2):
        console.submit(f"low-{number}", "sleep", SLEEP, task_template=gpus(8), node_selection={"count": 1})
        console.wait_for(f"low-{number}", "Running")
    console.submit("high", "sleep", "1", task_template=gpus(8), node_selection={"count": 1}, priority=10)
    console.wait_for("high", "Running", "Completed")
    (victim,) = (name for name in ("low-0", "low-1") if console.run(name)["status"]["preemptions"])
    assert victim == "low-1"  # the youngest
    preempted = "Preempted by higher-priority work (high)"
    assert {preempted, f"Stopping: {preempted}"} <= moments(console, "low-1-0").keys()
    assert console.run("low-0")["status"]["state"] == "Running"
    console.wait_for("high", "Completed")
    run = console.wait_for("low-1", "Running")
    assert (run["status"]["restarts"], console.task("low-1-0")["last_failure"]) == (0, None)


def test_a_waiting_run_says_when_and_what_would_start_it(console: Console) -> None:
    console.submit("small", "sleep", SLEEP, task_template={**gpus(1), "time_limit_seconds": 3600}, priority=10)
    console.wait_for("small", "Running")
    console.submit("wide", "true", task_template=gpus(9), node_selection={"count": 1})
    pending = eventually(lambda: console.run("wide")["status"].get("pending"))
    assert pending["code"] == "never_gpus"
    assert pending["would_start"][0]["change"].startswith("With")
