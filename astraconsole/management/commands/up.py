"""`manage.py up`: a whole console on this machine, supervised in the foreground."""

import os
import signal
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from astraconsole.local import LocalConsole, LocalOptions, StartError


class Command(BaseCommand):
    help = "Start the console, its database, its queue, its workers and local machines, and keep them running."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
        parser.add_argument("--port", type=_port, default=8000, help="port to listen on (default: 8000)")
        parser.add_argument("--data-dir", type=Path, default=_default_data_dir(), help="default: %(default)s")
        parser.add_argument("--ready-file", type=Path, help="written as JSON (mode 600) once all is serving")
        parser.add_argument("--machines", type=int, default=1, help="local machines to run (default: 1)")
        parser.add_argument("--runtime", choices=("auto", "docker", "process", "simulated"), default="auto")
        parser.add_argument("--simulate-gpus", default="", metavar="8xH100-80GB", help="GPUs each local machine claims")
        parser.add_argument("--machine-cpus", type=float, metavar="N", help="cores each declares (default: a share)")
        parser.add_argument(
            "--machine-memory", default="", metavar="16Gi", help="memory each declares (default: a share)"
        )
        parser.add_argument(
            "--drive-root",
            dest="drive_roots",
            action="append",
            default=[],
            metavar="FOLDER",
            help="let drives be folders below this one on the local machines; repeatable",
        )

    def handle(self, **options: Any) -> None:
        chosen = LocalOptions(**{name: options[name] for name in LocalOptions.__dataclass_fields__})
        console = LocalConsole(chosen, say=self._say)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: console.request_stop())
        try:
            console.run()
        except StartError as error:
            raise CommandError(str(error)) from error

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ArgumentTypeError(f"not a port (1 to 65535): {text}")
    return int(text)


def _default_data_dir() -> Path:
    return Path("/var/lib/astra") if os.geteuid() == 0 else settings.BASE_DIR / ".astra"
