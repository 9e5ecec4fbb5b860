"""What agents bring about by connecting, living and leaving: the only writer of connections and inventories."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction

from astraconsole import events
from machines import dispatch, protocol
from machines.models import Gpu, Machine, MachineState
from machines.protocol import Close
from machines.services import digest

_S = MachineState
GPU_COLUMNS = ("uuid", "model", "memory_bytes", "healthy", "health_reason", "simulated")


class Known(NamedTuple):
    """Whom a machine token speaks for."""

    machine_id: int
    machine_uid: UUID
    name: str
    cluster_id: int
    removed: bool


def authenticate(token: str) -> Known | None:
    columns = ("pk", "uid", "name", "cluster_id", "state")
    row = Machine.objects.filter(token_digest=digest(token)).values_list(*columns).first()
    return None if row is None else Known(*row[:-1], removed=row[-1] == _S.REMOVED)


def newest_connection(machine_id: int) -> str:
    """Its id; empty: the machine is not connected."""
    return Machine.objects.values_list("connection", flat=True).get(pk=machine_id)


# ---- hello -----------------------------------------------------------------------------------------------------------


class Greeting(NamedTuple):
    """What the console answers a hello with, encoded."""

    welcome: bytes
    assignments: bytes


@transaction.atomic
def connected(machine_id: int, connection_id: str, hello: protocol.Hello, received_at: datetime) -> Greeting | None:
    """The machine's newest connection is this one; it is Ready, with this inventory. None: it was removed meanwhile."""
    machine = Machine.objects.select_for_update(no_key=True, of=("self",)).select_related("cluster").get(pk=machine_id)
    if machine.state == _S.REMOVED:
        return None
    if machine.state in (_S.JOINING, _S.LOST):
        machine.state, machine.state_reason = _S.READY, ""
    if machine.connection != connection_id:
        machine.connection, machine.connected_at, machine.applied_revision = connection_id, received_at, 0
        replaced = {"type": "agent.replaced", "connection": connection_id}
        transaction.on_commit(lambda: events.send_group(events.machine_group(machine.uid), replaced), robust=True)
    _take_inventory(machine, hello)
    machine.last_seen_at = received_at
    machine.clock_skew_seconds = skew(hello.wall_clock, received_at)
    machine.save(update_fields=HELLO_COLUMNS)
    _take_gpus(machine, hello.inventory.gpus)
    _announce(machine.cluster_id)
    return Greeting(protocol.encode(_welcome(machine)), dispatch.sets([machine_id])[machine_id].frame)


HELLO_COLUMNS = (
    *("state", "state_reason", "connection", "connected_at", "applied_revision", "last_seen_at", "clock_skew_seconds"),
    *("labels", "cpu_milli", "memory_bytes", "runtime", "hostname", "agent_version", "boot_id", "stop_grace_seconds"),
)


def skew(wall_clock: float, received_at: datetime) -> float:
    """Seconds that a machine's clock is ahead of the console's, the message's way included."""
    return round(wall_clock - received_at.timestamp(), 3)


def _welcome(machine: Machine) -> protocol.Welcome:
    return protocol.Welcome(
        console=machine.cluster.uid.hex,
        machine=machine.name,
        heartbeat_seconds=settings.MACHINE_HEARTBEAT_SECONDS,
        resend_seconds=settings.MACHINE_HEARTBEAT_SECONDS,
        log_keep_bytes=settings.LOG_KEEP_BYTES,
    )


def _take_inventory(machine: Machine, hello: protocol.Hello) -> None:
    inventory = hello.inventory
    machine.labels = inventory.labels
    machine.cpu_milli = inventory.cpu_milli
    machine.memory_bytes = inventory.memory_bytes
    machine.runtime = inventory.runtime
    machine.hostname = inventory.hostname
    machine.agent_version = hello.agent_version
    machine.boot_id = hello.boot_id
    machine.stop_grace_seconds = hello.stop_grace_seconds


def _take_gpus(machine: Machine, declared: Sequence[protocol.Gpu]) -> None:
    """Write what differs."""
    present = {gpu.index: gpu for gpu in machine.gpus.all()}
    gone = present.keys() - {gpu.index for gpu in declared}
    if gone:
        machine.gpus.filter(index__in=gone).delete()
    changed = [
        Gpu(machine=machine, index=gpu.index, **{column: getattr(gpu, column) for column in GPU_COLUMNS})
        for gpu in declared
        if gpu.index not in present or _differs(present[gpu.index], gpu)
    ]
    if changed:
        key = ("machine", "index")
        Gpu.objects.bulk_create(changed, update_conflicts=True, unique_fields=key, update_fields=GPU_COLUMNS)


def _differs(row: Gpu, declared: protocol.Gpu) -> bool:
    return any(getattr(row, column) != getattr(declared, column) for column in GPU_COLUMNS)


def disconnected(machine_id: int, connection_id: str) -> None:
    """Of the newest connection only: an older one that ends changes nothing."""
    gone = Machine.objects.filter(pk=machine_id, connection=connection_id).update(connection="")
    if gone:
        _announce(Machine.objects.values_list("cluster_id", flat=True).get(pk=machine_id))


def _announce(cluster_id: int) -> None:
    events.machines_changed(cluster_id)
    events.wake("schedule", cluster_id)


# ---- heartbeats ------------------------------------------------------------------------------------------------------


class Beat(NamedTuple):
    """The newest heartbeat of a connection."""

    machine_id: int
    connection_id: str
    received_at: datetime
    applied_revision: int
    skew_seconds: float


@dataclass(frozen=True)
class Seen:
    """What follows from a batch of heartbeats, by machine id."""

    unwritten: frozenset[int]  # their rows were locked: write them with the next batch
    close: dict[int, Close]  # connections that are no longer their machine's
    assignments: dict[int, bytes]  # newer sets than those applied, encoded


def seen(beats: Sequence[Beat]) -> Seen:
    """Write a batch of heartbeats. Waits for no lock and so cannot deadlock with whoever changes assignments."""
    written = _write(beats)
    rows = Machine.objects.filter(pk__in=[beat.machine_id for beat in beats])
    now = {row[0]: row[1:] for row in rows.values_list("pk", "connection", "state", "revision")}
    close, behind, unwritten = {}, [], []
    for beat in beats:
        connection_id, state, revision = now.get(beat.machine_id, ("", _S.REMOVED, 0))
        if connection_id != beat.connection_id:
            close[beat.machine_id] = _why_closed(state, connection_id)
            continue
        if beat.machine_id not in written:
            unwritten.append(beat.machine_id)
        if revision > beat.applied_revision:
            behind.append(beat.machine_id)
    newer = {machine_id: item.frame for machine_id, item in dispatch.sets(behind).items()} if behind else {}
    return Seen(frozenset(unwritten), close, newer)


def _why_closed(state: str, connection_id: str) -> Close:
    if state == _S.REMOVED:
        return Close.REMOVED
    return Close.REPLACED if connection_id else Close.HELLO_AGAIN


def _write(beats: Sequence[Beat]) -> set[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            """WITH beat AS (
                SELECT * FROM unnest(%s::bigint[], %s::text[], %s::timestamptz[], %s::bigint[], %s::float8[])
                AS beat (machine_id, connection, received_at, revision, skew)
            ), free AS (
                SELECT m.id FROM machines_machine m JOIN beat ON m.id = beat.machine_id
                WHERE m.connection = beat.connection FOR NO KEY UPDATE OF m SKIP LOCKED
            )
            UPDATE machines_machine m
            SET last_seen_at = beat.received_at, applied_revision = beat.revision, clock_skew_seconds = beat.skew
            FROM beat JOIN free ON free.id = beat.machine_id WHERE m.id = beat.machine_id RETURNING m.id""",
            [list(column) for column in zip(*beats, strict=True)],
        )
        return {machine_id for (machine_id,) in cursor.fetchall()}
