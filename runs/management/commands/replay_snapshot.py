"""`manage.py replay_snapshot FILE`: what the planner of today makes of a recorded pass."""

import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError

from runs.scheduling.planner import make_plan
from runs.scheduling.recording import decode, in_words


class Command(BaseCommand):
    help = "Plan a recorded snapshot again, and print the plan. Nothing is read from the database or written to it."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="a file from SCHEDULER_RECORDINGS")

    def handle(self, **options: Any) -> None:
        try:
            recording = decode(options["file"].read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise CommandError(f"cannot read the recording: {error}") from error
        began = time.thread_time()
        plan = make_plan(recording.snapshot, recording.now)
        seconds = time.thread_time() - began
        for line in in_words(recording.snapshot, plan):
            self.stdout.write(line)
        if recording.plan is not None and recording.plan != plan:
            self.stdout.write("this is not what was decided then")
        was = f"; recorded because {recording.why}" if recording.why else ""
        self.stdout.write(f"planned in {seconds * 1000:.0f} ms{was}")
