"""Where a state directory is, so that a copy of it is not taken for the machine that it was copied from.

A copy holds the machine's token, its orders and the marks of its containers: an agent on it would run everything a
second time, and stop and remove what the first one runs. The file `place` in the directory says for which host and path
it was written; elsewhere it does not hold.
"""

import socket
import uuid
from pathlib import Path

import msgspec

FILE = "place"


class Place(msgspec.Struct, frozen=True):
    """`uid` names it to the console."""

    uid: str
    host: str
    path: str

    def is_at(self, folder: Path) -> bool:
        return (self.host, self.path) == (host_identity(), str(folder.resolve()))


def new_place(folder: Path) -> Place:
    return Place(uuid.uuid4().hex, host_identity(), str(folder.resolve()))


def host_identity() -> str:
    """Of this installation of an operating system; where it has none, its name."""
    try:
        return Path("/etc/machine-id").read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()


def decode(text: str) -> Place | None:
    """None: no place was written down, or nothing that can be read."""
    try:
        return msgspec.json.decode(text, type=Place)
    except msgspec.DecodeError:
        return None


def encode(place: Place) -> str:
    return msgspec.json.encode(place).decode()
