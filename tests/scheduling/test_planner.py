"""What the planner decides, case by case."""

import pytest

from runs.scheduling.explain import machine_sentence
from runs.scheduling.feasible import refusals_by_machine
from runs.scheduling.ledger import Ledger
from runs.scheduling.types import Ask, Constraints, Placement
from tests.scheduling.harness import GIB, cluster


def test_a_run_goes_to_the_machine_it_fits() -> None:
    cluster().machine(gpus=4).machine(gpus=8).run("a", gpus=8).expect(a="m1")


def test_runs_are_packed_so_that_whole_machines_stay_free() -> None:
    case = cluster().machine(gpus=8, count=3).holding("m1", gpus=4)
    case.run("a", gpus=4).run("b", gpus=8).run("c", gpus=8).expect(a="m1", b="m0", c="m2")


def test_a_run_without_gpus_goes_where_it_strands_the_fewest() -> None:
    cluster().machine(gpus=8).machine(gpus=8).machine().holding("m1", gpus=7).run("a").expect(a="m2")
    cluster().machine(gpus=8).machine(gpus=8).holding("m1", gpus=7).run("a").expect(a="m1")


def test_gpus_in_use_and_broken_ones_are_not_given() -> None:
    case = cluster().machine(gpus=8, broken=2).run("a", gpus=2).run("b", gpus=4)
    first, second = case.plan().placements
    assert (first.gpu_indexes, second.gpu_indexes) == ((2, 3), (4, 5, 6, 7))


def test_what_is_mounted_goes_to_a_machine_with_containers() -> None:
    mounts = Constraints(mounts=("file secrets", "drives"))
    cluster().machine(runs_containers=False).machine().run("a", where=mounts).expect(a="m1")
    case = cluster().machine(runs_containers=False).run("a", where=mounts)
    reason = "No machine fits: no machine runs containers, which file secrets and drives need"
    case.expect_reason("a", reason)


def test_higher_priority_goes_first_then_the_older_run() -> None:
    case = cluster().machine(gpus=1, count=2)
    case.run("old", gpus=1).run("young", gpus=1).run("urgent", gpus=1, priority=5).expect(urgent="m0", old="m1")


def test_the_namespace_with_the_smaller_weighted_share_goes_first() -> None:
    case = cluster().machine(gpus=4).namespace(2, weight=3)
    for number in range(4):
        case.run(f"one{number}", gpus=1)
    for number in range(4):
        case.run(f"two{number}", gpus=1, namespace=2)
    assert sorted(case.placed(case.plan())) == ["one0", "two0", "two1", "two2"]


def test_a_gang_that_lost_its_place_goes_before_newcomers_with_a_smaller_share() -> None:
    case = cluster().machine(gpus=8, count=2).namespace(2).holding("m1", gpus=4)
    case.run("newcomer", gpus=8, namespace=2).run("repaired", gpus=4, workers=2, gang=True, again=True)
    case.run("urgent", gpus=4, namespace=2, priority=1)
    case.expect(urgent="m1", repaired0="m0", repaired1="m0")


def test_use_counts_towards_the_share_before_the_pass() -> None:
    case = cluster().machine(gpus=4).namespace(2).holding("m0", gpus=2)
    case.run("mine", gpus=1).run("other0", gpus=1, namespace=2).run("other1", gpus=1, namespace=2)
    case.expect(other0="m0", other1="m0")


def test_each_worker_of_an_independent_run_is_placed_for_itself() -> None:
    case = cluster().machine(gpus=2).machine(gpus=1).run("a", gpus=1, workers=5)
    assert sorted(case.placed(case.plan()).values()) == ["m0", "m0", "m1"]
    case.expect_reason("a", "Next to run: waits for 1 GPU, 1 core and 1 GiB on one machine")


def test_an_array_runs_no_more_workers_at_once_than_its_parallelism() -> None:
    case = cluster().machine(cores=64).run("a", workers=5, parallelism=3, placed=1).expect(a0="m0", a1="m0")
    assert case.plan().refusals == {}


def test_an_array_at_its_parallelism_says_so() -> None:
    case = cluster().machine(cores=64).run("a", workers=5, parallelism=3, placed=3).expect()
    case.expect_reason("a", "Next to run when one of its workers ends: 3 run at once")


def test_workers_of_a_run_on_n_machines_are_on_different_ones() -> None:
    case = cluster().machine(gpus=8, count=3).run("a", gpus=2, workers=2, distinct_machines=True)
    assert len(set(case.placed(case.plan()).values())) == 2


def test_a_machine_that_holds_a_worker_of_such_a_run_gets_no_second_one() -> None:
    case = cluster().machine(gpus=8, count=2).holding("m0", gpus=2, run=1)
    case.run("a", gpus=2, workers=1, distinct_machines=True, placed=1).expect(a="m1")


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    cluster().machine(gpus=8, count=2).run("a", gpus=8, workers=2, gang=True).expect(a0="m0", a1="m1")
    case = cluster().machine(gpus=8, count=2).holding("m1", gpus=1).run("a", gpus=8, workers=2, gang=True)
    case.run("b", gpus=7).expect()
    reason = "Gang cannot be placed whole: 1 of 2 workers fit now, each needs 8 GPUs, 1 core and 1 GiB"
    case.expect_reason("a", reason)


def test_a_share_of_a_machine_is_taken_of_the_machine_it_lands_on() -> None:
    case = cluster().machine(cores=10, memory=100).run("a", fraction=0.5).run("b", fraction=0.5).run("c", fraction=0.01)
    plan = case.plan()
    assert [(placed.cpu_milli, placed.memory_bytes) for placed in plan.placements] == [(5000, 50 * GIB)] * 2
    case.expect_reason("c", "Next to run: waits for 1% of a machine")


def test_a_pass_stops_at_its_bound_and_says_so() -> None:
    case = cluster().machine(cores=64)
    for number in range(5):
        case.run(f"a{number}")
    plan = case.plan(placements_per_pass=3)
    assert (len(plan.placements), plan.more, plan.refusals) == (3, True, {})


def test_an_array_longer_than_the_bound_is_cut_at_the_bound() -> None:
    plan = cluster().machine(cores=64).run("a", workers=10).plan(placements_per_pass=4)
    assert (len(plan.placements), plan.more) == (4, True)


def test_only_refusals_that_differ_from_what_is_stored_are_news() -> None:
    case = cluster().machine(gpus=1).run("a", gpus=2)
    refusal = case.plan().refusals[1]
    assert case.plan().changed == (1,)
    assert cluster().machine(gpus=1).run("a", gpus=2, stored=refusal).plan().changed == ()


def test_a_gpu_total_is_planned_over_the_fewest_equal_machines() -> None:
    assert cluster().machine(gpus=8, count=4).splitting("a", 16).plan().splits == {1: 2}
    assert cluster().machine(gpus=4, count=4).splitting("a", 16, planned=2).plan().splits == {1: 4}
    assert cluster().machine(gpus=8, count=4).splitting("a", 16, planned=2).plan().splits == {}


@pytest.mark.parametrize(
    ("where", "facts", "reason"),
    [
        (Constraints(pools=("train",)), {}, "No machine fits: no machine is in pool train"),
        (Constraints(names=("gpu-7",)), {}, "No machine fits: no machine is named gpu-7"),
        (Constraints(namespace_pools=("x", "y")), {}, "No machine fits: no machine is in the workspace's pool x or y"),
        (
            Constraints(labels=(("disk", "nvme"), ("zone", "a"))),
            {},
            "No machine fits: no machine is labelled disk=nvme and zone=a",
        ),
        (Constraints(gpu_models=("A100",)), {"gpus": 1}, "No machine fits: no machine has a GPU of model A100"),
        (
            Constraints(gpu_min_memory_bytes=96 * GIB),
            {"gpus": 1},
            "No machine fits: no machine has a GPU with 96 GiB; the most is 80 GiB",
        ),
        (None, {"gpus": 9}, "No machine fits: no machine has 9 GPUs; the most is 8"),
        (None, {"cores": 100}, "No machine fits: no machine has 100 cores; the most is 64 cores"),
        (None, {"memory": 1024}, "No machine fits: no machine has 1 TiB of memory; the most is 512 GiB"),
        (
            None,
            {"workers": 3, "distinct_machines": True},
            "No machine fits: 3 machines asked, one worker on each; 2 could hold one",
        ),
    ],
)
def test_what_can_never_run_says_why_and_blocks_nobody(where: Constraints | None, facts: dict, reason: str) -> None:
    case = cluster().machine(gpus=8, count=2).run("a", where=where, **facts).run("b", gpus=8).expect(b="m0")
    case.expect_reason("a", reason)


def test_an_empty_cluster_says_that_it_has_no_machines() -> None:
    cluster().run("a").expect().expect_reason("a", "No machine fits: the cluster has no machines")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"ready": False}, "No machine fits: the only machine that could hold it is not ready"),
        ({"cordoned": True}, "No machine fits: the only machine that could hold it is cordoned"),
        (
            {"cordoned": True, "cordon_reason": "a fan rattles"},
            "No machine fits: the only machine that could hold it is cordoned: a fan rattles",
        ),
        (
            {"cordoned": True, "draining": True, "cordon_reason": "new firmware"},
            "No machine fits: the only machine that could hold it is draining: new firmware",
        ),
        ({"broken": 1}, "No machine fits: no machine has 8 healthy GPUs now; the most is 7"),
    ],
)
def test_a_machine_that_takes_no_work_now_is_told_apart_from_never(facts: dict, reason: str) -> None:
    cluster().machine(gpus=8, **facts).machine(gpus=4).run("a", gpus=8).expect().expect_reason("a", reason)


def test_machines_closed_for_several_reasons_are_counted_by_reason() -> None:
    case = cluster().machine(gpus=8, ready=False).machine(gpus=8, cordoned=True, cordon_reason="a fan rattles")
    case.machine(gpus=8, count=2, cordoned=True, draining=True, cordon_reason="new firmware").run("a", gpus=8)
    case.expect().expect_reason(
        "a",
        "No machine fits: none of the 4 machines that could hold it takes work: "
        "1 not ready, 1 cordoned, 2 draining: new firmware",
    )


def test_a_machine_that_is_not_connected_gets_no_work_and_says_so() -> None:
    cluster().machine(connected=False).machine().run("a").expect(a="m1")
    case = cluster().machine(gpus=2, connected=False).run("a", gpus=2).run("b").expect()
    case.expect_reason(
        "a", "Next to run: waits for 2 GPUs, 1 core and 1 GiB on one machine; 1 machine with room is not connected"
    )
    (group,) = refusals_by_machine(Ledger(case.machines, ()), Ask(gpus=2))
    assert (group.code, group.machines) == ("not_connected", ("m0",))


def test_the_table_of_machines_says_what_a_fraction_comes_to() -> None:
    case = cluster().machine(cores=8).holding("m0", cores=5).run("a", fraction=0.5).expect()
    (group,) = refusals_by_machine(Ledger(case.machines, case.holds), Ask(node_fraction=0.5))
    assert machine_sentence(group.code, group.numbers) == "4 cores wanted, at most 3 cores free"


def test_a_gpu_model_is_asked_for_by_the_words_of_its_name() -> None:
    for wanted in ("H100", "h100-80gb", "NVIDIA H100 80GB HBM3"):
        cluster().machine(gpus=1).run("a", gpus=1, where=Constraints(gpu_models=(wanted, "A100"))).expect(a="m0")
    cluster().machine(gpus=1).run("a", gpus=1, where=Constraints(gpu_models=("H10",))).expect()


def test_gpus_of_another_model_on_the_same_machine_are_not_given() -> None:
    case = cluster().machine(gpus=2).machine(gpus=2, model="NVIDIA A100")
    mixed = case.machines.pop()
    first = case.machines.pop()
    gpus = (*first.gpus, *(type(gpu)(gpu.index + 2, gpu.model, gpu.memory_bytes) for gpu in mixed.gpus))
    case.machines.append(type(first)(100, "m0", first.cpu_milli, first.memory_bytes, gpus))
    case.run("a", gpus=1, where=Constraints(gpu_models=("A100",)))
    assert case.plan().placements == (Placement(1000, 100, (2,), 1000, GIB, 1, 1),)


@pytest.mark.parametrize(
    ("limits", "facts", "reason"),
    [
        ({"quota_gpus": 8}, {"gpus": 1}, "Waits for namespace quota: 8 of 8 GPUs in use"),
        ({"quota_gpus": 10}, {"gpus": 4}, "Waits for namespace quota: 8 of 10 GPUs in use, 4 more asked"),
        ({"quota_gpus": 12}, {"gpus": 16}, "Waits for namespace quota: 16 GPUs asked, the quota is 12"),
        ({"quota_cpu_milli": 1000}, {"cores": 0.5}, "Waits for namespace quota: 1 of 1 cores in use"),
        ({"quota_memory_bytes": GIB}, {}, "Waits for namespace quota: 1 GiB of 1 GiB memory in use"),
        ({"quota_runs": 1}, {}, "Waits for namespace quota: 1 of 1 runs in use"),
    ],
)
def test_a_quota_is_kept_and_said(limits: dict, facts: dict, reason: str) -> None:
    case = cluster().namespace(1, **limits).machine(gpus=16, count=2).holding("m0", gpus=8).run("a", **facts)
    case.expect().expect_reason("a", reason)


def test_a_quota_holds_for_all_that_one_pass_grants() -> None:
    case = cluster().namespace(1, quota_gpus=3, quota_runs=5).machine(gpus=8)
    case.run("a", gpus=2).run("b", gpus=2).run("c", gpus=1).expect(a="m0", c="m0")
    case.expect_reason("b", "Waits for namespace quota: 2 of 3 GPUs in use, 2 more asked")


def test_a_gang_is_not_placed_when_the_quota_holds_but_a_part() -> None:
    case = cluster().namespace(1, quota_gpus=3).machine(gpus=8).run("a", gpus=2, workers=2, gang=True).expect()
    case.expect_reason("a", "Waits for namespace quota: 4 GPUs asked, the quota is 3")


def test_a_share_of_a_machine_counts_towards_the_quota_as_what_it_is_there() -> None:
    case = cluster().namespace(1, quota_cpu_milli=4000).machine(cores=10).run("a", fraction=0.5).expect()
    case.expect_reason("a", "Waits for namespace quota: 5 cores asked, the quota is 4")


def test_what_a_lost_machine_holds_uses_no_quota() -> None:
    case = cluster().namespace(1, quota_gpus=8).machine(gpus=8, ready=False).machine(gpus=8).holding("m0", gpus=8)
    case.run("a", gpus=8).expect(a="m1")


def test_the_first_run_without_room_is_next_and_the_others_queue_behind_it() -> None:
    case = cluster().machine(gpus=8).holding("m0", gpus=8).run("a", gpus=8).run("b", gpus=1).expect()
    case.expect_reason("a", "Next to run: waits for 8 GPUs, 1 core and 1 GiB on one machine")
    case.expect_reason("b", "Queued behind other runs: waits for 1 GPU, 1 core and 1 GiB on one machine")


DRIVE = "1/drive/imagenet"


def test_a_machine_that_holds_the_drive_is_better_than_a_fuller_one() -> None:
    case = cluster().machine(gpus=8).machine(gpus=8, data=(DRIVE,)).holding("m0", gpus=2)
    case.run("a", gpus=1, where=Constraints(data=(DRIVE,))).run("b", gpus=1).expect(a="m1", b="m0")


def test_a_machine_that_holds_more_of_what_is_asked_for_is_better() -> None:
    model = "1/model/llama"
    case = cluster().machine(gpus=8, data=(DRIVE,)).machine(gpus=8, data=(DRIVE, model)).machine(gpus=8)
    case.run("a", gpus=1, where=Constraints(data=(DRIVE, model))).expect(a="m1")


def test_a_held_drive_does_not_break_up_a_whole_free_machine() -> None:
    case = cluster().machine(gpus=8).machine(gpus=8, data=(DRIVE,)).holding("m0", gpus=7)
    case.run("a", gpus=1, where=Constraints(data=(DRIVE,))).expect(a="m0")


def test_a_machine_without_the_drive_is_taken_when_no_other_has_room() -> None:
    case = cluster().machine(gpus=8).machine(gpus=8, data=(DRIVE,)).holding("m1", gpus=8)
    case.run("a", gpus=1, where=Constraints(data=(DRIVE,))).expect(a="m0")
