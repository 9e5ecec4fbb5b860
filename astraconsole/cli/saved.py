"""What a workspace keeps by name, as the commands about it share it."""

from pathlib import Path
from typing import Any

import click

from astraconsole.cli.client import Client, path
from astraconsole.cli.problems import Problem
from astraconsole.cli.run_files import parse_run_file, read_run_file


def find_template(client: Client, name: str) -> dict[str, Any]:
    """Raises Problem."""
    for template in client.every("templates"):
        if template["name"] == name:
            found: dict[str, Any] = template
            return found
    raise Problem(f"the workspace has no template {name!r}: see `astra astraeus templates`")


def spec_of(client: Client, file: Path | None, run: str | None) -> Any:
    """The specification in a file (a whole run's, or alone) or of a run. Raises UsageError, NotConfigured, Refused."""
    if (file is None) == (run is None):
        raise click.UsageError("give either a FILE or --from-run")
    if run is not None:
        return client.get(path("jobs", run))["spec"]
    assert file is not None
    document = parse_run_file(*read_run_file(file))
    return document["spec"] if isinstance(document, dict) and "spec" in document else document
