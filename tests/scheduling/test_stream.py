"""A finite queue on a random cluster, played until nothing moves: whatever can run has run."""

from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from runs.scheduling.explain import is_for_good
from runs.scheduling.planner import make_plan
from runs.scheduling.types import Hold, Placement, Plan, Snapshot, WaitingRun
from tests.scheduling.test_properties import NOW, hold_of, snapshots

STEPS = 200
WORK_SECONDS = 60.0  # what each worker works: the limits' least, so it ends in time


@dataclass
class Stream:
    """Runs arrive over time, each works for a while, and those that gave way wait again. Machines that are away come
    back once all have arrived."""

    snapshot: Snapshot
    arriving: list[WaitingRun]
    now: float = NOW
    runs: dict[int, WaitingRun] = field(default_factory=dict)
    waiting: dict[int, WaitingRun] = field(default_factory=dict)
    holds: list[tuple[Hold, Placement | None]] = field(default_factory=list)

    def step(self, seconds: float) -> Plan:
        """One more run arrives, a pass is made and followed, and time goes by."""
        if self.arriving:
            run = self.arriving.pop(0)
            self.runs[run.id] = self.waiting[run.id] = run
        else:
            machines = [msgspec.structs.replace(machine, connected=True) for machine in self.snapshot.machines]
            self.snapshot = msgspec.structs.replace(self.snapshot, machines=tuple(machines))
        holds = tuple(hold for hold, _ in self.holds)
        plan = make_plan(msgspec.structs.replace(self.snapshot, holds=holds, waiting=self._queue()), self.now)
        for run_id, claim in plan.claims.items():
            self.waiting[run_id] = msgspec.structs.replace(self.waiting[run_id], claim=claim)
        for placed in plan.placements:
            self._start(placed)
        for preemption in plan.preemptions:
            self._give_way(preemption.run_id)
        self.now += seconds
        self._end()
        return plan

    def _queue(self) -> tuple[WaitingRun, ...]:
        return tuple(run for run in self.waiting.values() if run.workers)

    def _start(self, placed: Placement) -> None:
        run = self.waiting[placed.run_id]
        hold = msgspec.structs.replace(hold_of(placed, None, run.priority), started_at=self.now)
        ends_by = None if run.time_limit is None else self.now + run.time_limit
        self.holds.append((msgspec.structs.replace(hold, ends_by=ends_by), placed))
        left = tuple(worker for worker in run.workers if worker.id != placed.worker_id)
        self.waiting[run.id] = msgspec.structs.replace(run, workers=left, placed=run.placed + 1)

    def _give_way(self, run_id: int) -> None:
        """All that it runs stops at once and waits again."""
        mine = {placed.worker_id for hold, placed in self.holds if hold.run_id == run_id and placed}
        self.holds = [(hold, placed) for hold, placed in self.holds if hold.run_id != run_id]
        if run_id in self.runs:
            back = {worker.id for worker in self.waiting[run_id].workers} | mine
            workers = tuple(worker for worker in self.runs[run_id].workers if worker.id in back)
            self.waiting[run_id] = msgspec.structs.replace(self.waiting[run_id], workers=workers, placed=0)

    def _end(self) -> None:
        ended = [item for item in self.holds if self.now - item[0].started_at >= WORK_SECONDS]
        self.holds = [item for item in self.holds if self.now - item[0].started_at < WORK_SECONDS]
        for hold, _ in ended:
            if hold.run_id in self.waiting:
                run = self.waiting[hold.run_id]
                self.waiting[hold.run_id] = msgspec.structs.replace(run, placed=run.placed - 1)


@given(snapshots(), st.lists(st.sampled_from((1.0, 20.0, 90.0)), min_size=1, max_size=5))
@settings(max_examples=100)
def test_no_run_waits_for_ever_under_a_finite_stream(snapshot: Snapshot, pace: list[float]) -> None:
    """What is left waits for other machines, or asks for more than its workspace may have."""
    earlier: list[tuple[Hold, Placement | None]] = [(hold, None) for hold in snapshot.holds]
    stream = Stream(snapshot, list(snapshot.waiting), holds=earlier)
    plan = Plan()
    for number in range(STEPS):
        idle = not stream.arriving and not stream.holds
        plan = stream.step(pace[number % len(pace)] if stream.arriving else WORK_SECONDS)
        if idle and not plan.placements and not plan.claims:
            break
    assert not plan.preemptions
    for run in stream.waiting.values():
        if run.workers:
            refusal = plan.refusals[run.id]
            numbers = refusal.numbers
            too_much = refusal.code.startswith("quota_") and int(str(numbers["wanted"])) > int(str(numbers["limit"]))
            assert is_for_good(refusal.code) or refusal.code.startswith("unavailable_") or too_much, (run, refusal)
