"""`make bench-metrics`: what samples cost to take in, to keep and to ask for; every figure is printed, none is judged.

    python -m bench.metrics [--workers N] [--hours H]

A private PostgreSQL and Redis, and no other process: samples go in as the frames of agents, by the very functions that
the console runs, and questions are asked of the JSON API's view, whose answer is counted to its last byte.
"""

import argparse
import os
import secrets
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import django
import numpy as np
from django.core.management import call_command

from astraconsole import embedded
from machines import protocol
from machines.metrics.names import METRICS, key_of
from machines.protocol import AttemptSamples, SampleRow, Samples

EVERY = 10  # seconds, as agents sample
GPUS = 8
SERIES = 64
DAY = 86_400
TRIES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=64, help="running for the whole time (default: %(default)s)")
    parser.add_argument("--hours", type=float, default=24, help="of samples (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="astra-bench-") as folder:
        os.chmod(folder, 0o711)
        servers = embedded.start(Path(folder))
        os.environ |= {"DATABASE_URL": servers.database_url, "REDIS_URL": servers.redis_url, "LOG_LEVEL": "WARNING"}
        os.environ |= {"SECRET_KEY": secrets.token_hex(), "METRICS_RAW_SECONDS": str(2 * DAY)}
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "astraconsole.settings")
        try:
            django.setup()
            call_command("migrate", verbosity=0)
            measure(options.workers, options.hours)
        finally:
            servers.stop()


def measure(workers: int, hours: float) -> None:
    from bench import metrics_world as world  # noqa: PLC0415  # needs Django set up

    now = time.time() // 600 * 600
    place = world.make(workers, GPUS, datetime.fromtimestamp(now - hours * 3600, UTC))
    rates = [ingest(world, place, now - hours * 3600 + hour * 3600, 3600) for hour in range(int(hours))]
    samples = sum(count for count, _ in rates)
    print(f"{samples:,} values of {workers} workers with {GPUS} GPUs each ({hours:g} h, one look every {EVERY} s)")
    print(f"ingest: {samples / sum(seconds for _, seconds in rates):,.0f} values/s, decoding to commit, one process")
    rows, size = world.stored(0)
    print(f"raw, as they came: {size / samples:.1f} bytes a value on disk with indexes, {rows:,} rows")
    before = world.total_size()
    began = time.monotonic()
    stretches = world.roll_up(now)
    took = time.monotonic() - began
    print(f"rolled up to 1 and 10 min: {stretches} stretches in {took:.1f} s, {samples / took:,.0f} values/s")
    print(f"rolled up: {(world.total_size() - before) / samples:.2f} bytes more for each raw value")
    for step in (None, 60):
        ask(world, place, now, step)
    world.forget_raw(now)
    print(f"with raw values of the last 6 h only: {world.total_size() / samples:.2f} bytes a value in all")
    ask(world, place, now, None)


def ingest(world: Any, place: Any, start: float, seconds: float) -> tuple[int, float]:
    """(values, seconds) of taking in what all workers sent in that time: a frame every ten seconds from each machine,
    and what came within a minute together."""
    values = spent = 0
    for batch in range(0, int(seconds), 60):
        frames = [
            (machine, start + batch + look, frame(attempt, place.seed + number + batch + look))
            for look in range(0, 60, EVERY)
            for number, (machine, attempt) in enumerate(place.attempts)
        ]
        began = time.monotonic()
        world.take_in(frames)
        spent += time.monotonic() - began
        values += len(frames) * len(KEYS)
    return values, spent


KEYS = [
    key_of(metric.name, gpu)
    for metric in METRICS
    for gpu in (range(GPUS) if metric.per_gpu else (None,))
]  # fmt: skip


LOOKS = (np.random.default_rng(7).random((997, len(KEYS))) * 0.05 + 0.9).round(4).tolist()  # move as real ones do


def frame(attempt: uuid.UUID, number: int) -> bytes:
    """One look at all series of one worker."""
    return protocol.encode(Samples([AttemptSamples(attempt.hex, KEYS, [SampleRow(0.0, LOOKS[number % 997])])]))


def ask(world: Any, place: Any, now: float, step: int | None) -> None:
    """24 h × 64 series, once as 64 workers and once as 8 workers with 8 GPUs each."""
    questions = {
        "64 workers, one series each": {"metric": "task_cpu_usage_cores", "by": "task"},
        "8 workers, 8 GPUs each": {
            "metric": "task_gpu_utilization_ratio",
            "by": "task,gpu",
            "match": place.names[: SERIES // GPUS],
        },
    }
    for told, question in questions.items():
        timed = [world.answer(place, {**question, "start": now - DAY, "end": now, "step": step}) for _ in range(TRIES)]
        series, points, size, _ = timed[0]
        print(
            f"range of 24 h, {told}, step {step or 'automatic'}: {spread([each[3] for each in timed])} "
            f"({series} series, {points:,} points, {size / 1024:.0f} KiB of JSON)"
        )


def spread(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    p95 = ordered[int(len(ordered) * 0.95)]
    return f"best {ordered[0] * 1000:.0f}, p50 {statistics.median(ordered) * 1000:.0f}, p95 {p95 * 1000:.0f} ms"


if __name__ == "__main__":
    main()
