"""What the scheduler decides about, and what it decides. Pure, frozen values; the vocabulary is in README.md.

Units everywhere: cores in thousandths (`cpu_milli`), memory in bytes, times in seconds (points in time: Unix seconds).
They are msgspec structs: a snapshot of 10,000 runs is made, compared, dumped and read back in milliseconds. None can be
part of a cycle, so the garbage collector need not look at them (`gc=False`).
"""

from typing import TypeAlias

import msgspec

Numbers: TypeAlias = dict[str, int | float | str | list[str]]


class Constraints(msgspec.Struct, frozen=True, gc=False):
    """Which machines and GPUs may be used. Empty: any. `pools`: any of these; `namespace_pools`: also any of these."""

    pools: tuple[str, ...] = ()
    namespace_pools: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()  # all of these
    names: tuple[str, ...] = ()  # any of these
    gpu_models: tuple[str, ...] = ()  # any of these
    gpu_min_memory_bytes: int = 0
    mounts: tuple[str, ...] = ()  # what is to be mounted, in words: `file secrets`
    data: tuple[str, ...] = ()  # drives and models, `<namespace>/drive/<name>`: best where they are already


ANYWHERE = Constraints()


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What one worker needs of one machine. With `node_fraction`, cores and memory are that share of the machine."""

    gpus: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    node_fraction: float | None = None
    constraints: Constraints = ANYWHERE


class WorkerShape(msgspec.Struct, frozen=True, gc=False):
    """One worker as planned: what its row is made of. `rank` counts through the whole run."""

    name: str
    group: str  # "" outside worker_groups
    rank: int
    gpus: int
    cpu_milli: int  # 0 with node_fraction
    memory_bytes: int  # 0 with node_fraction
    node_fraction: float | None = None


class SplitAsk(msgspec.Struct, frozen=True, gc=False):
    """A GPU total that the scheduler splits itself: over the fewest equal workers that eligible machines can hold.
    Cores and memory are per worker, plus per GPU."""

    gpus: int
    cpu_milli: int = 0
    memory_bytes: int = 0
    cpu_milli_per_gpu: int = 0
    memory_bytes_per_gpu: int = 0
    node_fraction: float | None = None
    constraints: Constraints = ANYWHERE


class GpuView(msgspec.Struct, frozen=True, gc=False):
    index: int
    model: str
    memory_bytes: int
    healthy: bool = True


class MachineView(msgspec.Struct, frozen=True, gc=False):
    """A machine and all it has; what is in use are the snapshot's holds. One that drains is cordoned as well.

    connected: whether its agent is. One that is away for a moment gets no work, and keeps what it runs and its place in
    every reservation; once its lease has ended it is not `ready`.
    """

    id: int
    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[GpuView, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    ready: bool = True
    cordoned: bool = False
    draining: bool = False
    cordon_reason: str = ""
    runs_containers: bool = True  # host processes have nothing mounted
    data: tuple[str, ...] = ()  # drives and models that are ready there, as `Constraints.data` names them
    connected: bool = True

    @property
    def pool(self) -> str:
        return dict(self.labels).get("pool", "")


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Room that one live attempt holds on a machine, until the machine says that it is gone.

    `ends_by`: the latest end by its time limit; None: no limit. `stopping_since`: when its end was asked for.
    """

    run_id: int
    namespace_id: int
    machine_id: int
    cpu_milli: int
    memory_bytes: int
    gpu_indexes: tuple[int, ...] = ()
    priority: int = 0
    started_at: float = 0
    ends_by: float | None = None
    stopping_since: float | None = None


class NamespaceView(msgspec.Struct, frozen=True, gc=False):
    """A workspace's share of the cluster. A quota of None is no limit."""

    id: int
    weight: float = 1
    quota_gpus: int | None = None
    quota_cpu_milli: int | None = None
    quota_memory_bytes: int | None = None
    quota_runs: int | None = None


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why something was not placed: a code of `explain` and its numbers. This, not the sentence, is what is stored."""

    code: str
    numbers: Numbers = {}


class Room(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What one worker takes of one machine."""

    machine_id: int
    cpu_milli: int
    memory_bytes: int
    gpu_indexes: tuple[int, ...] = ()


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Room that others gave up for a run: until then nobody of no higher priority gets it."""

    until: float
    rooms: tuple[Room, ...]


class WaitingWorker(msgspec.Struct, frozen=True, gc=False):
    id: int
    ask: Ask


class WaitingRun(msgspec.Struct, frozen=True, gc=False):
    """A run with workers that wait for a machine, or whose workers cannot be planned yet.

    workers: in rank order; a very long array shows only its first ones.
    placed: how many of its workers are on machines now (what `parallelism` counts).
    split: set while nothing of the run has started and its workers follow from the machines; `planned`: how many
    workers it has by the last planning (0: it could not be planned).
    again: a gang that was placed before and lost its place.
    stored, claim: the refusal and the claim that its row holds.
    """

    id: int
    namespace_id: int
    queued_at: float
    workers: tuple[WaitingWorker, ...] = ()
    priority: int = 0
    gang: bool = False
    distinct_machines: bool = False
    parallelism: int | None = None
    placed: int = 0
    time_limit: float | None = None
    split: SplitAsk | None = None
    planned: int = 0
    again: bool = False
    stored: Refusal | None = None
    claim: Claim | None = None


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """One cluster at one moment: all that a plan depends on, but the time."""

    machines: tuple[MachineView, ...] = ()
    holds: tuple[Hold, ...] = ()
    namespaces: tuple[NamespaceView, ...] = ()
    waiting: tuple[WaitingRun, ...] = ()


class Placement(msgspec.Struct, frozen=True, gc=False):
    """A worker goes to a machine, with these GPUs and this room (a node fraction already resolved)."""

    worker_id: int
    machine_id: int
    gpu_indexes: tuple[int, ...]
    cpu_milli: int
    memory_bytes: int
    run_id: int
    namespace_id: int


class Preemption(msgspec.Struct, frozen=True, gc=False):
    """A whole run gives its room to a run of strictly higher priority."""

    run_id: int
    by_run_id: int


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """Room kept for the first run that must wait. `starts_by`: its start if all that runs uses its whole time limit;
    None where something has none."""

    run_id: int
    starts_by: float | None
    machine_ids: tuple[int, ...]


class Rehearsed(msgspec.Struct, frozen=True, gc=False):
    """placements: what would be placed at once; refusal: why the rest, or all, would wait. reserved_from: when the
    room of the run before it is needed, at the latest; infinite: never known; None: nothing is reserved."""

    placements: list[Placement]
    refusal: Refusal | None
    reserved_from: float | None


class Plan(msgspec.Struct, frozen=True, gc=False):
    """Proposals; `apply` re-checks each and drops stale ones, which simply wait for the next pass.

    refusals: why each waiting run waits (run id → refusal). changed: those that differ from what is stored.
    splits: runs to be planned anew, as this many workers (run id → count).
    preemptions, claims: who gives way to whom, and the room that is then kept for a run (run id → claim; None: the
    claim that its row holds is over).
    more: the pass stopped at its bound; another should follow at once.
    """

    placements: tuple[Placement, ...] = ()
    refusals: dict[int, Refusal] = {}
    changed: tuple[int, ...] = ()
    splits: dict[int, int] = {}
    preemptions: tuple[Preemption, ...] = ()
    claims: dict[int, Claim | None] = {}
    reservation: Reservation | None = None
    more: bool = False
