"""A scheduler in a process of its own, for tests of races: passes of one cluster until its input is closed."""

import sys
import threading
import time

import django

django.setup()

from django.utils import timezone  # noqa: E402  (models only after setup)

from runs.scheduling.loop import run_once  # noqa: E402


def main(cluster_id: int) -> None:
    closed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    while not closed.is_set():
        run_once(cluster_id, timezone.now())
        time.sleep(0.001)


if __name__ == "__main__":
    main(int(sys.argv[1]))
