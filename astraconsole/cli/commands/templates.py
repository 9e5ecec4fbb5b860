"""`astra astraeus templates`."""

import click

from astraconsole.cli.client import connect
from astraconsole.cli.output import as_json, print_aligned, print_json


@click.command("templates")
@as_json
def command(as_json: bool) -> None:
    """The workspace's templates: start one with `run --template NAME`."""
    templates = list(connect().every("templates"))
    if as_json:
        print_json(templates)
        return
    print_aligned([(template["name"], template["description"]) for template in templates])
