"""Two scheduler processes and 200 submitting threads: no quota is ever exceeded, not for a moment."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from django.db import connection

from astraconsole.sql import fetch
from machines.models import Cluster
from runs.models import Attempt, Run, Worker
from tests import builders
from tests.builders import GIB
from tests.console import ROOT, eventually

SUBMITTERS = 200
QUOTA_RUNS, QUOTA_CORES = 12, 16

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def schedulers(cluster: Cluster, count: int = 2) -> Iterator[None]:
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    command = [sys.executable, "-m", "tests.scheduling.scheduler_process", str(cluster.pk)]
    environment = os.environ | {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "astraconsole.settings"}
    running = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in running:
            _, said = process.communicate(timeout=30)
            assert process.returncode == 0, said.decode()


def in_use() -> tuple[int, int]:
    """(runs, thousandths of cores) held by live attempts, at one moment."""
    ((runs, cpu_milli),) = fetch(
        """SELECT count(DISTINCT w.run_id), coalesce(sum(a.cpu_milli), 0)::bigint
        FROM runs_attempt a JOIN runs_worker w ON w.id = a.worker_id WHERE a.released_at IS NULL""",
        [],
    )
    return runs, cpu_milli


def test_no_quota_is_exceeded_whatever_races() -> None:
    workspace = builders.workspace()
    cluster = builders.cluster(workspace, quota_runs=QUOTA_RUNS, quota_cpu_milli=QUOTA_CORES * 1000)
    for _ in range(4):
        builders.machine(cluster, cpu=64, memory=64 * GIB)
    editor = builders.access(workspace)
    barrier = threading.Barrier(SUBMITTERS)

    def submit(number: int) -> None:
        barrier.wait()
        builders.submit(editor, cluster, f"run-{number}", cpu=1 + number % 3, node_selection={"count": 1 + number % 2})
        connection.close()

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(SUBMITTERS)]
    most = 0
    with schedulers(cluster):
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            runs, cpu_milli = in_use()
            assert (runs <= QUOTA_RUNS, cpu_milli <= QUOTA_CORES * 1000) == (True, True)
        assert Run.objects.count() == SUBMITTERS
        for _ in range(15):
            runs, cpu_milli = eventually(lambda: (found := in_use())[0] and found)
            assert (runs <= QUOTA_RUNS, cpu_milli <= QUOTA_CORES * 1000) == (True, True)
            most = max(most, cpu_milli)
            ended = list(Attempt.objects.filter(released_at=None).values_list("id", "worker_id")[:5])
            Attempt.objects.filter(id__in=[attempt for attempt, _ in ended]).update(released_at=builders.T0)
            Worker.objects.filter(id__in=[worker for _, worker in ended]).update(state="Completed")
    assert most > QUOTA_CORES * 1000 - 3000
