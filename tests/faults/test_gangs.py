"""Faults while a gang waits at its barrier: it starts whole afterwards, or gives everything back and waits again.

One worker is a real process on the console's own machine; the other is on a simulated machine with an agent of its own,
where its image takes as long as the test needs.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from astraconsole import embedded
from astraconsole.tokens import digest
from tests.console import ROOT, Console, eventually, processes_of, running_console

pytestmark = pytest.mark.processes

SETTINGS = {
    "MACHINE_LEASE_SECONDS": "4",
    "MACHINE_HEARTBEAT_SECONDS": "0.5",
    "GANG_BARRIER_SECONDS": "9",
    "STOP_GRACE_SECONDS": "2",
}
NEAR = ("--runtime", "process", "--simulate-gpus", "2xH100-80GB", "--machine-cpus", "4", "--machine-memory", "2Gi")
FAR = ("--runtime", "simulated", "--simulate-gpus", "2xL4-24GB", "--cpus", "4", "--memory", "2Gi", "--name", "far")
TOKEN = "lets the second machine join"
AT_THE_BARRIER = "Starting together: 1 of 2 ready"


@dataclass
class Place:
    console: Console
    database: psycopg.Connection
    far: subprocess.Popen[bytes]

    def submit(self, name: str, pull_seconds: float) -> None:
        """A gang of two workers that take all GPUs of their machines; returns when one waits for the other."""
        slow = {"env": {"ASTRA_SIMULATE_PULL_SECONDS": str(pull_seconds)}}
        groups = [_group("near", "H100", {}), _group("far", "L4", slow)]
        self.console.submit(name, "echo", "once", start="Gang", worker_groups=groups)
        eventually(lambda: self.console.run(name)["status"]["reason"] == AT_THE_BARRIER)

    def reasons(self, worker: str) -> list[str]:
        return [move["reason"] for move in self.console.task(worker)["history"]]

    def gpus_in_use(self) -> int:
        """Of machines that are there: what one that is lost still runs is not known before it is back."""
        row = self.database.execute(
            "SELECT coalesce(sum(cardinality(a.gpu_indexes)), 0) FROM runs_attempt a"
            " JOIN machines_machine m ON m.id = a.machine_id WHERE a.released_at IS NULL AND m.state <> 'Lost'"
        ).fetchone()
        assert row is not None
        return int(row[0])

    def runs_to_its_end(self, name: str, restarts: int = 0) -> None:
        run = self.console.wait_for(name, "Completed", "Failed", seconds=60)
        assert (run["status"]["state"], run["status"]["restarts"]) == ("Completed", restarts), run["history"]
        assert eventually(lambda: self.console.logs(f"{name}-near-0")) == "once\n"
        assert eventually(lambda: self.gpus_in_use() == 0)


def _group(name: str, model: str, template: dict[str, object]) -> dict[str, object]:
    per_gpu = {"cpu_cores": 0.5, "memory_bytes": 64 * 1024**2}
    resources = {"gpu_requests": {"count": 2, "models": [model]}, "per_gpu": per_gpu}
    return {"name": name, "count": 1, "task_template": {"requested_resources": resources, **template}}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="astra-e2e-") as folder:
        Path(folder).chmod(0o711)
        servers = embedded.start(Path(folder))
        try:
            urls = {"DATABASE_URL": servers.database_url, "REDIS_URL": servers.redis_url}
            with (
                running_console(*NEAR, env=urls | SETTINGS) as console,
                psycopg.connect(servers.database_url, autocommit=True) as database,
                _second_machine(console, database, Path(folder) / "far") as far,
            ):
                yield Place(console, database, far)
        finally:
            servers.stop()


@contextmanager
def _second_machine(console: Console, database: psycopg.Connection, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    database.execute(
        "INSERT INTO machines_jointoken (cluster_id, digest, created_at, expires_at)"
        " SELECT id, %s, now(), now() + interval '1 hour' FROM machines_cluster",
        [digest(TOKEN)],
    )
    folder.mkdir()
    (folder / "token-to-join").write_text(TOKEN)
    state = ["--state-dir", str(folder / "state"), "--join-token-file", str(folder / "token-to-join")]
    command = [sys.executable, "-m", "machines.agent.main", "run", "--console", console.url, *state, *FAR]
    with (folder / "log").open("w") as log:
        agent = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        eventually(lambda: console.api.get("machines/far").status_code == 200)
        eventually(lambda: console.api.get("machines/far").json()["status"]["state"] == "Ready")
        yield agent
    finally:
        agent.kill()
        agent.wait()
        for pid, _ in processes_of(folder, agent.pid):
            os.kill(pid, signal.SIGKILL)


def _kill(console: Console, *fragments: str) -> None:
    for fragment in fragments:
        os.kill(console.pid_of(fragment), signal.SIGKILL)


@pytest.mark.parametrize(
    ("name", "killed"),
    [
        ("agent", ("machines.agent.main",)),
        ("console", ("daphne", "astraconsole worker", "astraconsole beat")),
    ],
)
def test_a_gang_at_the_barrier_starts_whole_after(
    place: Place, name: str, killed: tuple[str, ...], injected: Callable[..., None]
) -> None:
    place.submit(name, pull_seconds=4)
    assert place.console.logs(f"{name}-near-0") == ""
    _kill(place.console, *killed)
    injected(f"{name} killed", len(killed))
    place.runs_to_its_end(name)


def test_a_gang_whose_member_loses_its_machine_gives_everything_back_and_starts_when_there_is_room(
    place: Place, injected: Callable[..., None]
) -> None:
    place.submit("lost", pull_seconds=2)
    place.far.send_signal(signal.SIGSTOP)
    injected("agent-silent")
    try:
        eventually(lambda: "Machine lost: its lease expired" in place.reasons("lost-far-0"))
        assert eventually(lambda: place.gpus_in_use() == 0)
        waits = eventually(lambda: (run := place.console.run("lost"))["status"].get("pending") and run)
        assert waits["status"]["state"] == "Pending"
        assert waits["status"]["reason"].startswith("No machine fits: the only machine that could hold it is not ready")
        assert place.console.task("lost-near-0")["status"]["state"] == "Pending"
        assert "Container running" not in place.reasons("lost-near-0")
    finally:
        place.far.send_signal(signal.SIGCONT)
    place.runs_to_its_end("lost", restarts=1)  # of all, as whenever a gang has lost a worker


def test_a_gang_that_is_not_ready_in_time_gives_everything_back(place: Place) -> None:
    place.submit("late", pull_seconds=60)
    late = "Only 1 of 2 workers were ready within 9s"
    eventually(lambda: late in place.reasons("late-near-0") and late in place.reasons("late-far-0"))
    assert "Container running" not in place.reasons("late-near-0")
    assert place.console.run("late")["status"]["restarts"] == 0
    place.console.api.delete("jobs/late")
    assert eventually(lambda: place.gpus_in_use() == 0)
