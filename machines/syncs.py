"""How far each machine of a workspace is with a credential: what it said, or why it has not said anything."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from astraconsole.tenancy.queries import Access
from machines import queries

if TYPE_CHECKING:
    from machines.models import Credential, DataOnMachine, Machine

SYNCED, FAILED, WAITING = "Synced", "Failed", "Waiting"


@dataclass(frozen=True)
class Sync:
    """One machine's state: Synced, Failed (message: why), Waiting (it has not said yet)."""

    machine: "Machine"
    state: str
    message: str
    changed_at: datetime | None


@dataclass(frozen=True)
class CredentialView:
    """A credential and its machines, by cluster and name."""

    credential: "Credential"
    syncs: Sequence[Sync]

    def count(self, state: str) -> int:
        return sum(sync.state == state for sync in self.syncs)

    @property
    def synced(self) -> int:
        return self.count(SYNCED)

    @property
    def failed(self) -> int:
        return self.count(FAILED)

    @property
    def state(self) -> str:
        """Of all machines together; empty where there are none."""
        states = {sync.state for sync in self.syncs}
        return next((state for state in (FAILED, WAITING, SYNCED) if state in states), "")


def views_of(access: Access, credentials: "Sequence[Credential]") -> list[CredentialView]:
    """Two more queries for any number."""
    machines = list(queries.machines_for(access))
    told = queries.data_on_machines(access, [credential.uid for credential in credentials])
    return [CredentialView(each, _syncs(machines, told.get(each.uid, {}))) for each in credentials]


def _syncs(machines: "Iterable[Machine]", told: "Mapping[int, DataOnMachine]") -> list[Sync]:
    return [_sync(machine, told.get(machine.pk)) for machine in machines]


def _sync(machine: "Machine", told: "DataOnMachine | None") -> Sync:
    if told is not None:
        return Sync(machine, told.state, told.message, told.changed_at)
    why = "the machine has not said yet" if machine.state == "Ready" else f"the machine is {machine.state}"
    return Sync(machine, WAITING, why, None)
