"""`astra astraeus why`."""

import click

from astraconsole.cli import options
from astraconsole.cli.client import connect, path
from astraconsole.cli.output import as_json, print_json, print_state, print_table


@click.command("why")
@options.run
@as_json
def command(run: str, as_json: bool) -> None:
    """Why a run waits: its reason, and what each machine has against it."""
    status = connect().get(path("jobs", run))["status"]
    if as_json:
        print_json(status)
        return
    print_state(run, status["state"], status["reason"])
    pending = status.get("pending", {})
    if pending.get("ahead"):
        click.echo(f"{pending['ahead']} ahead of it")
    rows = [(group["count"], group["reason"], ", ".join(group["machines"])) for group in pending.get("machines", [])]
    if rows:
        print_table((10, 50), ("MACHINES", "REASON", "WHICH"), rows)
