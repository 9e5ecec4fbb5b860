"""`astra slurm sinfo`."""

from collections import defaultdict
from typing import Any

import click

from astraconsole.cli.client import connect
from astraconsole.cli.output import as_json, print_json, print_table

POOL_LABEL = "pool"


@click.command("sinfo")
@as_json
def command(as_json: bool) -> None:
    """The cluster's machines by pool and state, as Slurm shows nodes by partition."""
    machines = connect().get("machines")["items"]
    if as_json:
        print_json(machines)
        return
    groups: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for machine in machines:
        groups[_pool(machine), machine["status"]["state"], len(machine["capacity"]["gpus"])].append(
            machine["metadata"]["name"]
        )
    rows = [
        (pool, len(names), state, gpus, ",".join(sorted(names)))
        for (pool, state, gpus), names in sorted(groups.items())
    ]
    print_table((14, 7, 12, 6), ("PARTITION", "NODES", "STATE", "GPUS", "NODELIST"), rows)


def _pool(machine: Any) -> str:
    return str(machine["metadata"].get("labels", {}).get(POOL_LABEL, "-"))
