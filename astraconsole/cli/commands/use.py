"""`astra use`."""

import re
from dataclasses import replace

import click

from astraconsole.cli import config
from astraconsole.cli.client import Client
from astraconsole.cli.output import as_json, print_json
from astraconsole.cli.problems import Problem

_PLACE = re.compile(r"([A-Za-z0-9_-]+)/([A-Za-z0-9_-]+)(?:@([A-Za-z0-9_-]+))?")


@click.command("use")
@click.argument("place", metavar="ORG/WORKSPACE[@CLUSTER]")
@as_json
def command(place: str, as_json: bool) -> None:
    """Choose the workspace, and with @CLUSTER the cluster, that later commands work in."""
    match = _PLACE.fullmatch(place)
    if match is None:
        raise click.BadParameter("write organisation/workspace or organisation/workspace@cluster")
    organisation, workspace, cluster = match.groups()
    chosen = replace(config.load(), organisation=organisation, workspace=workspace, cluster=cluster or "")
    clusters = [str(one["name"]) for one in Client(chosen).workspace("GET", "clusters")["items"]]
    if cluster and cluster not in clusters:
        raise Problem(f"{organisation}/{workspace} has no cluster {cluster}; it has {', '.join(clusters) or 'none'}")
    config.save(chosen)
    if as_json:
        print_json({"organisation": organisation, "workspace": workspace, "cluster": cluster})
    else:
        click.echo(f"Working in {chosen.place}")
