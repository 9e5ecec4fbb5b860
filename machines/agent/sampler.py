"""Looks at what the machine's workers and GPUs use, every few seconds, and tells the console in batches.

Nothing of it is repeated: what is lost is a gap. While the console is away the newest looks are kept, so that its
restart leaves none.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from machines.agent import clock
from machines.agent.gpus import Gpus, Reading
from machines.agent.runtimes.base import Runtime
from machines.agent.supervisor import Supervisor
from machines.agent.usage import Usage
from machines.metrics.names import key_of
from machines.orders import Order
from machines.protocol import AttemptSamples, Gpu, GpuUse, Phase, SampleRow, Samples

SAMPLE_SECONDS = 10.0  # until a console says otherwise
HEALTH_SECONDS = 30.0
LOOKS_KEPT = 30
ATTEMPTS_PER_FRAME = 200
GPU_SERIES = {
    "utilization": "task_gpu_utilization_ratio",
    "memory_bytes": "task_gpu_memory_used_bytes",
    "sm": "task_gpu_sm_active_ratio",
    "tensor": "task_gpu_tensor_active_ratio",
    "dram": "task_gpu_dram_active_ratio",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """At one moment, each running attempt's values by series key; and the GPUs."""

    at: float
    values: Mapping[str, Mapping[int, float]]
    gpus: list[GpuUse] = field(default_factory=list)


class Sampler:
    """`send` drops what it cannot send. `known`: the GPUs as they were declared; `changed` hears them when their health
    or number is another."""

    def __init__(
        self,
        runtime: Runtime,
        gpus: Gpus,
        supervisor: Supervisor,
        send: Callable[[Samples], None],
        changed: Callable[[list[Gpu]], None],
        known: list[Gpu],
    ) -> None:
        self.seconds = SAMPLE_SECONDS
        self._runtime = runtime
        self._gpus = gpus
        self._supervisor = supervisor
        self._send = send
        self._changed = changed
        self._orders: dict[str, Order] = {}
        self._cpu: dict[str, tuple[float, float]] = {}  # when, and the CPU seconds by then
        self._looks: deque[Look] = deque(maxlen=LOOKS_KEPT)
        self._known = known
        self._health_at = 0.0

    def hold(self, order: Order) -> None:
        """An attempt that begins, or is taken up."""
        self._orders[order.attempt] = order

    async def run(self) -> None:
        """Until cancelled. A runtime that is away, or one bad look, is a gap."""
        while True:
            try:
                await self.look()
            except Exception as error:
                log.warning("The workers could not be looked at: %r", error, exc_info=not isinstance(error, OSError))
            self.tell()
            await asyncio.sleep(self.seconds)

    async def look(self) -> None:
        now = clock.now()
        running = self._running(now)
        if now >= self._health_at:
            self._health_at = now + HEALTH_SECONDS
            await self._look_after_health()
        usage = await self._runtime.usage(list(running)) if running else {}
        busy = {index: since for uid, since in running.items() for index in self._gpu_indexes(uid)}
        readings = await asyncio.to_thread(self._gpus.read, busy) if self._known else {}
        values = {uid: self._values(uid, usage.get(uid, Usage()), readings, now) for uid in running}
        if values or readings:
            self._looks.append(Look(now, values, [_use(index, one) for index, one in readings.items()]))

    def tell(self) -> None:
        """All looks that were not sent yet, if the console listens."""
        if self._supervisor.welcome is None or not self._looks:
            return
        looks, now = list(self._looks), clock.now()
        self._looks.clear()
        gpus = looks[-1].gpus
        rows = _rows(looks, now)
        while batch := list(islice(rows, ATTEMPTS_PER_FRAME)):
            self._send(Samples(batch, gpus))
            gpus = []
        if gpus:
            self._send(Samples([], gpus))

    def _running(self, now: float) -> dict[str, float]:
        """Uid → seconds. Forgets attempts that are no longer live."""
        live = {attempt.uid: attempt.time_of(Phase.RUNNING) for attempt in self._supervisor.live}
        for uid in self._orders.keys() - live.keys():
            del self._orders[uid]
            self._cpu.pop(uid, None)
        return {uid: max(0.0, now - since) for uid, since in live.items() if since is not None}

    def _gpu_indexes(self, uid: str) -> list[int]:
        order = self._orders.get(uid)
        return order.gpu_indexes if order else []

    async def _look_after_health(self) -> None:
        gpus = await asyncio.to_thread(self._gpus.inventory)
        if gpus != self._known:
            self._known = gpus
            self._changed(gpus)

    def _values(self, uid: str, usage: Usage, readings: Mapping[int, Reading], now: float) -> dict[int, float]:
        order = self._orders.get(uid)
        known = {
            "task_cpu_usage_cores": self._cores(uid, usage.cpu_seconds, now),
            "task_memory_used_bytes": usage.memory_bytes,
            "task_memory_limit_bytes": order.memory_bytes or None if order else None,
            "task_oom_kills_total": usage.oom_kills,
            "task_network_receive_bytes_total": usage.received_bytes,
            "task_network_transmit_bytes_total": usage.transmitted_bytes,
        }
        values = {key_of(name): float(value) for name, value in known.items() if value is not None}
        for index in self._gpu_indexes(uid):
            reading = readings.get(index, Reading())
            for attribute, name in GPU_SERIES.items():
                if (value := getattr(reading, attribute)) is not None:
                    values[key_of(name, index)] = float(value)
        return values

    def _cores(self, uid: str, cpu_seconds: float | None, now: float) -> float | None:
        """Between two looks: None at the first, and where what was counted before has gone."""
        if cpu_seconds is None:
            return None
        before = self._cpu.get(uid)
        self._cpu[uid] = (now, cpu_seconds)
        if before is None or now <= before[0] or cpu_seconds < before[1]:
            return None
        return round((cpu_seconds - before[1]) / (now - before[0]), 4)


def _rows(looks: Iterable[Look], now: float) -> Iterable[AttemptSamples]:
    """Of each attempt all its looks, in one table."""
    tables: dict[str, list[tuple[float, Mapping[int, float]]]] = {}
    for look in looks:
        for uid, values in look.values.items():
            if values:
                tables.setdefault(uid, []).append((now - look.at, values))
    for uid, table in tables.items():
        keys = sorted({key for _, values in table for key in values})
        yield AttemptSamples(uid, keys, [SampleRow(ago, [values.get(key) for key in keys]) for ago, values in table])


def _use(index: int, reading: Reading) -> GpuUse:
    return GpuUse(index, reading.utilization, reading.memory_bytes, reading.processes)
