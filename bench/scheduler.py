"""What a pass of the scheduler costs: `make bench-scheduler`. The pure plan, load and apply on a real PostgreSQL, and
at the end a whole console with a long queue (`bench.scheduler_queue`).

1× is 10,000 waiting runs on 1,000 machines × 8 GPUs. Every figure is the median of several rounds.
"""

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from astraconsole import embedded
from runs.scheduling.planner import make_plan
from runs.scheduling.types import Ask, GpuView, Hold, MachineView, NamespaceView, Snapshot, WaitingRun, WaitingWorker

GIB = 1024**3
NAMESPACES = 10
ROUNDS = 5


def machines(count: int, gpus: int = 8) -> tuple[MachineView, ...]:
    views = tuple(GpuView(index, "NVIDIA H100 80GB HBM3", 80 * GIB) for index in range(gpus))
    return tuple(MachineView(number, f"gpu-{number}", 128_000, 1024 * GIB, views) for number in range(count))


def waiting(count: int, shapes: int, gpus: tuple[int, ...] = (1, 1, 1, 2, 4, 8)) -> tuple[WaitingRun, ...]:
    """One-worker runs of this many different shapes, of ten workspaces and three priorities."""
    chance = random.Random(1)
    asks = [
        Ask(size, max(1, size) * 4000 + number, max(1, size) * 32 * GIB)
        for number, size in enumerate(chance.choice(gpus) for _ in range(shapes))
    ]
    chosen = chance.sample(asks, count) if shapes == count else [chance.choice(asks) for _ in range(count)]
    return tuple(
        WaitingRun(
            number,
            number % NAMESPACES,
            float(number),
            (WaitingWorker(number, ask),),
            chance.choice((0, 0, 0, 10, 20)),
            time_limit=chance.choice((None, 3600.0, 86400.0)),
        )
        for number, ask in enumerate(chosen)
    )


def full(inventory: tuple[MachineView, ...], leave: int = 0, priority: int = 20) -> tuple[Hold, ...]:
    """Every GPU held by a one-GPU worker, but for the last `leave` machines; by default nothing waits that could have
    them give way."""
    return tuple(
        Hold(
            10**6 + machine.id * 8 + index,
            machine.id % NAMESPACES,
            machine.id,
            8000,
            64 * GIB,
            (index,),
            priority,
            0.0,
            9e4,
        )
        for machine in inventory[: len(inventory) - leave]
        for index in range(len(machine.gpus))
    )


def snapshot(inventory: tuple[MachineView, ...], holds: tuple[Hold, ...], runs: tuple[WaitingRun, ...]) -> Snapshot:
    return Snapshot(inventory, holds, tuple(NamespaceView(number) for number in range(NAMESPACES)), runs)


def timed(
    work: Callable[[], Any], rounds: int = ROUNDS, clock: Callable[[], float] = time.process_time
) -> tuple[float, Any]:
    """(median milliseconds, the last answer); by default of this process's CPU, so that other work does not count."""
    times = []
    for _ in range(rounds):
        began = clock()
        answer = work()
        times.append((clock() - began) * 1000)
    return statistics.median(times), answer


def plan_table() -> None:
    print("make_plan (pure), median milliseconds of CPU")
    print(f"  {'':44}{'placed':>8}{'1×':>9}{'2×':>9}{'4×':>9}")
    cases: dict[str, Callable[[int], Snapshot]] = {
        "full cluster, 40 shapes": lambda k: _case(k, 40, hold=True),
        "full cluster, every shape different": lambda k: _case(k, 10_000 * k, hold=True),
        "full of priority 0, 40 shapes: preemption": lambda k: _case(k, 40, hold=True, priority=0),
        "one machine in ten free, 40 shapes": lambda k: _case(k, 40, hold=True, leave=100 * k),
        "empty cluster, 40 shapes": lambda k: _case(k, 40, hold=False),
        "empty cluster, every shape different": lambda k: _case(k, 10_000 * k, hold=False),
    }
    for name, make in cases.items():
        cells, placed = [], 0
        for factor in (1, 2, 4):
            given = make(factor)
            milliseconds, plan = timed(lambda given=given: make_plan(given, 1000.0, 10**9))
            cells.append(f"{milliseconds:9.1f}")
            placed = placed or len(plan.placements)
        print(f"  {name:44}{placed:8}{''.join(cells)}")


def _case(factor: int, shapes: int, hold: bool, leave: int = 0, priority: int = 20) -> Snapshot:
    inventory = machines(1000 * factor)
    return snapshot(inventory, full(inventory, leave, priority) if hold else (), waiting(10_000 * factor, shapes))


def placement_rate() -> None:
    print("one-worker runs of one shape, idle machines (pure)")
    for count in (1250, 2500, 5000):
        given = snapshot(machines(count), (), waiting(10_000, 1, (1,)))
        milliseconds, plan = timed(lambda given=given: make_plan(given, 1000.0, 10**9), 3)
        rate = len(plan.placements) / milliseconds * 1000
        print(f"  {len(plan.placements)} over {count} machines: {milliseconds:.0f} ms, {rate:,.0f} placements/s")


def with_private_servers(module: str) -> None:
    """Run a module as a process of its own, with a PostgreSQL and a Redis that live as long as it does."""
    with tempfile.TemporaryDirectory(prefix="astra-bench-") as folder:
        Path(folder).chmod(0o711)
        servers = embedded.start(Path(folder))
        try:
            urls = {"DATABASE_URL": servers.database_url, "REDIS_URL": servers.redis_url}
            settings = {"DJANGO_SETTINGS_MODULE": "astraconsole.settings"}
            subprocess.run([sys.executable, "-m", module], env=os.environ | urls | settings, check=True)
        finally:
            servers.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pure", action="store_true", help="the plan alone: no database, no console")
    arguments = parser.parse_args()
    plan_table()
    placement_rate()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MiB")
    if not arguments.pure:
        with_private_servers("bench.scheduler_database")
        subprocess.run([sys.executable, "-m", "bench.scheduler_queue"], check=True)


if __name__ == "__main__":
    main()
