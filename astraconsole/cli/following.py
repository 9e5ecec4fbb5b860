"""Following a worker's log by position: over its restarts, and over breaks of the network, until the worker ends."""

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from typing import Any

from astraconsole.cli.client import Client, path
from astraconsole.cli.problems import Exit, Refused, Unreachable
from astraconsole.errors import (
    AstraError,
    NotFound,
    TaskLogTimeout,
    TaskLogUnavailable,
    TaskNotPlaced,
    TooManyRequests,
    Unavailable,
)
from runs.units import format_memory

LIMIT_BYTES = 512 * 1024  # of one read
FIRST_WAIT, LONGEST_WAIT = 0.25, 4.0  # seconds between reads that brought nothing
READS_AFTER_END = 3  # of a log that cannot be read, once its worker has ended
PASSING = {error.code for error in (AstraError, TaskLogTimeout, TaskLogUnavailable, TooManyRequests, Unavailable)}
ENDS = {"Completed": Exit.DONE, "Failed": Exit.FAILED, "Cancelled": Exit.CANCELLED}


@dataclass(frozen=True)
class Step:
    """What one look brought: bytes to print, and notes that are no output of the program."""

    data: bytes = b""
    notes: tuple[str, ...] = ()


@dataclass
class Follower:
    """One worker's log. `attempt`: only this one is followed; else from the newest's last `tail` lines on, or with
    `tail` None from the first attempt's beginning."""

    client: Client
    worker: str
    tail: int | None = None
    only_attempt: int | None = None
    attempt: int | None = None
    next: int = 0
    state: str = ""
    reason: str = ""
    ended: bool = False
    gone: bool = False  # deleted meanwhile
    _unread: int = field(default=0, repr=False)
    _archived_told: bool = field(default=False, repr=False)

    def step(self) -> Step:
        """Read on. Raises Unreachable, and Refused for what does not pass by itself."""
        try:
            piece = self.client.get(path("tasks", self.worker, "logs"), **self._position())
        except Refused as refusal:
            return self._refused(refusal)
        self._unread = 0
        return self._take(piece)

    @property
    def exit_code(self) -> Exit:
        return Exit.GONE if self.gone else ENDS.get(self.state, Exit.DONE)

    def _position(self) -> dict[str, Any]:
        position: dict[str, Any] = {"limit": LIMIT_BYTES, "encoding": "base64"}
        attempt = self.attempt or self.only_attempt
        if attempt is not None:
            position["attempt"] = attempt
        if self.attempt is not None:
            position["from"] = self.next
        elif self.tail is not None:
            position["tail"] = self.tail
        else:
            position |= {"attempt": attempt or 1, "from": 0}
        return position

    def _take(self, piece: dict[str, Any]) -> Step:
        self.attempt, self.next = piece["attempt"], piece["next"]
        self.state, self.reason = piece["status"]["state"], piece["status"]["reason"]
        notes = []
        if piece["archived"] and not self._archived_told:
            self._archived_told = True
            notes.append("from a container that no longer exists: its last lines")
        if gap := piece["gap"]:
            notes.append(f"{format_memory(gap['end'] - gap['start'])} not kept")
        data = base64.b64decode(piece["bytes_base64"])
        later = [one for one in piece["attempts"] if one["attempt"] > piece["attempt"]]
        over = piece["ended"] or (not data and any(one["over"] for one in piece["attempts"] if one not in later))
        if not over:
            return Step(data, tuple(notes))
        if later and self.only_attempt is None:
            following = later[0]
            self.attempt, self.next = following["attempt"], 0
            return Step(data, (*notes, f"attempt {following['attempt']} began on {following['machine']}"))
        self.ended = self.only_attempt is not None or (self.state in ENDS and piece["ended"])
        if self.state in ENDS and not self.ended:
            self.ended = self._read_often_enough()
        return Step(data, tuple(notes))

    def _refused(self, refusal: Refused) -> Step:
        """Not placed, out of reach for now, or gone."""
        if refusal.code == NotFound.code and self.state:
            self.ended = self.gone = True
            return Step()
        if refusal.code not in PASSING and refusal.code != TaskNotPlaced.code:
            raise refusal
        try:
            status = self.client.get(path("tasks", self.worker))["status"]
        except Refused as gone:
            if gone.code != NotFound.code or not self.state:
                raise
            self.ended = self.gone = True
            return Step()
        self.state, self.reason = status["state"], status["reason"]
        if self.state not in ENDS:
            return Step()
        if refusal.code == TaskNotPlaced.code:
            self.ended = True
        elif self._read_often_enough():
            self.ended = True
            return Step(notes=(f"its log cannot be read: {refusal}",))
        return Step()

    def _read_often_enough(self) -> bool:
        self._unread += 1
        return self._unread >= READS_AFTER_END


@dataclass
class Contact:
    """Whether the console answers: `say` is told when it is away, once, and when it is back."""

    say: Callable[[str], None]
    away: bool = False

    @contextmanager
    def outliving(self) -> Iterator[None]:
        """Failures that pass by themselves end what is done within, and no more than that."""
        try:
            yield
        except Unreachable as error:
            self.lost(str(error))
        except Refused as refusal:
            if refusal.code not in PASSING:
                raise
            self.lost(str(refusal))

    def lost(self, why: str) -> None:
        if not self.away:
            self.say(f"{why}; trying again until it answers")
        self.away = True

    def back(self) -> None:
        if self.away:
            self.say("the console answers again")
        self.away = False


@dataclass
class Patience:
    """How long to wait between looks; `say` is told when the console is away and when it is back."""

    say: InitVar[Callable[[str], None]]
    sleep: Callable[[float], None] = time.sleep
    wait: float = FIRST_WAIT
    contact: Contact = field(init=False)

    def __post_init__(self, say: Callable[[str], None]) -> None:
        self.contact = Contact(say)

    def ask(self, question: Callable[[], Any]) -> Any:
        """The answer; None when the console did not answer, which is waited out."""
        with self.contact.outliving():
            answer = question()
            self.contact.back()
            return answer
        return None

    def pause(self, busy: bool) -> None:
        """Before the next look. `busy`: this one brought something, or something has changed."""
        self.wait = FIRST_WAIT * 4 if busy else self.wait
        self.sleep(self.wait)
        self.wait = min(self.wait * 2, LONGEST_WAIT)
