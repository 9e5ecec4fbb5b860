"""`astra whoami`."""

import click

from astraconsole.cli import config
from astraconsole.cli.client import Api
from astraconsole.cli.output import as_json, harmless, print_aligned, print_json


@click.command("whoami")
@as_json
def command(as_json: bool) -> None:
    """Who is signed in, with which token, and in which workspaces."""
    known = config.load()
    config.require(known, "url", "token")
    person = Api(known.url, known.token).call("GET", "whoami")
    if as_json:
        print_json(person)
        return
    name = person["email"] or person["username"]
    where = f", working in {known.place}" if known.workspace else ""
    click.echo(f"{harmless(name)} at {known.url}, by the token {harmless(person['token']['name'])}{where}")
    print_aligned([(f"{one['organisation']}/{one['workspace']}", one["role"]) for one in person["workspaces"]], "  ")
