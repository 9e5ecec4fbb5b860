"""`astra slurm scancel`."""

import click

from astraconsole.cli.client import connect, path
from astraconsole.cli.commands.slurm_squeue import job_id
from astraconsole.cli.problems import Problem


@click.command("scancel")
@click.argument("jobs", nargs=-1, required=True, metavar="JOBID|RUN...")
def command(jobs: tuple[str, ...]) -> None:
    """Stop runs by their Slurm job id or name; their records and logs stay."""
    client = connect()
    active = {job_id(run): run for run in client.every("jobs", state="active")}
    active |= {run["metadata"]["name"]: run for run in active.values()}
    unknown = [job for job in jobs if job not in active]
    if unknown:
        raise Problem(f"no run that has not ended: {', '.join(unknown)}")
    for job in jobs:
        run = active[job]["metadata"]
        place = path("clusters", run["cluster"], "api", "jobs", run["name"], "stop")
        client.workspace("POST", place, json={"reason": "scancel"})
