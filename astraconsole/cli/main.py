"""`astra`: the command line. A command's module is imported when it is called: a start stays quick."""

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

from astraconsole.cli.output import harmless
from astraconsole.cli.problems import Exit, Problem

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
    "templates": "templates",
}
TOP = {
    "login": "login",
    "logout": "logout",
    "whoami": "whoami",
    "use": "use",
    "completion": "completion",
    "import": "import_manifest",
}
SLURM = {"sbatch": "slurm_sbatch", "squeue": "slurm_squeue", "scancel": "slurm_scancel", "sinfo": "slurm_sinfo"}


class PipeClosed(Exception):
    """Nobody reads the output any more. Not an OSError, of which click would make an exit of its own."""


class Lazy(click.Group):
    """A group whose commands are named in a table and imported on demand."""

    def __init__(self, modules: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self.modules = modules

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise PipeClosed from error

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
slurm = Lazy(SLURM, name="slurm", help="Slurm's scripts and commands, as runs.")
astra.add_command(astraeus)
astra.add_command(slurm)


def main() -> None:
    """Run the command line; whatever goes wrong is one message on stderr and one of the exit codes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without — must not cost the whole output
    try:
        code = _run()
        sys.stdout.flush()
    except (BrokenPipeError, PipeClosed):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains of it once more
        code = Exit.PIPE_CLOSED
    sys.exit(code)


def _run() -> int:
    try:
        code = astra.main(prog_name="astra", standalone_mode=False)
        return code if isinstance(code, int) else Exit.DONE
    except click.exceptions.NoArgsIsHelpError as error:
        return _say(error.format_message(), Exit.USAGE, prefix="")
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        return _say(error.format_message() + hint, Exit.USAGE)
    except click.ClickException as error:
        return _say(error.format_message(), error.exit_code)
    except Problem as problem:
        return _say(str(problem), problem.exit_code)
    except click.Abort:
        return Exit.INTERRUPTED
    except PipeClosed:
        raise
    except OSError as error:
        return _say(f"{error.strerror or error}", Exit.FAILED)
    except Exception as error:  # a defect, or a console that answers what no console does
        if os.environ.get("ASTRA_DEBUG"):
            sys.excepthook(type(error), error, error.__traceback__)
        return _say(f"unexpected: {type(error).__name__}: {error} (ASTRA_DEBUG=1 shows where)", Exit.DEFECT)


def _say(message: str, code: int, prefix: str = "astra: ") -> int:
    lines = "\n".join(harmless(line) for line in message.split("\n"))
    click.echo(prefix + lines, err=True)
    return code


if __name__ == "__main__":
    main()
