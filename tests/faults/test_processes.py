"""A run survives the death of any process of the console, and a flushed Redis: true exit code, whole log."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.console import Console, eventually, running_console

pytestmark = pytest.mark.processes

LINES = 400
SCRIPT = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); sleep 0.01; done; exit 3"
WHOLE_LOG = "".join(f"line {number}\n" for number in range(LINES))


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    options = ("--runtime", "process", "--machine-cpus", "8", "--machine-memory", "8Gi")
    with running_console(*options, env={"STOP_GRACE_SECONDS": "3"}) as running:
        yield running


def kill(fragment: str) -> Callable[[Console], None]:
    def fault(console: Console) -> None:
        os.kill(console.pid_of(fragment), signal.SIGKILL)

    return fault


def flush_redis(console: Console) -> None:
    services = console.data / "services"
    client = redis.Redis(unix_socket_path=str(services / "redis.sock"), password=(services / "password").read_text())
    with client:
        client.flushall()


FAULTS = {
    "agent": kill("machines.agent.main"),
    "celery-worker": kill("astraconsole worker"),
    "celery-beat": kill("astraconsole beat"),
    "daphne": kill("daphne"),
    "redis": kill("redis-server"),
    "postgres": kill("postgres -D"),
    "redis-flush": flush_redis,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_in_the_middle_of_a_fault_ends_with_its_true_exit_code_and_whole_log(
    console: Console, fault: str, injected: Callable[..., None]
) -> None:
    name = f"mid-{fault}"
    console.submit(name, "sh", "-c", SCRIPT, task_template={"restart_policy": "Never"})
    console.wait_for(name, "Running")
    FAULTS[fault](console)
    injected(fault)
    run = console.wait_for(name, "Failed", "Completed", seconds=90)
    assert run["status"]["state"] == "Failed"
    task = console.task(f"{name}-0")
    assert (task["exit_code"], task["restarts"]) == (3, 0)
    assert eventually(lambda: console.logs(f"{name}-0")) == WHOLE_LOG


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_submitted_right_after_a_fault_still_runs_once(
    console: Console, fault: str, injected: Callable[..., None]
) -> None:
    name = f"after-{fault}"
    FAULTS[fault](console)
    injected(fault)
    eventually(lambda: submitted(console, name))
    console.wait_for(name, "Completed", seconds=90)
    assert console.logs(f"{name}-0") == "once\n"


def submitted(console: Console, name: str) -> bool:
    """Submit until the console answers; a run that was taken by an answer that got lost counts."""
    try:
        console.submit(name, "echo", "once")
    except Exception:
        return bool(_known(console, name))
    return True


def _known(console: Console, name: str) -> bool:
    try:
        return console.api.get(f"jobs/{name}").status_code == 200
    except Exception:
        return False
