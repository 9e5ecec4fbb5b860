"""`astra-agent`: join a machine to a console, and run it; or run the several machines of a local console."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import click
import msgspec

from machines.agent import gpus as machine_gpus
from machines.agent import inventory
from machines.agent.data.problems import DataProblem
from machines.agent.data.roots import Roots
from machines.agent.journal import Journal, StateDirectoryError
from machines.agent.keeper_client import KeeperClient
from machines.agent.machine import Machine, agent_version
from machines.agent.runtimes.base import Runtime, RuntimeUnavailable
from machines.agent.runtimes.docker import DockerRuntime
from machines.agent.runtimes.docker_engine import find_engine
from machines.agent.runtimes.process import ProcessRuntime
from machines.agent.runtimes.simulated import SimulatedRuntime
from machines.protocol import Gpu, JoinAnswer, JoinRequest

RUNTIMES = ("auto", "docker", "process", "simulated")
RETRY_SECONDS = 5
RUNTIME_FILE = "runtime"  # in the state directory: the runtime that its attempts were given to
CREDENTIALS_FILE = "credentials.json"  # in the state directory: where the machine may fetch credentials
JOIN_SECONDS = 30
STOP_GRACE_SECONDS = 30.0

log = logging.getLogger(__name__)


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """One machine, as the command line or an entry of `local`'s file gives it."""

    console: str
    name: str
    state_dir: str
    runtime: str = "auto"
    token: str = ""  # else what the state directory holds
    simulate_gpus: str = ""
    cpus: float | None = None
    memory_bytes: int | None = None
    labels: dict[str, str] = {}
    address: str = ""
    stop_grace_seconds: Annotated[float, msgspec.Meta(ge=0)] = STOP_GRACE_SECONDS
    credentials: str = ""  # the owner's file, see machines.agent.credential_providers
    drive_roots: list[str] = []  # see machines.agent.data.roots


@dataclass
class Agent:
    """The machines of this process, with one keeper for all."""

    machines: Sequence[Options]
    keeper_folder: Path
    _keeper: KeeperClient = field(init=False)

    def __post_init__(self) -> None:
        self._keeper = KeeperClient(self.keeper_folder)

    async def run(self) -> None:
        """Until SIGTERM or SIGINT: workers go on then. Or until all machines were removed from their cluster."""
        journals = [self._open(options) for options in self.machines]
        tasks = [
            asyncio.create_task(self._keep_running(options, journal))
            for options, journal in zip(self.machines, journals, strict=True)
        ]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: [task.cancel() for task in tasks])
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._keeper.close()
        for journal in journals:
            journal.close()

    def _open(self, options: Options) -> Journal:
        journal = Journal(Path(options.state_dir))
        journal.open()
        if options.token:
            journal.write_text("token", options.token)
        return journal

    async def _keep_running(self, options: Options, journal: Journal) -> None:
        """A machine whose runtime is away, or that broke down, begins again from its journal."""
        told = ""
        while True:
            try:
                await self._machine(options, journal).run()
                return
            except RuntimeUnavailable as error:
                if str(error) != told:
                    log.warning("%s: %s", options.name, error)
                told = str(error)
            except Exception:
                log.exception("%s: begins again from its journal", options.name)
            await asyncio.sleep(RETRY_SECONDS)

    def _machine(self, options: Options, journal: Journal) -> Machine:
        reader = machine_gpus.find(inventory.simulated_gpus(options.simulate_gpus, journal.machine_id()))
        gpus = reader.inventory()
        runtime = self._runtime(_wanted_runtime(options, journal), options.name, gpus)
        if journal.read_text(RUNTIME_FILE) != runtime.name:
            journal.write_text(RUNTIME_FILE, runtime.name)
        declared = inventory.take(
            runtime.name,
            gpus=gpus,
            cpus=options.cpus,
            memory_bytes=options.memory_bytes,
            labels=options.labels,
            address=options.address,
        )
        return Machine(
            options.name,
            options.console,
            journal,
            runtime,
            declared,
            options.stop_grace_seconds,
            reader,
            Path(options.credentials or journal.folder / CREDENTIALS_FILE),
            Roots(options.drive_roots),
        )

    def _runtime(self, wanted: str, name: str, gpus: Iterable[Gpu]) -> Runtime:
        engine = find_engine() if wanted in ("auto", "docker") else None
        if wanted == "simulated":
            return SimulatedRuntime()
        if engine is not None:
            log.info("%s: runs containers by %s", name, engine)
            return DockerRuntime(engine, gpus)
        if wanted == "docker":
            raise RuntimeUnavailable("neither Docker nor Podman answers on its socket")
        log.info("%s: runs host processes, images are not used", name)
        return ProcessRuntime(self._keeper)


def _wanted_runtime(options: Options, journal: Journal) -> str:
    """`auto` stays with the runtime that holds attempts of earlier agents: no other one could take them up."""
    if options.runtime == "auto" and journal.holds_attempts():
        return journal.read_text(RUNTIME_FILE) or "auto"
    return options.runtime


@click.group()
@click.option("--verbose", is_flag=True, help="Log every step.")
def main(verbose: bool) -> None:
    """Runs the work of an Astra console on this machine."""
    os.umask(0o022)  # workers of another user pass through the state directory, whoever makes it
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(message)s")
    for name in ("websockets", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _default_state_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/astra-agent")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "astra-agent"


def _host_name() -> str:
    return socket.gethostname().partition(".")[0].lower()


state_dir_option = click.option(
    "--state-dir",
    default=_default_state_dir,
    type=click.Path(file_okay=False, path_type=Path, resolve_path=True),
    help="What must outlive the agent (default: /var/lib/astra-agent, or ~/.local/state/astra-agent if not root).",
)
name_option = click.option("--name", default=_host_name, help="The machine's name (default: the host's).")


@main.command()
@click.option("--console", default="", metavar="URL", help="The console's address (default: where it joined).")
@state_dir_option
@name_option
@click.option("--join-token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Join first.")
@click.option("--runtime", default="auto", type=click.Choice(RUNTIMES), show_default=True)
@click.option("--simulate-gpus", default="", metavar="8xH100-80GB", help="Claim GPUs that are not there.")
@click.option("--cpus", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Cores to declare.")
@click.option("--memory", metavar="16Gi", help="Memory to declare.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the machine; repeatable.")
@click.option("--address", default="", metavar="HOST", help="Where other machines reach it (default: found out).")
@click.option(
    "--stop-grace",
    type=click.FloatRange(min=0),
    default=STOP_GRACE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Between SIGTERM and SIGKILL.",
)
@click.option(
    "--credentials",
    type=click.Path(dir_okay=False, path_type=Path, resolve_path=True),
    metavar="FILE",
    help="Where this machine may fetch credentials (default: credentials.json in the state directory).",
)
@click.option(
    "--drive-root",
    "drive_roots",
    multiple=True,
    metavar="FOLDER",
    help="Let drives be folders below this one, or below SERVER:/EXPORT of a file server; repeatable.",
)
def run(
    console: str,
    state_dir: Path,
    name: str,
    join_token_file: Path | None,
    runtime: str,
    simulate_gpus: str,
    cpus: float | None,
    memory: str | None,
    labels: tuple[str, ...],
    address: str,
    stop_grace: float,
    credentials: Path | None,
    drive_roots: tuple[str, ...],
) -> None:
    """Run this machine. SIGTERM ends the agent, not its workers: the next one takes them up."""
    if join_token_file is not None and not (state_dir / "token").exists():
        if not console:
            raise click.ClickException("--join-token-file needs --console as well")
        _join(console, state_dir, name, _token_in(join_token_file))
    if not (state_dir / "token").exists():
        raise click.ClickException(f"{state_dir} holds no token: join first (astra-agent join)")
    console = console or _joined_address(state_dir)
    try:
        memory_bytes = inventory.parse_memory(memory) if memory else None
        inventory.simulated_gpus(simulate_gpus, "")
        Roots(drive_roots)
    except (ValueError, DataProblem) as error:
        raise click.ClickException(str(error)) from error
    options = Options(
        console=console,
        name=name,
        state_dir=str(state_dir),
        runtime=runtime,
        simulate_gpus=simulate_gpus,
        cpus=cpus,
        memory_bytes=memory_bytes,
        labels=_parse_labels(labels),
        address=address,
        stop_grace_seconds=stop_grace,
        credentials=str(credentials or ""),
        drive_roots=list(drive_roots),
    )
    _run([options], state_dir / "keeper")


@main.command()
@click.option("--config", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def local(config: Path) -> None:
    """Run the machines of a local console in one process. The file is a JSON list of objects: console, name, state_dir,
    and optionally token, runtime, simulate_gpus, cpus, memory_bytes, labels, address, stop_grace_seconds,
    credentials, drive_roots."""
    try:
        machines = msgspec.convert(json.loads(config.read_text()), list[Options])
        for options in machines:
            inventory.simulated_gpus(options.simulate_gpus, "")
            Roots(options.drive_roots)
    except (ValueError, msgspec.ValidationError, DataProblem) as error:
        raise click.ClickException(f"{config}: {error}") from error
    _run(machines, config.resolve().parent / "keeper")


@main.command()
@click.option("--console", required=True, metavar="URL", help="The console's address.")
@state_dir_option
@name_option
@click.option("--token", envvar="ASTRA_JOIN_TOKEN", help="The join token; or in the environment: ASTRA_JOIN_TOKEN.")
@click.option("--join-token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def join(console: str, state_dir: Path, name: str, token: str | None, join_token_file: Path | None) -> None:
    """Join this machine to a console, once; `run` then runs it."""
    secret = _token_in(join_token_file) if join_token_file else token
    if not secret:
        raise click.ClickException("give the join token: --token, --join-token-file or ASTRA_JOIN_TOKEN")
    click.echo(f"Joined as {_join(console, state_dir, name, secret)}")


def _token_in(file: Path) -> str:
    if secret := file.read_text().strip():
        return secret
    raise click.ClickException(f"{file} is empty: write the join token into it")


def _join(console: str, state_dir: Path, name: str, secret: str) -> str:
    """Exchange the join token for the machine's own; returns the machine's name."""
    body = msgspec.json.encode(JoinRequest(name, socket.gethostname(), agent_version()))
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    try:
        request = urllib.request.Request(f"{console.rstrip('/')}/agent/v1/join", body, headers)
        with urllib.request.urlopen(request, timeout=JOIN_SECONDS) as response:
            answer = msgspec.json.decode(response.read(), type=JoinAnswer)
    except urllib.error.HTTPError as error:
        raise click.ClickException(f"the console refuses: {_message(error)}") from error
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise click.ClickException(f"cannot join {console}: {getattr(error, 'reason', error)}") from error
    journal = Journal(state_dir)
    try:
        journal.open()
    except StateDirectoryError as error:
        raise click.ClickException(str(error)) from error
    journal.write_text("token", answer.token)
    journal.write_text("console", answer.console)
    journal.write_text("address", console)
    journal.close()
    return answer.machine


def _joined_address(state_dir: Path) -> str:
    try:
        return (state_dir / "address").read_text()
    except FileNotFoundError as error:
        raise click.ClickException(f"{state_dir} does not say where it joined: give --console") from error


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}"


def _parse_labels(labels: Iterable[str]) -> dict[str, str]:
    parsed: dict[str, str] = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not key or not equals:
            raise click.ClickException(f"not a label: {label} (KEY=VALUE)")
        parsed[key] = value
    return parsed


def _run(machines: Sequence[Options], keeper_folder: Path) -> None:
    try:
        asyncio.run(Agent(machines, keeper_folder).run())
    except StateDirectoryError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
