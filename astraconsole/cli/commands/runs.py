"""`astra astraeus runs`."""

from typing import Any

import click

from astraconsole.cli.client import connect
from astraconsole.cli.output import as_json, print_json, print_table


@click.command("runs")
@click.option("-a", "--all", "everything", is_flag=True, help="Ended and deleted runs too.")
@as_json
def command(everything: bool, as_json: bool) -> None:
    """The workspace's runs that have not ended."""
    chosen = {"state": "all", "deleted": True} if everything else {"state": "active"}
    runs = list(connect().every("jobs", **chosen))
    if as_json:
        print_json(runs)
        return
    rows = [(run["metadata"]["name"], run["metadata"]["cluster"], _state(run), run["status"]["reason"]) for run in runs]
    print_table((30, 14, 12), ("NAME", "CLUSTER", "STATE", "REASON"), rows)


def _state(run: Any) -> str:
    """Of a deleted run, that it is: another one may have its name."""
    return "Deleted" if "deleted_at" in run["metadata"] else str(run["status"]["state"])
