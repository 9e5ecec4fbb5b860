"""Credentials as files for containers: in memory where the machine has such a file system, else in the state directory.

    ROOT/            mode 700: nobody else on the machine gets through it
        ATTEMPT/N/   mounted, read only, at the N-th mount path
            KEY      mode 444: whatever user the image's program is, it may read it; only its container sees it

They go when their attempt has ended.
"""

import contextlib
import logging
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

MEMORY = Path("/dev/shm")


class SecretFiles:
    """`machine_id` tells the agents of one machine apart."""

    def __init__(self, state: Path, machine_id: str) -> None:
        self._state = state
        self._name = f"astra-{machine_id}"
        self._root: Path | None = None

    def write(self, attempt: str, number: int, files: Mapping[str, bytes]) -> Path:
        """The folder that holds them, made anew. Raises OSError."""
        folder = self._open() / attempt / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, content in files.items():
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        return folder

    def discard(self, attempt: str) -> None:
        if self._root is not None:
            shutil.rmtree(self._root / attempt, ignore_errors=True)
            _remove_if_empty(self._root)

    def keep_only(self, attempts: Iterable[str]) -> None:
        """What an earlier agent left behind goes."""
        kept = set(attempts)
        for root in self._candidates():
            if _is_ours(root):
                self._root = root
                for entry in root.iterdir():
                    if entry.name not in kept:
                        shutil.rmtree(entry, ignore_errors=True)
                _remove_if_empty(root)

    def _candidates(self) -> list[Path]:
        return [MEMORY / self._name, self._state / "credentials"]

    def _open(self) -> Path:
        for root in self._candidates():
            try:
                root.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                log.warning("Credentials cannot be kept in %s: %s", root, error.strerror)
                continue
            if _is_ours(root):
                self._root = root
                return root
        raise OSError("no folder for credentials can be made")


def _remove_if_empty(root: Path) -> None:
    with contextlib.suppress(OSError):
        root.rmdir()


def _is_ours(folder: Path) -> bool:
    """Anybody may make a folder in memory: one that is another's, or open to others, is not used."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o077
