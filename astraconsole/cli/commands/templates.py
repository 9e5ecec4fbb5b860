"""`astra astraeus templates`."""

from pathlib import Path

import click

from astraconsole.cli.client import connect, path
from astraconsole.cli.output import as_json, print_aligned, print_json
from astraconsole.cli.run_files import spec_of
from astraconsole.cli.saved import find_template


@click.group("templates", invoke_without_command=True)
@as_json
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """The workspace's templates: start one with `run --template NAME`."""
    if context.invoked_subcommand is not None:
        return
    templates = list(connect().every("templates"))
    if as_json:
        print_json(templates)
        return
    print_aligned([(template["name"], template["description"]) for template in templates])


@command.command("save")
@click.argument("name")
@click.argument("file", required=False, type=click.Path(allow_dash=True, path_type=Path))
@click.option("--from-run", help="A run's specification, instead of a FILE's.")
@click.option("--description", default="", help="Shown in the list.")
@as_json
def save(name: str, file: Path | None, from_run: str | None, description: str, as_json: bool) -> None:
    """Keep a specification under NAME; one that has it already is replaced. It is checked when it is used."""
    client = connect()
    body = {"name": name, "description": description, "spec": spec_of(client, file, from_run)}
    template = client.workspace("POST", "templates", json=body)
    if as_json:
        print_json(template)
    else:
        click.echo(f"template {name} saved")


@command.command("remove")
@click.argument("name")
@as_json
def remove(name: str, as_json: bool) -> None:
    """Remove a template; runs that were made of it stay."""
    client = connect()
    client.workspace("DELETE", path("templates", find_template(client, name)["id"]))
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        click.echo(f"template {name} removed")
