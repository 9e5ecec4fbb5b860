"""`astra`: the command line. A command's module is imported when it is called: a start stays quick."""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from astraconsole.cli.problems import Problem

# command → module under astraconsole.cli.commands, whose `command` it is: the one table of late imports
ASTRAEUS = {
    "run": "run",
    "runs": "runs",
    "status": "status",
    "workers": "workers",
    "logs": "logs",
    "stop": "stop",
    "delete": "delete",
    "history": "history",
    "why": "why",
    "machines": "machines",
    "submit": "submit",
}
TOP = {"use": "use"}


class Lazy(click.Group):
    """A group whose commands are named in a table and imported on demand."""

    def __init__(self, modules: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.modules, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.modules:
            return super().get_command(ctx, cmd_name)
        command = import_module(f"astraconsole.cli.commands.{self.modules[cmd_name]}").command
        assert isinstance(command, click.Command)
        return command


astraeus = Lazy(ASTRAEUS, name="astraeus", help="Runs: submit them, watch them, end them.")
astra = Lazy(TOP, name="astra", help="The command line of the Astra console.")
astra.add_command(astraeus)


def main() -> None:
    """Exit codes: 0 done; 1 not possible; 2 wrong usage or configuration; 3 refused by the console; 4 not reached."""
    try:
        astra(prog_name="astra")
    except Problem as problem:
        print(f"astra: {problem}", file=sys.stderr)  # noqa: T201
        sys.exit(problem.exit_code)


if __name__ == "__main__":
    main()
