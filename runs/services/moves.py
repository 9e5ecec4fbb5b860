"""The one mover. Every change to a worker goes through a `Batch` on its locked run; nothing else writes their state.

    with locked(run_ids) as batch:          # runs locked in id order; the lock of a run covers its workers
        worker = batch.add_worker(row)
        batch.move(worker, WorkerState.RUNNING, "Container running", "machine gpu-07", at)
    # leaving: rows and transitions written set-based, machines told, pages and scheduler woken on commit

A run's state is derived at each move, under the lock: two last workers that end at once cannot each see the other run.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID

from django.db import transaction

from astraconsole import events, sql
from machines import dispatch
from machines.orders import Order
from runs.services import machine_rows, rows, writes
from runs.services.rows import AttemptRow, RunRow, WorkerRow
from runs.services.writes import NewAttempt, TransitionRow
from runs.state_machine import (
    CREATED,
    ENDED,
    RUN_ENDED,
    WAITING,
    FirstFailure,
    RunState,
    WorkerState,
    check_move,
    derive_run,
)


class Batch:
    """Changes to locked runs: collected in memory, written at once by `write`."""

    def __init__(self, runs: dict[int, RunRow]) -> None:
        self.runs = runs
        self.workers: dict[int, WorkerRow] = {}
        self.attempts: dict[int, AttemptRow] = {}
        self.restart_times: list[datetime] = []
        self._machine_names: dict[tuple[int, int], str] = {}  # of (worker, attempt number)
        self._changed_runs: set[int] = set()
        self._changed_workers: set[int] = set()
        self._changed_attempts: set[int] = set()
        self._wanting_tick: set[int] = set()  # clusters
        self._waiting_reasons: dict[int, str] = {}
        self._transitions: list[TransitionRow] = []
        self._new_attempts: list[NewAttempt] = []
        self._machines = MachineOrders()

    # ---- what is there ----

    def add_workers(self, loaded: Iterable[WorkerRow]) -> list[WorkerRow]:
        """One object per worker, however often it is loaded."""
        return [self.workers.setdefault(worker.id, worker) for worker in loaded]

    def add_attempts(self, loaded: Iterable[AttemptRow]) -> list[AttemptRow]:
        """Their workers are to be in the batch as well."""
        added = [self.attempts.setdefault(attempt.id, attempt) for attempt in loaded]
        for attempt in added:
            self._machine_names[attempt.worker_id, attempt.number] = attempt.machine_name
        return added

    def run_of(self, worker: WorkerRow) -> RunRow:
        return self.runs[worker.run_id]

    def machine_of(self, worker: WorkerRow) -> str:
        """The name of the machine of its newest attempt; "" where that was not loaded."""
        return self._machine_names.get((worker.id, worker.attempt_number), "")

    # ---- what changes ----

    def move(self, worker: WorkerRow, state: WorkerState, reason: str, actor: str, at: datetime) -> None:
        """Raises IllegalMove. `at` is never before the worker's previous transition."""
        check_move(worker.state, state)
        run = self.run_of(worker)
        run.counts[worker.state] -= 1
        run.counts[state] = run.counts.get(state, 0) + 1
        worker.state = state
        self._record(worker, reason, actor, at)
        if state is WorkerState.FAILED:
            self._note_failure(run, worker)
        if state in WAITING:
            self._waiting_reasons[run.id] = reason
        if state is WorkerState.PENDING or state in ENDED:
            self._wanting_tick.add(run.cluster_id)
        self.derive(run, actor, worker.changed_at)

    def _note_failure(self, run: RunRow, worker: WorkerRow) -> None:
        failed_at = (worker.last_failure or {}).get("failed_at", "")
        if run.failure is None or failed_at < run.failed_at:
            run.failure = FirstFailure(worker.name, self.machine_of(worker), worker.reason)
            run.failed_at = failed_at

    def note(self, worker: WorkerRow, reason: str, actor: str, at: datetime) -> None:
        """A new reason that is worth its place in the history, in the same state."""
        self._record(worker, reason, actor, at)
        self.touch(worker)

    def remark(self, worker: WorkerRow, remark: str, actor: str, at: datetime) -> None:
        """An entry of the history that changes neither state nor reason."""
        reason = worker.reason
        self.note(worker, remark, actor, at)
        worker.reason = reason

    def note_run(self, run: RunRow, reason: str, actor: str, at: datetime) -> None:
        """An event of the run that changes no state."""
        run.changed_at = max(at, run.changed_at)
        self._record_run(run, reason, actor)
        self._changed_runs.add(run.id)

    def reword(self, worker: WorkerRow, reason: str) -> None:
        """Progress: shown, not recorded."""
        if worker.reason != reason:
            worker.reason = reason
            self.touch(worker)

    def touch(self, worker: WorkerRow) -> None:
        self._changed_workers.add(worker.id)
        self._changed_runs.add(worker.run_id)

    def touch_attempt(self, attempt: AttemptRow) -> None:
        self._changed_attempts.add(attempt.id)

    def release(self, attempt: AttemptRow, now: datetime) -> None:
        """Its process is really gone: its room is free."""
        attempt.released_at = now
        self.touch_attempt(attempt)
        self._wanting_tick.add(self.run_of(self.workers[attempt.worker_id]).cluster_id)

    def supersede(self, attempt: AttemptRow, now: datetime) -> None:
        """From here on its reports move nothing but its own room."""
        if attempt.superseded_at is None:
            attempt.superseded_at = now
            self.touch_attempt(attempt)

    def start_attempt(self, attempt: NewAttempt, order: Order) -> None:
        self._new_attempts.append(attempt)
        self._machines.assigned.append((attempt.machine_id, order))

    def withdraw(self, attempt: AttemptRow) -> None:
        """Its machine is to stop it, and to keep its log."""
        self._machines.withdrawn[attempt.uid] = attempt.machine_id

    def archive(self, attempt_uid: UUID, machine_id: int) -> None:
        """Its worker is placed anew: its machine is to keep no more than the end of its log."""
        self._machines.to_archive[attempt_uid] = machine_id

    def forget(self, attempt: AttemptRow) -> None:
        """Its machine is to stop it and to remove all traces of it."""
        self._machines.to_forget[attempt.uid] = attempt.machine_id

    def open_barrier(self, attempt_uid: UUID, machine_id: int) -> None:
        """Its machine is to start it: all the others of its gang are ready."""
        self._machines.opened[attempt_uid] = machine_id

    def settle(self, attempt: AttemptRow) -> None:
        """It has ended: its machine need not be told to run it any more."""
        self._machines.settled.append(attempt.uid)

    def is_forgotten(self, attempt: AttemptRow) -> None:
        """Its machine has removed all traces of it."""
        self._machines.forgotten.append(attempt.uid)

    def is_archived(self, attempt: AttemptRow) -> None:
        """Its machine keeps no more than the end of its log."""
        self._machines.archived.append(attempt.uid)

    @property
    def machines_to_tell(self) -> set[int]:
        return self._machines.touched

    def want_tick(self, run: RunRow) -> None:
        self._wanting_tick.add(run.cluster_id)

    def derive(self, run: RunRow, actor: str, at: datetime) -> None:
        """The run's state and reason from its workers; a change of state is recorded. An ended run stays as it is."""
        self._changed_runs.add(run.id)
        if run.ended:
            return
        waiting = self._waiting_reasons.get(run.id) or (run.reason if run.state is RunState.PENDING else CREATED)
        derived = derive_run(run.facts(waiting))
        run.reason = derived.reason
        if derived.state is run.state:
            return
        run.state = derived.state
        run.changed_at = max(at, run.changed_at)
        if derived.state is RunState.RUNNING and run.started_at is None:
            run.started_at = run.changed_at
        if derived.state in RUN_ENDED:
            run.ended_at = run.changed_at
        self._record_run(run, derived.reason, actor)

    def _record_run(self, run: RunRow, reason: str, actor: str) -> None:
        self._transitions.append(
            TransitionRow(run.workspace_id, run.id, None, None, run.state, reason, actor, run.changed_at)
        )

    def _record(self, worker: WorkerRow, reason: str, actor: str, at: datetime) -> None:
        worker.reason = reason
        worker.changed_at = max(at, worker.changed_at)
        number = worker.attempt_number or None
        workspace_id = self.run_of(worker).workspace_id
        self._transitions.append(
            TransitionRow(
                workspace_id, worker.run_id, worker.id, number, worker.state, reason, actor, worker.changed_at
            )
        )
        self._changed_workers.add(worker.id)

    # ---- writing ----

    def write(self) -> None:
        """A handful of statements for any number of changes; then, on commit, the hints."""
        runs = [self.runs[run_id] for run_id in sorted(self._changed_runs)]
        for run in runs:
            if not run.counts.get(WorkerState.PENDING):
                run.pending_code = ""
        with sql.together():
            if self._new_attempts:
                writes.insert_attempts(self._new_attempts)
            if self._changed_attempts:
                writes.update_attempts([self.attempts[key] for key in sorted(self._changed_attempts)])
            if self._changed_workers:
                writes.update_workers([self.workers[key] for key in sorted(self._changed_workers)])
            if runs:
                writes.update_runs(runs)
            if self._transitions:
                writes.insert_transitions(self._transitions)
            self._machines.send()
        self._hint(runs)

    def _hint(self, runs: list[RunRow]) -> None:
        by_workspace: dict[int, list[UUID]] = {}
        for run in runs:
            by_workspace.setdefault(run.workspace_id, []).append(run.uid)
        for cluster_id in self._wanting_tick:
            events.wake("schedule", cluster_id)
        for workspace_id, uids in by_workspace.items():
            events.runs_changed(workspace_id, uids)
        events.wake_at("restarts", self.restart_times)


class MachineOrders:
    """What the machines of one batch are to be told. Each call below locks the machines it touches in id order; where
    there is more than one call, all are locked first, since two batches must not take them in different orders."""

    def __init__(self) -> None:
        self.assigned: list[tuple[int, Order]] = []
        self.withdrawn: dict[UUID, int] = {}  # attempt → machine
        self.to_forget: dict[UUID, int] = {}
        self.to_archive: dict[UUID, int] = {}
        self.opened: dict[UUID, int] = {}
        self.settled: list[UUID] = []
        self.forgotten: list[UUID] = []
        self.archived: list[UUID] = []

    @property
    def touched(self) -> set[int]:
        told = (self.withdrawn, self.to_forget, self.to_archive, self.opened)
        return {machine_id for machine_id, _ in self.assigned}.union(*(machines.values() for machines in told))

    def send(self) -> None:
        if sum(map(bool, (self.assigned, self.withdrawn, self.to_forget, self.to_archive, self.opened))) > 1:
            machine_rows.lock_machines(self.touched)
        if self.assigned:
            dispatch.assign(self.assigned)
        if self.withdrawn:
            dispatch.withdraw(list(self.withdrawn))
        if self.to_forget:
            dispatch.forget([(machine_id, uid) for uid, machine_id in self.to_forget.items()])
        if self.to_archive:
            dispatch.archive([(machine_id, uid) for uid, machine_id in self.to_archive.items()])
        if self.opened:
            dispatch.open_barriers(list(self.opened))
        if self.settled:
            dispatch.settle(self.settled)
        if self.forgotten:
            dispatch.forgotten(self.forgotten)
        if self.archived:
            dispatch.archived(self.archived)


@contextmanager
def locked(run_ids: Iterable[int], savepoint: bool = True) -> Iterator[Batch]:
    """A transaction on these runs; inside another one, a part of it: `savepoint`, one that can fail by itself."""
    with transaction.atomic(savepoint=savepoint):
        batch = Batch(rows.lock_runs(run_ids))
        yield batch
        batch.write()
