"""`astra slurm sbatch`."""

import getpass
import os
import random
from pathlib import Path
from typing import Any

import click

from astraconsole.cli.client import Client, connect
from astraconsole.cli.output import harmless, print_json
from astraconsole.cli.problems import Exit, Problem, Refused
from astraconsole.cli.sent_code import sent_code
from astraconsole.cli.slurm.job import faults_of, run_of, told
from astraconsole.cli.slurm.launcher import files
from astraconsole.cli.slurm.script import NotRead
from astraconsole.cli.slurm.script import Refused as RefusedScript
from astraconsole.cli.slurm.submission import Submission, read_submission
from astraconsole.cli.submitting import wait_for_end
from astraconsole.errors import JobAlreadyExists

JOB_IDS = (1_000_000, 10_000_000)
TRIES = 5
NO_IMAGE = "no image: a Slurm script names none. Use --image, $ASTRA_IMAGE or #SBATCH --container-image"


class Unusable(Problem):
    """The script or the command line: nothing was asked of the console."""

    exit_code = Exit.USAGE


class SlurmCommand(click.Command):
    """Its words are Slurm's, abbreviations and clusters included: click reads none of them."""

    def make_parser(self, ctx: click.Context) -> Any:
        ctx.ignore_unknown_options, ctx.allow_interspersed_args = True, False
        return super().make_parser(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] in (["--help"], ["-h"]):
            return super().parse_args(ctx, ["--help"])
        ctx.params["words"] = tuple(args)
        return []


@click.command("sbatch", cls=SlurmCommand, options_metavar="")
@click.argument("words", nargs=-1, metavar="[OPTIONS] SCRIPT [ARGS]...")
def command(words: tuple[str, ...]) -> None:
    """Submit a Slurm batch script as a run. A failed worker fails it at once; nothing is restarted.

    OPTIONS are sbatch's own, and rank above the script's. Those without an effect are named, with the reason. Beside
    them: --image IMAGE (else $ASTRA_IMAGE), --code FOLDER (sent along; its files stand where the script runs), --pool
    POOL, --name NAME, --dry-run and --json. Without a SCRIPT it is read from standard input.
    """
    try:
        submission = read_submission(words, os.environ, getpass.getuser())
    except RefusedScript as refusal:
        if "--json" in words:
            print_json({"error": str(refusal), "errors": refusal.faults})
        raise Unusable("sbatch: " + "\nsbatch: ".join(refusal.faults)) from refusal
    faults = faults_of(submission.meaning, submission.cannot_run)
    if submission.flags & {"dry-run", "test-only"}:
        _show(submission, faults)
        return
    if faults or not submission.place.image:
        raise Unusable("sbatch: " + "\nsbatch: ".join(faults or [NO_IMAGE]))
    _submit(connect(), submission)


def _show(submission: Submission, faults: list[str]) -> None:
    """What would be submitted; nothing is."""
    run = _run(submission, _code(submission), JOB_IDS[0])
    if "json" in submission.flags:
        ignored = [_ignored_document(item) for item in submission.meaning.ignored]
        notes = told(submission.meaning)
        print_json(
            {
                "meaning": submission.meaning.document(),
                "ignored": ignored,
                "notes": notes,
                "refused_on_submit": faults,
                "run": run,
            }
        )
        return
    click.echo(f"{run['metadata']['name']} would be submitted")
    _say(submission)
    for fault in faults:
        click.echo(f"refused on submit: {harmless(fault)}", err=True)


def _ignored_document(item: NotRead) -> dict[str, Any]:
    return {"line": item.line or None, "directive": item.label, "why": item.why}


def _submit(client: Client, submission: Submission) -> None:
    run, job_id = _post(client, submission)
    name = run["metadata"]["name"]
    if "json" in submission.flags:
        print_json(run)
    elif "parsable" in submission.flags:
        click.echo(str(job_id))
    else:
        click.echo(f"Submitted batch job {job_id}")
        click.echo(f"{name} submitted to {client.cluster}: {client.page_of(name)}", err=True)
    if "parsable" not in submission.flags:
        _say(submission)
    if "wait" in submission.flags:
        raise click.exceptions.Exit(_wait(client, name))


def _post(client: Client, submission: Submission) -> tuple[Any, int]:
    """The run as created, and its job id: a number that no run of this name has yet."""
    code = _code(submission)
    for left in reversed(range(TRIES)):
        job_id = random.randrange(*JOB_IDS)
        try:
            return client.post("jobs", _run(submission, code, job_id)), job_id
        except Refused as refusal:
            if refusal.code != JobAlreadyExists.code or not left:
                raise
    raise AssertionError("not reached")


def _run(submission: Submission, code: str, job_id: int) -> dict[str, Any]:
    return run_of(submission.meaning, code, submission.arguments, submission.place, job_id)


def _code(submission: Submission) -> str:
    """The script, what starts it, and the folder that was asked for, packed. Raises Problem where that is too much."""
    folder = submission.place.code
    return sent_code(Path(folder) if folder else None, "not sent: {}", files(submission.body))


def _say(submission: Submission) -> None:
    """What the workers get, and what has no effect, on stderr: scripts read the job id from stdout."""
    for line in told(submission.meaning):
        click.echo(harmless(line), err=True)
    for item in submission.meaning.ignored:
        where = f"line {item.line}: " if item.line else ""
        click.echo(harmless(f"ignored: {where}{item.label}: {item.why}"), err=True)


def _wait(client: Client, name: str) -> int:
    code, run = wait_for_end(client, name, show_log=False)
    if run is not None:
        click.echo(harmless(f"{name}: {run['status']['state']} — {run['status']['reason']}"), err=True)
    return code
