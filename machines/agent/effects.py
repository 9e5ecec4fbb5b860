"""What the supervisor has the machine do, each a thing to carry out. Pure."""

from dataclasses import dataclass
from typing import TypeAlias

from machines.agent.attempt import Attempt
from machines.agent.probes import ProbeKind
from machines.orders import Order, Probe


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
class Ask:
    """Carry out a probe; `Supervisor.on_answer` when it is done or took too long."""

    attempt: str
    kind: ProbeKind
    probe: Probe


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


Effect: TypeAlias = Accept | OpenBarrier | Stop | Ask | Remove | Archive | Save | Leave
