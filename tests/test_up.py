"""`manage.py up`: what it starts, says, keeps and leaves behind."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from astraconsole.local import names_of
from tests.console import ROOT, Console, eventually, free_port, processes_of, running_console, start_console

pytestmark = pytest.mark.processes

PROCESS_MACHINE = ("--runtime", "process", "--machine-cpus", "4", "--machine-memory", "4Gi")


ENVIRONMENT = {"STOP_GRACE_SECONDS": "3"}


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    """One for all tests: each leaves it serving, perhaps as another process on the same data folder."""
    with running_console(*PROCESS_MACHINE, env=ENVIRONMENT) as running:
        yield running


def start_again(console: Console) -> None:
    again = start_console(console.data, *PROCESS_MACHINE, env=ENVIRONMENT)
    console.process, console.api, console.ready = again.process, again.api, again.ready


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="astra-up-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def up(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", "up", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that says why; asserts that there is one and that the exit code is not 0."""
    assert done.returncode != 0
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_ready_file_says_how_to_use_the_console_and_is_private(console: Console) -> None:
    keys = {"url", "organisation", "workspace", "cluster", "username", "password", "token"}
    assert set(console.ready) == keys
    assert mode(console.data.with_suffix(".ready")) == 0o600
    assert mode(console.data / "demo.json") == 0o600
    with httpx.Client(base_url=console.url) as browser:
        page = browser.get("/sign-in")
        form = {
            "username": console.ready["username"],
            "password": console.ready["password"],
            "csrfmiddlewaretoken": browser.cookies["csrftoken"],
        }
        assert page.status_code == 200
        assert browser.post("/sign-in", data=form).status_code == 302


def test_a_second_up_on_the_same_folder_is_refused_in_one_line(console: Console) -> None:
    line = refusal(up("--data-dir", str(console.data), "--port", "1024"))
    assert f"another console runs on {console.data} (pid {console.process.pid})" in line


def test_a_busy_port_is_refused_in_one_line(folder: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        line = refusal(up("--data-dir", str(folder / "data"), "--port", str(port)))
    assert f"cannot listen on 127.0.0.1 port {port}" in line


def test_a_data_folder_that_cannot_be_written_is_refused_in_one_line() -> None:
    assert "cannot write to the data folder /proc/astra" in refusal(up("--data-dir", "/proc/astra"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--port", "0"), "not a port (1 to 65535): 0"),
        (("--port", "http"), "--port"),
        (("--machines", "-1"), "--machines"),
        (("--machine-cpus", "0"), "--machine-cpus"),
        (("--machine-memory", "lots"), "--machine-memory"),
        (("--simulate-gpus", "8xH100"), "--simulate-gpus"),
        (("--simulate-gpus", "many"), "--simulate-gpus"),
    ],
)
def test_a_bad_option_is_named(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = up("--data-dir", str(folder / "data"), *arguments)
    assert done.returncode != 0
    assert words in done.stderr.splitlines()[-1]


def test_stopping_requeues_what_runs_and_the_next_start_keeps_all_and_runs_it_again(console: Console) -> None:
    console.submit("kept", "true")
    console.wait_for("kept", "Completed")
    console.submit("sleeper", "sh", "-c", "echo began; exec sleep 600")
    console.wait_for("sleeper", "Running")
    demo = json.loads((console.data / "demo.json").read_text())
    assert console.stop() == 0
    assert processes_of(console.data, console.process.pid) == []
    start_again(console)
    assert json.loads((console.data / "demo.json").read_text()) == demo
    assert console.run("kept")["status"]["state"] == "Completed"
    run = console.wait_for("sleeper", "Running")
    assert ("Pending", "Console stopped") in [(move["state"], move["reason"]) for move in run["history"]]
    assert console.task("sleeper-0")["restarts"] == 0


@pytest.mark.parametrize("sign", ["services/postgres", "logs/agent.log"])
def test_a_stop_while_it_starts_is_no_error_and_leaves_nothing_running(folder: Path, sign: str) -> None:
    data = folder / "data"
    environment = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    command = [sys.executable, "manage.py", "up", "--port", str(free_port()), "--data-dir", str(data), *PROCESS_MACHINE]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually((data / sign).exists, seconds=90)
        finally:
            process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert processes_of(folder, process.pid) == []


@pytest.mark.parametrize(("host", "names"), [("::1", {"[::1]"}), ("10.0.0.1", {"10.0.0.1"}), ("gpu-1", {"gpu-1"})])
def test_a_console_answers_to_the_address_that_it_listens_on(host: str, names: set[str]) -> None:
    assert names_of(host) == names


def test_a_console_open_to_the_network_answers_to_this_hosts_address() -> None:
    names = names_of("0.0.0.0")
    assert "0.0.0.0" in names
    for name in names:
        with socket.socket() as probe:
            probe.bind((name, 0))  # OSError if it is not this host's


def test_after_a_kill_of_up_the_next_start_adopts_the_running_workers(console: Console) -> None:
    console.submit(
        "survivor", "sh", "-c", "echo began; sleep 8; echo done; exit 7", task_template={"restart_policy": "Never"}
    )
    console.wait_for("survivor", "Running")
    os.kill(console.process.pid, signal.SIGKILL)
    console.process.wait()
    start_again(console)
    console.wait_for("survivor", "Failed")
    task = console.task("survivor-0")
    assert (task["exit_code"], task["restarts"]) == (7, 0)
    assert console.logs("survivor-0") == "began\ndone\n"


def test_simulated_machines_declare_what_they_are_told() -> None:
    options = ("--machines", "2", "--runtime", "simulated", "--simulate-gpus", "8xH100-80GB", "--machine-cpus", "64")
    with running_console(*options, "--machine-memory", "512Gi") as console:
        machines = eventually(lambda: console.api.get("machines").json()["items"])
        assert [machine["metadata"]["name"] for machine in machines] == ["local-1", "local-2"]
        for machine in machines:
            assert machine["runtime"] == "simulated"
            assert len(machine["capacity"]["gpus"]) == 8
            assert all(gpu["simulated"] for gpu in machine["capacity"]["gpus"])
