"""Every GPU that a workspace can see: what it is, how it is, what it does, and who holds it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from astraconsole.tenancy.queries import Access
from machines import queries as machine_queries
from machines.metrics import store
from machines.metrics.query import natural_key
from machines.models import Gpu, Machine, MachineState
from runs.models import Attempt

ANOTHERS = "another workspace's run"
IDLE_RATIO = 0.05  # busy for less of the time: held, and hardly used
STARTING_SECONDS = 120  # of a worker, in which an idle GPU is nothing to remark upon


@dataclass(frozen=True)
class Holder:
    """Who has a GPU: a run and worker of this workspace, or (both empty) another workspace's."""

    run: str
    worker: str
    running_at: datetime | None

    @property
    def name(self) -> str:
        return self.run or ANOTHERS


@dataclass(frozen=True)
class SeenGpu:
    """One GPU. `utilization` 0 to 1 and `processes`: None where the machine has not said so lately."""

    machine: Machine
    gpu: Gpu
    holder: Holder | None
    utilization: float | None
    memory_used: int | None
    processes: int | None
    now: datetime

    @property
    def known(self) -> bool:
        """Whether its machine is there to say what it does."""
        return self.machine.state == MachineState.READY

    @property
    def settled(self) -> bool:
        """Whether what holds it has run long enough to be using it."""
        since = self.holder.running_at if self.holder else None
        return since is not None and (self.now - since).total_seconds() >= STARTING_SECONDS

    @property
    def unused(self) -> str:
        """Why a held GPU is worth a look; empty: it is not."""
        if not self.settled or not self.known:
            return ""
        if self.processes == 0:
            return "Held, and no process uses it"
        if self.utilization is not None and self.utilization < IDLE_RATIO:
            return "Held, and idle"
        return ""

    @property
    def mark(self) -> str:
        """How the map draws it: sick, gone, unused, held or free."""
        if not self.gpu.healthy:
            return "sick"
        if not self.known:
            return "gone"
        return "unused" if self.unused else "held" if self.holder else "free"

    @property
    def health(self) -> str:
        return "ok" if self.gpu.healthy else self.gpu.health_reason or "unhealthy"


def gpus_for(access: Access, cluster: str | None, now: datetime) -> list[SeenGpu]:
    """By cluster, machine (gpu-9 before gpu-10) and index, in four queries. Another workspace's run is never named."""
    having_gpus = [machine for machine in machine_queries.machines_for(access, cluster) if machine.gpus.all()]
    machines = sorted(having_gpus, key=lambda machine: (machine.cluster.slug, natural_key(machine.name)))
    ids = [machine.pk for machine in machines]
    holders, use = _holders(access, ids), store.gpu_use(ids, now)
    return [_seen(machine, gpu, holders, use, now) for machine in machines for gpu in machine.gpus.all()]


def _seen(
    machine: Machine,
    gpu: Gpu,
    holders: dict[tuple[int, int], Holder],
    use: dict[int, dict[int, dict[str, object]]],
    now: datetime,
) -> SeenGpu:
    told = use.get(machine.pk, {}).get(gpu.index, {})
    return SeenGpu(
        machine=machine,
        gpu=gpu,
        holder=holders.get((machine.pk, gpu.index)),
        utilization=told.get("utilization"),  # type: ignore[arg-type]
        memory_used=told.get("memory_bytes"),  # type: ignore[arg-type]
        processes=told.get("processes"),  # type: ignore[arg-type]
        now=now,
    )


def _holders(access: Access, machine_ids: Sequence[int]) -> dict[tuple[int, int], Holder]:
    live = Attempt.objects.filter(machine__in=machine_ids, released_at=None).exclude(gpu_indexes=[])
    columns = ("machine", "gpu_indexes", "running_at", "worker__run__workspace", "worker__run__name", "worker__name")
    found = {}
    for machine_id, indexes, running_at, workspace, run, worker in live.values_list(*columns):
        ours = workspace == access.workspace.pk
        holder = Holder(run if ours else "", worker if ours else "", running_at)
        found |= {(machine_id, index): holder for index in indexes}
    return found
