"""The metrics of workers: names, kinds and units. Pure; known to both sides of the agent's protocol."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"  # only grows, but for a new start from 0


@dataclass(frozen=True)
class Metric:
    name: str
    kind: Kind
    unit: str  # cores | bytes | count | 0–1
    short: str
    help: str
    per_gpu: bool = False


_G, _C = Kind.GAUGE, Kind.COUNTER
# A series travels and is stored by its metric's place in this table: add at the end, take nothing out.
METRICS = (
    Metric("task_cpu_usage_cores", _G, "cores", "CPU", "CPU in use"),
    Metric("task_memory_used_bytes", _G, "bytes", "Memory", "Memory charged to the worker"),
    Metric("task_memory_limit_bytes", _G, "bytes", "Memory limit", "Its memory limit"),
    Metric("task_oom_kills_total", _C, "count", "OOM kills", "Processes killed for memory"),
    Metric("task_network_receive_bytes_total", _C, "bytes", "Received", "Network traffic received"),
    Metric("task_network_transmit_bytes_total", _C, "bytes", "Sent", "Network traffic sent"),
    Metric("task_gpu_utilization_ratio", _G, "0–1", "GPU", "Time that the GPU was busy", per_gpu=True),
    Metric("task_gpu_memory_used_bytes", _G, "bytes", "GPU memory", "GPU memory in use", per_gpu=True),
    Metric("task_gpu_sm_active_ratio", _G, "0–1", "SM", "SM activity", per_gpu=True),
    Metric("task_gpu_tensor_active_ratio", _G, "0–1", "Tensor cores", "Tensor core activity", per_gpu=True),
    Metric("task_gpu_dram_active_ratio", _G, "0–1", "Memory bandwidth", "Memory bandwidth activity", per_gpu=True),
)
BY_NAME = {metric.name: metric for metric in METRICS}
_PLACES = {metric.name: place for place, metric in enumerate(METRICS)}
_PLACE_BITS = 8


def place_of(metric: Metric) -> int:
    """Its place in the table."""
    return _PLACES[metric.name]


def key_of(name: str, gpu: int | None = None) -> int:
    """The number that stands for one series of a worker. `gpu`: the index on its machine."""
    return _PLACES[name] | (0 if gpu is None else gpu + 1) << _PLACE_BITS


def series_of(key: int) -> tuple[Metric, int | None] | None:
    """(metric, GPU index); None for a number that stands for nothing here: a newer agent's metric, say."""
    place, gpu = key & (1 << _PLACE_BITS) - 1, (key >> _PLACE_BITS) - 1
    if key < 0 or place >= len(METRICS) or METRICS[place].per_gpu != (gpu >= 0):
        return None
    return METRICS[place], gpu if gpu >= 0 else None
