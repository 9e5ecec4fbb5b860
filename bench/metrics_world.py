"""What `bench.metrics` measures on: workers on machines, straight in the database. Import it with Django set up."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.test import Client
from django.utils import timezone

from astraconsole.tenancy.models import Membership, Organisation, User, Workspace
from astraconsole.tenancy.services import create_token
from machines.metrics import rollup, store
from machines.metrics.lane import Frame
from machines.models import Cluster, Machine, MachineState, Namespace, SampleBlock
from runs.metrics import machines_of
from runs.models import Attempt, Run, Worker

URL = "/api/v1/orgs/bench/workspaces/bench/clusters/bench/api/metrics/range"


@dataclass(frozen=True)
class Place:
    attempts: list[tuple[int, uuid.UUID]]  # machine id, attempt uid
    names: list[str]  # `task:<worker>`
    headers: dict[str, str]
    seed: int = 7


def make(workers: int, gpus: int, began: datetime) -> Place:
    organisation = Organisation.objects.create(slug="bench", name="bench")
    workspace = Workspace.objects.create(organisation=organisation, slug="bench", name="bench")
    user = User.objects.create_user("bench")
    Membership.objects.create(user=user, workspace=workspace, role="viewer")
    cluster = Cluster.objects.create(organisation=organisation, slug="bench")
    namespace = Namespace.objects.create(workspace=workspace, cluster=cluster)
    run = Run.objects.create(
        namespace=namespace, workspace=workspace, name="bench", spec={}, created_at=began, changed_at=began,
        queued_at=began, state="Running",
    )  # fmt: skip
    attempts, names = [], []
    for rank in range(workers):
        machine = Machine.objects.create(
            cluster=cluster, name=f"m{rank}", token_digest=str(rank), state=MachineState.READY
        )
        worker = Worker.objects.create(
            run=run, namespace=namespace, name=f"bench-{rank}", rank=rank, gpus=gpus, changed_at=began, state="Running"
        )
        attempt = Attempt.objects.create(
            worker=worker, machine=machine, number=1, cpu_milli=1, memory_bytes=1, gpu_indexes=list(range(gpus)),
            placed_at=began, running_at=began,
        )  # fmt: skip
        attempts.append((machine.pk, attempt.uid))
        names.append(f"task:{worker.name}")
    _, secret = create_token(user, "bench", timezone.now())
    return Place(attempts, names, {"HTTP_AUTHORIZATION": f"Bearer {secret}"})


def take_in(frames: Sequence[Frame]) -> None:
    store.write(store.blocks_of(frames, machines_of))


def roll_up(now: float) -> int:
    return rollup.roll_up(now)


def forget_raw(now: float) -> None:
    """As though they were kept for six hours, and the space were given back."""
    SampleBlock.objects.filter(resolution=0, start__lt=now - 6 * 3600).delete()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM FULL ANALYZE machines_sampleblock")


def stored(resolution: int) -> tuple[int, int]:
    """(rows, bytes on disk with indexes) once nothing else is stored."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE machines_sampleblock")
    return SampleBlock.objects.filter(resolution=resolution).count(), total_size()


def total_size() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_total_relation_size('machines_sampleblock')")
        return int(cursor.fetchone()[0])


def answer(place: Place, question: dict[str, Any]) -> tuple[int, int, int, float]:
    """(series, points, bytes, seconds) of one request, view and JSON included."""
    parameters = {name: value for name, value in question.items() if value is not None}
    client = Client(SERVER_NAME="localhost")
    began = time.monotonic()
    found = client.get(URL, parameters, **place.headers)
    seconds = time.monotonic() - began
    assert found.status_code == 200, found.content
    series = found.json()["series"]
    return len(series), sum(len(each["points"]) for each in series), len(found.content), seconds
