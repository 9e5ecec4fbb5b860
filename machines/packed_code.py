"""The code that is sent with a run, a tar.gz: what it may hold, and how it is unpacked. Pure; used by both sides.

Nothing is believed of an archive. It is decompressed in memory up to a bound, and every member is looked at before the
first is written: plain files, folders and links that stay inside, under names that stay inside, each once, none
through a link. What is written then are only folders and files below the target, and links last.
"""

import contextlib
import gzip
import io
import os
import posixpath
import shutil
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKED_MAX = 900 * 1024
EXPANDED_MAX = 32 * 1024 * 1024  # of the whole archive
MEMBERS_MAX = 10_000
NAME_MAX, PATH_MAX = 255, 4096  # bytes, of one part and of the whole, as Linux has them
LINKS_FOLLOWED = 40
SHOWN = 100  # characters of a member's name in a message


class BadCode(Exception):
    """What is wrong with an archive: a rule, naming the member."""


@dataclass(frozen=True)
class Packed:
    """An archive that was looked at: its members by their plain names (`a/b`), the root folder itself left out."""

    folders: tuple[str, ...]
    files: Mapping[str, "File"]
    links: Mapping[str, str]  # name → where it points, as written

    @property
    def size_bytes(self) -> int:
        return sum(len(file.content) for file in self.files.values())


@dataclass(frozen=True)
class File:
    content: bytes
    executable: bool


def read(packed: bytes) -> Packed:
    """Raises BadCode."""
    if len(packed) > PACKED_MAX:
        raise BadCode(f"must be at most {PACKED_MAX // 1024} KiB packed")
    return _sorted_out(_members(_decompressed(packed)))


def unpack(packed: Packed, folder: Path) -> None:
    """Into an empty folder, writable to whoever is to run there. Raises OSError; what is half written is the caller's
    to remove."""
    for name in packed.folders:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, file in packed.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as opened:
            opened.write(file.content)
            os.fchmod(descriptor, 0o777 if file.executable else 0o666)
    for name, target in packed.links.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    _open_folders(folder)


def remove(folder: Path) -> None:
    """Never through a link."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _open_folders(folder: Path) -> None:
    """A worker may run as any user."""
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o777)


def _decompressed(packed: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            data = file.read(EXPANDED_MAX + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadCode(f"must be a tar.gz: it cannot be decompressed ({_short(str(error))})") from error
    if len(data) > EXPANDED_MAX:
        raise BadCode(f"must be at most {EXPANDED_MAX // 1024**2} MiB unpacked")
    return data


def _members(data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    found: list[tuple[tarfile.TarInfo, bytes]] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if len(found) == MEMBERS_MAX:
                    raise BadCode(f"must have at most {MEMBERS_MAX} members")
                found.append((member, _content(archive, member)))
    except (tarfile.TarError, ValueError, OSError, EOFError, IndexError, RecursionError) as error:
        raise BadCode(f"must be a tar.gz: it holds no whole tar archive ({_short(str(error))})") from error
    return found


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if not member.isreg() or member.issparse():
        return b""
    opened = archive.extractfile(member)
    content = opened.read() if opened is not None else b""
    if len(content) != member.size:
        raise BadCode(f"must be whole: its member {_shown(member.name)} is cut off")
    return content


def _sorted_out(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> Packed:
    folders: dict[str, None] = {}
    files: dict[str, File] = {}
    links: dict[str, str] = {}
    for member, content in members:
        name = _plain_name(member.name)
        if member.isdir():
            if name:
                folders[name] = None
            continue
        if not name or name in files or name in links:
            raise BadCode(f"must hold each name once: {_shown(member.name)} is there twice")
        if member.issym():
            links[name] = _link_target(name, member.linkname)
        elif member.islnk():
            files[name] = _linked_file(name, member.linkname, files)
        elif member.isreg() and not member.issparse():
            files[name] = File(content, bool(member.mode & 0o111))
        else:
            raise BadCode(f"must hold plain files, folders and links only: {_shown(name)} is none")
    expanded = sum(len(file.content) for file in files.values())  # hard links count each time
    if expanded > EXPANDED_MAX:
        raise BadCode(f"must be at most {EXPANDED_MAX // 1024**2} MiB unpacked")
    _check_tree(folders, files, links)
    return Packed(tuple(folders), files, links)


def _plain_name(name: str) -> str:
    """`./a//b/` is `a/b`; the root is empty. Raises BadCode for one that leaves the folder or is no file's."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise BadCode(f"must have names in UTF-8: {_shown(name)} is not") from None
    if name.startswith("/"):
        raise BadCode(f"must have relative names: {_shown(name)} is absolute")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadCode(f"must stay inside its folder: {_shown(name)} holds ..")
    if "\0" in name or len(encoded) >= PATH_MAX or any(len(part.encode()) > NAME_MAX for part in parts):
        raise BadCode(f"must have names that a file can have: {_shown(name)} is none")
    return "/".join(parts)


def _link_target(name: str, target: str) -> str:
    try:
        target.encode()
    except UnicodeEncodeError:
        raise BadCode(f"must have names in UTF-8: the target of {_shown(name)} is not") from None
    if not target or "\0" in target or len(target.encode()) >= PATH_MAX:
        raise BadCode(f"must have links that point to something: {_shown(name)} does not")
    if target.startswith("/"):
        raise BadCode(f"must have links that stay inside: {_shown(name)} points to {_shown(target)}")
    return target


def _linked_file(name: str, target: str, files: Mapping[str, File]) -> File:
    """A hard link is another name of a file that came before it."""
    file = files.get(_plain_name(target))
    if file is None:
        raise BadCode(f"must have hard links to its own earlier files: {_shown(name)} points to {_shown(target)}")
    return file


def _check_tree(folders: Iterable[str], files: Mapping[str, File], links: Mapping[str, str]) -> None:
    """No member lies below one that is no folder, and every link, followed to its end, stays inside."""
    for name in (*folders, *files, *links):
        above = name
        while above := posixpath.dirname(above):
            if above in files or above in links:
                raise BadCode(f"must have members below folders only: {_shown(name)} lies below {_shown(above)}")
    for name in folders:
        if name in files or name in links:
            raise BadCode(f"must hold each name once: {_shown(name)} is there twice")
    for name in links:
        _follow(name, links)


def _follow(name: str, links: Mapping[str, str]) -> None:
    """Part by part, as the kernel would, since a path through another link is not where it seems to be."""
    place: list[str] = []
    left = name.split("/")
    followed = 0
    while left:
        part = left.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            if not place:
                raise BadCode(f"must have links that stay inside: {_shown(name)} points to {_shown(links[name])}")
            place.pop()
            continue
        target = links.get("/".join([*place, part]))
        if target is None:
            place.append(part)
            continue
        followed += 1
        if followed > LINKS_FOLLOWED:
            raise BadCode(f"must have links that end somewhere: {_shown(name)} does not")
        left = target.split("/") + left


def _shown(name: str) -> str:
    text = name.encode("utf-8", "replace").decode()
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")


def _short(text: str) -> str:
    return text.partition("\n")[0][:SHOWN] or "it is damaged"
