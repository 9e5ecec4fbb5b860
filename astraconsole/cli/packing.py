"""Packing a folder of code to send with a run: the same folder gives the same bytes, wherever and whenever."""

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from astraconsole.cli.problems import Problem
from machines.packed_code import EXPANDED_MAX, MEMBERS_MAX, PACKED_MAX, BadCode, read
from runs.units import format_memory

SKIPPED = frozenset(
    {
        ".git",
        "target",
        "node_modules",
        "__pycache__",
        ".venv",
        "venv",
        ".mypy_cache",
        ".pytest_cache",
        ".ipynb_checkpoints",
    }
)
LARGEST_NAMED = 5


@dataclass(frozen=True)
class Packed:
    """`left_out`: what cannot be sent, each with the reason."""

    data: bytes
    left_out: list[str]


@dataclass(frozen=True)
class Member:
    name: str  # below the folder, with /
    path: Path
    size: int
    link: str  # where it points; "" for a file
    executable: bool


def pack(
    folder: Path | None, progress: Callable[[str, int], Callable[[int], None]], files: Mapping[str, bytes] = {}
) -> Packed:
    """A folder's code, and `files` beside it, by their place in it.

    Raises Problem: a folder that cannot be read, or is too large, with its largest files named.
    """
    left_out: list[str] = []
    found = _members(folder, left_out) if folder is not None else []
    members = sorted(found, key=lambda member: member.name)
    total = sum(member.size for member in members)
    if total > EXPANDED_MAX:
        raise _too_large(folder, members, f"{format_memory(EXPANDED_MAX)} unpacked")
    at = progress("packing", total)
    packed = io.BytesIO()
    done = 0
    with (
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in files.items():
            _add_bytes(archive, tarfile.TarInfo(name), content, executable=True)
        for member in members:
            _add(archive, member)
            done += member.size
            at(done)
            if packed.tell() > PACKED_MAX:
                break
    if len(packed.getvalue()) > PACKED_MAX:
        raise _too_large(folder, members, f"{PACKED_MAX // 1024} KiB packed")
    try:
        read(packed.getvalue())
    except BadCode as error:
        raise Problem(f"--code: what {folder} holds {error}") from error
    return Packed(packed.getvalue(), left_out)


def _members(folder: Path, left_out: list[str]) -> Iterator[Member]:
    if not folder.is_dir():
        raise Problem(f"--code: {folder} is no folder")
    count = 0
    for parent, folders, files in os.walk(folder, onerror=_unreadable):
        linked = [name for name in folders if (Path(parent) / name).is_symlink()]
        folders[:] = sorted(set(folders) - SKIPPED - set(linked))
        for name in (*files, *linked):
            member = _member(folder, Path(parent) / name, left_out)
            if member is not None:
                count += 1
                yield member
            if count > MEMBERS_MAX:
                raise Problem(f"--code: {folder} has more than {MEMBERS_MAX} files: send code only")


def _member(folder: Path, path: Path, left_out: list[str]) -> Member | None:
    name = path.relative_to(folder).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        left_out.append(f"{name.encode(errors='replace').decode()}: its name is no UTF-8")
        return None
    try:
        found = path.lstat()
        link = os.readlink(path) if stat.S_ISLNK(found.st_mode) else ""
    except OSError as error:
        raise _unreadable(error) from error
    if link:
        if _stays_inside(name, link):
            return Member(name, path, 0, link, False)
        left_out.append(f"{name}: a link that leads out of the folder, to {link}")
        return None
    if not stat.S_ISREG(found.st_mode):
        left_out.append(f"{name}: neither a file nor a folder")
        return None
    return Member(name, path, found.st_size, "", bool(found.st_mode & 0o111))


def _stays_inside(name: str, link: str) -> bool:
    """As the words of the link say; the console looks at links through links too."""
    target = os.path.normpath(os.path.join(os.path.dirname(name), link))
    return not link.startswith("/") and target != ".." and not target.startswith("../")


def _add(archive: tarfile.TarFile, member: Member) -> None:
    """Nothing of the owner, the clock or the mask of this machine."""
    entry = tarfile.TarInfo(member.name)
    if member.link:
        entry.mode = 0o755 if member.executable else 0o644
        entry.type, entry.linkname = tarfile.SYMTYPE, member.link
        archive.addfile(entry)
        return
    try:
        with member.path.open("rb") as file:
            content = file.read(member.size)
    except OSError as error:
        raise _unreadable(error) from error
    _add_bytes(archive, entry, content, member.executable)


def _add_bytes(archive: tarfile.TarFile, entry: tarfile.TarInfo, content: bytes, executable: bool) -> None:
    entry.mode = 0o755 if executable else 0o644
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _unreadable(error: OSError) -> Problem:
    raise Problem(f"--code: cannot read {error.filename}: {error.strerror}") from error


def _too_large(folder: Path | None, members: list[Member], limit: str) -> Problem:
    largest = sorted(members, key=lambda member: (-member.size, member.name))[:LARGEST_NAMED]
    lines = [f"  {format_memory(member.size):>12}  {member.name}" for member in largest]
    text = f"--code: {folder} is more than {limit}: send code only, and keep data on a drive. Its largest files:"
    return Problem("\n".join([text, *lines]))
