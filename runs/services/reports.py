"""What machines report, applied: a batch in one transaction, a handful of statements for any number of reports.

A report carries an attempt's whole status, so of several only the newest counts. Fenced by attempt: reports of a
superseded one free its room and change nothing else. Everything is acknowledged, also what changed nothing: a machine
would only repeat it.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.conf import settings
from django.db import transaction

from machines.images import shown_reference
from machines.inbox import Acknowledgement, Entry
from machines.protocol import EndReason, Phase, Report
from runs.outcomes import End, EndCause
from runs.quick_failures import blame
from runs.receipt import AT_BARRIER
from runs.services import blaming, gangs, rows
from runs.services.ends import end_worker
from runs.services.moves import Batch, locked
from runs.services.rows import AttemptRow, WorkerRow
from runs.spec import RunSpec, template_of
from runs.state_machine import CONTAINER_RUNNING, ENDED, NOT_READY_PREFIX, PLACED, WorkerState

log = logging.getLogger(__name__)

ORDER = (WorkerState.PREPARING, WorkerState.PULLING, WorkerState.STARTING, WorkerState.RUNNING)
STATE_OF = {
    Phase.PREPARING: WorkerState.PREPARING,
    Phase.PULLING: WorkerState.PULLING,
    Phase.READY: WorkerState.STARTING,
    Phase.STARTING: WorkerState.STARTING,
    Phase.RUNNING: WorkerState.RUNNING,
}
PLAIN_PHASES = {Phase.PREPARING, Phase.READY, Phase.STARTING, Phase.RUNNING}  # whose telling needs no specification


@dataclass(frozen=True)
class Received:
    """The newest report of an attempt in a batch."""

    report: Report
    machine_id: int
    at: datetime


def apply(entries: Sequence[Entry], now: datetime) -> list[Acknowledgement]:
    """Apply reports and hellos, in the order received. Returns (machine uid, attempt uid, seq) to acknowledge."""
    newest, hellos, acknowledged = _sorted_out(entries)
    run_ids = set(rows.runs_of_attempts(newest))
    if hellos:
        run_ids.update(rows.runs_live_on_machines(hello.machine_id for hello in hellos))
    if not run_ids:
        return acknowledged
    with locked(run_ids) as batch:
        attempts = batch.add_attempts(rows.attempts_by_uid(newest))
        batch.add_workers(rows.workers_by_id({attempt.worker_id for attempt in attempts}))
        specs = Specs()
        _apply_reports(batch, [(attempt, newest[attempt.uid]) for attempt in attempts], specs, now)
        for hello in hellos:
            _apply_hello(batch, hello, newest, specs, now)
        gangs.open_barriers(batch)
        if blamed := {attempt.machine_id for attempt in attempts if attempt.blame}:
            # In a transaction of its own, since here machines are locked already. A look that is lost, the next
            # failure makes good.
            transaction.on_commit(partial(blaming.look_at, blamed, now), robust=True)
    return acknowledged


def _sorted_out(entries: Sequence[Entry]) -> tuple[dict[UUID, Received], list[Entry], list[Acknowledgement]]:
    newest: dict[UUID, Received] = {}
    hellos: dict[int, Entry] = {}
    acknowledged: list[Acknowledgement] = []
    for entry in entries:
        if entry.hello is not None:
            hellos[entry.machine_id] = entry
        if entry.report is None:
            continue
        uid = UUID(entry.report.attempt)
        acknowledged.append((entry.machine_uid, uid, entry.report.seq))
        known = newest.get(uid)
        if known is None or known.report.seq < entry.report.seq:
            newest[uid] = Received(entry.report, entry.machine_id, entry.received_at)
    return newest, list(hellos.values()), acknowledged


class Specs:
    """Specifications of a batch's runs, each loaded when first asked for."""

    def __init__(self) -> None:
        self._specs: dict[int, RunSpec] = {}

    def load(self, run_ids: Iterable[int]) -> None:
        if missing := set(run_ids) - self._specs.keys():
            self._specs |= rows.specs_of(missing)

    def of(self, worker: WorkerRow) -> RunSpec:
        self.load([worker.run_id])
        return self._specs[worker.run_id]


# ---- reports ----


def _apply_reports(batch: Batch, received: Sequence[tuple[AttemptRow, Received]], specs: Specs, now: datetime) -> None:
    steps: list[tuple[datetime, Callable[[], None]]] = []
    fresh = [(attempt, item) for attempt, item in received if _is_fresh(attempt, item)]
    specs.load({batch.workers[attempt.worker_id].run_id for attempt, item in fresh if _needs_spec(item.report)})
    for attempt, item in fresh:
        _note_attempt(batch, attempt, item, now)
        if _is_current(batch, attempt):
            steps += _steps(batch, attempt, item, specs)
    steps.sort(key=lambda step: step[0])  # over all workers, so that a run's history is told in order
    for _, step in steps:
        step()


def _is_fresh(attempt: AttemptRow, item: Received) -> bool:
    if attempt.machine_id != item.machine_id:
        log.warning("Machine %s reported attempt %s, which is placed elsewhere", item.machine_id, attempt.uid)
        return False
    return attempt.report_seq < item.report.seq


def _needs_spec(report: Report) -> bool:
    return any(age.phase not in PLAIN_PHASES for age in report.phases)


def _is_current(batch: Batch, attempt: AttemptRow) -> bool:
    """Whether its reports move its worker."""
    worker = batch.workers[attempt.worker_id]
    return attempt.superseded_at is None and attempt.number == worker.attempt_number and worker.state in PLACED


def _note_attempt(batch: Batch, attempt: AttemptRow, item: Received, now: datetime) -> None:
    """What is true of the attempt itself, wanted or not. Its room is free only when its process is really gone."""
    report = item.report
    attempt.report_seq = report.seq
    attempt.image_digest = report.image_digest[:200] or attempt.image_digest
    attempt.engine_image = report.engine_image or attempt.engine_image
    batch.touch_attempt(attempt)
    phases = {age.phase: _time(item, age.seconds_ago) for age in report.phases}
    attempt.running_at = attempt.running_at or phases.get(Phase.RUNNING)
    if (ended_at := phases.get(Phase.ENDED)) and attempt.ended_at is None:
        attempt.ended_at = ended_at
        attempt.exit_code = report.exit_code
        attempt.end_reason = report.end_reason or ""
    if attempt.released_at is None and (Phase.ENDED in phases or Phase.FORGOTTEN in phases):
        batch.release(attempt, now)
        batch.settle(attempt)
    if Phase.FORGOTTEN in phases:
        batch.is_forgotten(attempt)
    elif Phase.ARCHIVED in phases:
        batch.is_archived(attempt)


def _steps(
    batch: Batch, attempt: AttemptRow, item: Received, specs: Specs
) -> list[tuple[datetime, Callable[[], None]]]:
    worker = batch.workers[attempt.worker_id]
    report, actor = item.report, f"machine {attempt.machine_name}"
    steps: list[tuple[datetime, Callable[[], None]]] = []

    def add(at: datetime, step: Callable[[], None]) -> None:
        steps.append((max(at, steps[-1][0]) if steps else at, step))

    for age in report.phases:
        at = _time(item, age.seconds_ago)
        if (state := STATE_OF.get(age.phase)) is not None:
            reason = AT_BARRIER if age.phase is Phase.READY else _phase_reason(state, worker, specs)
            add(at, partial(_advance, batch, worker, state, reason, actor, at))
    if report.process_oom_kills > attempt.process_oom_kills:
        kills = report.process_oom_kills
        add(item.at, partial(_warn_of_oom_kills, batch, attempt, worker, kills, actor, item.at))
    if (end := _end_of(attempt, item)) is not None:
        at, how = end
        add(at, lambda: _end(batch, attempt, specs.of(worker), how, actor, at, report.log_tail))
    else:
        add(item.at, partial(_show_progress, batch, worker, report, specs))
    return steps


def _advance(batch: Batch, worker: WorkerRow, state: WorkerState, reason: str, actor: str, at: datetime) -> None:
    """Forwards only: what a resent report tells again has been recorded."""
    if worker.state in ORDER and ORDER.index(state) > ORDER.index(worker.state):
        batch.move(worker, state, reason, actor, at)


def _end(batch: Batch, attempt: AttemptRow, spec: RunSpec, end: End, actor: str, at: datetime, log_tail: str) -> None:
    worker = batch.workers[attempt.worker_id]
    if worker.state not in PLACED:
        return
    if worker.stop_requested_at is None:
        attempt.blame = blame(end, settings.MACHINE_CORDON_SECONDS)
        batch.touch_attempt(attempt)
    end_worker(batch, worker, spec, end, actor, at, log_tail)


def _end_of(attempt: AttemptRow, item: Received) -> tuple[datetime, End] | None:
    """When and how the attempt ended, if the report says so. Forgotten without an end: it never ran, or nobody saw."""
    report = item.report
    for age in reversed(report.phases):
        at = _time(item, age.seconds_ago)
        ran = (at - attempt.running_at).total_seconds() if attempt.running_at else 0
        if age.phase is Phase.ENDED:
            cause = EndCause((report.end_reason or EndReason.EXITED).value)
            return at, End(
                cause, report.exit_code, report.message[:2000], max(ran, 0), pull_failure=report.pull_failure
            )
    if any(age.phase is Phase.FORGOTTEN for age in report.phases):
        return item.at, End(EndCause.UNKNOWN_TO_MACHINE)
    return None


def _phase_reason(state: WorkerState, worker: WorkerRow, specs: Specs) -> str:
    if state is WorkerState.PULLING:
        return f"Pulling {shown_reference(template_of(specs.of(worker), worker.group).image)}"
    return {
        WorkerState.PREPARING: "Preparing",
        WorkerState.STARTING: "Starting the container",
        WorkerState.RUNNING: CONTAINER_RUNNING,
    }[state]


def _show_progress(batch: Batch, worker: WorkerRow, report: Report, specs: Specs) -> None:
    if worker.stop_requested_at is not None or worker.state in ENDED:
        return
    if worker.state is WorkerState.PULLING and report.pull_progress:
        batch.reword(worker, f"{_phase_reason(worker.state, worker, specs)}: {report.pull_progress[:100]}")
    elif worker.state in ORDER[:-1] and report.waiting:
        batch.reword(worker, report.waiting)
    elif worker.state in (WorkerState.PREPARING, WorkerState.STARTING) and report.message:
        batch.reword(worker, report.message[:2000])
    elif worker.state is WorkerState.RUNNING:
        not_ready = f"{NOT_READY_PREFIX}: {report.not_ready[:1000]}"
        batch.reword(worker, not_ready if report.not_ready else CONTAINER_RUNNING)


def _warn_of_oom_kills(
    batch: Batch, attempt: AttemptRow, worker: WorkerRow, kills: int, actor: str, at: datetime
) -> None:
    attempt.process_oom_kills = kills
    processes = "1 process was" if kills == 1 else f"{kills} processes were"
    if worker.state is WorkerState.RUNNING and worker.stop_requested_at is None:
        batch.remark(worker, f"{processes} killed for memory; the worker goes on", actor, at)


def _time(item: Received, seconds_ago: float) -> datetime:
    """On the console's clock: the machine says only how long ago it was."""
    return item.at - timedelta(seconds=max(seconds_ago, 0))


# ---- hellos ----


def _apply_hello(batch: Batch, hello: Entry, reported: Iterable[UUID], specs: Specs, now: datetime) -> None:
    """A machine has said what it knows. What it neither knows nor is told to run is gone: its room is free. What it
    once reported and no longer knows is gone as well, unseen."""
    known = {UUID(uid) for uid in hello.hello or ()}
    live = rows.live_attempts_on_machines([hello.machine_id])
    missing = [attempt for attempt in live if attempt.uid not in known and attempt.uid not in set(reported)]
    told = rows.assigned_attempts(hello.machine_id)
    batch.add_workers(rows.workers_by_id({attempt.worker_id for attempt in missing}))
    for attempt in batch.add_attempts(missing):
        worker = batch.workers[attempt.worker_id]
        if worker.run_id not in batch.runs or attempt.placed_at >= hello.received_at:
            continue  # placed since: the machine has not heard of it yet
        if attempt.uid in told and attempt.report_seq == 0:
            continue
        is_current = _is_current(batch, attempt)
        batch.release(attempt, now)
        batch.supersede(attempt, now)
        if attempt.uid in told:
            batch.withdraw(attempt)
        if is_current:
            end = End(EndCause.UNKNOWN_TO_MACHINE)
            end_worker(batch, worker, specs.of(worker), end, f"machine {attempt.machine_name}", hello.received_at)
