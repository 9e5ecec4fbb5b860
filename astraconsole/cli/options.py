"""Kinds of arguments that several commands take."""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from astraconsole.cli.client import connect
from astraconsole.cli.problems import Problem
from runs.units import parse_cores, parse_duration, parse_memory

COMPLETED_AT_MOST = 100


class Quantity(click.ParamType[int]):
    """A value read by one of the shared parsers; what it refuses is a usage error with its sentence."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name, self.parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return self.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


MEMORY = Quantity("memory", lambda text: parse_memory(text, plain="MiB"))
DURATION = Quantity("duration", lambda text: parse_duration(text, plain="minutes", slurm=True))
CORES = Quantity("cores", parse_cores)


class SavedName(click.ParamType[str]):
    """A name that becomes a part of an address."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text or "/" in text or text in (".", ".."):
            self.fail(f"{text!r} is no name", param, ctx)
        return text


class Name(SavedName):
    """A run's or worker's name, which the shell completes with the runs that the console has."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            page = connect().workspace("GET", "jobs", params={"name": incomplete, "limit": COMPLETED_AT_MOST})
        except (Problem, OSError):
            return []  # pressing Tab is no question that an error would answer
        names = [run["metadata"]["name"] for run in page["items"]]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


SAVED_NAME = SavedName()
NAME = Name()
run = click.argument("run", type=NAME)
runs = click.argument("runs", nargs=-1, required=True, type=NAME)
wait = click.option("-w", "--wait", is_flag=True, help="Follow the first worker's log until the run ends.")
dry_run = click.option("--dry-run", is_flag=True, help="Check and plan the run; submit nothing.")
