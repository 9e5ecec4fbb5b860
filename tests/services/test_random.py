"""Random lives: any order of submit, place, report, repeat, stop, delete, lose and restart keeps the invariants."""

from contextlib import suppress
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from astraconsole.errors import AlreadyEnded, NotFound
from machines.models import Assignment, Machine
from machines.protocol import EndReason, Phase, Report
from runs.models import Attempt, Run, Worker
from runs.services import lost, reports, requeueing, restarting
from runs.services.deleting import delete_run
from runs.services.stopping import stop_run, stop_worker
from runs.state_machine import ENDED
from tests import builders as make
from tests.builders import after

SEQS = st.integers(1, 6)
PHASES = (Phase.PREPARING, Phase.PULLING, Phase.STARTING, Phase.RUNNING)
ENDS = [
    (EndReason.EXITED, 0),
    (EndReason.EXITED, 1),
    (EndReason.EXITED, None),
    (EndReason.OOM_KILLED, 137),
    (EndReason.TIME_LIMIT, 143),
    (EndReason.STOPPED, 143),
    (EndReason.IMAGE_PULL, None),
    (EndReason.MACHINE_REBOOTED, None),
]
SHAPES: list[dict[str, Any]] = [
    {},
    {"array": {"count": 3}},
    {"node_selection": {"count": 2}, "on_failure": "FailJob"},
    {"node_selection": {"count": 3}, "on_failure": "RestartJob"},
    {"array": {"count": 2}, "on_failure": "RestartJob", "template": {"restart_policy": "Always"}},
    {"worker_groups": [{"name": "a", "count": 1}, {"name": "b", "count": 2}], "on_failure": "RestartJob"},
    {"template": {"restart_policy": "Never"}},
    {"template": {"restart_policy": "Always"}},
    {"gpus": 2, "machines": 1},
    {"gpus": 3, "machines": 2},  # cannot be planned
]


class Lives(RuleBasedStateMachine):
    """Two machines, one workspace, and everything that can happen, in any order; all reports stay in the air to be
    delivered again at any time."""

    in_the_air = Bundle("in_the_air")

    @initialize()
    def begin(self) -> None:
        self.savepoint = transaction.savepoint()
        self.editor = make.access(make.workspace())
        self.cluster = make.cluster(self.editor.workspace)
        self.machines = [make.machine(self.cluster, cpu=4, gpus=2), make.machine(self.cluster, cpu=2, gpus=2)]
        self.now = 0.0
        self.final: dict[int, tuple[str, str]] = {}

    def teardown(self) -> None:
        if hasattr(self, "savepoint"):
            transaction.savepoint_rollback(self.savepoint)

    def later(self, seconds: float = 1) -> Any:
        self.now += seconds
        return after(self.now)

    @rule(shape=st.sampled_from(SHAPES))
    def submit(self, shape: dict[str, Any]) -> None:
        make.submit(self.editor, self.cluster, now=self.later(), **shape)

    @rule(data=st.data(), first_gpu=st.integers(0, 1))
    def place(self, data: st.DataObject, first_gpu: int) -> None:
        """Often a stale or impossible proposal: those must be dropped."""
        if workers := list(Worker.objects.order_by("id")):
            worker = data.draw(st.sampled_from(workers))
            on = data.draw(st.sampled_from(self.machines))
            make.place(worker, on, range(first_gpu, first_gpu + worker.gpus), self.later())

    @rule(target=in_the_air, data=st.data(), seq=SEQS, reached=st.integers(1, 4))
    def report_progress(self, data: st.DataObject, seq: int, reached: int) -> tuple[Attempt, Report] | None:
        return self.reported(data, seq, [(phase, float(9 - n)) for n, phase in enumerate(PHASES[:reached])])

    @rule(target=in_the_air, data=st.data(), seq=SEQS, how=st.sampled_from(ENDS), reached=st.integers(0, 4))
    def report_end(
        self, data: st.DataObject, seq: int, how: tuple[EndReason, int | None], reached: int
    ) -> tuple[Attempt, Report] | None:
        phases = [(phase, float(9 - n)) for n, phase in enumerate(PHASES[:reached])]
        return self.reported(data, seq, [*phases, (Phase.ENDED, 0.0)], end_reason=how[0], exit_code=how[1])

    @rule(target=in_the_air, data=st.data(), seq=SEQS)
    def report_forgotten(self, data: st.DataObject, seq: int) -> tuple[Attempt, Report] | None:
        return self.reported(data, seq, [(Phase.FORGOTTEN, 0.0)])

    def reported(self, data: st.DataObject, seq: int, phases: Any, **fields: Any) -> tuple[Attempt, Report] | None:
        attempts = list(Attempt.objects.select_related("machine").order_by("id"))
        if not attempts:
            return None
        attempt = data.draw(st.sampled_from(attempts))
        said = make.told(attempt, *phases, seq=seq, **fields)
        self.deliver([(attempt, said)])
        return attempt, said

    @rule(sent=st.lists(in_the_air, min_size=1, max_size=6))
    def deliver_again_in_any_order(self, sent: list[tuple[Attempt, Report] | None]) -> None:
        self.deliver([item for item in sent if item is not None])

    @rule(sent=consumes(in_the_air))
    def lose_a_report(self, sent: object) -> None:
        pass

    def deliver(self, sent: list[tuple[Attempt, Report]]) -> None:
        at = self.later()
        acknowledged = reports.apply([make.entry(attempt.machine, at, said) for attempt, said in sent], at)
        assert len(acknowledged) == len(sent)

    @rule(on=st.integers(0, 1), data=st.data())
    def hello(self, on: int, data: st.DataObject) -> None:
        machine = self.machines[on]
        live = [a.uid.hex for a in Attempt.objects.filter(machine=machine, released_at=None).order_by("id")]
        known = data.draw(st.lists(st.sampled_from(live), unique=True)) if live else []
        at = self.later()
        reports.apply([make.entry(machine, at, hello=known)], at)

    @rule(data=st.data())
    def stop_a_worker(self, data: st.DataObject) -> None:
        if workers := list(Worker.objects.order_by("id")):
            self.try_to(lambda: stop_worker(self.editor, data.draw(st.sampled_from(workers)), "", self.later()))

    @rule(data=st.data())
    def stop_a_run(self, data: st.DataObject) -> None:
        if runs := list(Run.objects.order_by("id")):
            self.try_to(lambda: stop_run(self.editor, data.draw(st.sampled_from(runs)), "", self.later()))

    @rule(data=st.data())
    def delete_a_run(self, data: st.DataObject) -> None:
        if runs := list(Run.objects.order_by("id")):
            self.try_to(lambda: delete_run(self.editor, data.draw(st.sampled_from(runs)), self.later()))

    def try_to(self, act: Any) -> None:
        with suppress(AlreadyEnded, NotFound):
            act()

    @rule(on=st.integers(0, 1), connection=st.sampled_from(["", "socket-2"]))
    def cut_or_reconnect(self, on: int, connection: str) -> None:
        Machine.objects.filter(pk=self.machines[on].pk).update(connection=connection)

    @rule(on=st.integers(0, 1))
    def lose_a_machine(self, on: int) -> None:
        lost.machines_lost([self.machines[on].pk], self.later())

    @rule(on=st.integers(0, 1))
    def stop_the_console(self, on: int) -> None:
        lost.requeue_cluster_workers([self.machines[on].pk], "Console stopped", self.later())

    @rule(on=st.integers(0, 1))
    def drain_a_machine(self, on: int) -> None:
        requeueing.requeue_machines([self.machines[on].pk], "Machine gpu-08 is drained: why", "anna", self.later())

    @rule(seconds=st.sampled_from([1, 20, 700]))
    def start_due_restarts(self, seconds: int) -> None:
        restarting.start_due(self.later(seconds))

    @invariant()
    def everything_holds(self) -> None:
        if not hasattr(self, "final"):
            return
        make.check_invariants()
        assert not Assignment.objects.filter(order__isnull=False, machine__isnull=True).exists()
        for worker in Worker.objects.filter(state__in=list(ENDED)).select_related("run"):
            if worker.run.on_failure == "RestartJob" and worker.run.ended_at is None and worker.state == "Completed":
                continue  # it may start again with the others
            end = (worker.state, worker.reason)
            assert self.final.setdefault(worker.id, end) == end, f"{worker} had ended as {self.final[worker.id]}"


@pytest.mark.django_db
def test_random_lives_keep_every_invariant() -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        Lives, settings=settings(max_examples=12, stateful_step_count=25, suppress_health_check=checks)
    )
    assert not connection.needs_rollback
