"""`astra slurm squeue`."""

from typing import Any

import click

from astraconsole.cli.client import connect
from astraconsole.cli.output import as_json, print_json, print_table
from astraconsole.cli.slurm.job import JOB_ID_LABEL

CODES = {"Pending": "PD", "Starting": "CF", "Running": "R", "Completed": "CD", "Failed": "F", "Cancelled": "CA"}
WIDTHS = (10, 30, 14, 4, 9)
HEADER = ("JOBID", "NAME", "USER", "ST", "WORKERS", "NODELIST(REASON)")


@click.command("squeue")
@click.option("--me", is_flag=True, help="Only your own.")
@click.option("-u", "--user", default="", help="Only this person's.")
@click.option("-n", "--name", default="", help="Only this job name or run.")
@click.option("-j", "--jobs", default="", metavar="JOBID,…", help="Only these.")
@as_json
def command(me: bool, user: str, name: str, jobs: str, as_json: bool) -> None:
    """The workspace's runs that have not ended, as Slurm shows jobs."""
    active = connect().every("jobs", state="active", mine=me)
    chosen = [run for run in active if _is_meant(run, name, jobs) and user in ("", run["metadata"]["created_by"])]
    if as_json:
        print_json(chosen)
        return
    print_table(WIDTHS, HEADER, [_row(run) for run in chosen])


def _is_meant(run: Any, name: str, jobs: str) -> bool:
    wanted = [job for job in jobs.split(",") if job]
    own, job = run["metadata"]["name"], job_id(run)
    return (not name or name in (own, own.removesuffix(f"-{job}"))) and (not wanted or job in wanted or own in wanted)


def job_id(run: Any) -> str:
    """Of a run that came from a Slurm script; any other run's is its name."""
    return str(run["metadata"]["labels"].get(JOB_ID_LABEL, run["metadata"]["name"]))


def _row(run: Any) -> tuple[object, ...]:
    state, owner = run["status"]["state"], run["metadata"]["created_by"]
    workers = sum(run["task_counts"].values())
    reason = run["status"]["reason"]
    return (job_id(run), run["metadata"]["name"], owner or "-", CODES.get(state, state), workers, f"({reason})")
