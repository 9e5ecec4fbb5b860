"""The documents of the JSON API about what a run cost, and what differs from the last good one."""

from typing import Any

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12


class Waited(TypedDict):
    """Seconds of the run's time, which add up to `total_seconds` with those that it pulled and ran. `barrier`: with the
    start that follows."""

    queue: float
    queued_again: float
    restarts: float
    preparing: float
    barrier: float
    starting: float


class GpuHours(TypedDict):
    """`used`: busy shares times time; null where nothing was sampled. `sampled`: the share of the running time of which
    samples tell, 0 to 1."""

    held: float
    used: float | None
    sampled: float


class PeakMemory(TypedDict):
    worker: str
    peak_bytes: int
    asked_bytes: int | None


class PeakCores(TypedDict):
    worker: str
    peak: float
    asked: float | None


class RightSize(TypedDict):
    """`change`: what `new-run?again=<cluster>/<run>&change=` takes; `how`: how it was derived."""

    change: str
    label: str
    how: str


class ReceiptDocument(TypedDict):
    """`memory`, `cores`: of the worker that came nearest to what it asked for; null where nothing was sampled."""

    total_seconds: float
    waited_seconds: Waited
    pulled_seconds: float
    ran_seconds: float
    gpu_hours: GpuHours
    memory: PeakMemory | None
    cores: PeakCores | None
    restarts: int
    preemptions: int
    right_sizes: list[RightSize]


class GoodRun(TypedDict):
    name: str
    uid: str
    cluster: str
    state: str


class DifferenceDocument(TypedDict):
    """`what`: a field of the specification, `image digest`, `machines` or `GPU models`; null: not given."""

    what: str
    before: Any
    after: Any


class DiffDocument(TypedDict):
    """`good`: the run that this one is compared with; null: there is none. `how` it was found. `unknown`: what could
    not be compared."""

    good: GoodRun | None
    how: str | None
    differences: list[DifferenceDocument]
    unknown: list[str]
