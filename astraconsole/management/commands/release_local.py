"""Give back what the local machines run, before their console stops. Called by `up`."""

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from astraconsole.demo import CLUSTER, ORGANISATION
from machines import services
from machines.models import Machine
from runs.models import Attempt
from runs.services import lost


class Command(BaseCommand):
    help = "Requeue the workers of local machines and wait until the machines have stopped them (used by `up`)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--machine", action="append", default=[], dest="machines")
        parser.add_argument("--seconds", type=float, required=True, help="wait at most this long")

    def handle(self, *, machines: list[str], seconds: float, **options: Any) -> None:
        here = Machine.objects.filter(cluster__organisation__slug=ORGANISATION, cluster__slug=CLUSTER)
        ids = list(here.filter(name__in=machines).values_list("id", flat=True))
        services.set_stopping(ids)  # committed first, so that nothing is placed behind the back of what follows
        lost.requeue_cluster_workers(ids, "Console stopped", timezone.now())
        deadline = time.monotonic() + seconds
        holding = Attempt.objects.filter(machine__in=ids, released_at=None)
        while (left := holding.count()) and time.monotonic() < deadline:
            time.sleep(0.05)
        if left:
            self.stderr.write(f"{left} workers had not stopped after {seconds:g} s")
