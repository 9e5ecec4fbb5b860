"""`astra astraeus history`."""

from typing import Any

import click

from astraconsole.cli.client import Client, connect, path
from astraconsole.cli.options import NAME
from astraconsole.cli.output import as_json, print_aligned, print_json
from astraconsole.cli.problems import Refused
from astraconsole.errors import NotFound


@click.command("history")
@click.argument("name", metavar="RUN|WORKER", type=NAME)
@as_json
def command(name: str, as_json: bool) -> None:
    """Every state change of a run or of a worker, oldest first."""
    history = _document(connect(), name)["history"]
    if as_json:
        print_json(history)
        return
    print_aligned([(move["transition_at"], move["state"], move["actor"], move["reason"]) for move in history])


def _document(client: Client, name: str) -> Any:
    """A run's; a name that is no run is a worker's."""
    try:
        return client.get(path("jobs", name))
    except Refused as refusal:
        if refusal.code != NotFound.code:
            raise
        return client.get(path("tasks", name))
