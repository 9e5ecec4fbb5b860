"""`astra astraeus delete`."""

import click

from astraconsole.cli.client import connect


@click.command("delete")
@click.argument("runs", nargs=-1, required=True)
def command(runs: tuple[str, ...]) -> None:
    """Stop runs and remove them, their workers and their logs. There is no undo."""
    client = connect()
    for run in runs:
        client.delete(f"jobs/{run}")
        click.echo(f"{run} deleted")
