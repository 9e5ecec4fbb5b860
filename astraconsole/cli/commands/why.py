"""`astra astraeus why`."""

import click

from astraconsole.cli.client import connect
from astraconsole.cli.output import as_json, print_json


@click.command("why")
@click.argument("run")
@as_json
def command(run: str, as_json: bool) -> None:
    """Why a run waits."""
    status = connect().get(f"jobs/{run}")["status"]
    if as_json:
        print_json(status)
        return
    click.echo(f"{run}: {status['state']} — {status['reason']}")
