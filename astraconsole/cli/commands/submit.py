"""`astra astraeus submit`."""

from pathlib import Path

import click

from astraconsole.cli import options
from astraconsole.cli.client import connect
from astraconsole.cli.output import as_json
from astraconsole.cli.problems import Exit, NotConfigured
from astraconsole.cli.run_files import parse_run_file, read_run_file
from astraconsole.cli.submitting import submit


@click.command("submit")
@click.argument("file", type=click.Path(allow_dash=True, path_type=Path))
@options.wait
@options.dry_run
@as_json
def command(file: Path, wait: bool, dry_run: bool, as_json: bool) -> int:
    """Submit a run from a JSON or YAML file, or from standard input with `-`.

    A list of runs, as `astra import` may print, is submitted one after the other.
    """
    document = parse_run_file(*read_run_file(file))
    bodies = document if isinstance(document, list) else [document]
    if not bodies:
        raise NotConfigured(f"{file} holds no run")
    client = connect()
    return max(
        (submit(client, body, dry_run=dry_run, wait=wait, as_json=as_json) for body in bodies), default=Exit.DONE
    )
