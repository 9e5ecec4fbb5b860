"""`astra astraeus status`."""

import click

from astraconsole.cli import options
from astraconsole.cli.client import connect, path
from astraconsole.cli.output import as_json, dash, print_aligned, print_json, print_state


@click.command("status")
@options.run
@as_json
def command(run: str, as_json: bool) -> None:
    """A run's state and sentence, and those of its workers."""
    client = connect()
    document, workers = client.get(path("jobs", run)), list(client.every_of_cluster("tasks", job=run))
    if as_json:
        print_json({**document, "tasks": workers})
        return
    print_state(run, document["status"]["state"], document["status"]["reason"])
    rows = [
        (
            worker["metadata"]["name"],
            worker["status"]["state"],
            dash((worker["placement"] or {}).get("machine")),
            worker["status"]["reason"],
        )
        for worker in workers
    ]
    print_aligned(rows, indent="  ")
