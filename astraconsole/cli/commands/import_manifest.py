"""`astra import`."""

from typing import IO, Any

import click

from astraconsole.cli.manifests.importing import Result, import_manifest
from astraconsole.cli.manifests.reading import Imported, LeftOut, Refused
from astraconsole.cli.output import as_json, harmless, print_json
from astraconsole.cli.problems import Exit, Problem
from astraconsole.errors import AstraError
from runs.spec import parse_run


class Unusable(Problem):
    """The manifest: nothing was asked of the console."""

    exit_code = Exit.USAGE


@click.command("import")
@click.argument("file", type=click.File())
@click.option("--image", envvar="ASTRA_IMAGE", default="", help="For a manifest without one.  [default: $ASTRA_IMAGE]")
@as_json
def command(file: IO[str], image: str, as_json: bool) -> None:
    """Print the run that a manifest of another system means, for `astra astraeus submit -`.

    Kubernetes Job and Pod, PyTorchJob and its like, Volcano, Ray, with or without Kueue; dstack; SkyPilot. Whatever the
    run does not carry is named on stderr. Several documents give a list. With --json also what the manifest means.
    """
    try:
        result = import_manifest(file.read(), image)
    except UnicodeDecodeError as error:
        raise Unusable(f"{file.name} is not UTF-8 text") from error
    except Refused as refusal:
        if as_json:
            print_json({"error": str(refusal)})
        raise Unusable(f"{file.name}: {refusal}") from refusal
    documents = [_document(imported, result) if as_json else imported.run for imported in result.runs]
    print_json(documents[0] if len(documents) == 1 else documents)
    for item in _named(result):
        click.echo(harmless(f"left out: {item.path}: {item.why}"), err=True)
    refusals = [fault for imported in result.runs for fault in _faults(imported)]
    if refusals:
        raise Problem("the console would refuse this:\n  " + "\n  ".join(refusals))


def _document(imported: Imported, result: Result) -> dict[str, Any]:
    left_out = [{"path": item.path, "why": item.why} for item in [*imported.left_out, *result.others]]
    return {"meaning": imported.meaning, "left_out": left_out, "run": imported.run}


def _named(result: Result) -> list[LeftOut]:
    return [*(item for imported in result.runs for item in imported.left_out), *result.others]


def _faults(imported: Imported) -> list[str]:
    """Broken rules of the run, but for an image that is still to be given."""
    try:
        parse_run(imported.run)
    except AstraError as error:
        told = [f"{item['field']} {item['rule']}" for item in error.detail]
        return [fault for fault in told if not fault.endswith("task_template.image is required")]
    return []
