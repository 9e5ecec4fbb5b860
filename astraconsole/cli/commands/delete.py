"""`astra astraeus delete`."""

import click

from astraconsole.cli import options
from astraconsole.cli.client import connect, path
from astraconsole.cli.output import as_json, print_json


@click.command("delete")
@options.runs
@as_json
def command(runs: tuple[str, ...], as_json: bool) -> None:
    """Stop runs and remove them, their workers and their logs. There is no undo."""
    client = connect()
    for run in runs:
        client.delete(path("jobs", run))
        if not as_json:
            click.echo(f"{run} deleted")
    if as_json:
        print_json([{"name": run, "deleted": True} for run in runs])
