"""`astra`: the command line. A command's module is imported when it is called: a start stays quick."""

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NamedTuple

import click
from click.exceptions import NoSuchCommand
from click.shell_completion import CompletionItem

from astraconsole.cli.output import harmless
from astraconsole.cli.problems import Exit, Problem


class Verb(NamedTuple):
    """A command: the module under astraconsole.cli.commands whose `command` it is, and the first sentence of its help,
    so that a list of commands imports none of them. A test holds the two together."""

    module: str
    help: str


# The one table of late imports.
ASTRAEUS = {
    "run": Verb("run", "Submit a run."),
    "submit": Verb("submit", "Submit a run from a JSON or YAML file, or from standard input with `-`."),
    "runs": Verb("runs", "The workspace's runs that have not ended."),
    "status": Verb("status", "A run's state and sentence, and those of its workers."),
    "workers": Verb("workers", "A run's workers, by rank."),
    "logs": Verb("logs", "The end of a run's log (its first worker's), or of one worker's."),
    "why": Verb("why", "Why a run waits: its reason, and what each machine has against it."),
    "diff": Verb("diff", "What differs from the last good run of its kind, or from OTHER."),
    "history": Verb("history", "Every state change of a run or of a worker, oldest first."),
    "events": Verb("events", "The workspace's events, on all clusters, oldest first."),
    "stop": Verb("stop", "Stop runs; their records and logs stay."),
    "delete": Verb("delete", "Stop runs and remove them, their workers and their logs."),
    "templates": Verb("templates", "The workspace's templates: start one with `run --template NAME`."),
    "schedules": Verb(
        "schedules", "The workspace's schedules: when each starts its next run, and what became of the last."
    ),
    "machines": Verb("machines", "The cluster's machines."),
    "gpus": Verb("gpus", "Every GPU that the workspace can see: how busy, how well, held by which run."),
    "usage": Verb("usage", "GPU-hours that the workspace's runs held, by month and by who started them."),
}
TOP = {
    "login": Verb("login", "Sign in to the console at URL, which you approve in a browser."),
    "logout": Verb("logout", "Revoke the saved token and forget it."),
    "whoami": Verb("whoami", "Who is signed in, with which token, and in which workspaces."),
    "use": Verb("use", "Choose the workspace, and with @CLUSTER the cluster, that later commands work in."),
    "import": Verb(
        "import_manifest", "Print the run that a manifest of another system means, for `astra astraeus submit -`."
    ),
    "completion": Verb("completion", "Print what lets a shell complete commands, options and names."),
}
SLURM = {
    "sbatch": Verb("slurm_sbatch", "Submit a Slurm batch script as a run."),
    "squeue": Verb("slurm_squeue", "The workspace's runs that have not ended, as Slurm shows jobs."),
    "scancel": Verb("slurm_scancel", "Stop runs by their Slurm job id or name; their records and logs stay."),
    "sinfo": Verb("slurm_sinfo", "The cluster's machines by pool and state, as Slurm shows nodes by partition."),
}


class PipeClosed(Exception):
    """Nobody reads the output any more. Not an OSError, of which click would make an exit of its own."""


class Lazy(click.Group):
    """A group whose commands are named in a table and imported on demand."""

    def __init__(self, verbs: Mapping[str, Verb], **options: Any) -> None:
        super().__init__(**options)
        self.verbs = verbs

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise PipeClosed from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            for group in self.commands.values():
                if isinstance(group, Lazy) and error.command_name in group.verbs:
                    whole = f"{ctx.command_path} {group.name} {error.command_name}"
                    raise click.UsageError(f"No such command {error.command_name!r}: it is `{whole}`.", ctx) from None
            raise NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self.verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.verbs:
            return super().get_command(ctx, cmd_name)
        command = import_module(f"astraconsole.cli.commands.{self.verbs[cmd_name].module}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._helps(ctx)))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name, help=text) for name, text in self._helps(ctx) if name.startswith(incomplete)]

    def _helps(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        for name in self.list_commands(ctx):
            yield name, self.verbs[name].help if name in self.verbs else self.commands[name].help or ""


def say_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(import_module("astraconsole.cli.version").program())
        ctx.exit()


astraeus = Lazy(ASTRAEUS, name="astraeus", help="Runs: submit them, watch them, end them.")
astra = Lazy(
    TOP,
    name="astra",
    help="The command line of the Astra console.",
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=say_version,
            help="Show the version and exit.",
        )
    ],
)
slurm = Lazy(SLURM, name="slurm", help="Slurm's scripts and commands, as runs.")
astra.add_command(astraeus)
astra.add_command(slurm)


def main() -> None:
    """Run the command line; whatever goes wrong is one message on stderr and one of the exit codes."""
    _mend_streams()
    try:
        code = _run()
        sys.stdout.flush()
    except (BrokenPipeError, PipeClosed):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains of it once more
        code = Exit.PIPE_CLOSED
    sys.exit(code)


def _mend_streams() -> None:
    """A stream that was closed from the start is an empty one; a locale without — must not cost the whole output."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115  # open as long as the process
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


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
