"""`astra astraeus history`."""

import click

from astraconsole.cli.client import connect
from astraconsole.cli.options import NAME
from astraconsole.cli.output import as_json, print_aligned, print_json


@click.command("history")
@click.argument("name", metavar="RUN|WORKER", type=NAME)
@as_json
def command(name: str, as_json: bool) -> None:
    """Every state change of a run or of a worker, oldest first."""
    run, worker = connect().run_or_worker(name)
    history = (run or worker)["history"]
    if as_json:
        print_json(history)
        return
    print_aligned([(move["transition_at"], move["state"], move["actor"], move["reason"]) for move in history])
