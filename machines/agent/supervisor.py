"""What a machine does about what it is told and what happens on it: pure, without sockets, files or a clock.

Each `on_…` takes one thing that happened and returns the effects to carry out, in order. `now` is the machine's clock
(`machines.agent.clock.now()`). Whatever was lost on the way, the next full set of assignments makes reality match it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import msgspec

from machines.agent.runtimes.base import Exited, Failed, MemoryKills, Progress, RuntimeEvent
from machines.protocol import (
    Acknowledge,
    Assignments,
    EndReason,
    Order,
    Phase,
    PhaseAge,
    PullFailure,
    Report,
    Reports,
    Welcome,
)

SEQ_AFTER_RESTART = 1 << 16  # reports sent but not written down may have counted on: start above them
SEQ_OF_UNKNOWN = (1 << 31) - 2  # of an attempt of which nothing is left: above whatever was reported of it
MESSAGE_CHARACTERS = 4_000
WAITING_CHARACTERS = 500
REPORTS_PER_FRAME = 200
TAIL_BYTES_PER_FRAME = 256 * 1024


class StopCause(StrEnum):
    UNWANTED = "unwanted"  # the console no longer lists it
    TIME_LIMIT = "time limit"


class Attempt(msgspec.Struct):
    """What the machine knows of an attempt; written to the journal as it is. Times are on the machine's clock."""

    uid: str
    time_limit_seconds: float | None = None  # counted from Running
    stop_grace_seconds: float = 30
    phases: list[tuple[Phase, float]] = []
    seq: int = 1
    acknowledged: int = 0
    exit_code: int | None = None
    end_reason: EndReason | None = None
    message: str = ""
    log_tail: str = ""
    image_digest: str = ""
    pull_progress: str = ""
    pull_failure: PullFailure | None = None
    process_oom_kills: int = 0
    waiting: str = ""  # what its preparation waits for
    stop_cause: StopCause | None = None
    stop_at: float = 0
    archived_from: int | None = None  # the first byte of the output that is kept; null: its container is there

    def time_of(self, phase: Phase) -> float | None:
        return next((at for reached, at in self.phases if reached == phase), None)

    @property
    def ended(self) -> bool:
        return self.end_reason is not None

    @property
    def forgotten(self) -> bool:
        return self.time_of(Phase.FORGOTTEN) is not None

    def report(self, now: float) -> Report:
        return Report(
            attempt=self.uid,
            seq=self.seq,
            phases=[PhaseAge(phase, max(0.0, now - at)) for phase, at in self.phases],
            exit_code=self.exit_code,
            end_reason=self.end_reason,
            message=self.message,
            log_tail=self.log_tail,
            image_digest=self.image_digest,
            pull_progress=self.pull_progress,
            pull_failure=self.pull_failure,
            process_oom_kills=self.process_oom_kills,
            waiting=self.waiting,
        )


# ---- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accept:
    """Write the order down, then start it."""

    order: Order
    attempt: Attempt


@dataclass(frozen=True)
class OpenBarrier:
    """Let it start, once it is ready."""

    attempt: str


@dataclass(frozen=True)
class Stop:
    attempt: str
    grace_seconds: float


@dataclass(frozen=True)
class Remove:
    """All traces: container, folder, output. `Supervisor.on_removed` when done."""

    attempt: str


@dataclass(frozen=True)
class Archive:
    """Its container, and all but the end of its output. `Supervisor.on_archived` when done."""

    attempt: str


@dataclass(frozen=True)
class Save:
    attempt: Attempt


@dataclass(frozen=True)
class Leave:
    """Close the connection: this is not the console that the machine belongs to."""

    reason: str


Effect: TypeAlias = Accept | OpenBarrier | Stop | Remove | Archive | Save | Leave


class Supervisor:
    """The state of one machine. `console`: uid of the one it was joined to; empty: the first that welcomes it."""

    def __init__(self, console: str = "") -> None:
        self.console = console
        self.attempts: dict[str, Attempt] = {}
        self.welcome: Welcome | None = None  # of the present connection
        self.applied_revision = 0  # on the present connection
        self.urgent = False  # what waits to be sent is more than "order received"
        self._live: dict[str, Attempt] = {}
        self._opened: set[str] = set()  # whose barrier was opened
        self._forget: set[str] = set()  # to be removed once they ended
        self._archive: set[str] = set()  # likewise
        self._removing: set[str] = set()  # or being archived
        self._unsent: dict[str, None] = {}  # in the order of the changes
        self._sent_at: dict[str, float] = {}  # not yet acknowledged
        self._unsaved: dict[str, None] = {}  # acknowledged; written down at leisure

    # ---- what an earlier life of the agent left ----------------------------------------------------------------------

    def restore(self, attempts: Iterable[Attempt]) -> None:
        """Before anything else happens."""
        for attempt in attempts:
            self.attempts[attempt.uid] = attempt
            if not attempt.ended:
                self._live[attempt.uid] = attempt
            if not attempt.ended or attempt.acknowledged < attempt.seq:
                attempt.seq += SEQ_AFTER_RESTART
                self._unsent[attempt.uid] = None

    def stops_pending(self, now: float) -> list[Stop]:
        """To be asked again of a runtime that has just been opened."""
        pending = [attempt for attempt in self._live.values() if attempt.stop_cause is not None]
        return [Stop(item.uid, max(0.0, item.stop_grace_seconds - (now - item.stop_at))) for item in pending]

    # ---- the console -------------------------------------------------------------------------------------------------

    def on_disconnected(self) -> None:
        self.welcome = None
        self.applied_revision = 0

    def on_welcome(self, message: Welcome) -> list[Effect]:
        if self.console and message.console != self.console:
            return [Leave(f"this machine belongs to the console {self.console}, and {message.console} answers")]
        self.console = message.console
        self.welcome = message
        self.applied_revision = 0
        for uid in self._sent_at:
            self._unsent[uid] = None
        self.urgent = bool(self._unsent)
        return []

    def on_assignments(self, message: Assignments, now: float) -> list[Effect]:
        """Make reality match the full set."""
        if self.welcome is None or message.revision < self.applied_revision:
            return []
        self.applied_revision = message.revision
        effects: list[Effect] = [
            self._accept(order, now) for order in message.orders if order.attempt not in self.attempts
        ]
        effects += self._open_barriers(message)
        listed = {order.attempt for order in message.orders}
        for attempt in list(self._live.values()):
            if attempt.uid not in listed:
                effects += self._stop(attempt, StopCause.UNWANTED, now)
        for uid in message.forget:
            effects += self._forget_when_ended(uid, now)
        for uid in message.archive:
            effects += self._archive_when_ended(uid, now)
        return effects

    def on_acknowledge(self, message: Acknowledge) -> list[Effect]:
        for uid, seq in message.items:
            attempt = self.attempts.get(uid)
            if attempt is None:
                continue
            attempt.acknowledged = max(attempt.acknowledged, min(seq, attempt.seq))
            if attempt.acknowledged < attempt.seq:
                continue
            self._sent_at.pop(uid, None)
            self._unsent.pop(uid, None)
            if attempt.forgotten:
                del self.attempts[uid]
            elif attempt.ended:
                attempt.log_tail = ""  # the console has it
                self._unsaved[uid] = None
        return []

    def on_removed_machine(self, now: float) -> list[Effect]:
        """The machine was removed from its cluster: nothing here is wanted any more."""
        return [effect for attempt in self._live.values() for effect in self._stop(attempt, StopCause.UNWANTED, now)]

    # ---- the runtime -------------------------------------------------------------------------------------------------

    def wants_tail(self, event: RuntimeEvent) -> bool:
        """It is an end, and no success."""
        attempt = self._live.get(event.attempt)
        if attempt is None or not isinstance(event, Exited | Failed):
            return False
        return event.exit_code != 0 or end_reason(attempt, event) != EndReason.EXITED

    def on_event(self, event: RuntimeEvent, log_tail: str, now: float) -> list[Effect]:
        """`log_tail`: the end of the output, where `wants_tail`."""
        attempt = self._live.get(event.attempt)
        if attempt is None:
            return []
        match event:
            case Progress():
                return self._progress(attempt, event)
            case MemoryKills():
                attempt.process_oom_kills = event.count
                self._changed(attempt)
                return [Save(attempt)]
            case Exited() | Failed():
                return self._end(attempt, event, log_tail, now)

    def on_waiting(self, uid: str, sentence: str) -> list[Effect]:
        """What its preparation waits for; empty: for nothing, which the next phase tells."""
        attempt = self._live.get(uid)
        if attempt is not None and attempt.waiting != sentence:
            attempt.waiting = sentence[:WAITING_CHARACTERS]
            if sentence:
                self._changed(attempt)
        return []

    def on_removed(self, uid: str, now: float) -> list[Effect]:
        self._removing.discard(uid)
        self._forget.discard(uid)
        self._unsaved.pop(uid, None)
        attempt = self.attempts[uid]
        attempt.phases.append((Phase.FORGOTTEN, now))
        self._changed(attempt)
        return []

    def on_archived(self, uid: str, kept_from: int, now: float) -> list[Effect]:
        """`kept_from`: the first byte of its output that is left."""
        self._removing.discard(uid)
        self._archive.discard(uid)
        attempt = self.attempts[uid]
        attempt.archived_from = kept_from
        attempt.phases.append((Phase.ARCHIVED, now))
        self._changed(attempt)
        effects: list[Effect] = [Save(attempt)]
        if uid in self._forget:
            effects += self._forget_when_ended(uid, now)
        return effects

    # ---- time --------------------------------------------------------------------------------------------------------

    def on_tick(self, now: float) -> list[Effect]:
        """A few times a second: time limits (connected or not), reports to be repeated, the journal's arrears."""
        effects: list[Effect] = []
        for attempt in list(self._live.values()):
            running_at = attempt.time_of(Phase.RUNNING)
            limit = attempt.time_limit_seconds
            if limit is not None and running_at is not None and now >= running_at + limit:
                effects += self._stop(attempt, StopCause.TIME_LIMIT, now)
        if self.welcome is not None:
            for uid, sent_at in self._sent_at.items():
                if now >= sent_at + self.welcome.resend_seconds:
                    self._unsent[uid] = None
                    self.urgent = True
        effects += [Save(self.attempts[uid]) for uid in self._unsaved if uid not in self._removing]
        self._unsaved.clear()
        return effects

    def take_reports(self, now: float) -> list[Reports]:
        """What is to be sent now; nothing without a console that welcomed us."""
        if self.welcome is None:
            return []
        reports = [self.attempts[uid].report(now) for uid in self._unsent]
        for uid in self._unsent:
            self._sent_at[uid] = now
        self._unsent.clear()
        self.urgent = False
        return in_frames(reports)

    @property
    def idle(self) -> bool:
        return not self._live

    @property
    def live(self) -> list[Attempt]:
        """Not ended, or not known to have."""
        return list(self._live.values())

    def known(self, limit: int) -> list[str]:
        """Attempts not forgotten; where there are more, those that matter most to the console."""
        uids = [uid for uid, attempt in self.attempts.items() if not attempt.forgotten]
        if len(uids) <= limit:
            return uids
        settled = [uid for uid in uids if self.attempts[uid].ended and uid not in self._sent_at]
        open_ones = [uid for uid in uids if uid not in set(settled)]
        return [*open_ones, *reversed(settled)][:limit]

    @property
    def waiting(self) -> bool:
        return bool(self._unsent) and self.welcome is not None

    # ---- helpers -----------------------------------------------------------------------------------------------------

    def _accept(self, order: Order, now: float) -> Accept:
        attempt = Attempt(
            order.attempt, order.time_limit_seconds, order.stop_grace_seconds, phases=[(Phase.PREPARING, now)]
        )
        self.attempts[order.attempt] = self._live[order.attempt] = attempt
        self._unsent[order.attempt] = None
        return Accept(order, attempt)

    def _open_barriers(self, message: Assignments) -> list[Effect]:
        waiting = self._opened.union(message.waiting)
        opened = [order.attempt for order in message.orders if order.barrier and order.attempt not in waiting]
        opened = [uid for uid in opened if uid in self._live]
        self._opened.update(opened)
        return [OpenBarrier(uid) for uid in opened]

    def _stop(self, attempt: Attempt, cause: StopCause, now: float) -> list[Effect]:
        if attempt.stop_cause is not None:
            return []
        attempt.stop_cause = cause
        attempt.stop_at = now
        return [Save(attempt), Stop(attempt.uid, attempt.stop_grace_seconds)]

    def _forget_when_ended(self, uid: str, now: float) -> list[Effect]:
        attempt = self._known_attempt(uid, now)
        if attempt.forgotten:
            return []
        if not attempt.ended or uid in self._removing:
            self._forget.add(uid)
            return []
        self._removing.add(uid)
        return [Remove(uid)]

    def _archive_when_ended(self, uid: str, now: float) -> list[Effect]:
        attempt = self._known_attempt(uid, now)
        if attempt.archived_from is not None and attempt.acknowledged >= attempt.seq:
            self._changed(attempt)  # the console has not understood it
        if attempt.forgotten or attempt.archived_from is not None or uid in self._removing:
            return []
        if not attempt.ended:
            self._archive.add(uid)
            return []
        self._removing.add(uid)
        return [Archive(uid)]

    def _known_attempt(self, uid: str, now: float) -> Attempt:
        """One that the machine has never heard of is forgotten already."""
        attempt = self.attempts.get(uid)
        if attempt is None:
            attempt = self.attempts[uid] = Attempt(uid, phases=[(Phase.FORGOTTEN, now)], seq=SEQ_OF_UNKNOWN)
            self._changed(attempt)
        return attempt

    def _progress(self, attempt: Attempt, event: Progress) -> list[Effect]:
        reached = attempt.time_of(event.phase) is None
        if reached:
            attempt.phases.append((event.phase, event.at))
        news = (event.image_digest or attempt.image_digest, event.pull_progress)
        if not reached and news == (attempt.image_digest, attempt.pull_progress):
            return []
        attempt.image_digest, attempt.pull_progress = news
        self._changed(attempt)
        return [Save(attempt)] if reached else []

    def _end(self, attempt: Attempt, event: Exited | Failed, log_tail: str, now: float) -> list[Effect]:
        attempt.end_reason = end_reason(attempt, event)
        attempt.exit_code = event.exit_code
        if isinstance(event, Failed):
            attempt.message = event.message[:MESSAGE_CHARACTERS]
            attempt.pull_failure = event.pull_failure
        attempt.log_tail = log_tail
        attempt.pull_progress = attempt.waiting = ""
        attempt.phases.append((Phase.ENDED, event.at))
        del self._live[attempt.uid]
        self._opened.discard(attempt.uid)
        self._changed(attempt)
        effects: list[Effect] = [Save(attempt)]
        if attempt.uid in self._forget:
            effects += self._forget_when_ended(attempt.uid, now)
        elif attempt.uid in self._archive:
            effects += self._archive_when_ended(attempt.uid, now)
        return effects

    def _changed(self, attempt: Attempt) -> None:
        attempt.seq += 1
        self._unsent[attempt.uid] = None
        self.urgent = True


def end_reason(attempt: Attempt, event: Exited | Failed) -> EndReason:
    """Our own stop explains every end that came after it (137 then is no memory kill), and none that came before."""
    if attempt.stop_cause is not None and event.at >= attempt.stop_at:
        return EndReason.STOPPED if attempt.stop_cause == StopCause.UNWANTED else EndReason.TIME_LIMIT
    if isinstance(event, Failed):
        return event.reason
    return EndReason.OOM_KILLED if event.oom_killed else EndReason.EXITED


def in_frames(reports: Sequence[Report]) -> list[Reports]:
    """Batches that neither side has to hold in one large frame."""
    frames: list[Reports] = []
    batch: list[Report] = []
    tails = 0
    for report in reports:
        if batch and (len(batch) >= REPORTS_PER_FRAME or tails + len(report.log_tail) > TAIL_BYTES_PER_FRAME):
            frames.append(Reports(batch))
            batch, tails = [], 0
        batch.append(report)
        tails += len(report.log_tail)
    if batch:
        frames.append(Reports(batch))
    return frames
