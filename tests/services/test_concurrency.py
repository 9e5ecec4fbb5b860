"""At the same time, in transactions of their own: nobody sees half of what another does, and nobody waits for ever."""

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from django.db import connection

from astraconsole.errors import AlreadyEnded, NotFound
from machines.protocol import EndReason, Phase
from runs.models import Attempt, Run
from runs.services import lost, reports, requeueing, restarting
from runs.services.deleting import delete_run
from runs.services.stopping import stop_run
from tests import builders as make
from tests.builders import GIB, after

pytestmark = pytest.mark.django_db(transaction=True)


def at_once(*acts: Callable[[], object]) -> None:
    """Run each in a thread; re-raise what one of them raised."""
    barrier, raised = threading.Barrier(len(acts)), []

    def run(act: Callable[[], object]) -> None:
        barrier.wait()
        try:
            act()
        except Exception as error:
            raised.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def end(attempts: Sequence[Attempt], seconds: float = 60) -> list[object]:
    life = [(Phase.PREPARING, 3.0), (Phase.RUNNING, 2.0), (Phase.ENDED, 0.0)]
    said = [make.told(a, *life, seq=9, exit_code=0, end_reason=EndReason.EXITED) for a in attempts]
    entries = [make.entry(a.machine, after(seconds), report) for a, report in zip(attempts, said, strict=True)]
    return reports.apply(entries, after(seconds))


def test_when_the_two_last_workers_end_at_once_the_run_ends() -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    on = make.machine(east, cpu=100, memory=100 * GIB)
    for _ in range(10):
        run = make.submit(editor, east, node_selection={"count": 2})
        zero, one = (make.run_on(worker, on) for worker in make.workers(run))
        at_once(lambda zero=zero: end([zero]), lambda one=one: end([one]))
        run.refresh_from_db()
        assert (run.state, run.reason) == ("Completed", "2 of 2 workers completed")
    make.check_invariants()


def test_a_machine_is_not_filled_twice_by_two_schedulers() -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    on = make.machine(east, cpu=1, gpus=1)
    workers = [make.workers(make.submit(editor, east, gpus=1))[0] for _ in range(4)]
    at_once(*(lambda worker=worker: make.place(worker, on, gpus=[0]) for worker in workers))
    assert Attempt.objects.count() == 1
    make.check_invariants()


def test_everything_at_once_neither_deadlocks_nor_breaks_an_invariant() -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    machines = [make.machine(east, cpu=100, memory=100 * GIB) for _ in range(3)]
    policies = ["RestartTask", "RestartJob", "FailJob"] * 4
    runs = [make.submit(editor, east, node_selection={"count": 3}, on_failure=policy) for policy in policies]
    for run in runs:
        for worker, on in zip(make.workers(run), machines, strict=True):
            make.run_on(worker, on)
    attempts = list(Attempt.objects.select_related("machine"))

    def shuffled(items: Sequence[object], seed: int) -> list[object]:
        return random.Random(seed).sample(list(items), len(items))

    def each(act: Callable[[Run], object], seed: int) -> None:
        for run in shuffled(runs, seed):
            with suppress(AlreadyEnded, NotFound):
                act(run)

    at_once(
        *(lambda seed=seed: end(shuffled(attempts, seed)) for seed in range(3)),
        *(lambda seed=seed: end(shuffled(attempts, seed)[:9]) for seed in range(3, 6)),
        lambda: each(lambda run: stop_run(editor, run, "", after(61)), 7),
        lambda: each(lambda run: delete_run(editor, run, after(62)), 8),
        lambda: lost.machines_lost([machines[0].pk, machines[2].pk], after(63)),
        lambda: lost.requeue_cluster_workers([machines[1].pk], "Console stopped", after(64)),
        lambda: requeueing.requeue_machines([machines[1].pk, machines[2].pk], "Drained", "anna", after(65)),
        lambda: restarting.start_due(after(66)),
    )
    make.check_invariants()
    assert not Attempt.objects.filter(released_at=None).exists()
