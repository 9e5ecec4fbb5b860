"""`astra completion`."""

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print what lets a shell complete commands, options and names.

    In the shell's start-up file: eval "$(astra completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "astra", "_ASTRA_COMPLETE").source())
