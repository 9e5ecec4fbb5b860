"""`astra slurm scancel`."""

import click

from astraconsole.cli.client import connect, path
from astraconsole.cli.commands.slurm_squeue import job_id
from astraconsole.cli.output import as_json, print_json
from astraconsole.cli.problems import Problem


@click.command("scancel")
@click.argument("jobs", nargs=-1, required=True, metavar="JOBID|RUN...")
@as_json
def command(jobs: tuple[str, ...], as_json: bool) -> None:
    """Stop runs by their Slurm job id or name; their records and logs stay."""
    client = connect()
    active = {job_id(run): run for run in client.every("jobs", state="active")}
    active |= {run["metadata"]["name"]: run for run in active.values()}
    unknown = [job for job in jobs if job not in active]
    if unknown:
        raise Problem(f"no run that has not ended: {', '.join(unknown)}")
    stopped = []
    for job in jobs:
        run = active[job]["metadata"]
        place = path("clusters", run["cluster"], "api", "jobs", run["name"], "stop")
        stopped.append(client.workspace("POST", place, json={"reason": "scancel"}))
    if as_json:
        print_json(stopped)
