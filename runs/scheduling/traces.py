"""Recorded traces, as CSV: how their columns become jobs and machines. Pure.

Jobs: `job, submit_s, duration_s`, then `gpus`, `gpu_model` (`A|B`: either), `cpu`/`cpu_per_node`, `mem_bytes`, `nodes`
as far as the file has them, and `walltime_limit_s`. Amounts are the job's total, but for `cpu_per_node`. Empty: none. A
share of a GPU (`gpu_milli`) counts as the whole GPU that `gpus` says. Machines: `name, gpus, cpu, mem_bytes`; without
cores or memory: no limit.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from runs.scheduling.simulator import Job
from runs.scheduling.types import ANYWHERE, Ask, Constraints, GpuView, MachineView

PLENTY = 2**40


def read_machines(rows: Iterable[Mapping[str, str]]) -> list[MachineView]:
    machines = []
    for number, row in enumerate(rows):
        gpus = tuple(GpuView(index, row.get("gpu_model") or "GPU", 0) for index in range(int(row.get("gpus") or 0)))
        cpu_milli = int(float(row.get("cpu") or PLENTY) * 1000)
        machines.append(MachineView(number, row["name"], cpu_milli, int(row.get("mem_bytes") or PLENTY), gpus))
    return machines


def equal_machines(count: int, gpus: int) -> list[MachineView]:
    return read_machines({"name": f"n{number}", "gpus": str(gpus)} for number in range(count))


def read_jobs(rows: Iterable[Mapping[str, str]], machines: Sequence[MachineView]) -> list[Job]:
    return [
        Job(
            row["job"],
            float(row["submit_s"]),
            float(row["duration_s"]),
            _asks(row, machines),
            float(row["walltime_limit_s"]) if row.get("walltime_limit_s") else None,
        )
        for row in rows
    ]


def _asks(row: Mapping[str, str], machines: Sequence[MachineView]) -> tuple[Ask, ...]:
    """More GPUs or cores than any machine has are spread over whole machines; memory evenly, at most a machine's."""
    count = int(row.get("nodes") or 1)
    gpus = math.ceil(int(row.get("gpus") or 0) / count)
    cores = float(row.get("cpu_per_node") or float(row.get("cpu") or 0) / count)
    most_gpus = max(len(machine.gpus) for machine in machines)
    most_cores = max(machine.cpu_milli for machine in machines) / 1000
    if gpus > most_gpus > 0:
        count, gpus = math.ceil(gpus / most_gpus), most_gpus
    if cores > most_cores:
        count, cores = count * math.ceil(cores / most_cores), most_cores
    memory = min(int(row.get("mem_bytes") or 0) // count, max(machine.memory_bytes for machine in machines))
    models = tuple(model for model in (row.get("gpu_model") or "").split("|") if model)
    constraints = Constraints(gpu_models=models) if gpus and models else ANYWHERE
    return (Ask(gpus, int(cores * 1000), memory, constraints=constraints),) * count
