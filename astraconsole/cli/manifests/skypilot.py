"""SkyPilot's tasks as runs. Pure. Its sizes are GB and binary."""

import re
from decimal import Decimal
from typing import Any

from astraconsole.cli.manifests.pods import gpu_model
from astraconsole.cli.manifests.quantities import binary_size, lower_bound
from astraconsole.cli.manifests.reading import Imported, LeftOut, Part, Refused, run_name
from astraconsole.cli.manifests.shares import Share, totals

FIELDS = frozenset({"resources", "run", "num_nodes", "setup", "pool", "file_mounts", "workdir", "service"})
_REASONS = {
    "workdir": "send it with --code",
    "file_mounts": "put the files on a drive and name it in datavolume_refs",
    "volumes": "make drives of them and name them in datavolume_refs",
    "storage": "make drives of them and name them in datavolume_refs",
    "secrets": "make a credential and name it in secret_refs",
    "service": "replicas behind one address are not served: lifetime Service keeps one run up",
    "config": "of SkyPilot itself",
}
_CLOUD = "machines are the workspace's own"
_RESOURCE_REASONS = {
    "ports": "ports need no declaration",
    "labels": "labels of a cloud's machines",
    "job_recovery": "preempted work is always queued again; use restart_policy for failures",
}
_NAMES = (
    "export SKYPILOT_NODE_RANK=$NODE_RANK SKYPILOT_NUM_NODES=$NNODES SKYPILOT_NODE_IPS=$MASTER_ADDR "
    "SKYPILOT_NUM_GPUS_PER_NODE=$ASTRA_GPU_COUNT SKYPILOT_TASK_ID=$ASTRA_RUN"
)


def read_skypilot(document: dict[str, Any]) -> Imported:
    left_out: list[LeftOut] = []
    root = Part(document, "", left_out)
    name, nodes, pool = run_name(root.text("name"), "task"), root.count("num_nodes", 1), root.part("pool")
    workers = pool.count("workers", pool.count("min_workers", nodes)) if pool.value else nodes
    resources = root.part("resources")
    try:
        share, told = _resources(resources)
    except ValueError as error:
        raise Refused(str(error)) from error
    template: dict[str, Any] = {"requested_resources": share.resources(workers)}
    image = resources.text("image_id")
    if image.startswith("docker:"):
        template["image"] = image.removeprefix("docker:")
    else:
        left_out.append(LeftOut("image", "a machine image of a cloud: give a container image with --image"))
    steps = [step for step in (root.text("setup"), root.text("run")) if step.strip()]
    if steps:
        template |= {"command": "bash", "args": ["-ec", "\n".join([_NAMES, *steps])]}
    else:
        left_out.append(LeftOut("run", "there is no command: the image's own is run"))
    if environment := _environment(root, left_out):
        template["env"] = environment
    spec: dict[str, Any] = {"task_template": template}
    if pool.value:
        spec["node_selection"] = {"count": workers}
        told |= {name: pool.count(name, workers) for name in ("min_workers", "max_workers") if name in pool.value}
        if "max_workers" in told:
            pool.left_out.append(LeftOut(pool.at("max_workers"), f"a run has a fixed number of workers: {workers}"))
        pool.leave_rest()
    elif nodes > 1:
        spec |= {"machines": nodes, "start": "Gang"}
    if root.value.get("service"):
        spec["lifetime"] = "Service"
    resources.leave_rest(_RESOURCE_REASONS, why=_CLOUD)
    root.leave_rest(_REASONS)
    left_out += share.defaults("resources")
    meaning = {**totals([(workers, share)]), **told, "gang": nodes > 1}
    return Imported({"metadata": {"name": name}, "spec": spec}, meaning, left_out)


def _environment(root: Part, left_out: list[LeftOut]) -> dict[str, str]:
    found = {}
    for name, value in root.part("envs").value.items():
        if value is None:
            left_out.append(LeftOut(f"envs.{name}", "its value is not in the file: set it, or use a credential"))
        else:
            found[str(name)] = str(value)
    return found


def _resources(part: Part) -> tuple[Share, dict[str, Any]]:
    told: dict[str, Any] = {}
    cores, memory, disk = part.take("cpus"), part.take("memory"), part.take("disk_size")
    if cores is not None:
        least, open_ended = lower_bound(cores)
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", least) is None:
            raise ValueError(f"resources.cpus {cores!r} is not a number of cores: write 4 or 4+")
        if open_ended:
            told["cpus"] = f">={least} each"
            part.left_out.append(LeftOut(part.at("cpus"), f"{cores} is a lower bound: {least} cores each"))
    if memory is not None and lower_bound(memory)[1]:
        part.left_out.append(LeftOut(part.at("memory"), f"{memory} is a lower bound: it is what is asked for"))
    if disk is not None:
        told["disk"] = f"{disk} GB" if str(disk).isdigit() else str(disk)
        part.left_out.append(LeftOut(part.at("disk_size"), "disk space is not counted"))
    models, gpus = _accelerators(part)
    share = Share(
        cores=Decimal(lower_bound(cores)[0]) if cores is not None else None,
        memory=binary_size(lower_bound(memory)[0], part.at("memory"), "g") if memory is not None else None,
        gpus=gpus,
        models=models,
    )
    return share, told


def _asked(value: Any) -> list[str]:
    """As `MODEL` or `MODEL:COUNT`. YAML's `{A100:8, H100:8}` is a mapping to nothing."""
    if isinstance(value, dict):
        return [f"{name}:{count}" if count else str(name) for name, count in value.items()]
    return [str(item) for item in (value if isinstance(value, list) else [value]) if item is not None]


def _accelerators(part: Part) -> tuple[tuple[str, ...], int]:
    """`A100:8`, `{A100: 8}`, `[A100:8, H100:8]`: models of one count; else those of the choices in `any_of`."""
    value = part.take("accelerators", part.take("gpus"))
    asked = _asked(value)
    for choice in ("any_of", "ordered"):
        alternatives = [item.take("accelerators", item.take("gpus")) for item in part.parts(choice)]
        asked = asked or [word for alternative in alternatives for word in _asked(alternative)]
        part.leave(choice, "a run has one set of needs: its GPU models are carried, nothing else")
    if not asked:
        return (), 0
    models, counts = [], set()
    for item in asked:
        name, _, count = item.partition(":")
        if re.fullmatch(r"[0-9]{1,4}", count or "1") is None:
            raise ValueError(f"resources.accelerators {item!r} is not MODEL or MODEL:COUNT with whole GPUs")
        models.append(gpu_model(name))
        counts.add(int(count or 1))
    if any(model.startswith("TPU") for model in models):
        raise ValueError("resources.accelerators asks for TPUs, and machines have GPUs")
    if len(counts) > 1:
        raise ValueError("resources.accelerators asks for different counts: choose one")
    return tuple(models), counts.pop()
