"""`astra astraeus logs`."""

from typing import Any

import click

from astraconsole.cli.client import Client, connect
from astraconsole.cli.output import as_json, print_json
from astraconsole.cli.problems import Refused
from astraconsole.errors import NotFound


@click.command("logs")
@click.argument("name", metavar="RUN|WORKER")
@click.option("--tail", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Lines from the end.")
@as_json
def command(name: str, tail: int, as_json: bool) -> None:
    """The end of a run's log (its first worker's), or of one worker's."""
    client = connect()
    answer = _log(client, _worker(client, name), tail)
    if as_json:
        print_json(answer)
        return
    if answer.get("archived"):
        click.echo("(from a container that no longer exists)", err=True)
    click.echo(answer["logs"], nl=False)


def _worker(client: Client, name: str) -> str:
    """A run's first worker; a name that is no run is a worker's."""
    try:
        names = client.get(f"jobs/{name}")["task_names"]
    except Refused as refusal:
        if refusal.code != NotFound.code:
            raise
        return name
    return str(names[0]) if names else name


def _log(client: Client, worker: str, tail: int) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"tasks/{worker}/logs", tail=tail)
    return answer
