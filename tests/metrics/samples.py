"""Samples as machines send them, for tests."""

from collections.abc import Callable, Mapping
from uuid import UUID

from machines import protocol
from machines.metrics.lane import Frame
from machines.metrics.names import key_of
from machines.models import Machine
from machines.protocol import AttemptSamples, GpuUse, SampleRow, Samples
from runs import metrics
from runs.models import Attempt

Named = Mapping[str | tuple[str, int], float | None]


def key(name: str | tuple[str, int]) -> int:
    return key_of(name) if isinstance(name, str) else key_of(*name)


def item(attempt: UUID, rows: Mapping[float, Named]) -> AttemptSamples:
    """`rows`: seconds ago → values by metric, or by (metric, GPU index)."""
    names = list(dict.fromkeys(name for values in rows.values() for name in values))
    told = [SampleRow(ago, [values.get(name) for name in names]) for ago, values in rows.items()]
    return AttemptSamples(attempt.hex, [key(name) for name in names], told)


def frame(machine: Machine, at: float, *items: AttemptSamples, gpus: list[GpuUse] | None = None) -> Frame:
    return (machine.pk, at, protocol.encode(Samples(list(items), gpus or [])))


def sampled(attempt: Attempt, start: float, end: float, values: Callable[[float], Named], every: float = 10) -> None:
    """The attempt as its machine would have sent it: a frame every minute from `start` to `end`."""
    frames, at = [], start
    while at < end:
        times = [at + every * number for number in range(round(60 / every)) if at + every * number < end]
        rows = {times[-1] - time: values(time) for time in times}
        frames.append(frame(attempt.machine, times[-1], item(attempt.uid, rows)))
        at += 60
    assert metrics._keep(frames)
