"""Code archives for tests: a tar.gz of files, and of members that no packer would make."""

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence


def packed(files: Mapping[str, str], executable: Sequence[str] = ()) -> bytes:
    """Plain files by name."""
    return of_members(
        *((_member(name, mode=0o755 if name in executable else 0o644), text) for name, text in files.items())
    )


def of_members(*members: tuple[tarfile.TarInfo, str]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member, text in members:
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(stream.getvalue(), mtime=0)


def _member(name: str, **attributes: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for attribute, value in attributes.items():
        setattr(member, attribute, value)
    return member


def file(name: str, text: str = "x") -> tuple[tarfile.TarInfo, str]:
    return _member(name), text


def folder(name: str) -> tuple[tarfile.TarInfo, str]:
    return _member(name, type=tarfile.DIRTYPE, mode=0o755), ""


def link(name: str, target: str) -> tuple[tarfile.TarInfo, str]:
    return _member(name, type=tarfile.SYMTYPE, linkname=target), ""


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, str]:
    return _member(name, type=tarfile.LNKTYPE, linkname=target), ""


def of_type(name: str, kind: bytes) -> tuple[tarfile.TarInfo, str]:
    return _member(name, type=kind), ""
