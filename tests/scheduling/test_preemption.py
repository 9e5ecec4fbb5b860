"""Who gives way to whom, and to whom the freed room belongs. The time in these cases is 1000."""

import pytest

from runs.scheduling.claims import CLAIM_SECONDS
from runs.scheduling.explain import sentence
from runs.scheduling.subsets import fewest_covering
from runs.scheduling.types import Claim, Constraints, Preemption, Room
from tests.scheduling.harness import GIB, Case, cluster

MAKING_ROOM = "Next to run: what runs in its place is stopping"


def victims(case: Case) -> list[int]:
    return [preemption.run_id for preemption in case.plan().preemptions]


def test_work_of_lower_priority_gives_way() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=8, run=50).run("urgent", gpus=4, priority=1)
    plan = case.expect().plan()
    assert plan.preemptions == (Preemption(50, 1),)
    assert plan.claims == {1: Claim(1000 + CLAIM_SECONDS, (Room(100, 1000, GIB, (0, 1, 2, 3)),))}
    case.expect_reason("urgent", MAKING_ROOM)


@pytest.mark.parametrize("priority", [0, -1])
def test_work_of_equal_or_higher_priority_never_does(priority: int) -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=8).run("a", gpus=8, priority=priority)
    assert victims(case) == []
    case.expect_reason("a", "Next to run: waits for 8 GPUs, 1 core and 1 GiB on one machine")


def test_nobody_gives_way_where_there_is_room() -> None:
    case = cluster().machine(gpus=8, count=2).holding("m0", gpus=8).run("a", gpus=8, priority=1).expect(a="m1")
    assert victims(case) == []


def test_the_youngest_run_that_suffices_alone_gives_way() -> None:
    case = cluster().machine(gpus=8, count=4)
    case.holding("m0", gpus=8, run=50, started_at=100).holding("m1", gpus=8, run=51, started_at=300)
    case.holding("m2", gpus=4, run=52, started_at=900).holding("m2", gpus=4, run=53, started_at=900)
    case.holding("m3", gpus=8, run=54, started_at=200)
    assert victims(case.run("a", gpus=8, priority=1)) == [51]


def test_fewer_victims_are_better_than_younger_ones() -> None:
    case = cluster().machine(gpus=8, count=2).holding("m0", gpus=8, run=50, started_at=1)
    for number in range(8):
        case.holding("m1", gpus=1, run=60 + number, started_at=900)
    assert victims(case.run("a", gpus=8, priority=1)) == [50]


def test_of_several_on_one_machine_the_fewest_and_youngest_give_way() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=4, run=50, started_at=1)
    case.holding("m0", gpus=2, run=51, started_at=700).holding("m0", gpus=2, run=52, started_at=800)
    assert sorted(victims(case.run("a", gpus=4, priority=1))) == [50]
    case = cluster().machine(gpus=4).holding("m0", gpus=1, run=50, started_at=1)
    for number in (1, 2, 3):
        case.holding("m0", gpus=1, run=50 + number, started_at=number * 100)
    assert sorted(victims(case.run("a", gpus=2, priority=1))) == [52, 53]


def test_a_run_gives_way_with_all_its_workers_and_what_they_leave_over_serves_the_next() -> None:
    case = cluster().machine(gpus=8, count=2).holding("m0", gpus=8, run=50).holding("m1", gpus=8, run=50)
    case.run("a", gpus=8, priority=1).run("b", gpus=8, priority=1)
    assert victims(case) == [50]
    case.expect_reason("b", MAKING_ROOM)


def test_a_gang_takes_the_run_that_frees_most() -> None:
    case = cluster().machine(gpus=8, count=4)
    case.holding("m0", gpus=8, run=50, started_at=900).holding("m1", gpus=8, run=51, started_at=900)
    case.holding("m2", gpus=8, run=52, started_at=1).holding("m3", gpus=8, run=52, started_at=1)
    case.run("gang", gpus=8, workers=2, gang=True, priority=1)
    assert victims(case) == [52]
    (claim,) = case.plan().claims.values()
    assert claim is not None
    assert [room.machine_id for room in claim.rooms] == [102, 103]


def test_nobody_gives_way_to_a_gang_that_still_would_not_fit() -> None:
    case = cluster().machine(gpus=8, count=2).holding("m0", gpus=8, run=50).holding("m1", gpus=1, run=51, priority=5)
    assert victims(case.run("gang", gpus=8, workers=2, gang=True, priority=1)) == []


def test_no_victim_is_chosen_that_does_not_help() -> None:
    case = cluster().machine(gpus=8, count=2).machine(gpus=8, cordoned=True)
    case.holding("m0", gpus=8, run=50, started_at=1).holding("m2", gpus=8, run=52, started_at=900)
    case.holding("m1", gpus=8, run=51, priority=5, started_at=900)
    assert victims(case.run("a", gpus=8, priority=1)) == [50]


def test_constraints_hold_for_the_room_that_is_freed() -> None:
    case = cluster().machine(gpus=8).machine(gpus=8, model="NVIDIA A100")
    case.holding("m0", gpus=8, run=50, started_at=900).holding("m1", gpus=8, run=51, started_at=1)
    assert victims(case.run("a", gpus=1, priority=1, where=Constraints(gpu_models=("A100",)))) == [51]


def test_cores_and_memory_are_freed_as_well() -> None:
    case = cluster().machine(cores=8, memory=8).holding("m0", cores=4, memory=1, run=50, started_at=500)
    case.holding("m0", cores=1, memory=6, run=51, started_at=600)
    assert victims(case.run("a", cores=6, memory=1, priority=1)) == [50]


def test_what_a_quota_forbids_has_nobody_give_way() -> None:
    case = cluster().namespace(1).namespace(2, quota_gpus=4).machine(gpus=8).holding("m0", gpus=8, run=50)
    case.run("gang", gpus=4, workers=2, gang=True, priority=1, namespace=2)
    assert victims(case) == []


def test_many_independent_workers_get_room_for_as_many_as_can() -> None:
    case = cluster().machine(gpus=2).machine(gpus=2).holding("m0", gpus=2, run=50)
    case.holding("m1", gpus=2, run=51, priority=9).run("a", gpus=1, workers=3, priority=1)
    assert victims(case) == [50]
    (claim,) = case.plan().claims.values()
    assert claim is not None
    assert len(claim.rooms) == 2


def claim(machine: int, gpus: int, until: float = 1200.0) -> Claim:
    return Claim(until, (Room(machine, 1000, GIB, tuple(range(gpus))),))


def test_nobody_gives_way_on_a_machine_that_is_not_connected_but_a_claim_there_stays() -> None:
    away = cluster().machine(gpus=4, connected=False).holding("m0", gpus=4)
    away.run("high", gpus=4, priority=1).expect()
    assert away.plan().preemptions == ()
    case = cluster().machine(gpus=4, connected=False).machine(gpus=4).holding("m1", gpus=4)
    case.run("high", gpus=4, priority=1, claim=claim(100, 4)).expect()
    plan = case.plan()
    assert (plan.preemptions, plan.claims) == ((), {})
    assert plan.refusals[1].code == "preempting"


def test_freed_room_belongs_to_the_claimant_and_not_to_an_equal_that_would_come_first() -> None:
    case = cluster().namespace(2).machine(gpus=8, count=2).holding("m1", gpus=8, namespace=1, priority=9)
    case.holding("m0", gpus=4, run=50, stopping_since=990)
    case.run("equal", gpus=4, priority=1, namespace=2).run("low", gpus=1)
    case.run("claimant", gpus=8, priority=1, claim=claim(100, 8))
    case.expect().expect_reason("claimant", MAKING_ROOM)
    assert case.plan().claims == {}


def test_no_equal_reserves_what_is_claimed() -> None:
    case = cluster().machine(gpus=8, count=2).holding("m0", gpus=8, run=50, stopping_since=980)
    rooms = (Room(100, 1000, GIB, tuple(range(8))), Room(101, 1000, GIB, tuple(range(8))))
    case.run("equal", gpus=4, priority=1)
    case.run("claimant", gpus=8, workers=2, gang=True, priority=1, claim=Claim(1200.0, rooms)).run("low", gpus=1)
    plan = case.expect().plan()
    assert (plan.reservation, plan.claims) == (None, {})


def test_the_claimant_starts_when_its_room_is_free_and_then_claims_no_more() -> None:
    case = cluster().machine(gpus=8).run("low", gpus=1).run("claimant", gpus=8, priority=1, claim=claim(100, 8))
    assert case.expect(claimant="m0").plan().claims == {2: None}


def test_work_of_strictly_higher_priority_takes_claimed_room() -> None:
    case = cluster().machine(gpus=8).run("claimant", gpus=8, priority=1, claim=claim(100, 8))
    assert case.run("higher", gpus=8, priority=2).expect(higher="m0").plan().claims == {1: None}


@pytest.mark.parametrize(
    ("kept", "facts"),
    [(claim(100, 8, until=1000.0), {}), (claim(100, 8), {"cordoned": True}), (claim(999, 8), {})],
)
def test_a_claim_lapses_with_time_and_with_its_machine(kept: Claim, facts: dict) -> None:
    case = cluster().machine(gpus=8, **facts).holding("m0", gpus=2, priority=9).machine(gpus=8)
    case.holding("m1", gpus=7, priority=9)
    case.run("claimant", gpus=8, priority=1, claim=kept).run("low", gpus=1)
    assert case.plan().claims == {1: None}


def test_what_was_told_to_stop_long_ago_is_not_waited_for() -> None:
    case = cluster().machine(gpus=8, count=2).holding("m0", gpus=8, run=50, stopping_since=1000 - CLAIM_SECONDS)
    case.holding("m1", gpus=8, run=51).run("a", gpus=8, priority=1, claim=claim(100, 8))
    assert victims(case) == [51]


def test_a_victim_is_not_placed_elsewhere_in_the_same_pass() -> None:
    case = cluster().machine(gpus=8).machine(gpus=1).holding("m0", gpus=8, run=1)
    case.run("victim", gpus=1).run("urgent", gpus=8, priority=1).expect()
    assert victims(case) == [1]


def test_the_room_reserved_for_the_first_in_the_queue_is_taken_by_nobody_below_it() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=4, run=50, priority=0).holding("m0", gpus=4, priority=9, run=51)
    case.run("first", gpus=8, priority=5).run("second", gpus=4, priority=4)
    assert victims(case) == []


def test_every_sentence_of_making_room_is_one_of_the_documented_ones() -> None:
    assert sentence("preempting", {}).startswith("Next to run")


def test_the_fewest_amounts_are_found_and_of_those_the_first() -> None:
    amounts = [(1, 0, 0), (2, 0, 0), (4, 0, 0), (4, 9, 0)]
    assert fewest_covering(amounts, (3, 0, 0), 4) == (2,)
    assert fewest_covering(amounts, (4, 9, 0), 4) == (3,)
    assert fewest_covering(amounts, (6, 0, 0), 4) == (1, 2)
    assert fewest_covering(amounts, (12, 0, 0), 4) is None
    assert fewest_covering(amounts, (6, 0, 0), 1) is None


def test_where_there_are_too_many_ways_the_first_that_suffice_are_taken() -> None:
    amounts = [(0, 1, 0)] * 30 + [(0, 0, 1)] * 30
    chosen = fewest_covering(amounts, (0, 12, 12), 60)
    assert chosen is not None
    assert len(chosen) == 24


def test_a_gang_of_very_many_has_as_many_give_way_as_it_needs() -> None:
    case = cluster().machine(gpus=8, cores=64, count=150)
    for number in range(150):
        case.holding(f"m{number}", gpus=8, run=5000 + number, started_at=number)
    plan = case.run("urgent", gpus=2, workers=500, gang=True, priority=1).expect().plan()
    assert {preemption.run_id for preemption in plan.preemptions} == {5000 + number for number in range(25, 150)}
    claim = plan.claims[1]
    assert claim is not None
    assert len({(room.machine_id, gpu) for room in claim.rooms for gpu in room.gpu_indexes}) == 1000


def test_who_a_gang_of_very_many_has_give_way_is_not_weighed_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.scheduling.preemption.GAINS_PER_SEARCH", 0)
    case = cluster().machine(gpus=8, count=3)
    for number, gpus in enumerate((8, 4, 4)):
        case.holding(f"m{number}", gpus=gpus, cores=60, run=50 + number, started_at=number)
    case.run("urgent", gpus=4, cores=30, workers=3, gang=True, priority=1)
    assert victims(case) == [52, 51]  # the youngest that helps; 50 would have made room for two
    monkeypatch.setattr("runs.scheduling.claims.WORKERS_PER_PASS", 0)
    assert victims(case) == []
