"""`manage.py simulate TRACE --nodes NODES`: who would have waited how long, had this scheduler run that trace.

With `--saturate SEEDS`: how much of the machines could be given away before nothing fits.
"""

import csv
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from runs.scheduling.saturation import saturate
from runs.scheduling.simulator import Job, Outcome, simulate, summarise
from runs.scheduling.traces import equal_machines, read_jobs, read_machines, rows_of
from runs.scheduling.types import MachineView


class Command(BaseCommand):
    help = "Run the scheduler over a recorded trace in virtual time; print waits, slowdown and use."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, help="CSV of jobs: job, submit_s, duration_s, gpus, …")
        parser.add_argument("--nodes", required=True, help="CSV of machines, or equal ones: 84x8 is 84 with 8 GPUs")
        parser.add_argument("--large-gpus", type=int, default=16, help="also print jobs of so many GPUs (default: 16)")
        parser.add_argument("--large-cores", type=float, default=16, help="… or cores (default: 16)")
        parser.add_argument("--jobs", type=_at_least_one, help="only the first so many")
        parser.add_argument(
            "--saturate",
            type=int,
            nargs="+",
            metavar="SEED",
            help="fill the cluster instead, with the jobs in random order: how many GPUs stay unallocated",
        )

    def handle(self, **options: Any) -> None:
        with _told("the machines"):
            machines = _machines(options["nodes"])
        with _told("the trace"), options["trace"].open(newline="", encoding="utf-8-sig") as file:
            jobs = read_jobs(islice(rows_of(file), options["jobs"]), machines)
        if options["saturate"]:
            if not any(machine.gpus for machine in machines) or not any(job.asks[0].gpus for job in jobs):
                raise CommandError("--saturate counts GPUs: the machines have none, or no job asks for one")
            self._saturate(jobs, machines, options["saturate"])
        else:
            self._simulate(jobs, machines, options["large_gpus"], options["large_cores"])

    def _simulate(self, jobs: list[Job], machines: list[MachineView], large_gpus: int, large_cores: float) -> None:
        result = simulate(jobs, machines)
        outcomes = result.outcomes
        self._print("all jobs", outcomes)
        self._print(f"≥ {large_gpus} GPUs", [o for o in outcomes if _gpus(o) >= large_gpus])
        self._print(f"≥ {large_cores:g} cores", [o for o in outcomes if _cpu_milli(o) >= large_cores * 1000])
        self.stdout.write(f"used {result.used:.1%}, idle while somebody waits {result.idle:.1%}")

    def _print(self, name: str, outcomes: list[Outcome]) -> None:
        if outcomes:
            s = summarise(outcomes)
            self.stdout.write(
                f"{name:11} {s.jobs:6} jobs  wait: mean {s.mean_wait:8.0f} s, median {s.median_wait:6.0f} s  "
                f"completion: mean {s.mean_completion / 1000:7.1f} ks  slowdown: mean {s.mean_slowdown:6.1f}  "
                f"never: {s.never}"
            )

    def _saturate(self, jobs: list[Job], machines: list[MachineView], seeds: list[int]) -> None:
        found = [saturate(jobs, machines, seed) for seed in seeds]
        for seed, one in zip(seeds, found, strict=True):
            self.stdout.write(f"seed {seed}: {one.refused} refused, {one.unallocated:.3%} of the GPUs unallocated")
        self.stdout.write(f"mean: {mean(one.unallocated for one in found):.3%} of the GPUs unallocated")


def _gpus(outcome: Outcome) -> int:
    return sum(ask.gpus for ask in outcome.job.asks)


def _cpu_milli(outcome: Outcome) -> int:
    return sum(ask.cpu_milli for ask in outcome.job.asks)


def _machines(text: str) -> list[MachineView]:
    count, _, gpus = text.partition("x")
    if count.isdecimal() and gpus.isdecimal():
        return equal_machines(int(count), int(gpus))
    with Path(text).open(newline="", encoding="utf-8-sig") as file:
        return read_machines(rows_of(file))


@contextmanager
def _told(what: str) -> Iterator[None]:
    """What cannot be read, as one sentence."""
    try:
        yield
    except (OSError, ValueError, csv.Error) as error:
        raise CommandError(f"cannot read {what}: {error}") from error


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"not a number of at least 1: {text}")
    return int(text)
