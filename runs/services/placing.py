"""The scheduler's decisions, written: placements, planned workers, why runs wait. Stale proposals are dropped."""

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime

from runs.scheduling.explain import sentence
from runs.scheduling.types import Numbers, Placement, WorkerShape
from runs.services import machine_rows, rows, writes
from runs.services.machine_rows import MachineRoom
from runs.services.moves import Batch, locked
from runs.services.orders import build_order
from runs.services.rows import RunRow, WorkerRow
from runs.services.writes import NewAttempt
from runs.spec import RunSpec
from runs.state_machine import CREATED, WorkerState

SCHEDULER = "scheduler"


def place_workers(cluster_id: int, placements: Sequence[Placement], now: datetime) -> list[int]:
    """`place`, in a batch of its own."""
    if not placements:
        return []
    with locked(placement.run_id for placement in placements) as batch:
        return place(batch, cluster_id, placements, now)


def place(batch: Batch, cluster_id: int, placements: Sequence[Placement], now: datetime) -> list[int]:
    """Place what still holds: the worker waits, its run is there and locked, the machine takes work and has the room;
    of a gang all or none. Returns the ids of the workers that were placed; a dropped one waits for the next pass."""
    workers = {w.id: w for w in batch.add_workers(rows.workers_by_id(p.worker_id for p in placements))}
    before = rows.attempts_placed_before(worker.id for worker in workers.values() if worker.attempt_number)
    # All machines of the batch at once: two batches must not lock them in different orders.
    told = batch.machines_to_tell.union(machine_id for _, machine_id in before.values())
    room = Room(told.union(placement.machine_id for placement in placements))
    kept: list[tuple[WorkerRow, Placement]] = []
    for run_id, together in _by_run(placements).items():
        taken = [
            (workers[placement.worker_id], placement)
            for placement in together
            if _may_be_placed(batch, workers.get(placement.worker_id), cluster_id) and room.take(placement)
        ]
        run = batch.runs.get(run_id)
        if run is not None and run.gang and len(taken) < run.counts.get(WorkerState.PENDING, 0):
            for _, placement in taken:
                room.give_back(placement)
        else:
            kept += taken
    for worker, _ in kept:
        if worker.id in before:
            batch.archive(*before[worker.id])
    _start_attempts(batch, kept, room.machines, now)
    return [worker.id for worker, _ in kept]


def _by_run(placements: Sequence[Placement]) -> dict[int, list[Placement]]:
    found: dict[int, list[Placement]] = {}
    for placement in placements:
        found.setdefault(placement.run_id, []).append(placement)
    return found


class Room:
    """What the machines of some placements have left: sums over live attempts, under the machines' locks."""

    def __init__(self, machine_ids: Iterable[int]) -> None:
        self.machines = machine_rows.lock_machines(machine_ids)
        self._cpu_milli = {machine.id: machine.cpu_milli for machine in self.machines.values()}
        self._memory_bytes = {machine.id: machine.memory_bytes for machine in self.machines.values()}
        self._gpus = machine_rows.healthy_gpus(self.machines)
        self._placed: set[int] = set()
        for machine_id, cpu_milli, memory_bytes, gpu_indexes in machine_rows.held_room(self.machines):
            self._hold(machine_id, cpu_milli, memory_bytes, gpu_indexes)

    def take(self, placement: Placement) -> bool:
        """Whether it fits; then it is held."""
        machine = self.machines.get(placement.machine_id)
        if machine is None or not machine.takes_work or placement.worker_id in self._placed:
            return False
        fits = (
            placement.cpu_milli <= self._cpu_milli[machine.id]
            and placement.memory_bytes <= self._memory_bytes[machine.id]
            and self._gpus[machine.id].issuperset(placement.gpu_indexes)
        )
        if fits:
            self._placed.add(placement.worker_id)
            self._hold(machine.id, placement.cpu_milli, placement.memory_bytes, placement.gpu_indexes)
        return fits

    def give_back(self, placement: Placement) -> None:
        self._placed.remove(placement.worker_id)
        self._cpu_milli[placement.machine_id] += placement.cpu_milli
        self._memory_bytes[placement.machine_id] += placement.memory_bytes
        self._gpus[placement.machine_id].update(placement.gpu_indexes)

    def _hold(self, machine_id: int, cpu_milli: int, memory_bytes: int, gpu_indexes: Sequence[int]) -> None:
        self._cpu_milli[machine_id] -= cpu_milli
        self._memory_bytes[machine_id] -= memory_bytes
        self._gpus[machine_id].difference_update(gpu_indexes)


def _may_be_placed(batch: Batch, worker: WorkerRow | None, cluster_id: int) -> bool:
    if worker is None or worker.state is not WorkerState.PENDING or worker.run_id not in batch.runs:
        return False
    run = batch.run_of(worker)
    return run.deleted_at is None and run.cluster_id == cluster_id


def _start_attempts(
    batch: Batch, kept: Sequence[tuple[WorkerRow, Placement]], machines: dict[int, MachineRoom], now: datetime
) -> None:
    specs = rows.specs_of({worker.run_id for worker, _ in kept})
    masters = _master_hosts(batch, kept, machines, specs)
    for worker, placement in kept:
        run = batch.run_of(worker)
        machine = machines[placement.machine_id]
        worker.attempt_number += 1
        worker.exit_code = None
        batch.move(worker, WorkerState.PREPARING, f"Placed on {machine.name}", SCHEDULER, now)
        attempt = NewAttempt(
            uid=uuid.uuid4(),
            worker_id=worker.id,
            machine_id=machine.id,
            number=worker.attempt_number,
            cpu_milli=placement.cpu_milli,
            memory_bytes=placement.memory_bytes,
            gpu_indexes=placement.gpu_indexes,
            placed_at=now,
        )
        order = build_order(
            run, worker, specs[run.id], attempt.uid, placement.gpu_indexes, machine.stop_grace_seconds,
            masters.get(run.id, ""),
        )  # fmt: skip
        batch.start_attempt(attempt, order)


def _master_hosts(
    batch: Batch,
    kept: Sequence[tuple[WorkerRow, Placement]],
    machines: dict[int, MachineRoom],
    specs: dict[int, RunSpec],
) -> dict[int, str]:
    """Run id → host of rank 0: placed in this very batch, or running already. Only where several form one world."""
    worlds = {
        run_id for run_id, spec in specs.items() if spec.array is None and sum(batch.runs[run_id].counts.values()) > 1
    }
    if not worlds:
        return {}
    hosts = machine_rows.hosts_of_rank_0(worlds)
    for worker, placement in kept:
        if worker.rank == 0:
            hosts[worker.run_id] = machines[placement.machine_id].host
    return hosts


def plan_run(run_id: int, shapes: Sequence[WorkerShape], now: datetime) -> bool:
    """(Re)create the workers of a run of which nothing has started. False: it has meanwhile, or it is gone."""
    with locked([run_id]) as batch:
        run = batch.runs.get(run_id)
        if run is None or not _is_untouched(run):
            return False
        planned = [(worker.name, worker.gpus) for worker in rows.workers_of_runs([run_id])]
        if planned == [(shape.name, shape.gpus) for shape in shapes]:
            return True
        writes.delete_workers(run_id)
        writes.insert_workers(run.id, shapes, CREATED, SCHEDULER, now)
        run.counts = {WorkerState.PENDING: len(shapes)} if shapes else {}
        batch.derive(run, SCHEDULER, now)
        batch.want_tick(run)
    return True


def _is_untouched(run: RunRow) -> bool:
    waiting = run.counts.get(WorkerState.PENDING, 0)
    untouched = waiting == sum(run.counts.values()) and not rows.has_attempts(run.id)
    return untouched and not run.ended and run.deleted_at is None and run.stop_requested_at is None


def store_pending(items: Sequence[tuple[int, str, Numbers]], now: datetime) -> None:
    """Why each of these runs waits (run id, code, numbers): written where it differs, and only while the run waits."""
    if items:
        quotas = {run_id: sentence(code, numbers) for run_id, code, numbers in items if code.startswith("quota_")}
        writes.update_pending(items, quotas, now)
