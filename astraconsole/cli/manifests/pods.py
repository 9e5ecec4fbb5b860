"""A pod template of Kubernetes as a task template. Pure."""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from astraconsole.cli.manifests.quantities import kubernetes_quantity
from astraconsole.cli.manifests.reading import LeftOut, Part, Refused
from astraconsole.cli.manifests.shares import Share

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
_MODEL_LABELS = (
    "cloud.google.com/gke-accelerator",
    "nvidia.com/gpu.product",
    "k8s.amazonaws.com/accelerator",
    "gpu.nvidia.com/class",
    "gpu.nvidia.com/model",
)
_PULL = {"Always": "Always", "IfNotPresent": "IfNotPresent", "Never": "None"}
RESTARTS = {"Never": "Never", "OnFailure": "OnFailure", "Always": "OnFailure", "ExitCode": "OnFailure"}
_SCHEDULING = "machines are chosen by room, GPU model and pool"
_POD_REASONS = {
    "tolerations": "machines have no taints",
    "affinity": _SCHEDULING,
    "topologySpreadConstraints": _SCHEDULING,
    "schedulerName": "the console's scheduler places it",
    "priorityClassName": "priority is a number here: spec.priority",
    "imagePullSecrets": "make a credential and name it in registry_secret_ref",
    "serviceAccountName": "there are no service accounts",
    "volumes": "make drives of them and name them in datavolume_refs",
    "initContainers": "a worker has one container",
    "hostNetwork": "workers have their machine's network",
}
_SHARED_GPUS = {
    "gpu-fraction": "GPUs are not shared: none is asked for",
    "gpu-memory": "GPUs are not shared: none is asked for",
}
_CONTAINER_REASONS = {
    "envFrom": "make a credential and name it in secret_refs",
    "volumeMounts": "make drives of the volumes and name them in datavolume_refs",
    "ports": "ports need no declaration",
    "lifecycle": "there are no hooks",
    "livenessProbe": "write it as probes.liveness",
    "readinessProbe": "write it as probes.readiness",
    "startupProbe": "write it as probes.startup",
}


@dataclass(frozen=True)
class Pod:
    """`template`: without resources; `share`: what one worker asks for."""

    template: dict[str, Any]
    share: Share
    annotations: dict[str, Any]
    labels: dict[str, Any]


def read_pod(template: Part) -> Pod:
    """Its first container is the worker."""
    metadata, spec = template.part("metadata"), template.part("spec")
    containers = spec.parts("containers")
    if not containers:
        raise Refused(f"{spec.path}.containers must have a container")
    for extra in containers[1:]:
        extra.left_out.append(LeftOut(extra.path, "a worker has one container"))
    container = containers[0]
    found: dict[str, Any] = {"image": container.text("image")}
    if not found["image"]:
        raise Refused(f"{container.at('image')} is required")
    command, args = container.texts("command"), container.texts("args")
    if command:
        found |= {"command": command[0], "args": [*command[1:], *args]}
    elif args:
        found["args"] = args
    if environment := _environment(container):
        found["env"] = environment
    if folder := container.text("workingDir"):
        found["working_dir"] = folder
    if (policy := container.text("imagePullPolicy")) in _PULL:
        found["pull_policy"] = _PULL[policy]
    if restart := spec.text("restartPolicy"):
        found["restart_policy"] = RESTARTS.get(restart, "OnFailure")
    if user := spec.part("securityContext").text("runAsUser"):
        found["user"] = user
    for name, why in _SHARED_GPUS.items():
        if name in metadata.part("annotations").value:
            container.left_out.append(LeftOut(metadata.at(f"annotations.{name}"), why))
    share = _share(container, _models(spec), _shared_memory(spec, container))
    container.take("name")
    container.leave_rest(_CONTAINER_REASONS)
    spec.leave_rest(_POD_REASONS)
    return Pod(found, share, metadata.part("annotations").value, metadata.part("labels").value)


def _environment(container: Part) -> dict[str, str]:
    found = {}
    for item in container.parts("env"):
        if "valueFrom" in item.value:
            container.left_out.append(LeftOut(f"{item.path} {item.text('name')}", "its value is not in the manifest"))
        else:
            found[item.text("name")] = item.text("value")
    return found


def _share(container: Part, models: tuple[str, ...], shm: int | None) -> Share:
    """CPU by request (more is a burst), memory by limit: here memory is a hard limit."""
    resources = container.part("resources")
    requests, limits = resources.part("requests"), resources.part("limits")
    resources.leave("claims", "there are no resource claims")
    amounts = {
        (kind, name): _amount(part, name)
        for kind, part in (("requests", requests), ("limits", limits))
        for name in ("cpu", "memory", *GPU_RESOURCES)
    }
    cpu_asked, cpu_limit = amounts["requests", "cpu"], amounts["limits", "cpu"]
    memory = amounts["limits", "memory"] or amounts["requests", "memory"]
    gpus = sum(int(amounts["limits", name] or amounts["requests", name] or 0) for name in GPU_RESOURCES)
    for part in (requests, limits):
        part.leave_rest(why="only CPU, memory and whole GPUs are counted")
    return Share(
        cores=cpu_asked or cpu_limit,
        memory=int(memory) if memory else None,
        gpus=gpus,
        models=models if gpus else (),
        shm=shm,
        burst=bool(cpu_asked and cpu_limit and cpu_limit > cpu_asked),
    )


def _amount(part: Part, name: str) -> Decimal | None:
    value = part.take(name)
    if value is None:
        return None
    try:
        amount = kubernetes_quantity(value, part.at(name))
    except ValueError as error:
        raise Refused(str(error)) from error
    if name in GPU_RESOURCES and amount != int(amount):
        raise Refused(f"{part.at(name)} {value!r} is not a whole number of GPUs")
    return amount


def _models(spec: Part) -> tuple[str, ...]:
    """GPU models of the node selector and of required node affinity; the selector's other labels are left out."""
    selector = spec.part("nodeSelector")
    found = [gpu_model(selector.text(label)) for label in _MODEL_LABELS if label in selector.value]
    selector.leave_rest(why="machines have labels of their own: see node_selection")
    affinity = spec.value.get("affinity")
    for label, values in _required_labels(affinity):
        if label in _MODEL_LABELS:
            found += [gpu_model(str(value)) for value in values]
    return tuple(dict.fromkeys(found))


def _required_labels(affinity: Any) -> list[tuple[str, list[Any]]]:
    try:
        terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        expressions = [rule for term in terms for rule in term.get("matchExpressions", [])]
        return [(rule["key"], rule.get("values", [])) for rule in expressions if rule.get("operator") == "In"]
    except (KeyError, TypeError, AttributeError):
        return []


def gpu_model(text: str) -> str:
    """`nvidia-tesla-t4` is T4, `NVIDIA-A100-SXM4-80GB` is A100-SXM4-80GB."""
    words = [word for word in re.split(r"[-_ ]", text.upper()) if word not in ("NVIDIA", "TESLA", "AMD", "MEGA")]
    return "-".join(words) or text


def _shared_memory(spec: Part, container: Part) -> int | None:
    """An emptyDir in memory, mounted at /dev/shm."""
    mounts = {
        mount.text("name"): mount.text("mountPath")
        for mount in container.parts("volumeMounts")
        if mount.text("mountPath").rstrip("/") == "/dev/shm"
    }
    size = None
    for volume in spec.parts("volumes"):
        empty = volume.part("emptyDir")
        if volume.text("name") in mounts and empty.text("medium") == "Memory":
            limit = _amount(empty, "sizeLimit")
            size = int(limit) if limit else None
        else:
            kind = next((name for name in volume.value if name != "name"), "volume")
            why = "a worker's own files are deleted with it" if kind == "emptyDir" else _POD_REASONS["volumes"]
            spec.left_out.append(LeftOut(f"{volume.path} {volume.text('name')} ({kind})", why))
    return size
