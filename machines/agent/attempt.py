"""What a machine knows of one attempt, and how it explains its end. Pure."""

from enum import StrEnum

import msgspec

from machines.agent.runtimes.base import Exited, Failed
from machines.orders import Probes
from machines.protocol import EndReason, Phase, PhaseAge, PullFailure, Report


class StopCause(StrEnum):
    UNWANTED = "unwanted"  # the console no longer lists it
    TIME_LIMIT = "time limit"
    PROBE = "probe"
    ENGINE = "engine"


END_REASONS = {
    StopCause.UNWANTED: EndReason.STOPPED,
    StopCause.TIME_LIMIT: EndReason.TIME_LIMIT,
    StopCause.PROBE: EndReason.PROBE_FAILED,
    StopCause.ENGINE: EndReason.ENGINE_ENDED,
}


class Attempt(msgspec.Struct):
    """Written to the journal as it is. Times are on the machine's clock."""

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
    engine_image: str = ""  # of the engine beside it
    stop_cause: StopCause | None = None
    stop_at: float = 0
    archived_from: int | None = None  # the first byte of the output that is kept; null: its container is there
    stop_message: str = ""  # the probe's, or the engine's
    probes: Probes | None = None
    started: bool = False  # its startup probe has succeeded
    not_ready: str = ""

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
            not_ready=self.not_ready,
            waiting=self.waiting,
            engine_image=self.engine_image,
            process_oom_kills=self.process_oom_kills,
        )


def end_reason(attempt: Attempt, event: Exited | Failed) -> EndReason:
    """Our own stop explains every end that came after it (137 then is no memory kill), and none that came before."""
    if attempt.stop_cause is not None and event.at >= attempt.stop_at:
        return END_REASONS[attempt.stop_cause]
    if isinstance(event, Failed):
        return event.reason
    return EndReason.OOM_KILLED if event.oom_killed else EndReason.EXITED
