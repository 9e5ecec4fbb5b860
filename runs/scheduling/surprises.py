"""Passes that should not have happened as they did are kept as files, to be replayed: `manage.py replay_snapshot`."""

import logging
from pathlib import Path

import msgspec
from django.conf import settings

from runs.scheduling.load import load_snapshot
from runs.scheduling.recording import Recording, encode
from runs.scheduling.types import Plan, Snapshot, WaitingRun

KEPT = 20  # files; older ones go
log = logging.getLogger(__name__)


def keep(cluster_id: int, recording: Recording) -> None:
    """Written to SCHEDULER_RECORDINGS, where that is set. A file that cannot be written costs nothing but itself."""
    log.warning("Cluster %s: a surprising pass: %s", cluster_id, recording.why)
    if not settings.SCHEDULER_RECORDINGS:
        return
    folder = Path(settings.SCHEDULER_RECORDINGS)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"pass-{recording.now:017.6f}-{cluster_id}.json"
        path.write_bytes(encode(recording))
        for old in sorted(folder.glob("pass-*.json"))[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError as error:
        log.error("The pass is not recorded: %s", error)
    else:
        log.warning("Recorded in %s", path)


def dropped_without_cause(cluster_id: int, before: Snapshot, plan: Plan, placed: list[int]) -> bool:
    """Whether a proposal was dropped though nothing that it depends on has changed since: then planner and writer
    disagree. In the pass's own transaction."""
    dropped = [placement for placement in plan.placements if placement.worker_id not in set(placed)]
    if not dropped:
        return False
    after = load_snapshot(cluster_id)
    same_machines = {machine.id for machine in set(before.machines) & set(after.machines)}
    same_namespaces = {namespace.id for namespace in set(before.namespaces) & set(after.namespaces)}
    then = {run.id: _without_notes(run) for run in before.waiting}
    same_runs = {run.id for run in after.waiting if then.get(run.id) == _without_notes(run)}
    return any(
        placement.machine_id in same_machines
        and placement.namespace_id in same_namespaces
        and placement.run_id in same_runs
        for placement in dropped
    )


def _without_notes(run: WaitingRun) -> WaitingRun:
    """Without what passes write themselves."""
    return msgspec.structs.replace(run, stored=None, claim=None)
