"""`astra astraeus gpus`."""

from typing import Any

import click

from astraconsole.cli.client import Client, connect, path
from astraconsole.cli.output import as_json, dash, harmless, print_json


@click.command("gpus")
@as_json
def command(as_json: bool) -> None:
    """Every GPU that the workspace can see: how busy, how well, held by which run."""
    client = connect()
    gpus = [gpu for cluster in _clusters(client) for gpu in _gpus_of(client, cluster)]
    if as_json:
        print_json(gpus)
        return
    for gpu in gpus:
        click.echo("  ".join(harmless(part) for part in _parts(gpu)))


def _clusters(client: Client) -> list[str]:
    """The chosen one, else all."""
    if client.config.cluster:
        return [client.config.cluster]
    return [str(cluster["name"]) for cluster in client.workspace("GET", "clusters")["items"]] or [client.cluster]


def _gpus_of(client: Client, cluster: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.workspace("GET", path("clusters", cluster, "api", "gpus"))["items"]
    return found


def _parts(gpu: Any) -> tuple[str, ...]:
    model = f"{gpu['model']} (simulated)" if gpu["simulated"] else gpu["model"]
    busy = None if gpu["utilization"] is None else f"{gpu['utilization']:.0%}"
    held = f"held by {gpu['held_by']}" if gpu["held_by"] else "free"
    return f"{gpu['machine']}/{gpu['index']}", model, dash(busy), gpu["health"], held
