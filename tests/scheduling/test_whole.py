"""Gangs, and runs on a machine for each worker, for which there is never room at once: they are in nobody's way."""

from typing import Any

import msgspec
import pytest

from runs.scheduling.forecast import starts_by
from runs.scheduling.planner import rehearse
from runs.scheduling.types import Ask, Constraints, WaitingWorker
from tests.scheduling.harness import GIB, Case, cluster

EIGHT = "8 GPUs, 1 core and 1 GiB"


def with_server(case: Case, name: str, ask: Ask) -> Case:
    """The run gets one more worker, which differs from the others."""
    run = case.runs[name]
    case.worker_names[9000] = f"{name}-server"
    case.runs[name] = msgspec.structs.replace(run, workers=(*run.workers, WaitingWorker(9000, ask)))
    return case


SERVER = Ask(0, 1000, GIB)


@pytest.mark.parametrize(
    ("machines", "facts", "reason"),
    [
        (
            [{"count": 4}],
            {"gpus": 8, "workers": 5, "gang": True},
            "No machine fits: 5 workers start together; all machines together could hold 4 at once, each needs "
            + EIGHT,
        ),
        (
            [{"count": 4}],
            {"fraction": 0.6, "workers": 5, "gang": True},
            "No machine fits: 5 workers start together; all machines together could hold 4 at once, "
            "each needs 60% of a machine",
        ),
        (
            [{"count": 2}, {"cordoned": True}],
            {"gpus": 8, "workers": 3, "gang": True},
            "No machine fits: 3 workers start together; the machines that take work now could hold 2 at once, "
            "each needs " + EIGHT,
        ),
        (
            [{"count": 2}, {"ready": False}],
            {"gpus": 8, "workers": 3, "gang": True},
            "No machine fits: 3 workers start together; the machines that take work now could hold 2 at once, "
            "each needs " + EIGHT,
        ),
        (
            [{"count": 2}, {"broken": 1}],
            {"gpus": 8, "workers": 3, "gang": True},
            "No machine fits: 3 workers start together; the machines that take work now could hold 2 at once, "
            "each needs " + EIGHT,
        ),
        (
            [{"count": 2}, {"cordoned": True}],
            {"gpus": 1, "workers": 3, "gang": True, "distinct_machines": True},
            "No machine fits: 3 machines asked, one worker on each; 2 that take work now could hold one",
        ),
    ],
)
def test_a_gang_that_there_is_never_room_for_says_so_and_holds_no_reservation(
    machines: list[dict[str, Any]], facts: dict[str, Any], reason: str
) -> None:
    case = cluster()
    for kind in machines:
        case.machine(gpus=8, **kind)
    case.run("wide", priority=10, **facts).run("next", gpus=9).run("b", gpus=8)
    case.holding("m0", gpus=1, priority=0)
    case.expect(b="m1").expect_reason("wide", reason)
    plan = case.plan()
    assert (plan.reservation, plan.preemptions) == (None, ())


def test_the_run_behind_a_gang_that_never_fits_is_the_first_in_the_queue() -> None:
    """Its room is kept, so that no endless run takes it."""
    case = cluster().machine(gpus=8, count=2).holding("m0", gpus=8, ends_by=2000)
    case.run("wide", gpus=8, workers=3, gang=True).run("b", gpus=8, workers=2, gang=True).run("endless", gpus=1)
    case.run("short", gpus=1, time_limit=60).expect(short="m1")
    case.expect_reason("b", f"Gang cannot be placed whole: 1 of 2 workers fit now, each needs {EIGHT}")


def test_workers_that_wait_for_a_closed_machine_of_their_own_hold_nobody_up() -> None:
    case = cluster().machine(gpus=8, count=2).machine(gpus=8, cordoned=True)
    case.run("a", gpus=8, workers=3, distinct_machines=True).run("b", gpus=8, namespace=1)
    case.expect(a0="m0", a1="m1")
    case.expect_reason(
        "a", "No machine fits: 3 machines asked, one worker on each; 2 that take work now could hold one"
    )
    case.expect_reason("b", f"Next to run: waits for {EIGHT} on one machine")


def test_different_workers_that_are_too_much_together_never_fit() -> None:
    case = with_server(cluster().machine(gpus=8, cores=8, count=2).run("a", gpus=8, cores=8, workers=2, gang=True), "a",
                       SERVER)  # fmt: skip
    case.run("b", gpus=8).expect(b="m0").expect_reason(
        "a",
        "No machine fits: 3 workers start together; all machines together could hold 2 at once, "
        "the next needs 1 core and 1 GiB",
    )


def test_the_room_of_a_gang_of_different_workers_is_kept() -> None:
    """None stands for the others: the two large ones take the GPUs of both machines, the small one fits beside them."""
    case = cluster().machine(gpus=8, count=2).holding("m0", gpus=8, ends_by=2000).holding("m1", gpus=1, ends_by=1500)
    with_server(case.run("a", gpus=8, workers=2, gang=True), "a", SERVER).run("endless", gpus=1)
    case.run("short", gpus=1, time_limit=900).run("beside", cores=60).expect(short="m1", beside="m0")
    reservation = case.plan().reservation
    assert reservation is not None
    assert (reservation.starts_by, reservation.machine_ids) == (2000, (100, 101))
    case.expect_reason("a", f"Gang cannot be placed whole: 0 of 3 workers fit now, the next needs {EIGHT}")


def test_workers_of_different_places_are_reserved_each_in_its_own() -> None:
    case = cluster().machine(gpus=8).machine(cores=8).holding("m0", gpus=8, ends_by=2000)
    case.holding("m1", cores=8, ends_by=1200)
    only = Ask(0, 8000, GIB, constraints=Constraints(names=("m1",)))
    with_server(case.run("a", gpus=8, gang=True), "a", only).run("x", cores=8).expect(x="m0")
    reservation = case.plan().reservation
    assert reservation is not None
    assert (reservation.starts_by, reservation.machine_ids) == (2000, (100, 101))


def test_a_gang_of_different_workers_keeps_a_machine_that_is_away_too() -> None:
    case = cluster().machine(gpus=8).machine(gpus=4, connected=False)
    with_server(case.run("large", gpus=8, gang=True), "large", Ask(4, 1000, GIB)).run("long", gpus=1).expect()
    reservation = case.plan().reservation
    assert reservation is not None
    assert (reservation.starts_by, reservation.machine_ids) == (None, (100, 101))


def test_equal_asks_are_of_one_kind_though_each_is_an_object_of_its_own() -> None:
    case = cluster().machine(gpus=2, broken=2, memory=2).machine(gpus=2, memory=0).run("a", 2, workers=2, gang=True)
    assert case.plan().refusals[1].code == "never_gang"
    workers = tuple(
        msgspec.structs.replace(one, ask=msgspec.structs.replace(one.ask)) for one in case.runs["a"].workers
    )
    case.runs["a"] = msgspec.structs.replace(case.runs["a"], workers=workers)
    assert case.plan().refusals[1].code == "never_gang"


def test_a_forecast_passes_over_a_gang_that_never_fits() -> None:
    case = cluster().machine(gpus=8, count=2).holding("m0", gpus=8, ends_by=2000).holding("m1", gpus=8, ends_by=3000)
    case.run("wide", gpus=8, workers=3, gang=True).run("b", gpus=8)
    case.plan()
    assert starts_by(case.snapshot(), 1000.0, case.runs["wide"].id) is None
    assert starts_by(case.snapshot(), 1000.0, case.runs["b"].id) == 2000
    (rehearsed,) = rehearse(case.snapshot(), 1000.0, [case.runs["wide"]])
    assert rehearsed.refusal is not None
    assert rehearsed.refusal.code == "never_gang"
