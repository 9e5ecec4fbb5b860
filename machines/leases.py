"""When a machine's lease has expired. Pure: no clock, no database.

A lease starts anew with each heartbeat and lasts `length`. It runs only while the console could have noticed a
heartbeat and could have checked: whenever no daphne, or no lease check, was alive, all leases start anew. So an outage
of the console, of its database or of its workers never makes a machine Lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

DAPHNE = "daphne"
CHECK = "leases"
LOST_REASON = "Machine lost: its lease expired"
MOVED_REASON = "Machine lost: its agent runs in another place"
REMOVED_REASON = "Machine lost: it was removed from its cluster"


@dataclass(frozen=True)
class Alive:
    """A process of the console: alive without a pause from `since` to `seen_at`."""

    kind: str  # DAPHNE | CHECK
    since: datetime
    seen_at: datetime


@dataclass(frozen=True)
class Lease:
    machine_id: int
    seen_at: datetime  # the machine's last heartbeat, on the console's clock


def longest_pause(length: timedelta) -> timedelta:
    """A process that was not seen for longer was not alive meanwhile."""
    return length / 2


def guarded_since(processes: Iterable[Alive], now: datetime, length: timedelta) -> datetime | None:
    """Since when a daphne and the check have both been alive, until now; None: they are not both alive now."""
    alive = [process for process in processes if now - process.seen_at <= longest_pause(length)]
    daphnes = [process.since for process in alive if process.kind == DAPHNE]
    checks = [process.since for process in alive if process.kind == CHECK]
    if not daphnes or not checks:
        return None
    return max(min(daphnes), min(checks))


def expired(leases: Iterable[Lease], processes: Iterable[Alive], now: datetime, length: timedelta) -> list[int]:
    """The machines whose lease has expired."""
    since = guarded_since(processes, now, length)
    if since is None:
        return []
    return [lease.machine_id for lease in leases if now - max(lease.seen_at, since) > length]
