"""`astra astraeus workers`."""

import click

from astraconsole.cli import options
from astraconsole.cli.client import connect
from astraconsole.cli.output import as_json, dash, print_json, print_table


@click.command("workers")
@options.run
@as_json
def command(run: str, as_json: bool) -> None:
    """A run's workers, by rank."""
    workers = list(connect().every_of_cluster("tasks", job=run))
    if as_json:
        print_json(workers)
        return
    rows = [
        (
            worker["metadata"]["name"],
            worker["metadata"]["rank"],
            worker["status"]["state"],
            dash((worker["placement"] or {}).get("machine")),
            worker["status"]["reason"],
        )
        for worker in workers
    ]
    print_table((30, 7, 12, 22), ("WORKER", "RANK", "STATE", "MACHINE", "REASON"), rows)
