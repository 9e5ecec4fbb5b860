"""`astra use`."""

import re
from dataclasses import replace

import click

from astraconsole.cli import config
from astraconsole.cli.client import Client

_PLACE = re.compile(r"([a-z0-9_-]+)/([a-z0-9_-]+)(?:@([a-z0-9_-]+))?")


@click.command("use")
@click.argument("place", metavar="ORG/WORKSPACE[@CLUSTER]")
def command(place: str) -> None:
    """Choose the workspace, and with @CLUSTER the cluster, that later commands work in."""
    match = _PLACE.fullmatch(place)
    if match is None:
        raise click.BadParameter("write organisation/workspace or organisation/workspace@cluster")
    organisation, workspace, cluster = match.groups()
    chosen = replace(config.load(), organisation=organisation, workspace=workspace, cluster=cluster or "")
    Client(chosen).workspace("GET", "clusters")
    config.save(chosen)
    click.echo(f"Working in {organisation}/{workspace}")
