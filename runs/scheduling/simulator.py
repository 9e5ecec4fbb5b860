"""The very planner over a recorded trace, in virtual time: what would have waited how long. Pure."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from statistics import mean, median

import msgspec

from runs.names import WORKERS_MAX
from runs.scheduling.explain import is_for_good
from runs.scheduling.planner import make_plan
from runs.scheduling.types import (
    Ask,
    Hold,
    MachineView,
    NamespaceView,
    Plan,
    Snapshot,
    WaitingRun,
    WaitingWorker,
)

ONE_NAMESPACE = (NamespaceView(1),)


class Job(msgspec.Struct, frozen=True):
    """One job of a trace. asks: one per worker, which start together. limit: what the user said; None: nothing."""

    name: str
    submitted: float
    duration: float
    asks: tuple[Ask, ...]
    limit: float | None = None


class Outcome(msgspec.Struct, frozen=True):
    """`started` is None for a job that no pass placed: the machines cannot hold it."""

    job: Job
    started: float | None

    @property
    def wait(self) -> float | None:
        return None if self.started is None else self.started - self.job.submitted


class Result(msgspec.Struct, frozen=True):
    """Shares of all GPUs (of all cores on a cluster without), in the mean from the first submission to the last.
    `used`: held; `idle`: free while somebody waits for room, which is what fragmentation and reservations cost."""

    outcomes: list[Outcome]
    used: float
    idle: float


def simulate(jobs: Iterable[Job], machines: Sequence[MachineView]) -> Result:
    """Submit, plan, start, end: a pass whenever something was submitted or has ended, as the console does."""
    ordered = sorted(jobs, key=lambda job: job.submitted)
    world = _World(ordered, tuple(machines))
    for _ in world.moments():
        while world.start(make_plan(world.snapshot(), world.now)):
            pass
    outcomes = [Outcome(job, world.started.get(number)) for number, job in enumerate(ordered)]
    return Result(outcomes, *world.use())


class _World:
    """The trace so far. A run's id is its job's place in the trace."""

    def __init__(self, jobs: Sequence[Job], machines: tuple[MachineView, ...]) -> None:
        self.jobs, self.machines = jobs, machines
        self.now = 0.0
        self.started: dict[int, float] = {}
        self._waiting: dict[int, WaitingRun] = {}
        self._holds: dict[int, tuple[Hold, ...]] = {}
        self._ends: list[tuple[float, int]] = []
        self._total = sum(len(machine.gpus) for machine in machines)
        self._of_gpus = self._total > 0
        if not self._of_gpus:
            self._total = max(1, sum(machine.cpu_milli for machine in machines))
        self._held = 0
        self._held_seconds = self._idle_seconds = 0.0

    def use(self) -> tuple[float, float]:
        """(used, idle while somebody waits) until the last submission."""
        seconds = (self.jobs[-1].submitted - self.jobs[0].submitted if self.jobs else 0) or 1
        return self._held_seconds / self._total / seconds, self._idle_seconds / self._total / seconds

    def _pass_until(self, moment: float) -> None:
        seconds = min(moment, self.jobs[-1].submitted) - self.now
        if seconds > 0:
            self._held_seconds += seconds * self._held
            if self._waiting:
                self._idle_seconds += seconds * (self._total - self._held)
        self.now = moment

    def _amount(self, hold: Hold) -> int:
        return len(hold.gpu_indexes) if self._of_gpus else hold.cpu_milli

    def moments(self) -> Iterator[float]:
        """Each time at which something is submitted or ends, and anything waits."""
        arrived = 0
        while arrived < len(self.jobs) or self._ends:
            next_arrival = self.jobs[arrived].submitted if arrived < len(self.jobs) else float("inf")
            self._pass_until(min(next_arrival, self._ends[0][0] if self._ends else float("inf")))
            while self._ends and self._ends[0][0] <= self.now:
                self._held -= sum(map(self._amount, self._holds.pop(heapq.heappop(self._ends)[1])))
            while arrived < len(self.jobs) and self.jobs[arrived].submitted <= self.now:
                self._submit(arrived)
                arrived += 1
            if self._waiting:
                yield self.now

    def _submit(self, number: int) -> None:
        job = self.jobs[number]
        workers = tuple(WaitingWorker(number * WORKERS_MAX + rank, ask) for rank, ask in enumerate(job.asks))
        self._waiting[number] = WaitingRun(
            number, 1, job.submitted, workers, gang=len(workers) > 1, time_limit=job.limit
        )

    def snapshot(self) -> Snapshot:
        holds = tuple(hold for together in self._holds.values() for hold in together)
        return Snapshot(self.machines, holds, ONE_NAMESPACE, tuple(self._waiting.values()))

    def start(self, plan: Plan) -> bool:
        """What the plan placed starts at once; what can never run leaves the queue. True: another pass is to follow."""
        for placed in plan.placements:
            job = self.jobs[placed.run_id]
            hold = Hold(
                placed.run_id, 1, placed.machine_id, placed.cpu_milli, placed.memory_bytes, placed.gpu_indexes,
                started_at=self.now, ends_by=None if job.limit is None else self.now + job.limit,
            )  # fmt: skip
            self._holds[placed.run_id] = (*self._holds.get(placed.run_id, ()), hold)
            self._held += self._amount(hold)
        for number in {placed.run_id for placed in plan.placements}:
            del self._waiting[number]
            self.started[number] = self.now
            heapq.heappush(self._ends, (self.now + self.jobs[number].duration, number))
        for number, refusal in plan.refusals.items():
            if is_for_good(refusal.code):
                del self._waiting[number]
        return plan.more


class Summary(msgspec.Struct, frozen=True):
    """Seconds. completion: from submission to end; slowdown: completion / duration, durations of at least 10 s."""

    jobs: int
    never: int
    mean_wait: float
    median_wait: float
    mean_completion: float
    mean_slowdown: float


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    done = [(outcome.wait, outcome.job.duration) for outcome in outcomes if outcome.wait is not None]
    if not done:
        return Summary(0, len(outcomes), 0, 0, 0, 0)
    waits = [wait for wait, _ in done]
    slowdowns = [(wait + max(10.0, duration)) / max(10.0, duration) for wait, duration in done]
    completion = mean(wait + duration for wait, duration in done)
    return Summary(len(done), len(outcomes) - len(done), mean(waits), median(waits), completion, mean(slowdowns))
