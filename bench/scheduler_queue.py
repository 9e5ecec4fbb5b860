"""A whole console with a full cluster of simulated machines and a long queue: `python -m bench.scheduler_queue`.

One more submit, a page of the runs list, and a run of higher priority: from room freed to Running, by the database's
times. The machines are real agents with the real protocol; their workers only pass time.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg

from astraconsole import embedded
from bench.console import job
from tests.console import Console, eventually, running_console

FILL = 30_000  # seconds that workers run: longer than any of this
FREED_TO_RUNNING = """
SELECT extract(epoch FROM high.running_at - low.released_at) FROM runs_attempt high
JOIN runs_worker w ON w.id = high.worker_id JOIN runs_run r ON r.id = w.run_id
JOIN runs_attempt low ON low.machine_id = high.machine_id AND low.gpu_indexes = high.gpu_indexes
    AND low.released_at <= high.placed_at AND low.id <> high.id
WHERE r.name = %s AND high.running_at IS NOT NULL ORDER BY low.released_at DESC LIMIT 1"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=64, help="of 8 GPUs each (default: 64)")
    parser.add_argument("--waiting", type=int, default=5000, help="runs that wait (default: 5000)")
    parser.add_argument("--samples", type=int, default=50)
    options = parser.parse_args()
    with _servers() as servers:
        urls = {"DATABASE_URL": servers.database_url, "REDIS_URL": servers.redis_url}
        farm = ("--machines", str(options.machines), "--runtime", "simulated", "--simulate-gpus", "8xH100-80GB")
        with (
            running_console(*farm, "--machine-cpus", "64", "--machine-memory", "512Gi", env=urls) as console,
            psycopg.connect(servers.database_url, autocommit=True) as database,
        ):
            database.execute("UPDATE machines_namespace SET max_priority = 100")
            _measure(console, database, options)


def _measure(console: Console, database: psycopg.Connection, options: argparse.Namespace) -> None:
    gpus = options.machines * 8
    _submit(console, [f"busy-{number}" for number in range(gpus)])
    eventually(lambda: _count(database, "Running") == gpus, seconds=300, every=0.5)
    _submit(console, [f"waiting-{number}" for number in range(options.waiting)])
    eventually(lambda: _explained(database) >= options.waiting, seconds=300, every=0.5)
    print(f"{gpus} runs on {options.machines} machines, {options.waiting} waiting")
    names = iter(f"more-{number}" for number in range(options.samples))
    _told("one more submit", _timed(lambda: _submit_one(console, next(names)), options.samples))
    _told("a page of the list", _timed(lambda: console.api.get("jobs", params={"limit": 50}), options.samples))
    _told("a page of what runs", _timed(lambda: console.api.get("jobs", params={"state": "Running"}), options.samples))
    freed = []
    for number in range(options.samples):
        name = f"urgent-{number}"
        _submit_one(console, name, priority=10)
        freed.append(eventually(lambda name=name: database.execute(FREED_TO_RUNNING, [name]).fetchone(), 60, 0.01)[0])
    _told("a run of higher priority, from room freed to Running", [float(seconds) * 1000 for seconds in freed])


def _submit_one(console: Console, name: str, **spec: int) -> None:
    per_gpu = {"cpu_cores": 1, "memory_bytes": 1024**3}
    template = {
        "image": "none",
        "command": "sleep",
        "args": [str(FILL)],
        "requested_resources": {"per_gpu": per_gpu, "gpu_requests": {"count": 1}},
    }
    console.api.post("jobs", json=job(name, template, **spec)).raise_for_status()


def _submit(console: Console, names: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: _submit_one(console, name), names))


def _count(database: psycopg.Connection, state: str) -> int:
    row = database.execute("SELECT count(*) FROM runs_run WHERE state = %s", [state]).fetchone()
    assert row is not None
    return int(row[0])


def _explained(database: psycopg.Connection) -> int:
    """Runs of which a pass has said why they wait."""
    row = database.execute("SELECT count(*) FROM runs_run WHERE pending_code <> ''").fetchone()
    assert row is not None
    return int(row[0])


def _timed(work: Callable[[], object], samples: int) -> list[float]:
    """Milliseconds."""
    times = []
    for _ in range(samples):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1000)
    return times


def _told(what: str, milliseconds: list[float]) -> None:
    median, most = statistics.median(milliseconds), max(milliseconds)
    print(f"{what}: median {median:.1f} ms, maximum {most:.1f} ms ({len(milliseconds)} samples)", flush=True)


@contextmanager
def _servers() -> Iterator[embedded.Embedded]:
    with tempfile.TemporaryDirectory(prefix="astra-bench-") as folder:
        Path(folder).chmod(0o711)
        servers = embedded.start(Path(folder))
        try:
            yield servers
        finally:
            servers.stop()


if __name__ == "__main__":
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    try:
        main()
    except httpx.HTTPStatusError as error:
        raise SystemExit(f"{error}: {error.response.text}") from error
