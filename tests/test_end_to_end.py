"""From the API to a real container and back, through every real part."""

from collections.abc import Iterator

import pytest

from tests.console import Console, eventually, running_console
from tests.engine import IMAGE, Engine

pytestmark = [pytest.mark.processes, pytest.mark.engine]


@pytest.fixture(scope="module")
def console(engine: Engine) -> Iterator[Console]:
    options = ("--runtime", "docker", "--machine-cpus", "4", "--machine-memory", "8Gi")
    with running_console(*options, env={"DOCKER_HOST": engine.url, "STOP_GRACE_SECONDS": "3"}) as running:
        yield running


def test_a_container_runs_with_its_arguments_untouched_and_its_log_and_code_come_back(console: Console) -> None:
    argv = ("printf", "[%s]\\n", "two words", 'a "quote"', "$HOME", "a;b,c=d", "", "é🚀")
    console.submit("argv", *argv)
    run = console.wait_for("argv", "Completed", "Failed")
    assert (run["status"]["state"], run["status"]["reason"]) == ("Completed", "1 of 1 workers completed")
    assert console.task("argv-0")["exit_code"] == 0
    assert console.logs("argv-0") == '[two words]\n[a "quote"]\n[$HOME]\n[a;b,c=d]\n[]\n[é🚀]\n'


def test_every_phase_is_in_the_history_in_order(console: Console) -> None:
    console.submit("phases", "true")
    console.wait_for("phases", "Completed")
    states = [move["state"] for move in console.task("phases-0")["history"]]
    assert states[0] == "Pending"
    assert states[-1] == "Completed"
    assert [state for state in states if state in ("Preparing", "Starting", "Running")] == [
        "Preparing",
        "Starting",
        "Running",
    ]


def test_a_failed_container_fails_its_run_and_names_worker_machine_and_code(console: Console) -> None:
    console.submit("failing", "sh", "-c", "echo why; exit 3", task_template={"restart_policy": "Never"})
    run = console.wait_for("failing", "Failed")
    assert run["status"]["reason"] == "Worker failing-0 failed on local-1: Exited with code 3"
    failure = console.task("failing-0")["last_failure"]
    assert (failure["exit_code"], failure["reason"], failure["log_tail"]) == (3, "Exited with code 3", "why\n")


def test_an_image_that_cannot_be_pulled_says_so_in_the_engines_words(console: Console) -> None:
    template = {"image": "127.0.0.1:1/no/such:image", "restart_policy": "Never"}
    console.submit("no-image", "true", task_template=template)
    run = console.wait_for("no-image", "Failed")
    assert "ErrImagePull: " in run["status"]["reason"]
    assert "127.0.0.1:1" in console.task("no-image-0")["last_failure"]["reason"]


def test_a_command_that_is_not_in_the_image_ends_with_127(console: Console) -> None:
    console.submit("no-command", "no-such-command", task_template={"restart_policy": "Never"})
    run = console.wait_for("no-command", "Failed")
    assert run["status"]["reason"].endswith("Exited with code 127")


def test_memory_beyond_the_limit_is_told_as_such(console: Console) -> None:
    template = {"restart_policy": "Never", "requested_resources": {"cpu_cores": 1, "memory_bytes": 32 * 1024**2}}
    console.submit("hungry", "sh", "-c", "tail /dev/zero", task_template=template)
    run = console.wait_for("hungry", "Failed")
    assert "OOMKilled: the container exceeded its memory limit" in run["status"]["reason"]


def test_a_stopped_run_keeps_its_log_and_a_deleted_one_leaves_nothing(console: Console, engine: Engine) -> None:
    console.submit("stopped", "sh", "-c", "echo began; exec sleep 600")
    console.wait_for("stopped", "Running")
    assert console.api.post("tasks/stopped-0/stop", json={"reason": "enough"}).status_code == 200
    run = console.wait_for("stopped", "Cancelled")
    assert run["status"]["reason"] == "All workers ended; some were cancelled"
    assert console.logs("stopped-0") == "began\n"
    assert console.api.delete("jobs/stopped").status_code == 204
    assert console.api.get("jobs/stopped").status_code == 404
    assert IMAGE in engine.docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}")


def test_a_service_whose_liveness_probe_fails_starts_again_until_it_is_stopped(console: Console) -> None:
    """Ready when it says so, restarted when it no longer answers."""
    probes = {
        "readiness": {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "period_seconds": 1, "timeout_seconds": 20},
        "liveness": {
            "exec": {"command": ["sh", "-c", "test ! -e /tmp/sick || { echo it hangs; exit 1; }"]},
            **{"period_seconds": 1, "timeout_seconds": 20, "failure_threshold": 1},
        },
    }
    script = "sleep 2; touch /tmp/ready; sleep 2; touch /tmp/sick; exec sleep 600"
    console.submit("server", "sh", "-c", script, lifetime="Service", task_template={"probes": probes})
    waiting = "Running, not ready: its readiness probe has not succeeded yet"
    eventually(lambda: console.task("server-0")["status"]["reason"] == waiting, 60)
    eventually(lambda: console.task("server-0")["ready"], 60)
    failed = eventually(lambda: console.task("server-0")["last_failure"], 60)
    assert failed["reason"] == "Liveness probe failed: exited with code 1: it hangs"
    assert console.task("server-0")["restarts"] == 1
    assert console.api.post("jobs/server/stop").status_code == 200
    assert console.wait_for("server", "Cancelled")["status"]["reason"] == "All workers ended; some were cancelled"
