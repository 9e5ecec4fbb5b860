"""How followed logs are printed: one worker's bytes as they are, or several workers' lines, each behind its name."""

import sys
from collections.abc import Sequence
from typing import Protocol

import click

from astraconsole.cli.following import Follower, Patience
from astraconsole.cli.output import Progress, harmless, print_json_line


class Printer(Protocol):
    def write(self, worker: str, data: bytes) -> None: ...

    def finish(self) -> None: ...


class Plain:
    """Byte by byte what the program printed."""

    def __init__(self) -> None:
        self._at_line_start = True

    def write(self, worker: str, data: bytes) -> None:
        if data:
            click.echo(data, nl=False)
            self._at_line_start = data.endswith(b"\n")

    def finish(self) -> None:
        if not self._at_line_start:
            click.echo()
        self._at_line_start = True


class Prefixed:
    """`llama-sft-0 | step 10`: only whole lines, since several workers write."""

    def __init__(self) -> None:
        self._rest: dict[str, bytes] = {}

    def write(self, worker: str, data: bytes) -> None:
        *lines, self._rest[worker] = (self._rest.get(worker, b"") + data).split(b"\n")
        for line in lines:
            self._line(worker, line)

    def finish(self) -> None:
        for worker, rest in self._rest.items():
            if rest:
                self._line(worker, rest)
        self._rest.clear()

    def _line(self, worker: str, line: bytes) -> None:
        click.echo(worker.encode() + b" | " + line)


class JsonLines(Prefixed):
    """`{"task_name", "line"}`, one document a line."""

    def _line(self, worker: str, line: bytes) -> None:
        print_json_line({"task_name": worker, "line": line.decode(errors="replace")})


def follow(followers: Sequence[Follower], printer: Printer) -> None:
    """Print until every log has ended, whatever happens to the network meanwhile. Notes and progress go to stderr."""
    progress = Progress()

    def say(note: str) -> None:
        progress.clear()
        click.echo(f"({harmless(note)})", err=True)

    patience = Patience(say)
    while live := [follower for follower in followers if not follower.ended]:
        busy = False
        for follower in live:
            before = follower.state
            step = patience.ask(follower.step)
            if step is None:
                break
            if step.data or step.notes:
                progress.clear()
            printer.write(follower.worker, step.data)
            for note in step.notes:
                say(note if len(followers) == 1 else f"{follower.worker}: {note}")
            busy = busy or bool(step.data) or follower.state != before
        if all(follower.ended for follower in live):
            break
        sys.stdout.flush()
        _show_waiting(progress, live)
        patience.pause(busy)
    progress.clear()
    printer.finish()


def _show_waiting(progress: Progress, live: Sequence[Follower]) -> None:
    """While nothing runs yet, what each waits for is worth a line."""
    waiting = [follower for follower in live if follower.state not in ("", "Running")]
    if waiting:
        progress.show(f"{waiting[0].worker}: {waiting[0].state} — {waiting[0].reason}")
    else:
        progress.clear()
