"""The code that is sent along with a run, as the API takes it."""

import base64
from collections.abc import Mapping
from pathlib import Path

import click

from astraconsole.cli.output import Progress, harmless
from astraconsole.cli.packing import pack


def sent_code(folder: Path | None, left_out: str, files: Mapping[str, bytes] = {}) -> str:
    """A folder and files of our own, packed, in base64; a bar meanwhile. What cannot be sent is named on stderr in the
    words of `left_out` ("not sent: {}"). Raises Problem where it is too much."""
    progress = Progress()
    packed = pack(folder, progress.bar, files)
    progress.clear()
    for line in packed.left_out:
        click.echo(left_out.format(harmless(line)), err=True)
    return base64.b64encode(packed.data).decode()
