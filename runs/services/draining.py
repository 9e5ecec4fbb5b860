"""Draining a machine: it takes no new work, and what it runs is given back in order."""

from datetime import datetime
from typing import TYPE_CHECKING

from astraconsole.tenancy.queries import Access
from machines import services as machine_services
from runs.services import machine_rows
from runs.services.requeueing import requeue_machines

if TYPE_CHECKING:
    from machines.models import Machine


def drain_machine(access: Access, machine: "Machine", reason: str, now: datetime) -> None:
    """Raises Forbidden, ValidationError, NotFound.

    Two transactions: machines are locked after runs, and nothing is placed on it once the first has committed. What a
    crash between them leaves behind, `give_back_drained` finds.
    """
    machine_services.drain(access, machine, reason, now)
    _give_back(machine.pk, machine.name, machine.cordon_reason, access.actor, now)


def give_back_drained(now: datetime) -> None:
    """The safety net: what draining machines still run without having been asked to stop."""
    for machine_id, name, reason, owner in machine_rows.undrained_machines():
        _give_back(machine_id, name, reason, owner or "console", now)


def _give_back(machine_id: int, name: str, reason: str, actor: str, now: datetime) -> None:
    requeue_machines([machine_id], f"Machine {name} is drained: {reason}", actor, now)
