"""A run made of a Slurm job, and what is said about it. Pure."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from astraconsole.cli.slurm.launcher import command_of
from astraconsole.cli.slurm.meaning import Layout, Meaning
from runs.units import TIME_LIMIT_MAX, TIME_LIMIT_MIN, counted, format_duration, format_memory

JOB_ID_LABEL = "slurm-job-id"
DEFAULT_MEMORY = 16 * 1024**3  # bytes, per GPU or, without any, per worker: as `astra astraeus run`
NAME_MAX = 40  # characters of the job's name in the run's: the job id and a worker's rank still fit
_LATER = ("dependency", "begin", "hold")


@dataclass(frozen=True)
class Place:
    """Where it is submitted from, and what the command line adds to the job."""

    image: str
    user: str
    pool: str = ""
    name: str = ""
    code: str = ""  # the folder to send along


def run_of(meaning: Meaning, code: str, arguments: list[str], place: Place, job_id: int) -> dict[str, Any]:
    """The body of the run: one worker per node, none restarted. `code`: its files, packed, in base64."""
    layout, command = meaning.layout, command_of(arguments)
    template: dict[str, Any] = {
        **({"image": place.image} if place.image else {}),
        "command": command[0],
        "args": command[1:],
        "env": {**_exported(meaning), **_environment(meaning, place, job_id)},
        "restart_policy": "Never",
        "requested_resources": _resources(meaning),
    }
    if meaning.time_s is not None:
        template["time_limit_seconds"] = max(meaning.time_s, TIME_LIMIT_MIN)
    spec: dict[str, Any] = {"task_template": template, "code": code}
    if meaning.array is not None:
        spec["array"] = {"count": len(meaning.array.indices)}
        if meaning.array.max_parallel:
            spec["array"]["parallelism"] = min(meaning.array.max_parallel, len(meaning.array.indices))
    elif not layout.flexible:
        spec["machines"] = layout.nodes
    if meaning.gang:
        spec |= {"start": "Gang", "on_failure": "FailJob"}
    if place.pool:
        spec["node_selection"] = {"pools": [place.pool]}
    return {"metadata": {"name": run_name(meaning, place, job_id), "labels": {JOB_ID_LABEL: str(job_id)}}, "spec": spec}


def run_name(meaning: Meaning, place: Place, job_id: int) -> str:
    """`<job name>-<job id>`: Slurm's job names need not be unique, a run's must be."""
    stem = re.sub(r"[^a-z0-9]+", "-", (place.name or meaning.text("job-name") or "sbatch").lower()).strip("-")
    return f"{stem[:NAME_MAX].strip('-') or 'sbatch'}-{job_id}"


def faults_of(meaning: Meaning, cannot_run: str) -> list[str]:
    """Why the job can be read but not be submitted."""
    faults = [cannot_run] if cannot_run else []
    for name in _LATER:
        if name in meaning.options and meaning.text(name) != "now":
            faults.append(f"{meaning.options[name].where}: a run starts as soon as there is room: submit it then")
    if meaning.array is not None and meaning.layout.nodes > 1:
        faults.append(f"an array of jobs with {meaning.layout.nodes} nodes each: submit them as runs of their own")
    if meaning.time_s is not None and meaning.time_s > TIME_LIMIT_MAX:
        faults.append(f"--time is longer than {format_duration(TIME_LIMIT_MAX)}")
    return faults


def _resources(meaning: Meaning) -> dict[str, Any]:
    """`gpu_requests.count` is the run's total, over all elements of an array."""
    layout = meaning.layout
    memory = layout.mem_per_node
    resources: dict[str, Any]
    if meaning.whole_node:
        resources = {"node_fraction": 1}
    elif layout.flexible:
        per_gpu = math.ceil(memory / layout.gpus) if isinstance(memory, int) else DEFAULT_MEMORY
        cores = math.ceil(1000 * layout.cpus / layout.gpus) / 1000
        resources = {"per_gpu": {"cpu_cores": cores, "memory_bytes": per_gpu}}
    else:
        asked = memory if isinstance(memory, int) else DEFAULT_MEMORY * max(layout.gpus_per_node, 1)
        resources = {"cpu_cores": layout.cpus_per_node, "memory_bytes": asked}
    if layout.gpus_per_node:
        elements = len(meaning.array.indices) if meaning.array else 1
        resources["gpu_requests"] = {"count": layout.gpus_per_node * layout.nodes * elements}
        if layout.gpu_model:
            resources["gpu_requests"]["models"] = [layout.gpu_model]
    return resources


def _exported(meaning: Meaning) -> dict[str, str]:
    """What `--export` sets. Nothing else of the submitter's environment goes along."""
    pairs = [item.partition("=") for item in meaning.text("export").split(",") if "=" in item]
    return {name: value for name, _, value in pairs}


def resolve_export(value: str, environment: Mapping[str, str]) -> str:
    """`NAME` in a list of `--export` as `NAME=value`, where the environment has it."""
    names = [name for name in value.split(",") if name]
    return ",".join(f"{name}={environment[name]}" if name in environment else name for name in names)


def _environment(meaning: Meaning, place: Place, job_id: int) -> dict[str, str]:
    """What Slurm sets that is known before a worker starts; the rest is the launcher's."""
    layout, array = meaning.layout, meaning.array
    variables: dict[str, Any] = {
        "SLURM_JOB_ID": job_id,
        "SLURM_JOBID": job_id,
        "SLURM_JOB_NAME": meaning.text("job-name") or "sbatch",
        "SLURM_JOB_USER": place.user,
        "ASTRA_SLURM_CHDIR": meaning.text("chdir"),
        "SLURM_JOB_PARTITION": meaning.text("partition"),
        "SLURM_NTASKS": layout.tasks,
        "SLURM_NPROCS": layout.tasks,
        "SLURM_CPUS_ON_NODE": layout.cpus_per_node,
        "SLURM_JOB_CPUS_PER_NODE": f"{layout.cpus_per_node}(x{layout.nodes})"
        if layout.nodes > 1
        else layout.cpus_per_node,
        "SLURM_NTASKS_PER_NODE": meaning.text("ntasks-per-node"),
        "SLURM_CPUS_PER_TASK": meaning.text("cpus-per-task"),
        "SLURM_CPUS_PER_GPU": meaning.text("cpus-per-gpu"),
        "SLURM_GPUS_ON_NODE": layout.gpus_per_node or "",
        "SLURM_GPUS": meaning.text("gpus"),
        "SLURM_GPUS_PER_NODE": meaning.text("gpus-per-node"),
        "SLURM_GPUS_PER_TASK": meaning.text("gpus-per-task").rpartition(":")[2],
        "SLURM_MEM_PER_NODE": _mebibytes(layout) if "mem" in meaning.options else "",
    }
    if array is not None:
        variables |= {
            "ASTRA_SLURM_ARRAY": array.expression(),
            "SLURM_ARRAY_JOB_ID": job_id,
            "SLURM_ARRAY_TASK_COUNT": len(array.indices),
            "SLURM_ARRAY_TASK_MIN": array.indices[0],
            "SLURM_ARRAY_TASK_MAX": array.indices[-1],
        }
    return {name: str(value) for name, value in variables.items() if value != ""}


def _mebibytes(layout: Layout) -> int:
    return layout.mem_per_node // 1024**2 if isinstance(layout.mem_per_node, int) else 0


def told(meaning: Meaning) -> list[str]:
    """What each worker gets, and what differs from Slurm: one sentence each."""
    layout, array = meaning.layout, meaning.array
    workers = counted(len(array.indices) if array else layout.nodes, "worker")
    if array:
        workers += (
            f" (indices {array.spelled()}{f', at most {array.max_parallel} at once' if array.max_parallel else ''})"
        )
    elif layout.flexible:
        workers += ", more where a machine has fewer GPUs"
    lines = [f"{workers}, each with {_share(meaning)}; {counted(layout.tasks, 'task')} in all"]
    if meaning.time_s is not None and meaning.time_s < TIME_LIMIT_MIN:
        lines.append(
            f"time limit {TIME_LIMIT_MIN}s, the shortest there is; {format_duration(meaning.time_s)} was asked for"
        )
    if layout.mem_per_node is None and not meaning.whole_node:
        per = "per GPU" if layout.gpus_per_node else "per worker"
        lines.append(f"no memory was asked for: {format_memory(DEFAULT_MEMORY)} {per}")
    if meaning.gang:
        lines.append("all workers start together; each runs the whole script")
    lines.append("srun steps are node-local: each worker's srun starts that node's tasks")
    return lines + meaning.notes


def _share(meaning: Meaning) -> str:
    layout, memory = meaning.layout, meaning.layout.mem_per_node
    gpus = f"{counted(layout.gpus_per_node, f'{layout.gpu_model} GPU'.strip())}, " if layout.gpus_per_node else ""
    if meaning.whole_node:
        return f"{gpus}a machine of its own"
    if not isinstance(memory, int):
        memory = DEFAULT_MEMORY * max(layout.gpus_per_node, 1)
    limit = f", time limit {format_duration(meaning.time_s)}" if meaning.time_s else ""
    return f"{gpus}{counted(layout.cpus_per_node, 'core')}, {format_memory(memory)}{limit}"
