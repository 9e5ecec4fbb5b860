"""Whatever the order of sets, ends, acknowledgements, broken connections and restarts: reality comes to match the set,
every end is told until it is acknowledged, and nothing is started twice."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from machines.agent.attempt import Attempt
from machines.agent.effects import Accept, Archive, Effect, Leave, Remove, Save, Stop
from machines.agent.runtimes.base import Exited, Progress
from machines.agent.supervisor import Supervisor
from machines.orders import Order
from machines.protocol import Acknowledge, Assignments, Phase, Report, Welcome

CONSOLE = "c" * 32
UIDS = [f"{number:032x}" for number in range(5)]
ORDERS = {
    uid: Order(attempt=uid, worker=uid, run=uid, worker_name="w", run_name="r", number=1, image="", command="x")
    for uid in UIDS
}


class World:
    """A console, a supervisor, its journal and the processes of the machine; every step takes a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.wanted: set[str] = set()
        self.forget: set[str] = set()
        self.archive: set[str] = set()
        self.archiving: set[str] = set()
        self.given: set[str] = set()
        self.revision = 0
        self.received: dict[str, Report] = {}
        self.journal: dict[str, Attempt] = {}
        self.started: list[str] = []
        self.processes: set[str] = set()
        self.stopping: set[str] = set()
        self.removing: set[str] = set()
        self.supervisor = Supervisor(CONSOLE)
        self.connect("")

    # ---- what can happen

    def assign(self, uid: str) -> None:
        if uid not in self.given:
            self.given.add(uid)
            self.wanted.add(uid)
            self.revision += 1

    def withdraw(self, uid: str) -> None:
        self.wanted.discard(uid)
        self.revision += 1

    def delete(self, uid: str) -> None:
        if uid in self.given:
            self.wanted.discard(uid)
            self.forget.add(uid)
            self.revision += 1

    def place_anew(self, uid: str) -> None:
        if uid in self.given - self.forget:
            self.wanted.discard(uid)
            self.archive.add(uid)
            self.revision += 1

    def send_set(self, _uid: str) -> None:
        orders = [ORDERS[uid] for uid in sorted(self.wanted)]
        archive = sorted(self.archive - self.forget)
        message = Assignments(self.revision, orders, sorted(self.forget), archive=archive)
        self.perform(self.supervisor.on_assignments(message, self.now))

    def send_an_old_set(self, _uid: str) -> None:
        if self.supervisor.applied_revision > 0:
            older = self.supervisor.applied_revision - 1
            self.perform(self.supervisor.on_assignments(Assignments(older, [], []), self.now))

    def connect(self, _uid: str) -> None:
        self.supervisor.on_disconnected()
        self.supervisor.on_welcome(Welcome(CONSOLE, "m", 5, 5, 1))

    def disconnect(self, _uid: str) -> None:
        self.supervisor.on_disconnected()

    def exit(self, uid: str) -> None:
        """Of that one, or else of any that runs."""
        uid = uid if uid in self.processes else min(self.processes, default="")
        if uid:
            self.processes.discard(uid)
            self.stopping.discard(uid)
            self.perform(self.supervisor.on_event(Exited(uid, self.now, 0), "", self.now))

    def removed(self, uid: str) -> None:
        if uid in self.removing:
            self.removing.discard(uid)
            self.journal.pop(uid, None)
            self.perform(self.supervisor.on_removed(uid, self.now))

    def archived(self, uid: str) -> None:
        if uid in self.archiving:
            self.archiving.discard(uid)
            self.perform(self.supervisor.on_archived(uid, 7, self.now))

    def lose_reports(self, _uid: str) -> None:
        self.supervisor.take_reports(self.now)

    def take_reports(self, _uid: str) -> None:
        for frame in self.supervisor.take_reports(self.now):
            for report in frame.items:
                known = self.received.get(report.attempt)
                assert known is None or known.seq <= report.seq
                self.received[report.attempt] = report

    def acknowledge(self, _uid: str) -> None:
        items = [(uid, report.seq) for uid, report in self.received.items()]
        self.perform(self.supervisor.on_acknowledge(Acknowledge(items)))

    def restart_agent(self, _uid: str) -> None:
        """Of what it knew only the journal is left; the processes and their exits outlive it."""
        self.supervisor = Supervisor(CONSOLE)
        self.supervisor.restore(copy.deepcopy(list(self.journal.values())))
        self.removing.clear()
        self.archiving.clear()
        for attempt in self.supervisor.live:
            if attempt.uid in self.processes:
                self.perform(self.supervisor.on_event(Progress(attempt.uid, Phase.RUNNING, self.now), "", self.now))
            else:
                self.perform(self.supervisor.on_event(Exited(attempt.uid, self.now, 0), "", self.now))
        self.perform(self.supervisor.stops_pending(self.now))

    # ---- what comes of it

    def step(self, action: str, uid: str) -> None:
        self.now += 1
        getattr(self, action)(uid)
        self.perform(self.supervisor.on_tick(self.now))

    def perform(self, effects: list[Effect] | list[Stop]) -> None:
        for effect in effects:
            match effect:
                case Accept(order, attempt):
                    self.journal[order.attempt] = copy.deepcopy(attempt)
                    self.started.append(order.attempt)
                    self.processes.add(order.attempt)
                    event = Progress(order.attempt, Phase.RUNNING, self.now)
                    self.perform(self.supervisor.on_event(event, "", self.now))
                case Save(attempt):
                    if attempt.uid in self.journal:
                        self.journal[attempt.uid] = copy.deepcopy(attempt)
                case Stop(uid):
                    assert uid not in self.wanted
                    self.stopping.add(uid)
                case Remove(uid):
                    assert uid not in self.processes
                    assert uid not in self.archiving
                    self.removing.add(uid)
                case Archive(uid):
                    assert uid not in self.processes
                    assert uid not in self.removing
                    self.archiving.add(uid)
                case Leave():
                    raise AssertionError("it left its own console")

    def settle(self) -> None:
        self.step("connect", "")
        for _ in range(4):
            self.step("send_set", "")
            for uid in [*self.stopping]:
                self.step("exit", uid)
            for uid in [*self.archiving]:
                self.step("archived", uid)
            for uid in [*self.removing]:
                self.step("removed", uid)
            self.now += 10
            self.step("take_reports", "")
            self.step("acknowledge", "")


ACTIONS = [name for name in vars(World) if not name.startswith("_") and name not in ("step", "perform", "settle")]
COMMON = ["assign", "send_set", "exit", "take_reports"]  # more often, so that most attempts come to run and to end


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS + COMMON * 2), st.sampled_from(UIDS)), min_size=10, max_size=60))
def test_reality_comes_to_match_the_set_and_nothing_starts_twice(steps):
    world = World()
    for action, uid in steps:
        world.step(action, uid)
    world.settle()
    ended = {uid for uid, attempt in world.supervisor.attempts.items() if attempt.ended}
    assert world.processes == world.wanted - ended
    assert len(world.started) == len(set(world.started))
    assert set(world.started) <= world.given
    for uid, attempt in world.supervisor.attempts.items():
        assert attempt.acknowledged == attempt.seq
        assert world.received[uid].end_reason == attempt.end_reason
    for uid in world.forget:
        assert Phase.FORGOTTEN in [age.phase for age in world.received[uid].phases]
        assert uid not in world.supervisor.attempts
        assert uid not in world.journal
    for uid in world.archive - world.forget:
        phases = [age.phase for age in world.received[uid].phases]
        assert Phase.ARCHIVED in phases or Phase.FORGOTTEN in phases  # it may never have got there
        assert uid not in world.journal or world.journal[uid].archived_from == 7
    assert not world.supervisor.waiting
