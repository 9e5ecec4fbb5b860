"""`astra astraeus events`."""

from typing import Any

import click

from astraconsole.cli.client import connect
from astraconsole.cli.event_stream import EventStream
from astraconsole.cli.options import NAME
from astraconsole.cli.output import as_json, print_aligned, print_json, print_json_line, print_table

WIDTHS = (29, 9, 30, 12, 20)
HEADER = ("AT", "KIND", "NAME", "STATE", "WHO", "WHY")


@click.command("events")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on as events happen, also over breaks.")
@click.option("--run", "--name", "name", type=NAME, help="Of this run and its workers, this worker, machine, …")
@click.option("--kind", help="Of this kind: run, worker, machine, member, …")
@click.option("--actor", help="By this user, `scheduler`, or `machine NAME`.")
@click.option("-n", "--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="Of the newest.")
@as_json
def command(following: bool, name: str | None, kind: str | None, actor: str | None, limit: int, as_json: bool) -> None:
    """The workspace's events, on all clusters, oldest first."""
    client = connect()
    filters = {key: text for key, text in (("name", name), ("kind", kind), ("actor", actor)) if text}
    if not following:
        items = client.workspace("GET", "events", params={**filters, "limit": limit})["items"][::-1]
        if as_json:
            print_json(items)
        elif items:
            print_aligned([HEADER, *map(_cells, items)])
        return
    stream = EventStream(client, filters, limit, lambda text: click.echo(f"({text})", err=True))
    if not as_json:
        print_table(WIDTHS, HEADER, [])
    for event in stream.events():
        if as_json:
            print_json_line(event)
        else:
            print_row(event)


def print_row(event: dict[str, Any]) -> None:
    print_table(WIDTHS, _cells(event), [])


def _cells(event: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(event[field]) for field in ("at", "kind", "name", "state", "actor", "reason"))
