"""`astra astraeus stop`."""

import click

from astraconsole.cli.client import connect


@click.command("stop")
@click.argument("runs", nargs=-1, required=True)
@click.option("--reason", default="", help="Kept in the history.")
def command(runs: tuple[str, ...], reason: str) -> None:
    """Stop runs; their records and logs stay."""
    client = connect()
    for run in runs:
        client.post(f"jobs/{run}/stop", {"reason": reason} if reason else {})
        click.echo(f"{run} stopped")
