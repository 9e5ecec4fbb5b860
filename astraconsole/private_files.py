"""Files that only their owner may read. Standard library alone."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole; nobody else can read it at any moment."""
    partial = path.with_name(path.name + ".new")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    partial.replace(path)
