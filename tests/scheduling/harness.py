"""A small language for scheduler tests: build a cluster and a queue, say what must happen.

    cluster().machine(gpus=8).run("a", gpus=4).expect(a="m0")

A case that is built and never checked fails its test (see `conftest.py`): a test without an expectation proves nothing.
"""

from typing import Any, Self

from runs.scheduling.explain import sentence
from runs.scheduling.planner import make_plan
from runs.scheduling.types import (
    Ask,
    Constraints,
    GpuView,
    Hold,
    MachineView,
    NamespaceView,
    Plan,
    Snapshot,
    SplitAsk,
    WaitingRun,
    WaitingWorker,
)

GIB = 1024**3
H100 = "NVIDIA H100 80GB HBM3"
unchecked: list["Case"] = []


class Case:
    def __init__(self) -> None:
        self.machines: list[MachineView] = []
        self.holds: list[Hold] = []
        self.namespaces: dict[int, NamespaceView] = {1: NamespaceView(1)}
        self.runs: dict[str, WaitingRun] = {}
        self.worker_names: dict[int, str] = {}
        unchecked.append(self)

    def machine(
        self,
        gpus: int = 0,
        cores: int = 64,
        memory: int = 512,
        model: str = H100,
        broken: int = 0,
        count: int = 1,
        **facts: Any,
    ) -> Self:
        """`count` equal machines m0, m1, …; memory in GiB. `broken`: how many of the GPUs are."""
        labels = tuple(sorted(facts.pop("labels", {}).items()))
        for _ in range(count):
            number = len(self.machines)
            name = f"m{number}"
            views = tuple(GpuView(index, model, 80 * GIB, index >= broken) for index in range(gpus))
            self.machines.append(MachineView(number + 100, name, cores * 1000, memory * GIB, views, labels, **facts))
        return self

    def namespace(self, number: int, **facts: Any) -> Self:
        self.namespaces[number] = NamespaceView(number, **facts)
        return self

    def holding(
        self, machine: str, gpus: int = 0, cores: float = 1, memory: float = 1, namespace: int = 1, **facts: Any
    ) -> Self:
        """Something that runs already: the next GPUs of a machine."""
        number = int(machine[1:])
        taken = sum(len(hold.gpu_indexes) for hold in self.holds if hold.machine_id == number + 100)
        indexes = tuple(range(taken, taken + gpus))
        run_id = facts.pop("run", 9000 + len(self.holds))
        self.holds.append(Hold(run_id, namespace, number + 100, int(cores * 1000), int(memory * GIB), indexes, **facts))
        return self

    def run(
        self,
        name: str,
        gpus: int = 0,
        cores: float = 1,
        memory: float = 1,
        workers: int = 1,
        fraction: float | None = None,
        namespace: int = 1,
        where: Constraints | None = None,
        **facts: Any,
    ) -> Self:
        """A waiting run; `gpus`, `cores` and `memory` (GiB) are of each worker. Later ones are younger."""
        number = len(self.runs) + 1
        amounts = (0, 0) if fraction else (int(cores * 1000), int(memory * GIB))
        ask = Ask(gpus, *amounts, fraction, where or Constraints())
        ids = [number * 1000 + rank for rank in range(workers)]
        self.worker_names |= {id_: name if workers == 1 else f"{name}{rank}" for rank, id_ in enumerate(ids)}
        self.runs[name] = WaitingRun(
            number, namespace, float(number), tuple(WaitingWorker(id_, ask) for id_ in ids), **facts
        )
        return self

    def splitting(self, name: str, gpus: int, planned: int = 0, **facts: Any) -> Self:
        """A run whose GPU total the scheduler splits."""
        number = len(self.runs) + 1
        split = SplitAsk(gpus, cpu_milli_per_gpu=1000, memory_bytes_per_gpu=GIB, **facts)
        self.runs[name] = WaitingRun(number, 1, float(number), split=split, planned=planned)
        return self

    def snapshot(self) -> Snapshot:
        return Snapshot(
            tuple(self.machines), tuple(self.holds), tuple(self.namespaces.values()), tuple(self.runs.values())
        )

    def plan(self, **bounds: Any) -> Plan:
        if self in unchecked:
            unchecked.remove(self)
        return make_plan(self.snapshot(), now=1000.0, **bounds)

    def placed(self, plan: Plan) -> dict[str, str]:
        names = {machine.id: machine.name for machine in self.machines}
        return {self.worker_names[placed.worker_id]: names[placed.machine_id] for placed in plan.placements}

    def expect(self, **where: str) -> Self:
        """Exactly these workers are placed, on these machines (worker `a`, or `a0`, `a1` of several)."""
        assert self.placed(self.plan()) == where
        return self

    def expect_reason(self, name: str, text: str) -> Self:
        """The run waits, and its sentence is this."""
        refusal = self.plan().refusals[self.runs[name].id]
        assert sentence(refusal.code, refusal.numbers) == text
        return self


def cluster() -> Case:
    return Case()
