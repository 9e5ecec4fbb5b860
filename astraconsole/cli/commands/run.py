"""`astra astraeus run`."""

import random
import re
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import click

from astraconsole.cli.client import connect
from astraconsole.cli.output import as_json, print_json, say_submitted
from runs.units import parse_cores, parse_duration, parse_memory


class Quantity(click.ParamType[int]):
    """A value read by one of the shared parsers; what it refuses is a usage error with its sentence."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name, self.parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return self.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


MEMORY = Quantity("memory", lambda text: parse_memory(text, plain="MiB"))
DURATION = Quantity("duration", lambda text: parse_duration(text, plain="minutes", slurm=True))
CORES = Quantity("cores", parse_cores)


@click.command("run")
@click.option("--name", help="The run's name.  [default: from the command]")
@click.option("--image", envvar="ASTRA_IMAGE", required=True, help="The container image.  [default: $ASTRA_IMAGE]")
@click.option("-g", "--gpus", type=click.IntRange(0), default=0, help="GPUs for the whole run.")
@click.option("--machines", type=click.IntRange(0), default=0, help="Exactly this many, GPUs split evenly.")
@click.option("--cpus", type=CORES, default="4", help="Cores, per GPU when there are GPUs.  [default: 4]")
@click.option("--mem", type=MEMORY, default="16G", help="Memory, likewise; a plain number is MiB.  [default: 16G]")
@click.option("--time", "limit", type=DURATION, help="Time limit: 2h, 1h30m, 90 (minutes), 02:00:00, 1-00:00:00.")
@click.option("-e", "--env", multiple=True, metavar="KEY=value", help="Repeatable.")
@click.option("--pool", help="Only machines labelled pool=<value>.")
@click.argument("argv", nargs=-1, metavar="-- COMMAND [ARGS]...")
@as_json
def command(argv: tuple[str, ...], name: str | None, as_json: bool, **options: Any) -> None:
    """Submit a run. A failed worker fails it at once; nothing is restarted."""
    client = connect()
    run = client.post("jobs", {"metadata": {"name": name or default_name(argv)}, "spec": _spec(argv, **options)})
    if as_json:
        print_json(run)
        return
    say_submitted(run, client.cluster, client.page_of(run["metadata"]["name"]))


def default_name(argv: tuple[str, ...]) -> str:
    """After the command: `python-48213`."""
    stem = re.sub(r"[^a-z0-9]+", "-", PurePath(argv[0]).name.lower()).strip("-")[:40] if argv else ""
    return f"{stem or 'run'}-{random.randrange(10_000, 100_000)}"


def _spec(
    argv: tuple[str, ...], *, image: str, gpus: int, machines: int, cpus: int, mem: int,
    limit: int | None, env: tuple[str, ...], pool: str | None,
) -> dict[str, Any]:  # fmt: skip
    amount = {"cpu_cores": cpus / 1000, "memory_bytes": mem}
    resources = {"gpu_requests": {"count": gpus}, "per_gpu": amount} if gpus else amount
    template: dict[str, Any] = {"image": image, "requested_resources": resources, "restart_policy": "Never"}
    if argv:
        template |= {"command": argv[0], "args": list(argv[1:])}
    if env:
        template["env"] = dict(_pair(item) for item in env)
    if limit is not None:
        template["time_limit_seconds"] = limit
    spec: dict[str, Any] = {"task_template": template}
    if machines:
        spec["machines"] = machines
    if pool:
        spec["node_selection"] = {"pools": [pool]}
    return spec


def _pair(item: str) -> tuple[str, str]:
    key, separator, value = item.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"{item!r} is not KEY=value", param_hint="--env")
    return key, value
