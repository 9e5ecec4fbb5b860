"""`astra astraeus stop`."""

import click

from astraconsole.cli import options
from astraconsole.cli.client import connect, path
from astraconsole.cli.output import as_json, print_json


@click.command("stop")
@options.runs
@click.option("--reason", default="", help="Kept in the history.")
@as_json
def command(runs: tuple[str, ...], reason: str, as_json: bool) -> None:
    """Stop runs; their records and logs stay."""
    client = connect()
    stopped = []
    for run in runs:
        stopped.append(client.post(path("jobs", run, "stop"), {"reason": reason} if reason else {}))
        if not as_json:
            click.echo(f"{run} stopped")
    if as_json:
        print_json(stopped)
