"""`astra astraeus machines`."""

import click

from astraconsole.cli.client import connect
from astraconsole.cli.output import as_json, print_json, print_table


@click.command("machines")
@as_json
def command(as_json: bool) -> None:
    """The cluster's machines."""
    machines = connect().get("machines")["items"]
    if as_json:
        print_json(machines)
        return
    rows = [(m["metadata"]["name"], m["status"]["state"], m["runtime"], len(m["capacity"]["gpus"])) for m in machines]
    print_table((22, 12, 12), ("MACHINE", "STATE", "RUNTIME", "GPUS"), rows)
