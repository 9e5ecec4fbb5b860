"""The machine's GPUs: what they are, how they are and what they do; by NVML, or claimed and marked as simulated."""

import ctypes
import hashlib
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec
import pynvml

from machines.agent import clock
from machines.protocol import Gpu

log = logging.getLogger(__name__)
T = TypeVar("T")

# Errors of the program that runs, not of the GPU: XIDs that say nothing about its health.
PROGRAM_XIDS = frozenset({13, 31, 43, 45, 68, 69, 109})
GPM = {
    "sm": "NVML_GPM_METRIC_SM_UTIL",
    "tensor": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
LOST = "The GPU is lost: it has fallen off the bus"


@dataclass(frozen=True)
class Reading:
    """A GPU just now. Ratios are 0 to 1; None: it does not tell."""

    utilization: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    sm: float | None = None
    tensor: float | None = None
    dram: float | None = None


class Gpus(Protocol):
    """Called from one thread at a time, which may be another each time."""

    def inventory(self) -> list[Gpu]:
        """As they are now, health included, in PCI bus order."""

    def read(self, busy: Mapping[int, float]) -> dict[int, Reading]:
        """By index. `busy`: indexes that a running attempt holds, and for how many seconds: for simulated ones."""


def find(simulated: Sequence[Gpu]) -> Gpus:
    return SimulatedGpus(simulated) if simulated else NvmlGpus()


# ---- NVML ------------------------------------------------------------------------------------------------------------


@dataclass
class _Device:
    handle: Any
    gpu: Gpu
    gpm: bool
    before: Any = None  # the GPM sample before: activity is what happened between two
    xid: int = 0  # the newest that is the GPU's own fault


@dataclass
class NvmlGpus:
    """Opened at the first use; a machine without the driver has none."""

    _devices: dict[int, _Device] = field(default_factory=dict)
    _events: Any = None
    _opened: bool = False

    def inventory(self) -> list[Gpu]:
        self._open()
        self._take_events()
        return [self._with_health(device) for device in self._devices.values()]

    def read(self, busy: Mapping[int, float]) -> dict[int, Reading]:
        self._open()
        return {index: self._read(device) for index, device in self._devices.items()}

    def _open(self) -> None:
        if self._opened:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return  # asked again each time: a driver may be loaded later
        self._opened = True
        self._events = _asked(pynvml.nvmlEventSetCreate)
        self._devices = {index: self._device(index) for index in range(pynvml.nvmlDeviceGetCount())}

    def _device(self, index: int) -> _Device:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            gpu = Gpu(index, pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle), int(memory.total))
        except pynvml.NVMLError as error:  # there, and lost: it counts, and cannot be used
            return _Device(None, Gpu(index, f"unknown-{index}", "unknown", 0, False, _words(error)), gpm=False)
        support = _asked(lambda: pynvml.nvmlGpmQueryDeviceSupport(handle))
        if self._events is not None:
            _asked(lambda: pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events))
        return _Device(handle, gpu, gpm=support is not None and bool(support.isSupportedDevice))

    # ---- health

    def _take_events(self) -> None:
        """What the driver has reported since: an XID stands until the agent starts anew."""
        while self._events is not None:
            event = _asked(lambda: pynvml.nvmlEventSetWait(self._events, 0))
            if event is None:
                return
            if event.eventData not in PROGRAM_XIDS:
                for device in self._devices.values():
                    if device.handle is not None and _same(device.handle, event.device):
                        device.xid = int(event.eventData)

    def _with_health(self, device: _Device) -> Gpu:
        if device.handle is None:
            return device.gpu
        try:
            reason = _fault(device)
        except pynvml.NVMLError as error:
            reason = _words(error)
        return msgspec.structs.replace(device.gpu, healthy=not reason, health_reason=reason)

    # ---- what it does

    def _read(self, device: _Device) -> Reading:
        handle = device.handle
        if handle is None:
            return Reading()
        utilization = _asked(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        memory = _asked(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
        processes = _asked(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return Reading(
            utilization=None if utilization is None else _ratio(utilization.gpu),
            memory_bytes=None if memory is None else int(memory.used),
            processes=None if processes is None else len(processes),
            **self._activity(device),
        )

    def _activity(self, device: _Device) -> dict[str, float]:
        """Between the sample before and now: nothing at the first look."""
        if not device.gpm:
            return {}
        now = _asked(lambda: pynvml.nvmlGpmSampleGet(device.handle, pynvml.nvmlGpmSampleAlloc()))
        before, device.before = device.before, now
        try:
            return _between(before, now) if before is not None and now is not None else {}
        finally:
            if before is not None:
                _asked(lambda: pynvml.nvmlGpmSampleFree(before))


def _between(before: Any, now: Any) -> dict[str, float]:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(GPM)
    request.sample1, request.sample2 = before, now
    for place, name in enumerate(GPM.values()):
        request.metrics[place].metricId = getattr(pynvml, name)
    if _asked(lambda: pynvml.nvmlGpmMetricsGet(request)) is None:
        return {}
    found = zip(GPM, request.metrics, strict=False)
    return {
        name: _ratio(metric.value)
        for name, metric in found
        if metric.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(metric.value)
    }


def _fault(device: _Device) -> str:
    """Why work should not be given to it; empty: nothing is known against it. Raises NVMLError where it is lost."""
    handle = device.handle
    pynvml.nvmlDeviceGetUUID(handle)  # the cheapest call that a lost one refuses
    if device.xid:
        return f"XID {device.xid} was reported by the driver"
    uncorrected, volatile = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    errors = _asked(lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, volatile))
    if errors:
        return f"{errors} uncorrected ECC error{'s' if errors > 1 else ''} since the GPU was last reset"
    rows = _asked(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    if rows is not None and rows[3]:
        return "A memory row could not be remapped"
    if rows is not None and rows[2]:
        return "Memory rows wait to be remapped: the GPU needs a reset"
    return ""


def _asked(call: Callable[[], T]) -> T | None:
    """The answer; None where this GPU, or the driver, does not tell (or is gone: its health says so)."""
    try:
        return call()
    except pynvml.NVMLError as error:
        log.debug("NVML: %s", error)
        return None


def _words(error: Exception) -> str:
    return LOST if isinstance(error, pynvml.NVMLError_GpuIsLost) else f"NVML: {error}"


def _same(one: Any, other: Any) -> bool:
    """Two handles of one device: pointers of which Python makes an object each."""
    return ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value


def _ratio(percent: float) -> float:
    return min(1.0, max(0.0, percent / 100))


# ---- simulated -------------------------------------------------------------------------------------------------------


class SimulatedGpus:
    """Values that a training run could have: a wave for each GPU, the same at the same moment whoever looks. Nothing is
    measured, and wherever it is shown it is marked."""

    HOPPER = re.compile(r"H\d00|H20|GH200|B\d00|GB\d00|R\d00", re.IGNORECASE)

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = list(gpus)

    def inventory(self) -> list[Gpu]:
        return self._gpus

    def read(self, busy: Mapping[int, float]) -> dict[int, Reading]:
        now = clock.now()
        return {gpu.index: self._read(gpu, busy.get(gpu.index), now) for gpu in self._gpus}

    def _read(self, gpu: Gpu, busy_seconds: float | None, now: float) -> Reading:
        hopper = self.HOPPER.search(gpu.model) is not None
        if busy_seconds is None:
            quiet = 0.0 if hopper else None
            return Reading(0.0, min(gpu.memory_bytes, 512 << 20), 0, quiet, quiet, quiet)
        warm = min(1.0, busy_seconds / 60)  # loading first: memory fills, then the cores are busy
        level = warm * (0.93 + 0.05 * wave(gpu.uuid, now, 95) + 0.02 * wave(gpu.uuid + "n", now, 7))
        memory = int(gpu.memory_bytes * (0.1 + 0.72 * warm + 0.02 * wave(gpu.uuid + "m", now, 240)))
        parts = (round(level * part, 4) if hopper else None for part in (0.88, 0.47, 0.61))
        return Reading(round(level, 4), memory, 1, *parts)


def wave(seed: str, now: float, period: float) -> float:
    """-1 to 1, smooth; where it begins is the seed's."""
    shift = int.from_bytes(hashlib.blake2s(seed.encode(), digest_size=2).digest()) / 65536
    return math.sin(2 * math.pi * (now / period + shift))
