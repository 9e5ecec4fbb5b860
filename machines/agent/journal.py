"""What a machine must not forget when its agent ends, as files.

    STATE-DIR/
        token        the machine token (mode 600)
        console      uid of the console that the machine belongs to
        address      where it joined: the agent's default for --console
        machine-id   marks this machine's containers
        place        where this directory is, so that a copy is known for one
        lock         held by the agent that runs
        attempts/UID/{journal,output.log,exit,volumes,work/,code/}
        data/UID/    copies of drives and models; see machines.agent.data
        removed/     attempts on their way out

An attempt's `journal` is records of a length and MessagePack, only ever appended to: the order, before anything is
started for it, then its status whenever a phase is reached; the last whole one counts. (Replacing a file by a rename
costs ten times as much: file systems write the new one out at once.) Nothing is synced to the disk: a killed agent
loses nothing that was written, since the kernel holds it, and after a loss of power the workers are gone whatever the
files say. The kernel's boot id tells the two apart: what was not over is then reported as MachineRebooted, and never
started a second time.
"""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec

from machines.agent import clock, output, place
from machines.agent.attempt import Attempt
from machines.agent.runtimes.base import AttemptFolder
from machines.orders import Order
from machines.protocol import ARCHIVE_LINES, Phase

log = logging.getLogger(__name__)


class StateDirectoryError(Exception):
    """The state directory cannot be used; the message is one clear line."""


class Stamp(msgspec.Struct, frozen=True):
    """Which boot's clock times were taken on, and that clock's zero as Unix seconds."""

    boot: str
    zero: float

    def shift_from(self, other: "Stamp") -> float:
        """What to add to the other's times."""
        return 0.0 if other.boot == self.boot else other.zero - self.zero


class Accepted(msgspec.Struct, frozen=True):
    """The first record."""

    stamp: Stamp
    at: float
    order: Order


class Status(msgspec.Struct, frozen=True):
    """Every further record."""

    stamp: Stamp
    attempt: Attempt


@dataclass(frozen=True)
class Kept:
    """An attempt found on the disk, its times on this boot's clock."""

    attempt: Attempt
    order: Order
    clock_shift: float
    rebooted: bool  # since it was accepted


_encode = msgspec.msgpack.Encoder().encode
_decode_order = msgspec.msgpack.Decoder(Accepted).decode
_decode_status = msgspec.msgpack.Decoder(Status).decode


class Journal:
    """The files of one machine. Open it before use: only one agent may."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempts = folder / "attempts"
        self._prefix = f"{self.attempts}/"
        self._removed = folder / "removed"
        self.stamp = Stamp(clock.boot_id(), time.time() - clock.now())
        self._lock = -1
        self.place = ""  # its uid, once open

    def open(self) -> None:
        """Make the folder, take its lock. Workers of another user pass through it, but cannot list it. Raises
        StateDirectoryError."""
        try:
            for path in (self.folder, self.attempts):
                path.mkdir(mode=0o711, parents=True, exist_ok=True)
            self._removed.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._take_place()
        except BlockingIOError as error:
            raise StateDirectoryError(f"another agent runs on {self.folder}") from error
        except OSError as error:
            raise StateDirectoryError(f"cannot use {self.folder}: {error.strerror}") from error

    def _take_place(self) -> None:
        """A copy keeps what has ended and leaves the rest to the machine that it was copied from. Raises OSError."""
        known = place.decode(self.read_text(place.FILE))
        if known is None or not known.is_at(self.folder):
            if known is not None:
                log.warning("%s was made for %s: what that one runs is left to it", self.folder, known.path)
                self._leave_to_the_other()
            known = place.new_place(self.folder)
            self.write_text(place.FILE, place.encode(known))
        self.place = known.uid

    def _leave_to_the_other(self) -> None:
        (self.folder / "machine-id").unlink(missing_ok=True)
        for kept in self.load():
            if not kept.attempt.ended:
                self.remove(kept.attempt.uid)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def attempt_folder(self, uid: str) -> AttemptFolder:
        return AttemptFolder(self.attempts / uid)

    # ---- the machine's own facts -------------------------------------------------------------------------------------

    def read_text(self, name: str) -> str:
        """Empty if there is no such file."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_text().strip()
        return ""

    def write_text(self, name: str, text: str) -> None:
        """Replaced in one step, and readable by nobody else."""
        temporary = self.folder / f"{name}.new"
        temporary.touch(mode=0o600)
        temporary.write_text(text)
        temporary.rename(self.folder / name)

    def forget_token(self) -> None:
        """The machine was removed from its cluster: it may join again."""
        (self.folder / "token").unlink(missing_ok=True)

    def machine_id(self) -> str:
        known = self.read_text("machine-id")
        if not known:
            known = uuid.uuid4().hex
            self.write_text("machine-id", known)
        return known

    # ---- attempts ----------------------------------------------------------------------------------------------------

    def accept(self, order: Order, attempt: Attempt) -> AttemptFolder:
        """Raises OSError. Nothing is started before it is whole: half of it means that nothing was."""
        folder = self.attempt_folder(order.attempt)
        folder.root.mkdir(mode=0o711, exist_ok=True)
        self._append(order.attempt, _encode(Accepted(self.stamp, attempt.phases[0][1], order)))
        return folder

    def save(self, attempt: Attempt) -> None:
        """A status that cannot be written (a full disk) costs what it would have told after a restart, no more."""
        try:
            self._append(attempt.uid, _encode(Status(self.stamp, attempt)))
        except OSError as error:
            log.error("the status of attempt %s is not written: %s", attempt.uid, error)

    def remove(self, uid: str) -> None:
        """Renamed first: half an attempt must not look like one that is still to be started."""
        gone = self._removed / uid
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.attempts / uid, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def archive(self, uid: str) -> int:
        """Keep the end of an attempt's output, and no working folder. Returns the first byte kept. Raises OSError."""
        folder = self.attempt_folder(uid)
        for path in (folder.work, folder.code):
            shutil.rmtree(path, ignore_errors=True)
        return output.archive(folder.output, ARCHIVE_LINES)

    def holds_attempts(self) -> bool:
        return any(self.attempts.iterdir())

    def load(self) -> list[Kept]:
        """All attempts of earlier agents, the oldest first."""
        for leftover in self._removed.iterdir():
            shutil.rmtree(leftover, ignore_errors=True)
        kept = [item for entry in self.attempts.iterdir() if (item := self._load(entry)) is not None]
        return sorted(kept, key=lambda item: item.attempt.phases[0][1])

    def _load(self, folder: Path) -> Kept | None:
        try:
            first, last = _whole_records(folder / "journal")
            accepted = _decode_order(first)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s holds no whole order: nothing was started for it, it is removed (%s)", folder, error)
            self.remove(folder.name)
            return None
        order, rebooted = accepted.order, accepted.stamp.boot != self.stamp.boot
        attempt = Attempt(
            order.attempt,
            order.time_limit_seconds,
            order.stop_grace_seconds,
            phases=[(Phase.PREPARING, accepted.at)],
            probes=order.probes,
        )
        stamp = accepted.stamp
        if last:
            status = _decode_status(last)
            attempt, stamp = status.attempt, status.stamp
        _shift(attempt, self.stamp.shift_from(stamp))
        return Kept(attempt, order, self.stamp.shift_from(accepted.stamp), rebooted)

    def _append(self, uid: str, record: bytes) -> None:
        descriptor = os.open(
            f"{self._prefix}{uid}/journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        data = len(record).to_bytes(4) + record
        try:
            written = os.write(descriptor, data)
            if written < len(data):  # the disk is full: nothing may come after half a record
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


def _shift(attempt: Attempt, seconds: float) -> None:
    attempt.phases = [(phase, at + seconds) for phase, at in attempt.phases]
    attempt.stop_at += seconds


def _whole_records(path: Path) -> tuple[bytes, bytes]:
    """The first record and the last one after it, empty where there is none. What an agent that was killed left half
    written is cut off: the next record must not come after it. Raises OSError."""
    data = path.read_bytes()
    records: list[bytes] = []
    at = 0
    while len(data) >= at + 4 and len(data) >= (end := at + 4 + int.from_bytes(data[at : at + 4])):
        records.append(data[at + 4 : end])
        at = end
    if at < len(data):
        os.truncate(path, at)
    return records[0] if records else b"", records[-1] if len(records) > 1 else b""
