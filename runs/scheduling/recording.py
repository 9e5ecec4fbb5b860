"""A pass as a file: the snapshot and the time it was planned at, to be planned again anywhere. Pure.

It names machines, pools and labels; of runs and workspaces nothing but their numbers.
"""

from collections.abc import Iterator

import msgspec

from runs.scheduling.explain import sentence
from runs.scheduling.types import Plan, Snapshot

SAME_REASON_SHOWN = 5  # runs named of each reason


class Recording(msgspec.Struct, frozen=True):
    """`now`: Unix seconds. `why`: what was surprising. `plan`: what was decided, where anything was."""

    now: float
    snapshot: Snapshot
    why: str = ""
    plan: Plan | None = None


_decoder = msgspec.json.Decoder(Recording)


def encode(recording: Recording) -> bytes:
    return msgspec.json.encode(recording)


def decode(data: bytes) -> Recording:
    """Raises msgspec.DecodeError (msgspec.ValidationError for a wrong shape)."""
    return _decoder.decode(data)


def in_words(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """A plan, line by line."""
    names = {machine.id: machine.name for machine in snapshot.machines}
    yield (
        f"{len(snapshot.machines)} machines, {len(snapshot.holds)} holds, {len(snapshot.waiting)} waiting runs: "
        f"{len(plan.placements)} placements{', more to come' if plan.more else ''}"
    )
    for placed in plan.placements:
        gpus = f", GPUs {','.join(map(str, placed.gpu_indexes))}" if placed.gpu_indexes else ""
        yield f"place   run {placed.run_id} worker {placed.worker_id} on {names[placed.machine_id]}{gpus}"
    for run_id, count in plan.splits.items():
        yield f"plan    run {run_id} anew, as {count} workers"
    for preemption in plan.preemptions:
        yield f"preempt run {preemption.run_id} for run {preemption.by_run_id}"
    for run_id, claim in plan.claims.items():
        where = "nothing more" if claim is None else ", ".join(names[room.machine_id] for room in claim.rooms)
        yield f"claim   {where} for run {run_id}"
    if plan.reservation is not None:
        by = "" if plan.reservation.starts_by is None else f", by {plan.reservation.starts_by:.0f}"
        where = ", ".join(names[machine_id] for machine_id in plan.reservation.machine_ids)
        yield f"reserve {where} for run {plan.reservation.run_id}{by}"
    yield from _refusals_in_words(plan)


def _refusals_in_words(plan: Plan) -> Iterator[str]:
    runs_of: dict[str, list[int]] = {}
    for run_id, refusal in plan.refusals.items():
        runs_of.setdefault(sentence(refusal.code, refusal.numbers), []).append(run_id)
    for reason, run_ids in runs_of.items():
        shown = ", ".join(map(str, run_ids[:SAME_REASON_SHOWN]))
        more = f" and {len(run_ids) - SAME_REASON_SHOWN} more" if len(run_ids) > SAME_REASON_SHOWN else ""
        yield f"wait    run {shown}{more}: {reason}"
