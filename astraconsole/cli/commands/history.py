"""`astra astraeus history`."""

import click

from astraconsole.cli import options
from astraconsole.cli.client import connect, path
from astraconsole.cli.output import as_json, print_aligned, print_json


@click.command("history")
@options.run
@as_json
def command(run: str, as_json: bool) -> None:
    """Every state change of a run, oldest first."""
    history = connect().get(path("jobs", run))["history"]
    if as_json:
        print_json(history)
        return
    print_aligned([(move["transition_at"], move["state"], move["actor"], move["reason"]) for move in history])
