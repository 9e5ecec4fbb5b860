"""From what each worker asks for to the run's resources and totals. Pure."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from astraconsole.cli.manifests.quantities import decimal_cores
from astraconsole.cli.manifests.reading import LeftOut
from runs.units import format_memory

DEFAULT_CORES = 4  # as `astra astraeus run`: per GPU, or per worker without any
DEFAULT_MEMORY = 16 * 1024**3


@dataclass(frozen=True)
class Share:
    """What one worker asks for. None: not said. Sizes in bytes."""

    cores: Decimal | None = None
    memory: int | None = None
    gpus: int = 0
    models: tuple[str, ...] = ()
    gpu_memory: int | None = None
    shm: int | None = None
    burst: bool = False
    fraction: Decimal | None = None  # what is asked for of each GPU, where that is less than a whole one

    @property
    def asked_gpus(self) -> Decimal:
        return self.gpus * (self.fraction or Decimal(1))

    def resources(self, workers: int) -> dict[str, Any]:
        """`gpu_requests.count` is the total of all `workers`."""
        units = max(self.gpus, 1)
        cores = decimal_cores(self.cores) if self.cores else DEFAULT_CORES * units
        asked: dict[str, Any] = {"cpu_cores": cores, "memory_bytes": self.memory or DEFAULT_MEMORY * units}
        if self.burst:
            asked["cpu_burst"] = True
        if self.shm:
            asked["shm_bytes"] = self.shm
        if self.gpus:
            asked["gpu_requests"] = {"count": self.gpus * workers}
            if self.models:
                asked["gpu_requests"]["models"] = list(self.models)
            if self.gpu_memory:
                asked["gpu_requests"]["min_memory_bytes"] = self.gpu_memory
        return asked

    def defaults(self, path: str) -> list[LeftOut]:
        """What had to be made up, since a worker's cores and memory must be said."""
        per = "per GPU" if self.gpus else "per worker"
        made_up = []
        if not self.cores:
            made_up.append(LeftOut(f"{path}: CPU", f"not said: {DEFAULT_CORES} cores {per}"))
        if not self.memory:
            made_up.append(LeftOut(f"{path}: memory", f"not said: {format_memory(DEFAULT_MEMORY)} {per}"))
        return made_up


def totals(shares: list[tuple[int, Share]]) -> dict[str, Any]:
    """`workers, gpus, cpus, mem_bytes` of (how many, each); what is not said of any is left out."""
    cores = sum((count * share.cores for count, share in shares if share.cores), Decimal(0))
    memory = sum(count * share.memory for count, share in shares if share.memory)
    models = list(dict.fromkeys(model for _, share in shares for model in share.models))
    told: dict[str, Any] = {
        "workers": sum(count for count, _ in shares),
        "gpus": decimal_cores(sum((count * share.asked_gpus for count, share in shares), Decimal(0))),
        "gpu_fraction": next((decimal_cores(share.fraction) for _, share in shares if share.fraction), None),
        "gpu_memory_bytes": next((share.gpu_memory for _, share in shares if share.gpu_memory), None),
        "cpus": decimal_cores(cores) if cores else None,
        "mem_bytes": memory or None,
        "gpu_model": models[0] if len(models) == 1 else models or None,
        "shm_bytes": next((share.shm for _, share in shares if share.shm), None),
    }
    if len(shares) == 1:
        [(_, share)] = shares
        told |= {"cpus_each": decimal_cores(share.cores) if share.cores else None, "mem_bytes_each": share.memory}
        told["gpus_each"] = decimal_cores(share.asked_gpus)
    return {name: value for name, value in told.items() if value is not None}
