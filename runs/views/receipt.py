"""The receipt of an ended run, as its page shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runs.receipt import Spent

LABELS = {
    Spent.QUEUE: "In the queue",
    Spent.QUEUED_AGAIN: "Queued again",
    Spent.RESTARTS: "Between restarts",
    Spent.PREPARING: "Preparing",
    Spent.PULLING: "Pulling",
    Spent.BARRIER: "At the barrier",
    Spent.STARTING: "Starting",
    Spent.RUNNING: "Running",
}
BAR = 1000  # units of the bar's width
NARROWEST = 4  # of them: what took a moment is still seen


@dataclass(frozen=True)
class Part:
    """One colour of the bar: `kind` names it, `x` and `width` are in units of BAR."""

    kind: str
    label: str
    seconds: float
    x: float
    width: float


@dataclass(frozen=True)
class ShownReceipt:
    parts: list[Part]
    document: Mapping[str, Any]

    @property
    def gpu_share(self) -> float | None:
        """Used of held, 0 to 1."""
        hours = self.document["gpu_hours"]
        return hours["used"] / hours["held"] if hours["used"] is not None and hours["held"] else None

    @property
    def memory_share(self) -> float | None:
        memory = self.document["memory"]
        return memory["peak_bytes"] / memory["asked_bytes"] if memory and memory["asked_bytes"] else None

    @property
    def cores_share(self) -> float | None:
        cores = self.document["cores"]
        return cores["peak"] / cores["asked"] if cores and cores["asked"] else None

    @property
    def partly(self) -> float | None:
        """The share of the running time of which samples tell, where that is not nearly all."""
        hours = self.document["gpu_hours"]
        return hours["sampled"] if hours["used"] is not None and hours["sampled"] < 0.9 else None


def shown(document: Mapping[str, Any] | None) -> ShownReceipt | None:
    if document is None:
        return None
    seconds = {**document["waited_seconds"], "pulling": document["pulled_seconds"], "running": document["ran_seconds"]}
    spent = [(kind, seconds[kind.name.lower()]) for kind in Spent if seconds[kind.name.lower()] > 0]
    widths = [max(NARROWEST, BAR * share / (document["total_seconds"] or 1)) for _, share in spent]
    scale = BAR / (sum(widths) or 1)
    parts, x = [], 0.0
    for (kind, share), width in zip(spent, widths, strict=True):
        parts.append(Part(kind.name.lower(), LABELS[kind], share, round(x, 1), round(width * scale, 1)))
        x += width * scale
    return ShownReceipt(parts, document)
