"""What the machine declares to have: the host's own facts, or what its operator says instead."""

import os
import re
import socket
from collections.abc import Mapping

from machines.protocol import Gpu, Inventory

MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*(?:([kmgt])i?b?)?", re.ASCII | re.IGNORECASE)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_memory(text: str) -> int:
    """Bytes of `16Gi`, `16G` (binary) or a plain number of bytes. Raises ValueError with a sentence.

    Read here because the console's parser is not where an agent is; a test holds the two together.
    """
    match = MEMORY.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"not an amount of memory: {text} (examples: 16Gi, 512Mi)")
    return int(float(match[1]) * 1024 ** POWERS[(match[2] or "").lower()])


def simulated_gpus(text: str, machine_id: str) -> list[Gpu]:
    """Of `8xH100-80GB`, or several such, by commas. Raises ValueError with a sentence."""
    gpus: list[Gpu] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d+)x([A-Za-z0-9][\w.-]*)-(\d+[A-Za-z]+)", part, flags=re.ASCII)
        if match is None:
            raise ValueError(f"not a number of GPUs: {part} (example: 8xH100-80GB)")
        for _ in range(int(match[1])):
            index, model = len(gpus), f"{match[2]}-{match[3]}"
            uuid = f"GPU-simulated-{machine_id[:12]}-{index}"
            gpus.append(Gpu(index, uuid, model, parse_memory(match[3]), simulated=True))
    return gpus


def take(
    runtime: str,
    *,
    gpus: list[Gpu],
    cpus: float | None = None,
    memory_bytes: int | None = None,
    labels: Mapping[str, str] | None = None,
    address: str = "",
) -> Inventory:
    """The host's cores and memory unless something else is declared. `address`: empty where it is to be found out."""
    return Inventory(
        hostname=socket.gethostname(),
        runtime=runtime,
        cpu_milli=round((cpus or len(os.sched_getaffinity(0))) * 1000),
        memory_bytes=memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=gpus,
        labels=dict(labels or {}),
        address=address,
    )
