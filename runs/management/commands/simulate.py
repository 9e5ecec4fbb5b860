"""`manage.py simulate TRACE --nodes NODES`: who would have waited how long, had this scheduler run that trace."""

import csv
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from runs.scheduling.simulator import Outcome, simulate, summarise
from runs.scheduling.traces import equal_machines, read_jobs, read_machines


class Command(BaseCommand):
    help = "Run the scheduler over a recorded trace in virtual time; print waits and slowdown."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, help="CSV of jobs: job, submit_s, duration_s, gpus, …")
        parser.add_argument("--nodes", required=True, help="CSV of machines, or equal ones: 84x8 is 84 with 8 GPUs")
        parser.add_argument("--large-gpus", type=int, default=16, help="also print jobs of so many GPUs (default: 16)")
        parser.add_argument("--large-cores", type=float, default=16, help="… or cores per machine (default: 16)")
        parser.add_argument("--jobs", type=int, help="only the first so many")

    def handle(self, **options: Any) -> None:
        try:
            machines = _machines(options["nodes"])
            with options["trace"].open() as file:
                jobs = read_jobs(list(csv.DictReader(file))[: options["jobs"]], machines)
        except (OSError, ValueError, KeyError) as error:
            raise CommandError(f"cannot read the trace: {error}") from error
        outcomes = simulate(jobs, machines)
        self._print("all jobs", outcomes)
        self._print(f"≥ {options['large_gpus']} GPUs", [o for o in outcomes if _gpus(o) >= options["large_gpus"]])
        cores = options["large_cores"] * 1000
        self._print("many cores", [o for o in outcomes if o.job.asks[0].cpu_milli >= cores])

    def _print(self, name: str, outcomes: list[Outcome]) -> None:
        if outcomes:
            s = summarise(outcomes)
            self.stdout.write(
                f"{name:12} {s.jobs:7} jobs  mean wait {s.mean_wait:9.0f} s  median {s.median_wait:7.0f} s  "
                f"mean slowdown {s.mean_slowdown:7.1f}  never {s.never}"
            )


def _gpus(outcome: Outcome) -> int:
    return sum(ask.gpus for ask in outcome.job.asks)


def _machines(text: str) -> list[Any]:
    count, _, gpus = text.partition("x")
    if count.isdecimal() and gpus.isdecimal():
        return equal_machines(int(count), int(gpus))
    with Path(text).open() as file:
        return read_machines(csv.DictReader(file))
