"""libnvidia-ml as far as the agent calls it: C functions of the real names, called by the real pynvml through ctypes.

Each takes what the C one takes (handles, pointers to fill in) and returns a status, so what is tried is pynvml's own
calls, structures and errors; only the driver beneath is not there.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pynvml

OK, LOST, UNSUPPORTED, TIMEOUT = (
    pynvml.NVML_SUCCESS,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_TIMEOUT,
)


@dataclass(eq=False)
class FakeGpu:
    name: str = "NVIDIA H100 80GB HBM3"
    memory: int = 80 << 30
    used: int = 60 << 30
    utilization: int = 97  # percent
    processes: int = 1
    ecc_errors: int | None = 0  # None: has no ECC
    rows_pending: bool = False
    rows_failed: bool = False
    gpm: bool = True
    activity: dict[int, float] = field(default_factory=lambda: {2: 80.0, 5: 40.5, 10: 62.0})  # by GPM metric, percent
    lost: bool = False


class FakeNvml:
    """What stands in for the loaded library. `xids`: (GPU index, number) that the driver has still to report."""

    def __init__(self, gpus: list[FakeGpu]) -> None:
        self.gpus = gpus
        self.xids: list[tuple[int, int]] = []
        self.samples = 0  # allocated and not freed

    def gpu(self, handle: Any) -> FakeGpu:
        return self.gpus[ctypes.cast(handle, ctypes.c_void_p).value - 1]

    def __getattr__(self, name: str) -> Callable[..., int]:
        try:
            function = FUNCTIONS[name]
        except KeyError:
            raise AttributeError(name) from None
        return lambda *arguments: function(self, *map(pointed, arguments))


def pointed(argument: Any) -> Any:
    """What `byref(x)` points to."""
    return getattr(argument, "_obj", argument)


def of_gpu(function: Callable[..., int]) -> Callable[..., int]:
    """A call on a device: refused once it is lost."""

    def call(nvml: FakeNvml, handle: Any, *rest: Any) -> int:
        gpu = nvml.gpu(handle)
        return LOST if gpu.lost else function(gpu, *rest)

    return call


def fill(target: Any, **values: Any) -> int:
    for name, value in values.items():
        setattr(target, name, value)
    return OK


def text(value: str) -> Callable[..., int]:
    def call(buffer: Any, _size: Any) -> int:
        buffer.value = value.encode()
        return OK

    return call


def handle_by_index(nvml: FakeNvml, index: Any, device: Any) -> int:
    if nvml.gpus[index.value].lost:
        return LOST
    ctypes.memmove(ctypes.byref(device), ctypes.byref(ctypes.c_void_p(index.value + 1)), ctypes.sizeof(ctypes.c_void_p))
    return OK


def processes(gpu: FakeGpu, count: Any, infos: Any) -> int:
    if infos is None:
        count.value = gpu.processes
        return pynvml.NVML_ERROR_INSUFFICIENT_SIZE if gpu.processes else OK
    count.value = gpu.processes
    return OK


def ecc(gpu: FakeGpu, _kind: Any, _counter: Any, count: Any) -> int:
    return UNSUPPORTED if gpu.ecc_errors is None else fill(count, value=gpu.ecc_errors)


def rows(gpu: FakeGpu, _correctable: Any, _uncorrectable: Any, pending: Any, failed: Any) -> int:
    pending.value, failed.value = gpu.rows_pending, gpu.rows_failed
    return OK


def wait(nvml: FakeNvml, _events: Any, data: Any, _timeout: Any) -> int:
    if not nvml.xids:
        return TIMEOUT
    index, xid = nvml.xids.pop(0)
    device = pynvml.c_nvmlDevice_t()
    handle_by_index(FakeNvml([FakeGpu() for _ in nvml.gpus]), ctypes.c_uint(index), device)
    return fill(data, device=device, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=xid)


def sample_alloc(nvml: FakeNvml, sample: Any) -> int:
    nvml.samples += 1
    return OK


def sample_free(nvml: FakeNvml, _sample: Any) -> int:
    nvml.samples -= 1
    return OK


def metrics_get(nvml: FakeNvml, request: Any) -> int:
    activity = next(gpu.activity for gpu in nvml.gpus if gpu.gpm)
    for metric in request.metrics[: request.numMetrics]:
        known = metric.metricId in activity
        metric.nvmlReturn = OK if known else UNSUPPORTED
        metric.value = activity.get(metric.metricId, float("nan"))
    return OK


FUNCTIONS: dict[str, Callable[..., int]] = {
    "nvmlInitWithFlags": lambda nvml, flags: OK,
    "nvmlDeviceGetCount_v2": lambda nvml, count: fill(count, value=len(nvml.gpus)),
    "nvmlDeviceGetHandleByIndex_v2": handle_by_index,
    "nvmlDeviceGetUUID": lambda nvml, handle, buffer, size: (
        LOST if nvml.gpu(handle).lost else text(f"GPU-{nvml.gpus.index(nvml.gpu(handle))}")(buffer, size)
    ),
    "nvmlDeviceGetName": of_gpu(lambda gpu, buffer, size: text(gpu.name)(buffer, size)),
    "nvmlDeviceGetMemoryInfo": of_gpu(lambda gpu, info: fill(info, total=gpu.memory, used=gpu.used)),
    "nvmlDeviceGetUtilizationRates": of_gpu(lambda gpu, rates: fill(rates, gpu=gpu.utilization)),
    "nvmlDeviceGetComputeRunningProcesses_v3": of_gpu(processes),
    "nvmlDeviceGetTotalEccErrors": of_gpu(ecc),
    "nvmlDeviceGetRemappedRows": of_gpu(rows),
    "nvmlEventSetCreate": lambda nvml, events: OK,
    "nvmlDeviceRegisterEvents": of_gpu(lambda gpu, kinds, events: OK),
    "nvmlEventSetWait_v2": wait,
    "nvmlGpmQueryDeviceSupport": of_gpu(lambda gpu, support: fill(support, isSupportedDevice=int(gpu.gpm))),
    "nvmlGpmSampleAlloc": sample_alloc,
    "nvmlGpmSampleFree": sample_free,
    "nvmlGpmSampleGet": of_gpu(lambda gpu, sample: OK),
    "nvmlGpmMetricsGet": metrics_get,
}


@contextmanager
def driver(*gpus: FakeGpu) -> Iterator[FakeNvml]:
    """A machine with these GPUs, for as long as this lasts."""
    fake = FakeNvml(list(gpus))
    before = pynvml.nvmlLib
    pynvml.nvmlLib = fake
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield fake
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
