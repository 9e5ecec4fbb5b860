"""`astra astraeus why`."""

from collections.abc import Iterator
from typing import Any

import click

from astraconsole.cli import options
from astraconsole.cli.client import connect, path
from astraconsole.cli.output import as_json, harmless, print_json, print_state, print_table
from runs.units import counted


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
    for line in _facts(pending):
        click.echo(harmless(line))
    rows = [(group["count"], group["reason"], ", ".join(group["machines"])) for group in pending.get("machines", [])]
    if rows:
        print_table((10, 50), ("MACHINES", "REASON", "WHICH"), rows)


def _facts(pending: Any) -> Iterator[str]:
    if pending.get("ahead"):
        yield f"{counted(pending['ahead'], 'run')} ahead of it"
    if pending.get("starts_by"):
        yield f"starts by {pending['starts_by'][:16].replace('T', ' ')} UTC, if all use their limits"
    for name, use in pending.get("quota", {}).items():
        if use["limit"] is not None:
            yield f"quota of {name}: {use['used']} of {use['limit']} in use"
    for change in pending.get("would_start", []):
        yield f"{change['change']}: {change['outcome']}"
