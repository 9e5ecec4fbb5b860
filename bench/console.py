"""`make bench`: a whole console in real processes on this machine; every figure is printed, none is judged.

Time to ready, submit → Running, 1,000 one-slot workers as one array and as 1,000 runs with the CPU time that each kind
of process spent on them, memory of each. Where others use the machine too, CPU time says more than rates do.
"""

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from tests.console import Console, eventually, processes_of, running_console, start_console

WORKERS = 1000
FARM = ("--machines", "20", "--runtime", "process", "--machine-cpus", "8", "--machine-memory", "64Gi")
ONE = ("--runtime", "process", "--machine-cpus", "8", "--machine-memory", "8Gi")
KINDS = (
    "daphne",
    "celery -A astraconsole worker",
    "celery -A astraconsole beat",
    "agent.main",
    "agent.keeper",
    "postgres",
    "redis",
    "manage.py up",
)
SLOT = {"cpu_cores": 1, "memory_bytes": 64 * 1024**2}
TRUE = {"image": "none", "command": "true", "requested_resources": SLOT, "restart_policy": "Never"}


def main() -> None:
    with running_console(*ONE) as console:
        console.stop()
        began = time.monotonic()
        again = start_console(console.data, *ONE)
        print(f"time to ready on a used data folder: {time.monotonic() - began:.1f} s")
        console.process, console.api = again.process, again.api
        submit_to_running(console, runs=50)
    with running_console(*FARM) as console:
        with cpu_printed(console):
            as_one_array(console)
        with cpu_printed(console):
            as_single_runs(console)
        memory(console)


def submit_to_running(console: Console, runs: int) -> None:
    """One at a time on an idle machine; what a caller sees (by asking without pause), and what the history says."""
    seen, recorded = [], []
    for number in range(runs):
        sent, began = time.time(), time.monotonic()
        sleeper = {**TRUE, "command": "sleep", "args": ["0.3"]}
        console.api.post("jobs", json=job(f"latency-{number}", sleeper)).raise_for_status()
        while console.run(f"latency-{number}")["status"]["state"] in ("Pending", "Starting"):
            pass
        seen.append(time.monotonic() - began)
        history = console.wait_for(f"latency-{number}", "Completed")["history"]
        running = next(move for move in history if move["state"] == "Running")
        recorded.append(seconds(running["transition_at"]) - sent)
    print(f"submit → Running, {runs} runs one at a time, as a caller sees it: {spread(seen)}")
    print(f"submit → Running, by the time the process ran:                  {spread(recorded)}")


def as_one_array(console: Console) -> None:
    began = time.monotonic()
    answer = console.api.post("jobs", json=job("array", TRUE, array={"count": WORKERS}))
    answer.raise_for_status()
    accepted = time.monotonic() - began
    eventually(lambda: not active(console), seconds=300, every=0.1)
    took = time.monotonic() - began
    print(f"{WORKERS} workers as one array: {rate(took)}, accepted in {accepted * 1000:.0f} ms")


def as_single_runs(console: Console) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        for answer in pool.map(lambda n: console.api.post("jobs", json=job(f"single-{n}", TRUE)), range(WORKERS)):
            answer.raise_for_status()
    accepted = time.monotonic() - began
    eventually(lambda: not active(console), seconds=300, every=0.1)
    took = time.monotonic() - began
    print(f"{WORKERS} single runs: {rate(took)}, all accepted after {accepted:.2f} s")


def rate(took: float) -> str:
    return f"{WORKERS / took:.0f} workers/s ({took:.2f} s from first submit to last end)"


def active(console: Console) -> list[Any]:
    answer = console.api.get("jobs", params={"state": "active", "limit": 1})
    answer.raise_for_status()
    return answer.json()["items"]


@contextmanager
def cpu_printed(console: Console) -> Iterator[None]:
    before = of_each_kind(console, cpu_seconds)
    yield
    spent = of_each_kind(console, cpu_seconds)
    spent.subtract(before)
    each = ", ".join(f"{kind} {spent[kind]:.2f}" for kind, _ in spent.most_common())
    print(f"  CPU seconds: {sum(spent.values()):.2f} = {each}")


def memory(console: Console) -> None:
    print("memory (proportional set size) after that:")
    for kind, size in sorted(of_each_kind(console, pss).items()):
        print(f"  {size / 1024:7.1f} MiB  {kind}")


def of_each_kind(console: Console, measure: Callable[[int], float]) -> Counter[str]:
    """The sum of a measure of the console's processes (by pid), for each kind of process."""
    total: Counter[str] = Counter()
    for pid, line in [*processes_of(console.data, console.process.pid), (console.process.pid, "manage.py up")]:
        try:
            total[next((kind for kind in KINDS if kind in line), line[:60])] += measure(pid)
        except OSError:
            continue  # it has ended meanwhile
    return total


def cpu_seconds(pid: int) -> float:
    """Its own and its ended children's."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def pss(pid: int) -> float:
    """KiB; shared pages are divided among their users."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


def job(name: str, template: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"task_template": template, **spec}}


def seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def spread(samples: list[float]) -> str:
    ordered = sorted(samples)
    p95 = ordered[int(len(ordered) * 0.95)]
    return f"p50 {statistics.median(ordered) * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms"


if __name__ == "__main__":
    try:
        main()
    except httpx.HTTPStatusError as error:
        raise SystemExit(f"{error}: {error.response.text}") from error
