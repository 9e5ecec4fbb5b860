"""`astra logout`."""

from dataclasses import replace

import click

from astraconsole.cli import config
from astraconsole.cli.client import Api
from astraconsole.cli.output import as_json, print_json
from astraconsole.cli.problems import Problem, Refused
from astraconsole.errors import Unauthenticated


@click.command("logout")
@as_json
def command(as_json: bool) -> None:
    """Revoke the saved token and forget it."""
    saved = config.load_saved()
    if not saved.token:
        raise Problem("not signed in; a token in ASTRA_TOKEN is revoked in the console")
    try:
        Api(saved.url, saved.token).call("DELETE", "token")
    except Refused as refusal:
        if refusal.code != Unauthenticated.code:  # revoked already: only forgetting it is left
            raise
    config.save(replace(saved, token=""))
    if as_json:
        print_json({"url": saved.url, "signed_in": False})
    else:
        click.echo(f"Signed out of {saved.url}")
