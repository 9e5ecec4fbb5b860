"""`astra astraeus diff`."""

import json
import sys
from typing import Any

import click

from astraconsole.cli import options
from astraconsole.cli.client import connect, path
from astraconsole.cli.options import NAME
from astraconsole.cli.output import as_json, harmless, has_colours, print_json


@click.command("diff")
@options.run
@click.argument("other", required=False, type=NAME)
@as_json
def command(run: str, other: str | None, as_json: bool) -> None:
    """What differs from the last good run of its kind, or from OTHER.

    Under each field, - was there before and + is there in RUN.
    """
    compared = connect().get(path("jobs", run, "diff"), **({"against": other} if other else {}))
    if as_json:
        print_json(compared)
        return
    good = compared["good"]
    if good is None:
        click.echo(f"{run}: no run of its kind has completed before it; name another: astra astraeus diff {run} OTHER")
        return
    how = "" if other else f" ({compared['how']})"
    click.echo(f"{run} against {good['name']}{how}")
    for one in compared["differences"]:
        click.echo(f"  {harmless(one['what'])}")
        _say("-", "red", one["before"])
        _say("+", "green", one["after"])
    if not compared["differences"]:
        click.echo("  nothing differs")
    for sentence in compared["unknown"]:
        click.echo(f"({harmless(sentence)})", err=True)


def _say(sign: str, colour: str, value: Any) -> None:
    """A value on one line; nothing where there is none."""
    if value is None:
        return
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = f"    {sign} {harmless(text)}"
    click.echo(click.style(line, fg=colour) if has_colours(sys.stdout) else line)
