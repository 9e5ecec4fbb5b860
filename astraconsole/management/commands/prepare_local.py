"""Bring the database up to date and make what a local console starts with. Called by `up`."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.utils import timezone

from astraconsole.demo import ensure_demo
from astraconsole.private_files import write_private
from machines import services
from machines.models import Cluster


class Command(BaseCommand):
    help = "Migrate, make the demo organisation and the local machines' tokens (used by `up`)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--data-dir", type=Path, required=True)
        parser.add_argument("--machine", action="append", default=[], dest="machines", help="a local machine's name")

    def handle(self, *, data_dir: Path, machines: list[str], **options: Any) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        demo = ensure_demo(data_dir / "demo.json", timezone.now())
        cluster = Cluster.objects.get(organisation__slug=demo.organisation, slug=demo.cluster)
        tokens = {name: services.ensure_local_machine(cluster, name) for name in machines}
        write_private(data_dir / "machine-tokens.json", json.dumps(tokens))
