"""A local console: which processes it is made of, in which order they start and stop."""

import contextlib
import fcntl
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import httpx
from celery import Celery
from django.conf import settings

from astraconsole import embedded
from astraconsole.celery import broker_url
from astraconsole.demo import Demo
from astraconsole.private_files import write_private
from astraconsole.supervision import Child, end_recorded, keep_alive, record
from machines.agent.inventory import simulated_gpus
from runs.units import parse_memory

READY_SECONDS = 120
WATCH_SECONDS = 0.2
STOP_MARGIN_SECONDS = 15
EVERYWHERE = ("0.0.0.0", "::", "")


class StartError(Exception):
    """Why it cannot start; the message is one clear line."""


class StopRequestedError(Exception):
    """Somebody asked to stop while it was starting."""


@dataclass(frozen=True)
class LocalOptions:
    """As given to `manage.py up`. Empty or None: this host's, divided by `machines`."""

    host: str
    port: int
    data_dir: Path
    ready_file: Path | None
    machines: int
    runtime: str
    simulate_gpus: str
    machine_cpus: float | None
    machine_memory: str
    drive_roots: list[str]


class LocalConsole:
    def __init__(self, options: LocalOptions, say: Callable[[str], None]) -> None:
        self.options = options
        self.data = options.data_dir.resolve()
        self.say = say
        self.url = f"http://{_in_url(options.host)}:{options.port}"
        self.machine_names = [f"local-{number}" for number in range(1, options.machines + 1)]
        self.children: list[Child] = []
        self.environment: dict[str, str] = {}
        self._stop = threading.Event()

    def request_stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Start, serve until asked to stop, stop. Raises StartError."""
        machines = _declared(self.options)
        with contextlib.ExitStack() as held:
            held.enter_context(_data_folder(self.data))
            end_recorded(self.data / "children.json")
            _refuse_busy_port(self.options.host, self.options.port)
            try:
                self._start(machines)
                self._serve()
            except StopRequestedError:
                pass  # nothing went wrong: what was started so far is ended
            finally:
                self._end()

    # ---- start ----

    def _start(self, machines: list[dict[str, object]]) -> None:
        self.say(f"Starting: database and queue first, then services; data in {self.data}")
        servers = self._servers()
        self.environment = self._environment(servers)
        self._go_on()
        self._manage("prepare_local", "--data-dir", str(self.data), *self._machine_arguments())
        self._write_agent_config(machines)
        self._go_on()
        for child in self._services():
            self._launch(child)
        record(self.data / "children.json", self.children)
        self._announce(self._wait_until_ready())

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise StopRequestedError

    def _servers(self) -> Mapping[str, str]:
        given = {name: os.environ[name] for name in ("DATABASE_URL", "REDIS_URL") if os.environ.get(name)}
        if len(given) == 2:
            return given
        if given:
            raise StartError("give both DATABASE_URL and REDIS_URL, or neither")
        try:
            servers = embedded.start(self.data)
        except embedded.EmbeddedError as error:
            raise StartError(str(error)) from error
        self.children += servers.services
        return {"DATABASE_URL": servers.database_url, "REDIS_URL": servers.redis_url}

    def _environment(self, servers: Mapping[str, str]) -> dict[str, str]:
        hosts = {
            "localhost",
            "127.0.0.1",
            "[::1]",
            socket.gethostname(),
            socket.getfqdn(),
            *names_of(self.options.host),
        }
        defaults = {
            "ALLOWED_HOSTS": ",".join(sorted(hosts)),
            "DJANGO_SETTINGS_MODULE": "astraconsole.settings",
            "SCHEDULER_RECORDINGS": str(self.data / "recordings"),
        }
        return defaults | dict(os.environ) | dict(servers) | {"SECRET_KEY": self._secret_key(), "PYTHONUNBUFFERED": "1"}

    def _secret_key(self) -> str:
        if key := os.environ.get("SECRET_KEY"):
            return key
        path = self.data / "secret-key"
        if not path.exists():
            write_private(path, secrets.token_urlsafe(48))
        return path.read_text()

    def _write_agent_config(self, machines: list[dict[str, object]]) -> None:
        tokens = json.loads((self.data / "machine-tokens.json").read_text())
        for machine in machines:
            machine |= {"console": self.url, "token": tokens[machine["name"]]}
            machine["state_dir"] = str(self.data / "agents" / str(machine["name"]))
        write_private(self.data / "agent.json", json.dumps(machines))
        (self.data / "machine-tokens.json").unlink()

    def _services(self) -> Iterator[Child]:
        python = [sys.executable, "-m"]
        listen = ["-b", self.options.host, "-p", str(self.options.port)]
        worker = ["worker", "--pool", "threads", "--concurrency", "4", "--loglevel", "INFO"]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        schedule = ["beat", "--loglevel", "WARNING", "--schedule", str(self.data / "beat-schedule"), "--pidfile", ""]
        celery = [*python, "celery", "-A", "astraconsole"]
        yield self._child("daphne", [*python, "daphne", *listen, "--verbosity", "0", "astraconsole.asgi:application"])
        yield self._child("celery worker", [*celery, *worker, *quiet])
        yield self._child("celery beat", [*celery, *schedule])
        if self.machine_names:
            config = ["--config", str(self.data / "agent.json")]
            yield self._child("agent", [*python, "machines.agent.main", "local", *config])

    def _child(self, name: str, command: list[str]) -> Child:
        log = self.data / "logs" / f"{name.replace(' ', '-')}.log"
        return Child(name, command, log, cwd=settings.BASE_DIR, env=self.environment)

    def _launch(self, child: Child) -> None:
        child.start()
        self.children.append(child)

    def _machine_arguments(self) -> list[str]:
        return [argument for name in self.machine_names for argument in ("--machine", name)]

    def _manage(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments], cwd=settings.BASE_DIR, env=self.environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise StartError(f"manage.py {arguments[0]} failed: {error_line(done.stderr)}")
        if done.stderr.strip():
            self.say(done.stderr.strip())

    # ---- ready ----

    def _wait_until_ready(self) -> tuple[Demo, list[dict[str, Any]]]:
        demo = Demo(**json.loads((self.data / "demo.json").read_text()))
        deadline = time.monotonic() + READY_SECONDS
        with Celery(broker=broker_url(self.environment["REDIS_URL"])) as queue, httpx.Client() as client:
            while time.monotonic() < deadline:
                self._go_on()
                machines = self._ready_machines(client, demo)
                if len(machines) == len(self.machine_names) and queue.control.ping(timeout=0.3):
                    return demo, machines
                self._refuse_dead_children()
                time.sleep(0.05)
        raise StartError(f"not ready after {READY_SECONDS} s (see {self.data / 'logs'})")

    def _ready_machines(self, client: httpx.Client, demo: Demo) -> list[dict[str, Any]]:
        place = f"orgs/{demo.organisation}/workspaces/{demo.workspace}/clusters/{demo.cluster}"
        headers = {"Authorization": f"Bearer {demo.token}"}
        try:
            answer = client.get(f"{self.url}/api/v1/{place}/api/machines", headers=headers)
        except httpx.TransportError:
            return []
        if answer.status_code != httpx.codes.OK:
            return []
        items = answer.json()["items"]
        mine = [item for item in items if item["metadata"]["name"] in self.machine_names]
        return [item for item in mine if item["status"]["state"] == "Ready"]

    def _refuse_dead_children(self) -> None:
        for child in self.children:
            if not child.running():
                raise StartError(f"{child.name} ended while starting (see {child.log})")

    def _announce(self, ready: tuple[Demo, list[dict[str, Any]]]) -> None:
        demo, machines = ready
        if self.options.ready_file is not None:
            write_private(self.options.ready_file, json.dumps({"url": self.url} | asdict(demo)))
        runtimes = ", ".join(sorted({machine["runtime"] for machine in machines})) or "none"
        self.say(f"Astra console: {self.url}")
        self.say(f"Sign in as {demo.username}, password {demo.password} (kept in {self.data / 'demo.json'})")
        self.say(f"Local machines: {len(machines)}, runtime: {runtimes}. Ctrl-C stops everything.")

    # ---- serve, stop ----

    def _serve(self) -> None:
        while not self._stop.wait(WATCH_SECONDS):
            before = [child.process for child in self.children]
            keep_alive(self.children, self.say)
            if before != [child.process for child in self.children]:
                record(self.data / "children.json", self.children)

    def _end(self) -> None:
        if any(child.name == "agent" and child.running() for child in self.children):
            self.say("Stopping: workers first, then services")
            self._release_workers()
        for child in reversed(self.children):
            child.stop()
        (self.data / "children.json").unlink(missing_ok=True)

    def _release_workers(self) -> None:
        seconds = settings.STOP_GRACE_SECONDS + STOP_MARGIN_SECONDS
        try:
            self._manage("release_local", "--seconds", str(seconds), *self._machine_arguments())
        except StartError as error:
            self.say(str(error))


def _declared(options: LocalOptions) -> list[dict[str, object]]:
    """What each local machine says it has. Raises StartError, which names the option."""
    share = max(options.machines, 1)
    cpus = options.machine_cpus if options.machine_cpus is not None else (os.cpu_count() or 1) / share
    memory = _host_memory() // share
    for option, is_right in (("--machines", 0 <= options.machines <= 1000), ("--machine-cpus", 0.001 <= cpus <= 1e6)):
        if not is_right:
            raise StartError(f"{option}: out of range")
    option = "--machine-memory"
    try:
        if options.machine_memory:
            memory = parse_memory(options.machine_memory, plain="bytes")
        option = "--simulate-gpus"
        simulated_gpus(options.simulate_gpus, "")
    except ValueError as error:
        raise StartError(f"{option}: {error}") from error
    common = {
        "runtime": options.runtime,
        "simulate_gpus": options.simulate_gpus,
        "cpus": cpus,
        "memory_bytes": memory,
        "stop_grace_seconds": settings.STOP_GRACE_SECONDS,
        "drive_roots": [str(Path(root).resolve()) for root in options.drive_roots],
    }
    return [{"name": f"local-{number}", **common} for number in range(1, options.machines + 1)]


def error_line(stderr: str) -> str:
    """The line that names what went wrong: the last ones may be a statement of SQL and a mark under it."""
    lines = stderr.strip().splitlines() or ["no message"]
    return next((line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)), lines[-1])


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _in_url(host: str) -> str:
    """Where to reach what listens on `host`."""
    if host in EVERYWHERE:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def names_of(host: str) -> set[str]:
    """By which others may ask for what listens on `host`, as a URL spells them. Nothing is sent."""
    family, anywhere = (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "192.0.2.1")
    if host not in EVERYWHERE:
        return {f"[{host}]" if ":" in host else host}
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((anywhere, 9))  # chooses the address that leads out
        return {host} | names_of(probe.getsockname()[0])
    return {host}


@contextlib.contextmanager
def _data_folder(path: Path) -> Iterator[None]:
    """Make it, and hold its lock for as long as this process lives. Raises StartError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o711 if os.geteuid() == 0 else 0o700)  # as root, the services' user passes through
        (path / "logs").mkdir(mode=0o700, exist_ok=True)
        (path / "agents").mkdir(mode=0o711, exist_ok=True)
        lock = (path / "lock").open("a+")
    except OSError as error:
        raise StartError(f"cannot write to the data folder {path}: {error.strerror}") from error
    with lock:
        _take(lock, path)
        yield


def _take(lock: IO[str], path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        raise StartError(f"another console runs on {path} (pid {lock.read().strip()})") from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()


def _refuse_busy_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StartError(
                f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port"
            ) from error
