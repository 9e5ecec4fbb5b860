"""What the engine is asked for an order, and how its answers to a pull read. Pure."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from machines.agent.runtimes.base import Mount, Prepared, RegistryLogin
from machines.images import image_reference
from machines.orders import EngineUse, Order
from machines.protocol import Gpu, PullFailure

LABEL = "astra"  # labels are astra.machine, astra.attempt, …
LOG_FILE_BYTES = 128 * 1024**2
LOG_FILES = 2  # of the engine, for one attempt
LOG_FILE_BYTES_MIN = 64 * 1024
CPU_PERIOD_MICROSECONDS = 100_000
CPU_QUOTA_MIN_MICROSECONDS = 1_000  # the kernel's least
CPU_SHARES_PER_CORE = 1024
HOSTNAME_LENGTH = 63
ENGINE_ROLE = "engine"
HOST = "127.0.0.1"  # what an engine is told to listen at
WORKSPACE = "/workspace"  # where a run's code is, in its containers


class LogFiles(NamedTuple):
    """How the engine is to keep a container's output."""

    driver: str
    file_bytes: int


# What engines say, in the order it is looked for: a denial may also speak of what does not exist.
_PULL_WORDS: tuple[tuple[PullFailure, tuple[str, ...]], ...] = (
    (PullFailure.DISK_FULL, ("no space left on device", "disk quota exceeded")),
    (
        PullFailure.UNREACHABLE,
        (
            *("timeout", "timed out", "deadline exceeded", "connection refused", "connection reset", "no such host"),
            *("unreachable", "no route to host", "temporary failure", "unexpected eof", "server misbehaving"),
            *("too many requests", "toomanyrequests", "service unavailable", "bad gateway", "internal server error"),
            *("tls handshake", "x509:", "http response to https client"),
        ),
    ),
    (
        PullFailure.DENIED,
        ("unauthorized", "authentication required", "no basic auth credentials", "denied", "forbidden", "may require"),
    ),
    (
        PullFailure.NOT_FOUND,
        ("manifest unknown", "not found", "name unknown", "does not exist", "no such image", "no matching manifest"),
    ),
)


def pull_failure(message: str, reference: str) -> PullFailure | None:
    """What an engine's words for a failed pull of a (full) reference mean; None: none of the known ones."""
    said = message.lower()
    for name in re.split(r"[:@/]", reference.partition("/")[2].lower()):
        said = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", "", said)  # an image may be called `denied`
    return next((kind for kind, words in _PULL_WORDS if any(word in said for word in words)), None)


def with_login(message: str, kind: PullFailure | None, login: RegistryLogin | None) -> str:
    """The engine's words; where a registry denies, also which login it was given."""
    if kind is not PullFailure.DENIED:
        return message
    return f"{message} (without a login)" if login is None else f"{message} (with the login of {login.credential})"


def command_code(message: str) -> int | None:
    """The exit code that a shell would give, from Podman's words for why it cannot start a command. Docker gives it."""
    words = {"attempted to invoke a command that was not found": 127, "OCI runtime permission denied": 126}
    return next((code for part, code in words.items() if part in message), None)


def container_name(attempt: str) -> str:
    return f"{LABEL}-{attempt}"


def engine_key(attempt: str) -> str:
    """What stands for an attempt's uid where the engine beside it is meant."""
    return f"{attempt}-{ENGINE_ROLE}"


def is_engine_key(key: str) -> bool:
    return key.endswith(f"-{ENGINE_ROLE}")


def key_of(labels: Mapping[str, str]) -> str:
    attempt = labels[f"{LABEL}.attempt"]
    return engine_key(attempt) if labels.get(f"{LABEL}.role") == ENGINE_ROLE else attempt


class Site(NamedTuple):
    """What all containers of a machine have in common. `gpus`: by index."""

    machine_id: str
    gpus: Mapping[int, Gpu]
    network: str
    log: LogFiles


def container_request(order: Order, prepared: Prepared, *, image: str, site: Site) -> dict[str, Any]:
    """The body of the engine's create call. argv and environment pass untouched, as lists."""
    environment = {**order.env, **prepared.env}
    working_dir = order.working_dir or (WORKSPACE if prepared.workspace else None)
    request: dict[str, Any] = {
        "Image": image,
        "Hostname": order.worker_name.replace("_", "-").lower()[:HOSTNAME_LENGTH].rstrip("-"),
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": _labels(order, site.machine_id),
        "StopSignal": "SIGTERM",
        "HostConfig": {**_host_config(order, site), **_mounts(prepared)},
    }
    if order.command is not None:
        request |= {"Entrypoint": [order.command], "Cmd": list(order.args)}
    elif order.args:
        request["Cmd"] = list(order.args)
    if working_dir is not None:
        request["WorkingDir"] = working_dir
    if order.user is not None:
        request["User"] = order.user
    return request


def engine_request(order: Order, use: EngineUse, model: Mount, *, image: str, port: int, site: Site) -> dict[str, Any]:
    """The same for the engine beside it, which has its own limits and the attempt's GPUs."""
    words = {"{model}": use.model.name, "{path}": model.target, "{port}": str(port)}
    limited = msgspec.structs.replace(order, cpu_milli=use.cpu_milli, memory_bytes=use.memory_bytes)
    request: dict[str, Any] = {
        "Image": image,
        "Env": [
            f"HOST={HOST}",
            f"PORT={port}",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            f"NVIDIA_VISIBLE_DEVICES={','.join(map(str, order.gpu_indexes)) or 'void'}",
        ],
        "Labels": {**_labels(order, site.machine_id), f"{LABEL}.role": ENGINE_ROLE},
        "HostConfig": {**_host_config(limited, site), **_mounts(Prepared(mounts=[model]))},
    }
    arguments = [_replaced(text, words) for text in use.args]
    if use.command is not None:
        request |= {"Entrypoint": [use.command], "Cmd": arguments}
    elif arguments:
        request["Cmd"] = arguments
    return request


def _replaced(text: str, words: Mapping[str, str]) -> str:
    return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], text)


def _host_config(order: Order, site: Site) -> dict[str, Any]:
    return {
        "NetworkMode": site.network,
        "LogConfig": _log_config(site.log),
        **_cpu(order),
        **_memory(order),
        **_gpu_devices(order, site.gpus),
    }


def _mounts(prepared: Prepared) -> dict[str, Any]:
    mounts = list(prepared.mounts)
    if prepared.workspace is not None:
        mounts.append(Mount(prepared.workspace, WORKSPACE, read_only=False))
    if not mounts:
        return {}
    return {
        "Mounts": [
            {"Type": "bind", "Source": str(mount.source), "Target": mount.target, "ReadOnly": mount.read_only}
            for mount in mounts
        ]
    }


def registry_auth(login: RegistryLogin) -> dict[str, str]:
    return {"username": login.username, "password": login.password, "serveraddress": login.server}


def _labels(order: Order, machine_id: str) -> dict[str, str]:
    values = {
        "machine": machine_id,
        "attempt": order.attempt,
        "worker": order.worker,
        "run": order.run,
        "worker-name": order.worker_name,
        "run-name": order.run_name,
    }
    return {f"{LABEL}.{name}": value for name, value in values.items()}


def log_file_bytes(keep: int) -> int:
    """Of one of the engine's files, where `keep` bytes of an attempt's output may be kept in all: what the engine still
    has is what may be printed while no agent copies it, and at most a quarter of the whole."""
    return min(LOG_FILE_BYTES, max(keep // 4 // LOG_FILES, LOG_FILE_BYTES_MIN))


def _log_config(log: LogFiles) -> dict[str, Any]:
    config = {"max-size": str(log.file_bytes)}
    if log.driver == "local":
        config |= {"max-file": str(LOG_FILES), "compress": "false"}
    return {"Type": log.driver, "Config": config}


def _cpu(order: Order) -> dict[str, int]:
    """A burst order has its cores as a share under contention only; any other is also held to them.

    By quota, not by the engine's NanoCpus: that one refuses more cores than the machine has."""
    if not order.cpu_milli:
        return {}
    shares = {"CpuShares": max(2, order.cpu_milli * CPU_SHARES_PER_CORE // 1000)}
    if order.cpu_burst:
        return shares
    quota = max(CPU_QUOTA_MIN_MICROSECONDS, order.cpu_milli * CPU_PERIOD_MICROSECONDS // 1000)
    return {**shares, "CpuPeriod": CPU_PERIOD_MICROSECONDS, "CpuQuota": quota}


def _memory(order: Order) -> dict[str, int]:
    limits: dict[str, int] = {}
    if order.memory_bytes:
        limits |= {"Memory": order.memory_bytes, "MemorySwap": order.memory_bytes}  # no swap beyond it
    if order.shm_bytes is not None:
        limits["ShmSize"] = order.shm_bytes
    return limits


def _gpu_devices(order: Order, gpus: Mapping[int, Gpu]) -> dict[str, Any]:
    """Simulated GPUs exist in the environment only."""
    real = [gpus[index].uuid for index in order.gpu_indexes if index in gpus and not gpus[index].simulated]
    if not real:
        return {}
    return {"DeviceRequests": [{"Driver": "nvidia", "DeviceIDs": real, "Capabilities": [["gpu"]]}]}


class PullProgress:
    """Reads the stream of a pull: how much of the layers known so far has arrived, then how much is unpacked."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}  # of layers that had to be downloaded, in bytes
        self._here: dict[str, int] = {}
        self._unpacked: dict[str, int] = {}
        self._shown = (-1, 0)

    def feed(self, item: Mapping[str, Any]) -> str | None:
        """`61 %`, or `unpacking 40 %`, when that is news, else None. Never goes back, though layers make themselves
        known late."""
        layer = item.get("id")
        if not isinstance(layer, str):
            return None
        self._take_in(layer, str(item.get("status")), item.get("progressDetail") or {})
        total = sum(self._sizes.values())
        if not total:
            return None
        news = tuple(100 * sum(part.values()) // total for part in (self._here, self._unpacked))
        if news <= self._shown or (news[0] < 100 and news[0] == self._shown[0]):
            return None
        here, unpacked = self._shown = (news[0], news[1])
        return f"unpacking {unpacked} %" if here == 100 and unpacked else f"{here} %"

    def _take_in(self, layer: str, status: str, detail: Mapping[str, Any]) -> None:
        if status == "Downloading" and detail.get("total"):
            self._sizes[layer], self._here[layer] = int(detail["total"]), int(detail.get("current", 0))
        elif layer not in self._sizes:
            return
        elif status == "Download complete":
            self._here[layer] = self._sizes[layer]
        elif status == "Extracting" and detail.get("total"):
            self._unpacked[layer] = self._sizes[layer] * int(detail.get("current", 0)) // int(detail["total"])
        elif status == "Pull complete":
            self._here[layer] = self._unpacked[layer] = self._sizes[layer]


def image_digest(inspected: Mapping[str, Any], reference: str) -> str:
    """`sha256:…` under which a registry knows the image; for one that never was in a registry, the image's own id."""
    repository = re.split(r"[@]|:(?=[^/]*$)", reference)[0]
    for known in inspected.get("RepoDigests") or []:
        name, _, digest = str(known).partition("@")
        if image_reference(name).rpartition(":")[0] == repository:
            return digest
    return str(inspected.get("Id", ""))
