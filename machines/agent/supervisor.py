"""What a machine does about what it is told and what happens on it: pure, without sockets, files or a clock.

Each `on_…` takes one thing that happened and returns the effects to carry out, in order. `now` is the machine's clock
(`machines.agent.clock.now()`). Whatever was lost on the way, the next full set of assignments makes reality match it.
"""

from collections.abc import Iterable, Sequence

from machines.agent.attempt import Attempt, StopCause, end_reason
from machines.agent.effects import Accept, Archive, Ask, Effect, Leave, OpenBarrier, Remove, Save, Stop
from machines.agent.probes import ProbeKind, Prober
from machines.agent.runtimes.base import (
    EngineEnded,
    Exited,
    Failed,
    MemoryKills,
    Progress,
    RuntimeEvent,
    Waiting,
)
from machines.orders import Order, Probes
from machines.protocol import Acknowledge, Assignments, EndReason, Phase, Report, Reports, Welcome

SEQ_AFTER_RESTART = 1 << 16  # reports sent but not written down may have counted on: start above them
SEQ_OF_UNKNOWN = (1 << 31) - 2  # of an attempt of which nothing is left: above whatever was reported of it
MESSAGE_CHARACTERS = 4_000
WAITING_CHARACTERS = 500
REPORTS_PER_FRAME = 200
TAIL_BYTES_PER_FRAME = 256 * 1024


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
        self._probers: dict[str, Prober] = {}
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

    def counts(self, message: Assignments) -> bool:
        """Whether it is not older than what was applied."""
        return self.welcome is not None and message.revision >= self.applied_revision

    def on_assignments(self, message: Assignments, now: float) -> list[Effect]:
        """Make reality match the full set."""
        if not self.counts(message):
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
            case Waiting():
                return self.on_waiting(event.attempt, event.sentence)
            case EngineEnded():
                if attempt.stop_cause is None:
                    attempt.stop_message = event.message
                return self._stop(attempt, StopCause.ENGINE, now)
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

    def on_answer(self, uid: str, kind: ProbeKind, failure: str | None, now: float) -> list[Effect]:
        """Of a probe: why it failed; empty: it succeeded; None: it could not be asked."""
        attempt, prober = self._live.get(uid), self._probers.get(uid)
        if attempt is None or prober is None or attempt.stop_cause is not None:
            return []
        prober.answered(kind, failure)
        if prober.failure:
            attempt.stop_message = prober.failure
            attempt.not_ready = f"{prober.failure}; it is being stopped"
            self._changed(attempt)
            return self._stop(attempt, StopCause.PROBE, now)
        if (attempt.started, attempt.not_ready) == (prober.started, prober.not_ready):
            return []
        told = attempt.not_ready
        attempt.started, attempt.not_ready = prober.started, prober.not_ready
        if told != attempt.not_ready:
            self._changed(attempt)
        return [Save(attempt)]

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
        """A few times a second: time limits and probes (connected or not), reports to be repeated, the journal's
        arrears."""
        effects: list[Effect] = []
        for attempt in list(self._live.values()):
            running_at = attempt.time_of(Phase.RUNNING)
            limit = attempt.time_limit_seconds
            if limit is not None and running_at is not None and now >= running_at + limit:
                effects += self._stop(attempt, StopCause.TIME_LIMIT, now)
            if attempt.probes is not None and running_at is not None and attempt.stop_cause is None:
                due = self._prober(attempt, attempt.probes, running_at).due(now)
                effects += [Ask(attempt.uid, kind, probe) for kind, probe in due]
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
            order.attempt,
            order.time_limit_seconds,
            order.stop_grace_seconds,
            phases=[(Phase.PREPARING, now)],
            probes=order.probes,
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
        if reached and event.phase is Phase.RUNNING and attempt.probes is not None:
            attempt.not_ready = self._prober(attempt, attempt.probes, event.at).not_ready
        before = (attempt.image_digest, attempt.engine_image, attempt.pull_progress)
        attempt.image_digest = event.image_digest or attempt.image_digest
        attempt.engine_image = event.engine_image or attempt.engine_image
        attempt.pull_progress = event.pull_progress
        if not reached and before == (attempt.image_digest, attempt.engine_image, attempt.pull_progress):
            return []
        self._changed(attempt)
        return [Save(attempt)] if reached else []

    def _prober(self, attempt: Attempt, probes: Probes, running_at: float) -> Prober:
        """One that an earlier agent asked goes on from what it found."""
        known = self._probers.get(attempt.uid)
        if known is None:
            known = Prober(probes, running_at, started=attempt.started, not_ready=attempt.not_ready)
            self._probers[attempt.uid] = known
        return known

    def _end(self, attempt: Attempt, event: Exited | Failed, log_tail: str, now: float) -> list[Effect]:
        attempt.end_reason = end_reason(attempt, event)
        attempt.exit_code = event.exit_code
        if isinstance(event, Failed):
            attempt.message = event.message[:MESSAGE_CHARACTERS]
            attempt.pull_failure = event.pull_failure
        if attempt.stop_message and attempt.end_reason in (EndReason.PROBE_FAILED, EndReason.ENGINE_ENDED):
            attempt.message = attempt.stop_message
        attempt.log_tail = log_tail
        attempt.pull_progress = attempt.waiting = ""
        attempt.phases.append((Phase.ENDED, event.at))
        del self._live[attempt.uid]
        self._opened.discard(attempt.uid)
        self._probers.pop(attempt.uid, None)
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
