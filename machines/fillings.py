"""How far the machines of a workspace are with a drive or a model: as they said last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from astraconsole.tenancy.queries import Access
from machines import queries

if TYPE_CHECKING:
    from machines.models import DataOnMachine, Machine, Volume

READY, FILLING, WAITING, FAILED = "Ready", "Filling", "Waiting", "Failed"
MOUNTING_RUNTIME = "docker"


@dataclass(frozen=True)
class OnMachine:
    """One machine that holds it, or tries to."""

    machine: "Machine"
    told: "DataOnMachine"

    @property
    def percent(self) -> int | None:
        """Null: how much there is is not known."""
        told = self.told
        return 100 * told.done_bytes // told.total_bytes if told.total_bytes else None


@dataclass(frozen=True)
class VolumeView:
    """A drive or a model; the machines that hold it or try to, by cluster and name; and how many others could."""

    volume: "Volume"
    machines: Sequence[OnMachine]
    others: int

    def count(self, state: str) -> int:
        return sum(one.told.state == state for one in self.machines)

    @property
    def ready(self) -> int:
        return self.count(READY)

    @property
    def state(self) -> str:
        """What most needs to be looked at; empty where no machine holds it."""
        states = {one.told.state for one in self.machines}
        return next((state for state in (FAILED, FILLING, WAITING, READY) if state in states), "")


def views_of(access: Access, volumes: "Sequence[Volume]") -> list[VolumeView]:
    """Three queries for any number."""
    machines = list(queries.machines_for(access))
    told = queries.data_on_machines(access, [volume.uid for volume in volumes])
    return [_view(volume, machines, told.get(volume.uid, {})) for volume in volumes]


def _view(volume: "Volume", machines: "Sequence[Machine]", told: "Mapping[int, DataOnMachine]") -> VolumeView:
    holding = [OnMachine(machine, told[machine.pk]) for machine in machines if machine.pk in told]
    could = sum(machine.runtime == MOUNTING_RUNTIME for machine in machines if machine.pk not in told)
    return VolumeView(volume, holding, could)
