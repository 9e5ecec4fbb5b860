"""How results are printed: tables of the documented widths, or JSON; colours only on a terminal."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

import click

from astraconsole.marks import STATES

COLOURS = {"run": "green", "busy": "cyan", "wait": "yellow", "again": "yellow", "fail": "red"}
# Reasons hold the words of engines, programs and other people: nothing of them may steer a terminal.
_CONTROLS = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_json_line(document: Any) -> None:
    """One document of several: each on a line of its own, at once."""
    click.echo(json.dumps(document, ensure_ascii=False))


def print_table(widths: Sequence[int], header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns of at least these widths; the last one has no end. A longer value pushes its line, never the header's."""
    for row in (header, *rows):
        cells = [harmless(str(cell)) for cell in row]
        padded = [_coloured(cell, cell.ljust(width - 1) + " ") for cell, width in zip(cells, widths, strict=False)]
        click.echo("".join(padded) + _coloured(cells[-1], cells[-1]))


def print_aligned(rows: Sequence[Sequence[object]], indent: str = "") -> None:
    """Columns as wide as their widest value, two spaces between them."""
    cells = [[harmless(str(cell)) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))] if cells else []
    for row in cells:
        padded = [_coloured(cell, cell.ljust(width)) for cell, width in zip(row[:-1], widths, strict=False)]
        click.echo((indent + "  ".join([*padded, row[-1]])).rstrip())


def print_state(name: str, state: str, reason: str) -> None:
    """`llama-sft: Running — 2 of 2 workers running`."""
    click.echo(f"{harmless(name)}: {_coloured(state, state)} — {harmless(reason)}")


def harmless(text: str) -> str:
    """Control characters as symbols."""
    return text.translate(_CONTROLS)


def dash(value: object) -> str:
    """What is not known is `-`."""
    return "-" if value is None or value == "" else str(value)


def is_terminal(stream: IO[Any]) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colours(stream: IO[Any]) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def _coloured(cell: str, padded: str) -> str:
    """A state's name in its colour, where colours are shown at all."""
    if cell not in STATES or not has_colours(sys.stdout):
        return padded
    return click.style(cell, fg=COLOURS.get(STATES[cell].tone)) + padded[len(cell) :]


class Progress:
    """One line about long work, rewritten in place: on stderr, and only on a terminal."""

    def __init__(self) -> None:
        self._shown = False
        self._on = is_terminal(sys.stderr)

    def show(self, text: str) -> None:
        if self._on:
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            click.echo(f"\r\x1b[K{harmless(text)[: width - 1]}", err=True, nl=False)
            self._shown = True

    def clear(self) -> None:
        """Before anything else is printed."""
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._shown = False

    def bar(self, label: str, total: int) -> Callable[[int], None]:
        """What to call with how much of `total` is done."""

        def at(done: int) -> None:
            filled = 24 * done // max(total, 1)
            self.show(f"{label} [{'#' * filled}{'.' * (24 - filled)}] {100 * done // max(total, 1)}%")

        return at


def say_submitted(run: Any, cluster: str, page: str) -> None:
    """The documented line; beneath it, on stderr, why the run does not start at once, where that is known already."""
    click.echo(f"{run['metadata']['name']} submitted to {cluster}: {page}")
    if run["status"]["reason"] != "Run created":
        click.echo(harmless(run["status"]["reason"]), err=True)
