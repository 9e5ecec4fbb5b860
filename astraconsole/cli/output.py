"""How results are printed: tables of the documented widths, or JSON."""

import json
from collections.abc import Sequence
from typing import Any

import click

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(widths: Sequence[int], header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns of at least these widths; the last one has no end. A longer value pushes its line, never the header's."""
    for row in (header, *rows):
        cells = [str(cell) for cell in row]
        padded = [cell.ljust(width - 1) + " " for cell, width in zip(cells, widths, strict=False)]
        click.echo("".join(padded) + cells[-1])


def print_aligned(rows: Sequence[Sequence[object]], indent: str = "") -> None:
    """Columns as wide as their widest value, two spaces between them."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))] if cells else []
    for row in cells:
        click.echo((indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip())


def dash(value: object) -> str:
    """What is not known is `-`."""
    return "-" if value is None or value == "" else str(value)


def say_submitted(run: Any, cluster: str, page: str) -> None:
    """The documented line; beneath it, on stderr, why the run does not start at once, where that is known already."""
    click.echo(f"{run['metadata']['name']} submitted to {cluster}: {page}")
    if run["status"]["reason"] != "Run created":
        click.echo(run["status"]["reason"], err=True)
