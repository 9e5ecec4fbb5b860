"""What of this machine its owner lets drives be: folders below `--drive-root`, exports of file servers named there."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from machines.agent.data.problems import SourceAway, SourceRefused


class Roots:
    """`allowed`: absolute folders, or `server:/export`. None: no folder of this machine, and no file server."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        texts = list(allowed)
        self._folders = [Path(os.path.realpath(text)) for text in texts if text.startswith("/")]
        self._exports = [export_of(text) for text in texts if not text.startswith("/")]

    def folder(self, source: str) -> Path:
        """The real folder, links followed. Raises SourceRefused, SourceAway."""
        path = self.inside(source)
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            raise SourceAway(f"there is no folder {source} on this machine") from None
        except OSError as error:
            raise SourceAway(f"{source} cannot be read on this machine: {error.strerror}") from None
        if not stat.S_ISDIR(mode):
            raise SourceRefused(f"{source} is no folder")
        return path

    def inside(self, source: str) -> Path:
        """The real path of what is below a root. Raises SourceRefused, also where a link leads out; SourceAway."""
        try:
            path = Path(os.path.realpath(source))
        except OSError as error:  # of a link that may not be read, say
            raise SourceAway(f"{source} cannot be read on this machine: {error.strerror}") from None
        if not any(path.is_relative_to(root) for root in self._folders):
            raise SourceRefused(f"this machine's owner has not allowed {source} (astra-agent --drive-root)")
        return path

    def export(self, source: str) -> str:
        """A file server's folder, `server:/path`. Raises SourceRefused."""
        server, path = export_of(source)
        for allowed_server, allowed in self._exports:
            if server == allowed_server and Path(path).is_relative_to(allowed):
                return f"{server}:{path}"
        raise SourceRefused(f"this machine's owner has not allowed {source} (astra-agent --drive-root)")


def export_of(text: str) -> tuple[str, str]:
    """Server and plain path. Raises SourceRefused for anything else."""
    server, colon, path = text.rpartition(":/")
    path = os.path.normpath(f"/{path}")
    if not colon or not server or server.startswith("-") or "/" in server:
        raise SourceRefused(f"{text} is no folder of a file server (server:/path)")
    return server, path
