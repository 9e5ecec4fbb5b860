"""The JSON API of machines."""

from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Router
from typing_extensions import TypedDict

from astraconsole.histories import Moved, moves
from astraconsole.json_bodies import json_response, moment, read_reason, reason_body
from astraconsole.tenancy.api_access import CLUSTER, access_of
from astraconsole.tenancy.queries import Access
from machines import queries
from machines.services import cordon, uncordon
from runs.queries import use_of_machines
from runs.services.draining import drain_machine

if TYPE_CHECKING:
    from machines.models import Machine

MACHINES = f"{CLUSTER}/machines"

router = Router(tags=["Machines"])


class MachineMetadata(TypedDict):
    name: str
    uid: str
    cluster: str
    labels: dict[str, str]
    created_at: str


class Cordoned(TypedDict):
    """Takes no new work; what runs goes on."""

    by: str | None
    at: str
    reason: str


class MachineStatus(TypedDict):
    """`drain`: Draining while it still runs something, then Drained; null where it is not to be emptied.
    `connected_at`: since when its agent is; null while it is not. `clock_skew_seconds`: its clock minus the
    console's."""

    state: str
    reason: str
    cordoned: Cordoned | None
    drain: str | None
    connected_at: str | None
    last_seen_at: str | None
    clock_skew_seconds: float | None


class GpuDocument(TypedDict):
    index: int
    uuid: str
    model: str
    memory_bytes: int
    healthy: bool
    health_reason: str
    simulated: bool


class Capacity(TypedDict):
    cpu_cores: float
    memory_bytes: int
    gpus: list[GpuDocument]


class MachineDocument(TypedDict):
    metadata: MachineMetadata
    status: MachineStatus
    capacity: Capacity
    runtime: str
    agent_version: str
    boot_id: str


class MachineWithHistory(MachineDocument):
    history: list[Moved]


class MachineList(TypedDict):
    items: list[MachineDocument]
    next: None


@router.get(MACHINES, response=MachineList)
def list_machines(request: HttpRequest, org: str, ws: str, cluster: str) -> HttpResponse:
    """The cluster's machines, by name."""
    access = access_of(request, org, ws)
    machines = list(queries.machines_for(access, queries.get_cluster(access, cluster).slug))
    busy = _busy(machines)
    return json_response({"items": [_machine(machine, machine.pk in busy) for machine in machines], "next": None})


@router.get(f"{MACHINES}/{{machine}}", response=MachineWithHistory)
def get_machine(request: HttpRequest, org: str, ws: str, cluster: str, machine: str) -> HttpResponse:
    """One machine, with its history (oldest first)."""
    return _answer(access_of(request, org, ws), cluster, machine)


@router.post(f"{MACHINES}/{{machine}}/cordon", response=MachineWithHistory, openapi_extra=reason_body())
def cordon_machine(request: HttpRequest, org: str, ws: str, cluster: str, machine: str) -> HttpResponse:
    """Let a machine take no new work; what it runs goes on. The answer is the machine."""
    access = access_of(request, org, ws)
    cordon(access, queries.get_machine(access, cluster, machine), read_reason(request), timezone.now())
    return _answer(access, cluster, machine)


@router.post(f"{MACHINES}/{{machine}}/drain", response=MachineWithHistory, openapi_extra=reason_body())
def drain_one(request: HttpRequest, org: str, ws: str, cluster: str, machine: str) -> HttpResponse:
    """Let a machine take no new work, and give back what it runs. The answer is the machine."""
    access = access_of(request, org, ws)
    drain_machine(access, queries.get_machine(access, cluster, machine), read_reason(request), timezone.now())
    return _answer(access, cluster, machine)


@router.post(f"{MACHINES}/{{machine}}/uncordon", response=MachineWithHistory)
def uncordon_machine(request: HttpRequest, org: str, ws: str, cluster: str, machine: str) -> HttpResponse:
    """Let a machine take work again, cordoned or draining. The answer is the machine."""
    access = access_of(request, org, ws)
    uncordon(access, queries.get_machine(access, cluster, machine), timezone.now())
    return _answer(access, cluster, machine)


def _answer(access: Access, cluster: str, name: str) -> HttpResponse:
    machine = queries.get_machine(access, cluster, name)
    history = moves(queries.history_of(machine))
    return json_response({**_machine(machine, bool(_busy([machine]))), "history": history})


def _busy(machines: "list[Machine]") -> set[int]:
    """Of those that drain, the ones that still hold room for somebody: one query, or none."""
    draining = [machine.pk for machine in machines if machine.draining]
    return {pk for pk, use in use_of_machines(draining).items() if any(use)} if draining else set()


def _machine(machine: "Machine", busy: bool) -> dict[str, Any]:
    return {
        "metadata": {
            "name": machine.name,
            "uid": str(machine.uid),
            "cluster": machine.cluster.slug,
            "labels": machine.labels,
            "created_at": moment(machine.created_at),
        },
        "status": {
            "state": machine.state,
            "reason": machine.state_reason,
            "cordoned": _cordoned(machine),
            "drain": ("Draining" if busy else "Drained") if machine.draining else None,
            "connected_at": moment(machine.connected_at) if machine.connection else None,
            "last_seen_at": moment(machine.last_seen_at),
            "clock_skew_seconds": machine.clock_skew_seconds,
        },
        "capacity": {
            "cpu_cores": machine.cpu_milli / 1000,
            "memory_bytes": machine.memory_bytes,
            "gpus": [{name: getattr(gpu, name) for name in GpuDocument.__annotations__} for gpu in machine.gpus.all()],
        },
        "runtime": machine.runtime,
        "agent_version": machine.agent_version,
        "boot_id": machine.boot_id,
    }


def _cordoned(machine: "Machine") -> dict[str, Any] | None:
    if machine.cordoned_at is None:
        return None
    by = machine.cordoned_by.username if machine.cordoned_by else None
    return {"by": by, "at": moment(machine.cordoned_at), "reason": machine.cordon_reason}
