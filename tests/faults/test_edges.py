"""Every process of the console and the agents are killed while runs are at every edge of their lives.

The runs are brought to their edges by conditions, and held there, all at once; then comes the fault; then all go on,
and each must end as if nothing had happened.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from machines.agent.processes import read_trace
from tests.console import eventually
from tests.faults.stage import SERVICES, Host, Stage, config_of, stage, template

pytestmark = pytest.mark.processes

NEAR = (
    "--runtime",
    "process",
    "--simulate-gpus",
    "2xH100-80GB",
    "--cpus",
    "8",
    "--memory",
    "4Gi",
    "--stop-grace",
    "60",
)
FAR = ("--runtime", "simulated", "--simulate-gpus", "2xL4-24GB", "--cpus", "4", "--memory", "4Gi")
PULL_SECONDS = "8"
RESTART_SECONDS = "6"
MIB = 1024**2

# What becomes of each: its edge, its worker's end, exit code, restarts and log.
ENDS = {
    "pending": ("Completed", 0, 0, "once\n"),
    "preparing": ("Completed", 0, 0, "once\n"),
    "running": ("Failed", 7, 0, "one\ntwo\n"),
    "stopping": ("Cancelled", 0, 0, "one\nsaved\n"),
    "ending": ("Failed", 3, 0, "one\n"),
    "restarting": ("Completed", 0, 1, "second\n"),
    "gang-near": ("Completed", 0, 0, "once\n"),  # Starting: at the barrier, while the other pulls
}
GANG_FAR = ("Completed", 0, 0)


@dataclass
class Edges:
    """Runs with the number of the round in their names."""

    stage: Stage
    near: Host
    far: Host
    number: int = 0

    def name(self, edge: str) -> str:
        return f"e{self.number}-{edge}"

    def worker(self, edge: str) -> str:
        return f"{self.name(edge)}-0"

    def submit(self, edge: str, text: str, **fields: object) -> None:
        near = {"names": ["near"], "count": 1}
        self.stage.submit(self.name(edge), text, task_template=template(**fields), node_selection=near)

    def arrange(self) -> None:
        """All runs at their edges; the console's Celery worker is stopped, so that nothing moves from here on."""
        n = self.number
        self.submit("forgetting", "echo over")
        self.submit("running", f"echo one; await running-{n}; echo two; exit 7", requested_resources=_gpus(1))
        saves = f"trap 'await stopping-{n}; echo saved; exit 0' TERM; echo one; while :; do sleep .05; done"
        self.submit("stopping", f"exec 2>/dev/null; {saves}")
        waits = [{"external_secret_name": f"late-{n}", "env_vars": {"value": "WORD"}}]
        self.submit("preparing", 'test "$WORD" = late && echo once', secret_refs=waits)
        self.submit("ending", f"echo one; await ending-{n}; exit 3")
        for edge, state in {"running": "Running", "stopping": "Running", "ending": "Running"}.items():
            self.stage.reaches(self.worker(edge), state)
        self.stage.reaches(self.worker("preparing"), "Preparing")
        self.stage.reaches(self.worker("forgetting"), "Completed")
        eventually(lambda: self.stage.console.logs(self.worker("stopping")) == "one\n")  # its trap is set
        self._arrange_short_ones()
        self._hold()

    def _arrange_short_ones(self) -> None:
        """What can only be held for a time comes last."""
        slow = {"env": {"ASTRA_SIMULATE_PULL_SECONDS": PULL_SECONDS}}
        groups = [_group("near", "H100", {}), _group("far", "L4", slow)]
        self.stage.submit(self.name("gang"), "echo once", start="Gang", worker_groups=groups)
        self.submit("restarting", "test $ASTRA_ATTEMPT = 2 || exit 9; echo second", restart_policy="OnFailure")
        self.stage.reaches(self.worker("gang-near"), "Starting")
        self.stage.reaches(self.worker("gang-far"), "Pulling")
        self.submit("pending", "echo once", requested_resources=_gpus(2))
        stop = self.stage.console.api.post(f"jobs/{self.name('stopping')}/stop")
        assert stop.status_code == 200, stop.text
        self.stage.reaches(self.worker("restarting"), "Restarting")

    def _hold(self) -> None:
        """What ends now is known to its machine, and what is forgotten is gone from it: the reports wait in Redis."""
        attempts = self.near.state / "attempts"
        ending, forgotten = (attempts / self._attempt(edge) for edge in ("ending", "forgetting"))
        os.kill(self.stage.pid_of("celery-worker"), signal.SIGSTOP)
        self.stage.go(f"ending-{self.number}")
        eventually(lambda: read_trace(str(ending / "exit")).end is not None)
        deleted = self.stage.console.api.delete(f"jobs/{self.name('forgetting')}")
        assert deleted.status_code == 204, deleted.text
        eventually(lambda: not forgotten.exists())
        states = {edge: self.stage.state(self.worker(edge)) for edge in (*ENDS, "gang-far")}
        assert states == {
            "pending": "Pending",
            "preparing": "Preparing",
            "running": "Running",
            "stopping": "Running",
            "ending": "Running",
            "restarting": "Restarting",
            "gang-near": "Starting",
            "gang-far": "Pulling",
        }

    def _attempt(self, edge: str) -> str:
        query = "SELECT a.uid FROM runs_attempt a JOIN runs_worker w ON w.id = a.worker_id WHERE w.name = %s"
        ((uid,),) = self.stage.rows(query, [self.worker(edge)])
        return str(uid.hex)

    def go_on(self, paused: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(paused, signal.SIGCONT)
        self.release()

    def release(self) -> None:
        for edge in ("running", "stopping"):
            self.stage.go(f"{edge}-{self.number}")
        (self.stage.folder / "secrets" / f"late-{self.number}").write_text("late")

    def check(self) -> None:
        for edge, (state, code, restarts, log) in ENDS.items():
            self.stage.reaches(self.worker(edge), state)
            task = self.stage.until(lambda edge=edge: self.stage.console.task(self.worker(edge)))
            found = (task["exit_code"], task["restarts"])
            assert found == (code, restarts), (edge, self.stage.told(self.worker(edge)))
            self.stage.log_is(self.worker(edge), log)
        self.stage.reaches(self.worker("gang-far"), "Completed")
        assert self.stage.console.run(self.name("gang"))["status"]["restarts"] == 0
        self.stage.until(lambda: self.stage.rows("SELECT count(*) FROM machines_assignment") == [(0,)])
        self.stage.check()


def _gpus(count: int) -> dict[str, object]:
    return {
        "gpu_requests": {"count": count, "models": ["H100"]},
        "per_gpu": {"cpu_cores": 0.1, "memory_bytes": 64 * MIB},
    }


def _group(name: str, model: str, fields: dict[str, object]) -> dict[str, object]:
    resources = {**_gpus(1), "gpu_requests": {"count": 1, "models": [model]}}
    return {"name": name, "count": 1, "task_template": {"requested_resources": resources, **fields}}


@pytest.fixture(scope="module")
def edges() -> Iterator[Edges]:
    env = {"MACHINE_LEASE_SECONDS": "30", "RESTART_BACKOFF_SECONDS": RESTART_SECONDS}
    with stage(env=env) as made:
        secrets = made.folder / "secrets"
        secrets.mkdir(mode=0o700)
        near, far = made.host("near", *NEAR), made.host("far", *FAR)
        config_of(near, {"files": str(secrets)})
        yield Edges(made, near, far)


def kill(*services: str) -> Callable[[Edges], None]:
    def fault(edges: Edges) -> None:
        for service in services:
            os.kill(edges.stage.pid_of(service), signal.SIGKILL)

    return fault


def kill_agents(edges: Edges) -> None:
    """What ends meanwhile is missed, and found by the next agents."""
    for host in (edges.near, edges.far):
        host.kill()
    edges.release()
    eventually(lambda: edges.near.processes() == [])
    for host in (edges.near, edges.far):
        host.start()


def kill_everything(edges: Edges) -> None:
    kill(*SERVICES)(edges)
    kill_agents(edges)


FAULTS: dict[str, tuple[Callable[[Edges], None], list[str]]] = {
    **{service: (kill(service), [service]) for service in SERVICES},
    "redis-flush": (lambda edges: edges.stage.flush_redis(), ["redis-flush"]),
    "agents": (kill_agents, ["agent", "agent"]),
    "everything": (kill_everything, [*SERVICES, "agent", "agent"]),
}
EVERYDAY = ("everything",)


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=pytest.mark.everyday if name in EVERYDAY else ()) for name in FAULTS]
)
def test_runs_at_every_edge_of_their_lives_go_on_as_if_nothing_had_happened(
    edges: Edges, fault: str, injected: Callable[..., None]
) -> None:
    edges.number += 1
    inject, kinds = FAULTS[fault]
    secret = {"name": f"late-{edges.number}", "provider": "file", "reference": f"late-{edges.number}"}
    edges.stage.post_to_workspace("credentials", secret)
    edges.arrange()
    paused = edges.stage.pid_of("celery-worker")
    inject(edges)
    for kind in kinds:
        injected(f"killed at every edge: {kind}" if kind != "redis-flush" else "flushed at every edge: redis")
    edges.go_on(paused)
    edges.check()
