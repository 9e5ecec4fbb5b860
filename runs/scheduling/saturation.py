"""How much of a cluster can be filled before what is asked for fits nowhere any more: fragmentation, measured. Pure."""

import random
from collections.abc import Sequence

import msgspec

from runs.scheduling.planner import make_plan
from runs.scheduling.simulator import ONE_NAMESPACE, Job
from runs.scheduling.types import Hold, MachineView, Placement, Snapshot, WaitingRun, WaitingWorker

CHUNK = 200  # jobs shown to one pass


class Saturation(msgspec.Struct, frozen=True):
    """`unallocated`: the share of all GPUs that nobody holds when as many have been asked for as there are."""

    asked: int
    refused: int
    unallocated: float


def saturate(jobs: Sequence[Job], machines: Sequence[MachineView], seed: int, up_to: float = 1.3) -> Saturation:
    """Fill a cluster with one-worker jobs: all, and random copies until `up_to` times its GPUs are asked for, shuffled,
    one by one. None ends, none that was refused is tried again."""
    total = sum(len(machine.gpus) for machine in machines)
    holds: list[Hold] = []
    asked = refused = allocated = 0
    left = _crowd(jobs, int(total * up_to), random.Random(seed))[::-1]
    while left and asked < total:
        runs = tuple(
            WaitingRun(number, 1, float(number), (WaitingWorker(number, job.asks[0]),))
            for number, job in enumerate(left[: -CHUNK - 1 : -1])
        )
        plan = make_plan(Snapshot(tuple(machines), tuple(holds), ONE_NAMESPACE, runs), 0)
        # What comes after a refusal was planned around a reservation, which nobody holds here.
        first_refused = min(plan.refusals, default=len(runs))
        placed = {placed.run_id: placed for placed in plan.placements}
        for number in range(min(first_refused + 1, len(runs))):
            asked += left.pop().asks[0].gpus
            if number == first_refused:
                refused += 1
            else:
                allocated += len(placed[number].gpu_indexes)
                holds.append(_hold_of(placed[number]))
            if asked >= total:
                break
    return Saturation(asked, refused, 1 - allocated / total)


def _hold_of(placed: Placement) -> Hold:
    return Hold(placed.run_id, 1, placed.machine_id, placed.cpu_milli, placed.memory_bytes, placed.gpu_indexes)


def _crowd(jobs: Sequence[Job], gpus: int, chance: random.Random) -> list[Job]:
    """Jobs that ask for so many GPUs: with random copies, or without some."""
    crowd = list(jobs)
    chance.shuffle(crowd)
    asked = sum(job.asks[0].gpus for job in crowd)
    while asked > gpus:
        asked -= crowd.pop().asks[0].gpus
    while asked < gpus:
        crowd.append(chance.choice(jobs))
        asked += crowd[-1].asks[0].gpus
    chance.shuffle(crowd)
    return crowd
