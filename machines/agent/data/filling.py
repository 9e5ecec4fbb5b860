"""Filling the copy of a remote source on this machine's disk. It blocks, and runs in a thread.

    FOLDER/
        manifest     what the source held when the copy was begun, and on which boot of this machine
        part/        what is here so far: of each file, its first bytes
        copy/        all of it; there or not there, never in part
        wrong        the checksum that the manifest's files turned out to have, where another one was asked for

Whatever breaks off, the next try goes on where the files end, if the source is still what the manifest says. What an
earlier boot left half-filled is begun anew: the disk may not have it as it was written.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event, Lock

import msgspec

from machines.agent import clock
from machines.agent.data.problems import DiskFull, SourceAway, SourceChanged, WrongChecksum
from machines.agent.data.remote import PARALLEL, Entry, Remote

CHUNK_BYTES = 4 * 1024 * 1024
QUEUED = 4 * PARALLEL  # files handed to the threads at a time
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
SHA256 = "sha256:"


class Manifest(msgspec.Struct, frozen=True):
    boot: str
    entries: list[Entry]
    single: bool  # the source is one file

    @property
    def total_bytes(self) -> int:
        """0: not known."""
        sizes = [entry.size for entry in self.entries]
        return sum(size for size in sizes if size is not None) if None not in sizes else 0


class Stopped(Exception):
    """Nobody waits for it any more."""


class Filling:
    """One copy. `tell` hears bytes here and bytes in all, in any thread; `stop` gives up soon after it is set."""

    def __init__(
        self, folder: Path, remote: Remote, checksum: str, tell: Callable[[int, int], None], stop: Event
    ) -> None:
        self._folder = folder
        self._part = folder / "part"
        self._wrong = folder / "wrong"
        self._remote = remote
        self._checksum = checksum
        self._tell = tell
        self._stop = stop
        self._giving_up = False
        self._lock = Lock()
        self._done = self._total = 0

    def run(self) -> int:
        """Its size in bytes, once `copy` is there. Raises a DataProblem, Stopped."""
        try:
            self._fill()
        except OSError as error:
            if error.errno in NO_ROOM:
                discard(self._part)
                raise self._no_room() from error
            raise SourceAway(f"this machine cannot write the copy: {error.strerror or error}") from error
        return self._done

    def _fill(self) -> None:
        manifest = self._begin()
        self._total = manifest.total_bytes
        self._done = sum(self._here(entry) for entry in manifest.entries)
        self._tell(self._done, self._total)
        if self._total - self._done > free_bytes(self._folder):
            discard(self._part)
            raise self._no_room()
        self._copy_all(manifest)
        self._check(manifest)
        os.sync()  # the copy is complete on the disk before it is called so
        self._part.rename(self._folder / "copy")

    def _begin(self) -> Manifest:
        """The manifest of a copy that can be gone on with, or of a new one."""
        entries = self._remote.entries()
        manifest = Manifest(clock.boot_id(), entries, self._remote.is_file)
        if read_manifest(self._folder) != manifest:
            discard(self._part)
            self._wrong.unlink(missing_ok=True)
            write_manifest(self._folder, manifest)
        elif self._wrong.exists() and all(entry.version for entry in entries):
            raise self._wrong_checksum(self._wrong.read_text())  # reading again would bring the same
        self._part.mkdir(mode=0o755, exist_ok=True)
        return manifest

    def _path(self, entry: Entry) -> Path:
        return self._part / entry.name

    def _here(self, entry: Entry) -> int:
        try:
            return self._path(entry).stat().st_size
        except FileNotFoundError:
            return 0

    # ---- copying -----------------------------------------------------------------------------------------------------

    def _copy_all(self, manifest: Manifest) -> None:
        """Several files at a time; the first trouble ends them all."""
        waiting: set[Future[None]] = set()
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="filling") as pool:
            try:
                for entry in manifest.entries:
                    waiting.add(pool.submit(self._copy, entry))
                    if len(waiting) >= QUEUED:
                        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                        _raise_first(done)
                done, waiting = wait(waiting, return_when=FIRST_EXCEPTION)
                _raise_first(done)
            except BaseException:
                self._giving_up = True
                for future in waiting:
                    future.cancel()
                raise

    def _copy(self, entry: Entry) -> None:
        path = self._path(entry)
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with open(path, "ab", buffering=0) as file:
            if entry.size is None or not self._copy_ranges(entry, entry.size, file.fileno()):
                self._copy_stream(entry, file.fileno())

    def _copy_ranges(self, entry: Entry, size: int, file: int) -> bool:
        """False: the source does not give ranges."""
        at = os.fstat(file).st_size
        if at > size:
            self._drop(file)
            at = 0
        while at < size:
            piece = self._remote.read(entry, at, min(size, at + CHUNK_BYTES))
            if piece.whole:
                return False
            self._write(file, piece.data)
            at += len(piece.data)
        return True

    def _copy_stream(self, entry: Entry, file: int) -> None:
        self._drop(file)
        written = 0
        for data in self._remote.stream(entry, CHUNK_BYTES):
            self._write(file, data)
            written += len(data)
        if entry.size is not None and written != entry.size:
            raise SourceAway(f"{self._remote.url} broke off: {written} of {entry.size} bytes")

    def _drop(self, file: int) -> None:
        """What is here of a file."""
        here = os.fstat(file).st_size
        os.ftruncate(file, 0)
        self._count(-here)

    def _write(self, file: int, data: bytes) -> None:
        if self._stop.is_set() or self._giving_up:
            raise Stopped
        view = memoryview(data)
        while view:
            written = os.write(file, view)
            view = view[written:]
            self._count(written)

    def _count(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._tell(self._done, self._total)

    # ---- is it what was asked for? -----------------------------------------------------------------------------------

    def _check(self, manifest: Manifest) -> None:
        if self._remote.entries() != manifest.entries:
            discard(self._part)
            raise SourceChanged(f"{self._remote.url} changed while it was copied")
        for entry in manifest.entries:
            if entry.size is not None and self._here(entry) != entry.size:
                self._path(entry).unlink(missing_ok=True)
                raise SourceAway(f"{self._remote.url} broke off in {entry.name}")
        if self._checksum and (found := checksum(self._part, manifest)) != self._checksum:
            discard(self._part)
            self._wrong.write_text(found)
            raise self._wrong_checksum(found)

    def _wrong_checksum(self, found: str) -> WrongChecksum:
        return WrongChecksum(f"{self._remote.url} is not what was asked for: its checksum is {found}")

    def _no_room(self) -> DiskFull:
        needed = f"{size_text(self._total)} are needed" if self._total else "it does not fit"
        return DiskFull(f"this machine's disk is full: {needed}, {size_text(free_bytes(self._folder))} are free")


def _raise_first(done: set[Future[None]]) -> None:
    errors = [error for future in done if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):  # what began it, not what followed
        raise error


def checksum(folder: Path, manifest: Manifest) -> str:
    """`sha256:…` of the one file; of several, of what `sha256sum` prints for them in the order of their names."""
    digests = []
    for entry in manifest.entries:
        with open(folder / entry.name, "rb") as file:
            digests.append((hashlib.file_digest(file, "sha256").hexdigest(), entry.name))
    if manifest.single:
        return SHA256 + digests[0][0]
    lines = sorted(((name.encode(), digest) for digest, name in digests))
    return (
        SHA256 + hashlib.sha256(b"".join(digest.encode() + b"  " + name + b"\n" for name, digest in lines)).hexdigest()
    )


def read_manifest(folder: Path) -> Manifest | None:
    try:
        return msgspec.msgpack.decode((folder / "manifest").read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    new = folder / "manifest.new"
    new.write_bytes(msgspec.msgpack.encode(manifest))
    new.rename(folder / "manifest")


def discard(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def free_bytes(path: Path) -> int:
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize


def size_text(size: int) -> str:
    """`12.3 GiB`."""
    amount, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "bytes" or amount >= 100 else f"{amount:.1f} {unit}"
