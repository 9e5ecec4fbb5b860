"""When a worker's probes are due, and what their answers mean: pure, without processes, sockets or a clock.

A startup probe holds off the other two until it has succeeded once. Readiness is shown and decides nothing. A startup
or liveness probe that fails often enough in a row ends the attempt.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from machines.orders import Probe, Probes

MESSAGE_CHARACTERS = 300


class ProbeKind(StrEnum):
    STARTUP = "Startup"
    READINESS = "Readiness"
    LIVENESS = "Liveness"


@dataclass
class _Asked:
    """One probe between its answers. Times are on the machine's clock."""

    probe: Probe
    next_at: float
    asked: bool = False
    successes: int = 0  # in a row
    failures: int = 0  # in a row


class Prober:
    """The probes of one attempt, from Running on. `started` and `not_ready`: what an earlier agent found."""

    def __init__(self, probes: Probes, running_at: float, *, started: bool = False, not_ready: str = "") -> None:
        found = {
            ProbeKind.STARTUP: None if started else probes.startup,
            ProbeKind.READINESS: probes.readiness,
            ProbeKind.LIVENESS: probes.liveness,
        }
        self._asked = {
            kind: _Asked(probe, running_at + probe.initial_delay_seconds)
            for kind, probe in found.items()
            if probe is not None
        }
        self.started = ProbeKind.STARTUP not in self._asked
        self._ready = ProbeKind.READINESS not in self._asked or (started and not not_ready)
        self._why = not_ready if started else ""  # it is not ready, since it once was or was asked often enough
        self.failure = ""  # the sentence with which the attempt ends

    @property
    def not_ready(self) -> str:
        """Why it does not count as ready; empty when it does. Changes only when the answer does, not with each one."""
        if not self.started:
            return "its startup probe has not succeeded yet"
        if self._ready:
            return ""
        return self._why or "its readiness probe has not succeeded yet"

    def due(self, now: float) -> Iterator[tuple[ProbeKind, Probe]]:
        """To be asked now; each is asked again only after its answer."""
        if self.failure:
            return
        for kind, asked in self._asked.items():
            if (kind is ProbeKind.STARTUP) == self.started or asked.asked or now < asked.next_at:
                continue
            asked.asked = True
            asked.next_at = now + asked.probe.period_seconds
            yield kind, asked.probe

    def answered(self, kind: ProbeKind, failure: str | None) -> None:
        """`failure`: why it failed; empty: it succeeded; None: it could not be asked, which says nothing."""
        asked = self._asked[kind]
        asked.asked = False
        if failure is None:
            return
        asked.successes = 0 if failure else asked.successes + 1
        asked.failures = asked.failures + 1 if failure else 0
        if asked.failures >= asked.probe.failure_threshold:
            self._failed(kind, failure[:MESSAGE_CHARACTERS])
        elif asked.successes >= asked.probe.success_threshold:
            self._succeeded(kind)

    def _failed(self, kind: ProbeKind, failure: str) -> None:
        if kind is not ProbeKind.READINESS:
            self.failure = self.failure or f"{kind} probe failed: {failure}"
        elif self._ready or not self._why:
            self._ready, self._why = False, f"readiness probe failed: {failure}"

    def _succeeded(self, kind: ProbeKind) -> None:
        if kind is ProbeKind.STARTUP:
            self.started = True
        elif kind is ProbeKind.READINESS:
            self._ready, self._why = True, ""


def last_line(output: bytes) -> str:
    """What a failed command printed, for a sentence: its last line that is not empty."""
    lines = [line for line in output.decode(errors="replace").replace("\0", "�").splitlines() if line.strip()]
    return lines[-1].strip()[:MESSAGE_CHARACTERS] if lines else ""


def exit_failure(code: int | None, output: bytes) -> str:
    """Why an exec probe failed; empty for exit code 0."""
    if code == 0:
        return ""
    how = "was killed" if code is None else f"exited with code {code}"
    said = last_line(output)
    return f"{how}: {said}" if said else how
