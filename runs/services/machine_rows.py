"""Set-based reads of machines for services: locked in id order, what they have, and what live attempts hold of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from astraconsole.sql import fetch
from machines.leases import LOST_REASON, REMOVED_REASON


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """A locked machine. Cores in thousandths, memory in bytes."""

    id: int
    name: str
    host: str  # where the workers of other machines reach it
    cpu_milli: int
    memory_bytes: int
    takes_work: bool
    stop_grace_seconds: float


def lock_machines(machine_ids: Iterable[int]) -> dict[int, MachineRoom]:
    """Lock machines in id order (after runs: the one order everywhere)."""
    rows = fetch(
        """
        SELECT id, name, coalesce(nullif(address, ''), nullif(hostname, ''), name), cpu_milli, memory_bytes,
            state = 'Ready' AND connection <> '' AND cordoned_at IS NULL, stop_grace_seconds
        FROM machines_machine WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE
        """,
        [sorted(set(machine_ids))],
    )
    return {row[0]: MachineRoom(*row) for row in rows}


def why_lost(machine_ids: Iterable[int]) -> dict[int, str]:
    """The sentence for what ran there. A machine that is back by now was lost for its lease."""
    found = fetch(
        """
        SELECT id, CASE WHEN state = 'Removed' THEN %s WHEN state = 'Lost' AND state_reason <> '' THEN state_reason
            ELSE %s END
        FROM machines_machine WHERE id = ANY(%s)
        """,
        [REMOVED_REASON, LOST_REASON, list(machine_ids)],
    )
    return dict(found)


def undrained_machines() -> list[tuple[int, str, str, str | None]]:
    """(id, name, why it drains, who wants it) of draining machines with workers that were not asked to stop."""
    return fetch(
        """
        SELECT m.id, m.name, m.cordon_reason, u.username
        FROM machines_machine m LEFT JOIN tenancy_user u ON u.id = m.cordoned_by_id
        WHERE m.draining AND EXISTS (
            SELECT FROM runs_attempt a JOIN runs_worker w ON w.id = a.worker_id AND w.attempt_number = a.number
            WHERE a.machine_id = m.id AND a.released_at IS NULL AND a.superseded_at IS NULL
                AND w.stop_requested_at IS NULL)
        ORDER BY m.id
        """,
        [],
    )


def held_room(machine_ids: Iterable[int]) -> list[tuple[int, int, int, list[int]]]:
    """(machine, cpu_milli, memory_bytes, GPU indexes) of each live attempt."""
    return fetch(
        """
        SELECT machine_id, cpu_milli, memory_bytes, gpu_indexes FROM runs_attempt
        WHERE machine_id = ANY(%s) AND released_at IS NULL
        """,
        [list(machine_ids)],
    )


def healthy_gpus(machine_ids: Iterable[int]) -> dict[int, set[int]]:
    gpus: dict[int, set[int]] = {machine_id: set() for machine_id in machine_ids}
    found = fetch('SELECT machine_id, "index" FROM machines_gpu WHERE machine_id = ANY(%s) AND healthy', [list(gpus)])
    for machine_id, index in found:
        gpus[machine_id].add(index)
    return gpus


def hosts_of_rank_0(run_ids: Iterable[int]) -> dict[int, str]:
    found = fetch(
        """
        SELECT w.run_id, coalesce(nullif(m.address, ''), nullif(m.hostname, ''), m.name) FROM runs_worker w
        JOIN runs_attempt a ON a.worker_id = w.id AND a.number = w.attempt_number
        JOIN machines_machine m ON m.id = a.machine_id
        WHERE w.run_id = ANY(%s) AND w.rank = 0 AND a.released_at IS NULL AND a.superseded_at IS NULL
        """,
        [list(run_ids)],
    )
    return dict(found)
