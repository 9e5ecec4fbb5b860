"""What agents bring about by connecting, living and leaving: the only writer of connections and inventories."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import transaction

from astraconsole import events
from astraconsole.sql import prepared
from astraconsole.tokens import digest
from machines import dispatch, protocol
from machines.leases import MOVED_REASON
from machines.models import Assignment, Gpu, Machine, MachineEvent, MachineState
from machines.protocol import Close
from machines.services import record_events

_S = MachineState
GPU_COLUMNS = ("uuid", "model", "memory_bytes", "healthy", "health_reason", "simulated")


class Known(NamedTuple):
    """Whom a machine token speaks for."""

    machine_id: int
    machine_uid: UUID
    name: str
    cluster_id: int
    removed: bool


def authenticate(tokens: Sequence[str]) -> list[Known | None]:
    """Whom each machine token speaks for: one query."""
    digests = [digest(token) for token in tokens]
    columns = ("token_digest", "pk", "uid", "name", "cluster_id", "state")
    rows = Machine.objects.filter(token_digest__in=digests).values_list(*columns)
    known = {row[0]: Known(*row[1:-1], removed=row[-1] == _S.REMOVED) for row in rows}
    return [known.get(each) for each in digests]


def newest_connection(machine_id: int) -> str:
    """Its id; empty: the machine is not connected."""
    return Machine.objects.values_list("connection", flat=True).get(pk=machine_id)


# ---- hello -----------------------------------------------------------------------------------------------------------


class Arrival(NamedTuple):
    machine_id: int
    connection_id: str
    hello: protocol.Hello
    received_at: datetime
    came_from: str = ""  # the other end of the connection, as the console sees it


class Greeting(NamedTuple):
    """What the console answers a hello with, encoded."""

    welcome: bytes
    assignments: bytes


class Refused(NamedTuple):
    """A hello that is not taken."""

    code: Close
    reason: str


REMOVED = Refused(Close.REMOVED, "this machine was removed from its cluster")
IN_USE = "another agent speaks for this machine: of two with the same token and state, join one under a name of its own"
GIVING_UP = "what this machine's agent ran in another place is being given up first"
SILENT_BEATS = 3  # an agent whose last so many heartbeats did not come no longer stands in another's way

HELLO_COLUMNS = (
    *("state", "state_reason", "connection", "connected_at", "applied_revision", "last_seen_at", "clock_skew_seconds"),
    *(
        "labels",
        "cpu_milli",
        "memory_bytes",
        "runtime",
        "hostname",
        "address",
        "agent_version",
        "boot_id",
        "place",
        "stop_grace_seconds",
    ),
)


@transaction.atomic
def connected(arrivals: Sequence[Arrival]) -> list[Greeting | Refused]:
    """The newest connections of these machines, which are Ready now, with these inventories: a handful of queries for
    any number, since all machines come back at once when a console does."""
    rows = Machine.objects.select_for_update(no_key=True, of=("self",)).select_related("cluster")
    rows = rows.filter(pk__in=[arrival.machine_id for arrival in arrivals]).exclude(state=_S.REMOVED)
    machines = {machine.pk: machine for machine in rows.order_by("pk")}
    refused = {arrival.machine_id: REMOVED for arrival in arrivals if arrival.machine_id not in machines}
    for arrival in arrivals:
        if arrival.machine_id in machines and (refusal := _refusal(machines[arrival.machine_id], arrival)):
            refused[arrival.machine_id] = refusal
            del machines[arrival.machine_id]
    greeted = [arrival for arrival in arrivals if arrival.machine_id in machines]
    if not greeted:
        return [refused[arrival.machine_id] for arrival in arrivals]
    before = {pk: machine.state for pk, machine in machines.items()}
    for arrival in greeted:
        _take_hello(machines[arrival.machine_id], arrival)
    record_events(
        MachineEvent(
            machine=machine, cluster_id=machine.cluster_id, state=machine.state, reason=_arrived(before[pk]),
            actor=f"machine {machine.name}", at=machine.last_seen_at,
        )
        for pk, machine in machines.items() if machine.state != before[pk]
    )  # fmt: skip
    _write_hellos(machines.values())
    _take_gpus({arrival.machine_id: arrival.hello.inventory.gpus for arrival in greeted})
    _wake_schedulers({machine.cluster_id for machine in machines.values()})
    sets = dispatch.sets(machines)
    answers = {pk: Greeting(protocol.encode(_welcome(machines[pk])), sets[pk].frame) for pk in machines}
    return [answers.get(arrival.machine_id) or refused[arrival.machine_id] for arrival in arrivals]


def _refusal(machine: Machine, arrival: Arrival) -> Refused | None:
    """Two agents with one machine's token must not run its work twice, as with a copied state directory or a cloned
    disk. The one that is heard keeps the machine. Where it is silent, another boot is taken for the same agent after a
    restart of its machine; another place takes over when what ran in the first one has been given up."""
    hello = arrival.hello
    moved = "" not in (hello.place, machine.place) and hello.place != machine.place
    rebooted = machine.boot_id not in ("", hello.boot_id)
    if machine.connection == arrival.connection_id or not (moved or rebooted):
        return None
    silent = timedelta(seconds=SILENT_BEATS * settings.MACHINE_HEARTBEAT_SECONDS)
    if machine.connection and machine.last_seen_at and machine.last_seen_at > arrival.received_at - silent:
        _tell(machine, f"A second agent with its token is turned away: {hello.inventory.hostname}", arrival)
        return Refused(Close.IN_USE, IN_USE)
    if moved and Assignment.objects.filter(machine=machine, order__isnull=False).exists():
        if machine.state != _S.LOST:
            reason = f"{MOVED_REASON}: {hello.inventory.hostname}"
            machine.state, machine.state_reason, machine.connection = _S.LOST, reason[:300], ""
            machine.save(update_fields=["state", "state_reason", "connection"])
            _tell(machine, reason, arrival)
        return Refused(Close.TRY_AGAIN, GIVING_UP)
    return None


def _tell(machine: Machine, reason: str, arrival: Arrival) -> None:
    """In its history, and not again for each further try."""
    newest = MachineEvent.objects.filter(machine=machine).order_by("-id").values_list("reason", flat=True).first()
    if newest != reason[:300]:
        MachineEvent.objects.create(
            machine=machine,
            cluster_id=machine.cluster_id,
            state=machine.state,
            reason=reason[:300],
            actor="console",
            at=arrival.received_at,
        )


def _arrived(before: str) -> str:
    return "Has connected" if before == _S.JOINING else "Is back"


def _take_hello(machine: Machine, arrival: Arrival) -> None:
    hello, inventory = arrival.hello, arrival.hello.inventory
    if machine.state in (_S.JOINING, _S.LOST):
        machine.state, machine.state_reason = _S.READY, ""
    if machine.connection != arrival.connection_id:
        machine.connection, machine.applied_revision = arrival.connection_id, 0
        machine.connected_at = arrival.received_at
        replaced = {"type": "agent.replaced", "connection": arrival.connection_id}
        group = events.machine_group(machine.uid)
        transaction.on_commit(lambda: events.send_group(group, replaced), robust=True)
    machine.last_seen_at = arrival.received_at
    machine.clock_skew_seconds = skew(hello.wall_clock, arrival.received_at)
    machine.labels = inventory.labels
    machine.cpu_milli = inventory.cpu_milli
    machine.memory_bytes = inventory.memory_bytes
    machine.runtime = inventory.runtime
    machine.hostname = inventory.hostname
    machine.address = inventory.address or arrival.came_from
    machine.agent_version = hello.agent_version
    machine.boot_id = hello.boot_id
    machine.place = hello.place
    machine.stop_grace_seconds = hello.stop_grace_seconds


def _write_hellos(machines: Iterable[Machine]) -> None:
    rows = [{"id": each.pk, **{column: getattr(each, column) for column in HELLO_COLUMNS}} for each in machines]
    columns = ", ".join(f"{column} = hello.{column}" for column in HELLO_COLUMNS)
    with prepared() as cursor:
        cursor.execute(
            f"""UPDATE machines_machine m SET {columns}
            FROM jsonb_populate_recordset(NULL::machines_machine, %s::jsonb) hello WHERE m.id = hello.id""",
            [msgspec.json.encode(rows).decode()],
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
        sample_seconds=settings.METRICS_SAMPLE_SECONDS,
    )


def _take_gpus(declared: Mapping[int, Sequence[protocol.Gpu]]) -> None:
    """By machine id. Writes what differs."""
    present = {(gpu.machine_id, gpu.index): gpu for gpu in Gpu.objects.filter(machine__in=declared)}
    wanted = {(pk, gpu.index): gpu for pk, gpus in declared.items() for gpu in gpus}
    if gone := [present[key].pk for key in present.keys() - wanted.keys()]:
        Gpu.objects.filter(pk__in=gone).delete()
    changed = [
        Gpu(machine_id=pk, index=index, **{column: getattr(gpu, column) for column in GPU_COLUMNS})
        for (pk, index), gpu in wanted.items()
        if (pk, index) not in present or _differs(present[pk, index], gpu)
    ]
    if changed:
        key = ("machine", "index")
        Gpu.objects.bulk_create(changed, update_conflicts=True, unique_fields=key, update_fields=GPU_COLUMNS)


def _differs(row: Gpu, declared: protocol.Gpu) -> bool:
    return any(getattr(row, column) != getattr(declared, column) for column in GPU_COLUMNS)


@transaction.atomic
def disconnected(gone: Sequence[tuple[int, str]]) -> list[None]:
    """Connections (machine id, connection id) that have ended. One that is no longer its machine's changes nothing."""
    with prepared() as cursor:
        cursor.execute(
            """WITH gone AS (
                SELECT m.id FROM machines_machine m
                JOIN unnest(%s::bigint[], %s::text[]) AS g (id, connection) ON m.id = g.id
                WHERE m.connection = g.connection ORDER BY m.id FOR NO KEY UPDATE OF m
            )
            UPDATE machines_machine m SET connection = '' FROM gone WHERE m.id = gone.id RETURNING m.cluster_id""",
            [[machine_id for machine_id, _ in gone], [connection_id for _, connection_id in gone]],
        )
        _wake_schedulers({cluster_id for (cluster_id,) in cursor.fetchall()})
    return [None] * len(gone)


def _wake_schedulers(cluster_ids: Iterable[int]) -> None:
    for cluster_id in cluster_ids:
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
    with prepared() as cursor:
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
