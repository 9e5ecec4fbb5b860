"""Where faults happen: a whole console in real processes, machines with agents of their own, and an auditor.

Workers write the uid of their attempt into a file first of all, so a second start of an attempt is seen. What they do
then waits for conditions: a file with a name of the test's choice.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psycopg
import redis

from astraconsole.tokens import digest
from runs.state_machine import ENDED, WORKER_MOVES, WorkerState
from tests.console import ROOT, Console, eventually, processes_of, running_console
from tests.faults import audit

T = TypeVar("T")
PATIENCE_SECONDS = 90  # for what must come in the end, on a machine that is busy with other things
SETTINGS = {
    "MACHINE_LEASE_SECONDS": "6",
    "MACHINE_HEARTBEAT_SECONDS": "0.5",
    "SCHEDULER_TICK_SECONDS": "1",
    "GANG_BARRIER_SECONDS": "60",
    "STOP_GRACE_SECONDS": "5",
    "RESTART_BACKOFF_SECONDS": "1",
    "MACHINE_CORDON_FAILURES": "0",
    "METRICS_SAMPLE_SECONDS": "2",  # how often a GPU's health is looked at, at most
}
SERVICES = {
    "celery-worker": "astraconsole worker",
    "celery-beat": "astraconsole beat",
    "daphne": "daphne",
    "redis": "redis-server",
    "postgres": "postgres -D",
}
AGENT = (sys.executable, "-m", "machines.agent.main")
LIVE = "SELECT count(*) FROM runs_attempt WHERE released_at IS NULL"


@dataclass
class Host:
    """A machine of the stage. `console` is where its agent connects: the console, or a proxy before it."""

    name: str
    folder: Path
    console: str
    options: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    wrapper: Sequence[str] = ()
    agent: Sequence[str] = AGENT
    process: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def join(self, console: str) -> None:
        place = ["--name", self.name, "--state-dir", str(self.state)]
        join = ["--console", console, "--join-token-file", str(self.folder / "token-to-join")]
        subprocess.run([*AGENT, "join", *place, *join], cwd=ROOT, check=True, capture_output=True)

    def start(self) -> None:
        place = ["--console", self.console, "--name", self.name, "--state-dir", str(self.state)]
        command = [*self.wrapper, *self.agent, "run", *place, *self.options]
        with (self.folder / "log").open("ab") as log:
            environment = dict(os.environ) | dict(self.env)
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def kill_all(self) -> None:
        """The agent, its keeper and every worker: as a machine that loses its power."""
        self.kill()
        for pid, _ in processes_below(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[str]:
        """Command lines of what runs for its attempts."""
        agent = self.process.pid if self.process else 0
        return [line for pid, line in processes_below(self.folder) if pid != agent and "keeper" not in line]


@dataclass
class Stage:
    console: Console
    folder: Path
    database_url: str
    hosts: dict[str, Host] = field(default_factory=dict)

    # ---- machines

    def host(self, name: str, *options: str, console: str = "", **more: Any) -> Host:
        """A machine that joins and is Ready."""
        folder = self.folder / name
        folder.mkdir(mode=0o711, exist_ok=True)
        token = uuid.uuid4().hex
        self.execute(
            "INSERT INTO machines_jointoken (cluster_id, digest, created_at, expires_at)"
            " SELECT id, %s, now(), now() + interval '1 hour' FROM machines_cluster",
            [digest(token)],
        )
        (folder / "token-to-join").write_text(token)
        host = self.hosts[name] = Host(name, folder, console or self.console.url, options, **more)
        host.join(self.console.url)
        host.start()
        self.until(lambda: self.machine(name)["status"]["state"] == "Ready")
        return host

    def machine(self, name: str) -> dict[str, Any]:
        answer = self.console.api.get(f"machines/{name}")
        answer.raise_for_status()
        return dict(answer.json())

    # ---- asking, while anything may be away

    def until(self, condition: Callable[[], T | None], seconds: float = PATIENCE_SECONDS) -> T:
        """The condition's first true value; what is away for the moment is asked again."""

        def ask() -> T | None:
            with suppress(httpx.HTTPError, psycopg.Error, AssertionError):
                return condition()
            return None

        return eventually(ask, seconds, every=0.1)

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url, autocommit=True, connect_timeout=5) as connection:
            return list(connection.execute(query, values or None).fetchall())

    def execute(self, statement: str, values: Sequence[object] = ()) -> None:
        with psycopg.connect(self.database_url, autocommit=True, connect_timeout=5) as connection:
            connection.execute(statement, values or None)

    def state(self, worker: str) -> str:
        return str(self.rows("SELECT state FROM runs_worker WHERE name = %s AND NOT deleted", [worker])[0][0])

    def reaches(self, worker: str, *states: str) -> None:
        try:
            self.until(lambda: self.state(worker) in states)
        except AssertionError:
            raise AssertionError(f"{worker} is not {states}: {self.told(worker)}") from None

    def log_is(self, worker: str, whole: str) -> None:
        found = [""]

        def same() -> bool:
            found[0] = self.console.logs(worker)
            return found[0] == whole

        try:
            self.until(same, 30)
        except AssertionError:
            raise AssertionError(f"the log of {worker} is {found[0]!r}, not {whole!r}") from None

    def told(self, worker: str) -> list[tuple[Any, ...]]:
        """Its history."""
        return self.rows(
            "SELECT t.attempt_number, t.state, t.reason, t.actor, t.at::text FROM runs_transition t"
            " JOIN runs_worker w ON w.id = t.worker_id WHERE w.name = %s ORDER BY t.id",
            [worker],
        )

    # ---- runs

    @property
    def marks(self) -> Path:
        return self.folder / "marks"

    def script(self, text: str) -> str:
        """Says that its attempt was started, then does as `text` says; `await NAME` waits for `go(NAME)`."""
        waits = f"await() {{ while [ ! -e {self.marks}/$1 ]; do sleep 0.05; done; }}; "
        return f"echo $ASTRA_ATTEMPT_UID >> {self.marks}/started; {waits}{text}"

    def submit(self, name: str, text: str, **spec: Any) -> None:
        """Until the console has taken it: an answer that got lost may have been a yes."""

        def taken() -> bool:
            with suppress(AssertionError):
                self.console.submit(name, "sh", "-c", self.script(text), **spec)
            return self.console.api.get(f"jobs/{name}").status_code == 200

        self.until(taken)

    def post_to_workspace(self, path: str, body: object) -> None:
        ready = self.console.ready
        place = f"{ready['url']}/api/v1/orgs/{ready['organisation']}/workspaces/{ready['workspace']}/{path}"
        self.console.api.post(place, json=body).raise_for_status()

    def go(self, name: str) -> None:
        (self.marks / name).touch()

    def started(self) -> Counter[str]:
        """How often each attempt was started."""
        return Counter((self.marks / "started").read_text().split())

    # ---- faults

    def pid_of(self, service: str) -> int:
        """Of a service of the console that is there, or is about to be again."""
        return self.until(lambda: self.console.pid_of(SERVICES[service]))

    def kill(self, service: str) -> None:
        """It dies, and its supervisor has started another."""
        pid = self.pid_of(service)
        os.kill(pid, signal.SIGKILL)
        self.until(lambda: self.pid_of(service) != pid)

    def redis(self) -> redis.Redis:
        services = self.console.data / "services"
        return redis.Redis(unix_socket_path=str(services / "redis.sock"), password=(services / "password").read_text())

    def flush_redis(self) -> None:
        with self.redis() as client:
            client.flushall()

    # ---- the truth afterwards

    def settle(self) -> None:
        """Wait until nothing is under way any more."""
        ended = ", ".join(f"'{state}'" for state in ENDED)
        open_workers = f"SELECT count(*) FROM runs_worker WHERE NOT deleted AND state NOT IN ({ended})"
        self.until(lambda: self.rows(open_workers) == [(0,)])
        self.until(lambda: self.rows(LIVE) == [(0,)])

    def check(self) -> None:
        """What holds whatever has happened. Everything has ended."""
        self.settle()
        assert self.rows(audit.VIOLATIONS) == []
        twice = {uid: count for uid, count in self.started().items() if count > 1}
        assert twice == {}
        known = {row[0].hex for row in self.rows("SELECT uid FROM runs_attempt")}
        deleted = self.rows("SELECT count(*) FROM runs_run WHERE deleted_at IS NOT NULL") != [(0,)]
        assert deleted or set(self.started()) <= known
        assert self.rows('SELECT count(*) FROM machines_assignment WHERE "order" IS NOT NULL') == [(0,)]
        self._check_histories()
        for host in self.hosts.values():
            if host.process is not None and host.process.poll() is None:
                eventually(lambda host=host: host.processes() == [], PATIENCE_SECONDS)

    def _check_histories(self) -> None:
        """Each is a way along the legal moves, and what it ends with is what the worker is."""
        last: dict[int, WorkerState] = {}
        moves = "SELECT worker_id, state FROM runs_transition WHERE worker_id IS NOT NULL ORDER BY id"
        for worker, state in self.rows(moves):
            before = last.get(worker, WorkerState.PENDING)
            assert state == before or WorkerState(state) in WORKER_MOVES[before], (worker, before, state)
            last[worker] = WorkerState(state)
        for worker, state in self.rows("SELECT id, state FROM runs_worker"):
            assert last[worker] == state


def processes_below(folder: Path) -> list[tuple[int, str]]:
    """What names the folder or works in it."""
    return processes_of(folder, parent=-1)


@contextmanager
def stage(*options: str, env: Mapping[str, str] | None = None) -> Iterator[Stage]:
    """A console without machines of its own, audited from its first moment."""
    with tempfile.TemporaryDirectory(prefix="astra-e2e-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        (folder / "marks").mkdir()
        (folder / "marks").chmod(0o1777)
        (folder / "marks" / "started").touch()
        (folder / "marks" / "started").chmod(0o666)  # processes and containers write to it, as users of their own
        with running_console("--machines", "0", *options, env=SETTINGS | dict(env or {})) as console:
            made = Stage(console, folder, _database_url(console))
            made.execute(audit.INSTALL)
            try:
                yield made
            finally:
                _end(made)


def _database_url(console: Console) -> str:
    environment = Path(f"/proc/{console.pid_of('daphne')}/environ").read_bytes().split(b"\0")
    return next(entry for entry in environment if entry.startswith(b"DATABASE_URL=")).partition(b"=")[2].decode()


def _end(made: Stage) -> None:
    for host in made.hosts.values():
        if host.process is not None:
            with suppress(ProcessLookupError):
                host.process.send_signal(signal.SIGCONT)
            host.kill_all()
    deadline = time.monotonic() + 10
    while processes_below(made.folder) and time.monotonic() < deadline:
        time.sleep(0.05)


def template(**fields: Any) -> dict[str, Any]:
    """A task template that restarts nothing."""
    return {"restart_policy": "Never", **fields}


def config_of(host: Host, credentials: Mapping[str, object]) -> None:
    """What this machine may fetch."""
    (host.state / "credentials.json").write_text(json.dumps(credentials))


def on(host: str) -> dict[str, Any]:
    """Of a specification: one worker, on this machine."""
    return {"node_selection": {"names": [host], "count": 1}}
