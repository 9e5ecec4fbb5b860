"""A pod template of Kubernetes as a task template. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from astraconsole.cli.manifests.quantities import kubernetes_quantity
from astraconsole.cli.manifests.reading import LeftOut, Part, Refused
from astraconsole.cli.manifests.shares import Share

MIB = 1024**2
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
PRIORITY = "priority is a number here: spec.priority"
_SCHEDULING = "machines are chosen by room, GPU model and pool"
_POD_REASONS = {
    "tolerations": "machines have no taints",
    "affinity": _SCHEDULING,
    "topologySpreadConstraints": _SCHEDULING,
    "schedulerName": "the console's scheduler places it",
    "priorityClassName": PRIORITY,
    "imagePullSecrets": "make a credential and name it in registry_secret_ref",
    "serviceAccountName": "there are no service accounts",
    "volumes": "make drives of them and name them in datavolume_refs",
    "initContainers": "a worker has one container",
    "hostNetwork": "workers have their machine's network",
}
# Annotations by which some schedulers give out a part of a GPU: a share, MiB of its memory, and of how many GPUs.
_FRACTION, _GPU_MEMORY, _DEVICES = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
_CONTAINER_REASONS = {
    "envFrom": "make a credential and name it in secret_refs",
    "volumeMounts": "make drives of the volumes and name them in datavolume_refs",
    "ports": "ports need no declaration",
    "lifecycle": "there are no hooks",
    "livenessProbe": "write it as probes.liveness",
    "readinessProbe": "write it as probes.readiness",
    "startupProbe": "write it as probes.startup",
}

TOPOLOGY = {
    "kueue.x-k8s.io/podset-required-topology": "all in one",
    "kueue.x-k8s.io/podset-preferred-topology": "preferably in one",
}
KNOWN_ANNOTATIONS = {_FRACTION, _GPU_MEMORY, _DEVICES, *TOPOLOGY}


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
    environment = _environment(container)
    command = [_filled_in(word, environment) for word in container.texts("command")]
    args = [_filled_in(word, environment) for word in container.texts("args")]
    if command:
        found |= {"command": command[0], "args": [*command[1:], *args]}
    elif args:
        found["args"] = args
    if environment:
        found["env"] = environment
    if folder := container.text("workingDir"):
        found["working_dir"] = folder
    if (policy := container.text("imagePullPolicy")) in _PULL:
        found["pull_policy"] = _PULL[policy]
    if restart := spec.text("restartPolicy"):
        found["restart_policy"] = RESTARTS.get(restart, "OnFailure")
    if user := spec.part("securityContext").text("runAsUser"):
        found["user"] = user
    share = _share(container, _models(spec), _shared_memory(spec, container))
    annotations = metadata.part("annotations")
    share = _part_of_a_gpu(share, annotations)
    container.take("name")
    container.leave_rest(_CONTAINER_REASONS)
    spec.leave_rest(_POD_REASONS)
    for name in annotations.value:
        if name not in KNOWN_ANNOTATIONS:
            annotations.leave(name, "annotations are not kept")
    return Pod(found, share, annotations.value, metadata.part("labels").value)


def _environment(container: Part) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in container.parts("env"):
        if "valueFrom" in item.value:
            container.left_out.append(LeftOut(f"{item.path} {item.text('name')}", "its value is not in the manifest"))
        else:
            found[item.text("name")] = _filled_in(item.text("value"), found)
    return found


def _filled_in(text: str, environment: Mapping[str, str]) -> str:
    """With `$(NAME)` of the variables so far, as Kubernetes does it: others stay, and `$$` is `$`."""
    return _REFERENCE.sub(lambda match: environment.get(match[1], match[0]) if match[1] else "$", text)


def _part_of_a_gpu(share: Share, annotations: Part) -> Share:
    """A whole GPU in place of a part of one: a program that needs some of a GPU cannot run without."""
    if share.gpus or not {_FRACTION, _GPU_MEMORY} & annotations.value.keys():
        return share
    devices = annotations.count(_DEVICES, 1)
    fraction, memory = _amount(annotations, _FRACTION), _amount(annotations, _GPU_MEMORY)
    if fraction is not None and not 0 < fraction <= 1:
        raise Refused(f"{annotations.at(_FRACTION)} must be above 0 and at most 1")
    name = _FRACTION if fraction is not None else _GPU_MEMORY
    told = "a whole GPU" if devices == 1 else f"{devices} whole GPUs"
    annotations.left_out.append(LeftOut(annotations.at(name), f"GPUs are not shared: {told} instead"))
    return replace(share, gpus=devices, fraction=fraction, gpu_memory=int(memory) * MIB if memory else None)


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
