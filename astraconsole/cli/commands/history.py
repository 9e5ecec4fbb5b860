"""`astra astraeus history`."""

import click

from astraconsole.cli.client import connect
from astraconsole.cli.output import as_json, print_aligned, print_json


@click.command("history")
@click.argument("run")
@as_json
def command(run: str, as_json: bool) -> None:
    """Every state change of a run, oldest first."""
    history = connect().get(f"jobs/{run}")["history"]
    if as_json:
        print_json(history)
        return
    print_aligned([(move["transition_at"], move["state"], move["actor"], move["reason"]) for move in history])
