"""`astra astraeus status`."""

import click

from astraconsole.cli.client import connect
from astraconsole.cli.output import as_json, dash, print_aligned, print_json


@click.command("status")
@click.argument("run")
@as_json
def command(run: str, as_json: bool) -> None:
    """A run's state and sentence, and those of its workers."""
    client = connect()
    document, workers = client.get(f"jobs/{run}"), client.get("tasks", job=run)["items"]
    if as_json:
        print_json({**document, "tasks": workers})
        return
    click.echo(f"{run}: {document['status']['state']} — {document['status']['reason']}")
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
