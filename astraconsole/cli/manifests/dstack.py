"""dstack's configurations as runs. Pure. Its sizes are binary, whatever they are called."""

import re
from decimal import Decimal
from typing import Any

from astraconsole.cli.manifests.pods import gpu_model
from astraconsole.cli.manifests.quantities import binary_size, lower_bound, seconds
from astraconsole.cli.manifests.reading import Imported, LeftOut, Part, Refused, run_name
from astraconsole.cli.manifests.shares import Share, totals
from runs.units import TIME_LIMIT_MAX, TIME_LIMIT_MIN

_TPU = re.compile(r"(?:tpu-)?v[0-9]+(?:p|e|litepod)?-[0-9]+", re.IGNORECASE)
_MODEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
TYPES = ("task", "service", "dev-environment")
_REASONS = {
    "python": "dstack's own image has it: give an image",
    "nvcc": "dstack's own image has it: give an image",
    "volumes": "make drives of them and name them in datavolume_refs",
    "files": "send them with --code, or put them on a drive",
    "repos": "send the code with --code, or clone it in the command",
    "registry_auth": "make a credential and name it in registry_secret_ref",
    "ports": "ports need no declaration",
    "port": "ports need no declaration",
    "retry": "use restart_policy and on_failure",
    "fleets": "use pools: node_selection",
    "ide": "there are no development environments",
    "replicas": "one copy is run",
    "scaling": "one copy is run",
    "model": "there is no gateway in front of it",
    "gateway": "there is no gateway in front of it",
    "auth": "there is no gateway in front of it",
    "utilization_policy": "use probes.liveness",
    "stop_duration": "a worker has its machine's stop grace",
}
_CLOUD = "machines are the workspace's own"
# Its names for what a worker is told.
_NAMES = (
    "export DSTACK_NODE_RANK=$NODE_RANK DSTACK_NODES_NUM=$NNODES DSTACK_MASTER_NODE_IP=$MASTER_ADDR "
    "DSTACK_GPUS_PER_NODE=$ASTRA_GPU_COUNT DSTACK_GPUS_NUM=$((ASTRA_GPU_COUNT * NNODES))"
)


def read_dstack(document: dict[str, Any]) -> Imported | None:
    """None for what is no work: fleets, volumes, gateways."""
    left_out: list[LeftOut] = []
    root = Part(document, "", left_out)
    kind = root.text("type")
    if kind not in TYPES:
        return None
    name, nodes = run_name(root.text("name"), kind), root.count("nodes", 1)
    try:
        share, told = _resources(root.part("resources"))
        limit = seconds(root.text("max_duration") or "off", "max_duration")
    except ValueError as error:
        raise Refused(str(error)) from error
    template: dict[str, Any] = {"requested_resources": share.resources(nodes)}
    if image := root.text("image"):
        template["image"] = image.removeprefix("docker:")
    else:
        left_out.append(LeftOut("image", "dstack's own default image: give one with --image"))
    _commands(root, template)
    if environment := _environment(root, left_out):
        template["env"] = environment
    if folder := root.text("working_dir"):
        template["working_dir"] = folder if folder.startswith("/") else f"/workflow/{folder}"
    if limit is not None:
        template["time_limit_seconds"] = min(max(limit, TIME_LIMIT_MIN), TIME_LIMIT_MAX)
    spec: dict[str, Any] = {"task_template": template}
    if nodes > 1:
        spec |= {"machines": nodes, "start": "Gang"}
    if kind != "task":
        spec["lifetime"] = "Service"
    priority = root.take("priority")
    if priority is not None:
        spec["priority"] = root.count("priority", 0)
    for field in ("backends", "regions", "instance_types", "spot_policy", "max_price", "reservation", "idle_duration"):
        root.leave(field, _CLOUD)
    root.leave_rest(_REASONS)
    left_out += share.defaults("resources")
    meaning = {**totals([(nodes, share)]), **told, "gang": nodes > 1, "time_s": limit}
    return Imported({"metadata": {"name": name}, "spec": spec}, meaning, left_out)


def _commands(root: Part, template: dict[str, Any]) -> None:
    commands = root.texts("commands")
    if commands:
        template |= {"command": root.text("shell") or "sh", "args": ["-ec", "\n".join([_NAMES, *commands])]}
    if entrypoint := root.text("entrypoint"):
        template |= {"command": "sh", "args": ["-c", f"exec {entrypoint}"]}


def _environment(root: Part, left_out: list[LeftOut]) -> dict[str, str]:
    """`KEY=value` and `KEY: value`; a KEY alone is taken from the submitter's environment, which stays there."""
    value = root.take("env", [])
    pairs = [(name, item) for name, item in value.items()] if isinstance(value, dict) else []
    for item in value if isinstance(value, list) else []:
        name, equals, text = str(item).partition("=")
        pairs.append((name, text if equals else None))
    found: dict[str, str] = {}
    for name, item in pairs:
        if item is None or "${{" in str(item):
            left_out.append(LeftOut(f"env.{name}", "its value is not in the file: set it, or use a credential"))
        else:
            found[str(name)] = str(item)
    return found


def _resources(part: Part) -> tuple[Share, dict[str, Any]]:
    """What one node asks for, and the ranges of which the least is taken."""
    told: dict[str, Any] = {}
    cores, memory = part.take("cpu"), part.take("memory")
    if isinstance(cores, dict):
        cores = part.part("cpu").text("count")
    least_cores = lower_bound(str(cores).rpartition(":")[2])[0] if cores is not None else None
    if least_cores is not None and re.fullmatch(r"[0-9]+(\.[0-9]+)?", least_cores) is None:
        raise ValueError(f"resources.cpu {cores!r} is not a number of cores")
    shm = part.take("shm_size")
    gpus, models, gpu_memory, spelled = _gpus(part)
    if ".." in spelled:
        told["gpus_per_worker"] = spelled
    if lower_bound(spelled)[1]:
        part.left_out.append(LeftOut(part.at("gpu"), f"{spelled} is a range: {gpus} per worker"))
    disk = part.take("disk")
    if disk is not None:
        size = disk.get("size") if isinstance(disk, dict) else disk
        told["disk"] = re.sub(r"(?<=[0-9])(?=[A-Za-z])", " ", str(size))
        part.left_out.append(LeftOut(part.at("disk"), "disk space is not counted"))
    for name, value in (("cpu", cores), ("memory", memory)):
        if value is not None and lower_bound(value)[1]:
            least = lower_bound(value)[0]
            part.left_out.append(LeftOut(part.at(name), f"{value} is a range: {least} is asked for"))
    part.leave_rest()
    share = Share(
        cores=Decimal(least_cores) if least_cores else None,
        memory=binary_size(lower_bound(memory)[0], part.at("memory"), "g") if memory is not None else None,
        gpus=gpus,
        models=models,
        gpu_memory=gpu_memory,
        shm=binary_size(shm, part.at("shm_size"), "g") if shm is not None else None,
    )
    return share, told


def _gpus(part: Part) -> tuple[int, tuple[str, ...], int | None, str]:
    """(least count, models, memory of each, count as written) of `1..8`, `A100:2`, `24GB`, `{name, count, memory}`."""
    value = part.take("gpu")
    if value is None:
        return 0, (), None, ""
    if isinstance(value, dict):
        gpu = part.part("gpu")
        words = [*([",".join(gpu.texts("name"))] if "name" in gpu.value else []), gpu.text("memory"), gpu.text("count")]
        for name in ("vendor", "total_memory", "compute_capability"):
            gpu.leave(name, "choose a model")
    else:
        words = str(value).split(":")
    models: tuple[str, ...] = ()
    memory, count = None, "1"
    for word in filter(None, words):
        if re.fullmatch(r"[0-9]*\.\.[0-9]*|[0-9]+", word):
            count = word
        elif re.fullmatch(r"(?:[0-9.]+ ?[GMT]B?)?(?:\.\.)?(?:[0-9.]+ ?[GMT]B?)?", word, re.IGNORECASE):
            memory = binary_size(lower_bound(word)[0], part.at("gpu"))
        elif _TPU.fullmatch(word):
            raise ValueError(f"{part.at('gpu')} {word!r} asks for TPUs, and machines have GPUs")
        elif models or not all(_MODEL.fullmatch(name.strip()) for name in word.split(",")):
            raise ValueError(f"{part.at('gpu')} {word!r} is not a GPU: write A100, A100:80GB or A100:4")
        elif word.lower() not in ("nvidia", "amd"):
            models = tuple(gpu_model(name.strip()) for name in word.split(","))
    least = lower_bound(count)[0]
    return int(least or 0), models if int(least or 0) else (), memory, count
