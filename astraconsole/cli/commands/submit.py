"""`astra astraeus submit`."""

import json
from typing import IO

import click

from astraconsole.cli.client import connect
from astraconsole.cli.output import as_json, print_json, say_submitted


@click.command("submit")
@click.argument("file", type=click.File())
@as_json
def command(file: IO[str], as_json: bool) -> None:
    """Submit a run from a JSON file, or from standard input with `-`."""
    try:
        body = json.load(file)
    except ValueError as error:
        raise click.BadParameter(f"{file.name} is not JSON: {error}") from error
    client = connect()
    run = client.post("jobs", body)
    if as_json:
        print_json(run)
        return
    say_submitted(run, client.cluster, client.page_of(run["metadata"]["name"]))
