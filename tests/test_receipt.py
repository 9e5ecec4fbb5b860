"""What a run cost: where its time went, what its GPUs did, and the sizes that follow from what it used. Pure."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.receipt import (
    AT_BARRIER,
    ENDED,
    Moves,
    Peak,
    Spent,
    Stay,
    gpu_time,
    largest,
    right_sizes,
    spent_on,
    where_time_went,
)
from runs.sizes import GIB, MIB, more_memory, more_time, rounded
from runs.spec import RunSpec, load_spec
from runs.state_machine import WorkerState
from runs.units import TIME_LIMIT_MAX
from tests import builders


def moves(*workers: list[tuple[float, int]]) -> Moves:
    rows = [(number, at, spent) for number, its in enumerate(workers) for at, spent in its]
    ids, times, spent = zip(*rows, strict=True) if rows else ((), (), ())
    return Moves(np.array(ids, np.int64), np.array(times, np.float64), np.array(spent, np.int64))


def went(*workers: list[tuple[float, int]], gang: bool = False, end: float = 100) -> dict[str, float]:
    found = where_time_went(moves(*workers), gang, 0, end)
    return {spent.name.lower(): seconds for spent, seconds in found.items() if seconds}


ONE = [
    (0, Spent.QUEUE),
    (5, Spent.PREPARING),
    (7, Spent.PULLING),
    (30, Spent.STARTING),
    (31, Spent.RUNNING),
    (100, ENDED),
]


def test_the_time_of_a_worker_goes_where_its_moves_say() -> None:
    assert went(ONE) == {"queue": 5, "preparing": 2, "pulling": 23, "starting": 1, "running": 69}


def test_a_gang_is_where_its_last_worker_is_and_a_run_of_single_workers_where_its_first_is() -> None:
    quick = [(0, Spent.QUEUE), (5, Spent.PREPARING), (6, Spent.BARRIER), (31, Spent.RUNNING), (100, ENDED)]
    assert went(ONE, quick, gang=True) == {"queue": 5, "preparing": 2, "pulling": 23, "barrier": 1, "running": 69}
    assert went(ONE, quick) == {"queue": 5, "preparing": 1, "barrier": 24, "starting": 1, "running": 69}


def test_workers_that_have_ended_do_not_hold_a_gang_back() -> None:
    first = [(0, Spent.RUNNING), (10, ENDED)]
    assert went(first, [(0, Spent.RUNNING), (100, ENDED)], gang=True) == {"running": 100}


def test_restarts_and_the_queue_after_them_are_told_apart() -> None:
    again = [(0, Spent.RUNNING), (20, Spent.RESTARTS), (30, Spent.QUEUED_AGAIN), (60, Spent.RUNNING), (100, ENDED)]
    assert went(again) == {"running": 60, "restarts": 10, "queued_again": 30}


def test_a_run_without_workers_was_in_the_queue_all_the_time() -> None:
    assert went() == {"queue": 100}
    assert went([(40, Spent.RUNNING)]) == {"queue": 40, "running": 60}  # planned late


@given(
    st.lists(
        st.lists(st.tuples(st.floats(-5, 110), st.integers(0, ENDED)), min_size=1, max_size=6).map(sorted),
        max_size=5,
    ),
    st.booleans(),
)
def test_the_parts_add_up_to_the_whole_whatever_happened(workers: list[list[tuple[float, int]]], gang: bool) -> None:
    found = where_time_went(moves(*workers), gang, 0, 100)
    assert sum(found.values()) == pytest.approx(100)
    assert all(seconds >= 0 for seconds in found.values())


@pytest.mark.parametrize("state", WorkerState)
def test_every_state_of_a_worker_is_spent_on_something(state: WorkerState) -> None:
    ended = state in (WorkerState.COMPLETED, WorkerState.FAILED, WorkerState.CANCELLED)
    assert (spent_on(state, "", False) == ENDED) == ended


def test_the_barrier_and_the_queue_after_a_placement_are_known_by_what_the_history_says() -> None:
    assert spent_on("Starting", AT_BARRIER, True) == Spent.BARRIER
    assert spent_on("Starting", "Starting the container", True) == Spent.STARTING
    assert spent_on("Pending", "Run created", False) == Spent.QUEUE
    assert spent_on("Pending", "Preempted by higher-priority work (x)", True) == Spent.QUEUED_AGAIN


# ---- GPUs ----


def test_gpus_used_are_busy_shares_over_the_time_that_is_known() -> None:
    found = gpu_time([Stay(8, held=3600, ran=1800, busy=0.5, known=1800), Stay(0, held=50, ran=50)])
    assert (found.held, found.used, found.known) == (8 * 3600, 8 * 900, 1.0)


def test_gpus_of_which_nothing_was_sampled_are_unknown_and_not_idle() -> None:
    assert gpu_time([Stay(8, held=3600, ran=1800)]).used is None
    half = gpu_time([Stay(1, held=100, ran=100, busy=1.0, known=100), Stay(1, held=100, ran=100)])
    assert (half.used, half.known) == (100, 0.5)
    assert gpu_time([]).used is None


def test_samples_never_tell_of_more_time_than_there_was() -> None:
    assert gpu_time([Stay(1, held=8, ran=8, busy=1.0, known=10)]).used == 8


def test_the_largest_peak_is_the_one_nearest_to_its_limit() -> None:
    near, far = Peak("a-0", 60, 64, 1), Peak("a-1", 90, 512, 1)
    assert largest([far, near]) is near
    assert largest([]) is None


# ---- sizes ----


def spec(**asked: object) -> RunSpec:
    return load_spec(builders.body(**asked)["spec"])  # type: ignore[arg-type]


def sized(of: RunSpec, **used: object) -> list[tuple[str, str]]:
    given: dict[str, object] = {"memory": None, "cores": None, "longest": None, "ran_out": False, **used}
    return [(size.key, size.label) for size in right_sizes(of, **given)]  # type: ignore[arg-type]


def test_sizes_are_what_was_used_and_a_quarter_more_in_the_terms_of_the_specification() -> None:
    plain = spec(cpu=8, memory=64 * GIB)
    assert sized(plain, memory=Peak("a-0", 10 * GIB, 64 * GIB, 0)) == [(f"memory={13 * GIB}", "Memory 13 GiB")]
    per_gpu = spec(cpu=8, memory=64 * GIB, gpus=8)
    peak = Peak("a-0", 80 * GIB, 512 * GIB, 8)
    assert sized(per_gpu, memory=peak) == [(f"memory={13 * GIB}", "Memory 13 GiB per GPU")]
    assert sized(per_gpu, cores=Peak("a-0", 16, 64, 8)) == [("cores=3000", "3 cores per GPU")]
    assert sized(plain, cores=Peak("a-0", 0.3, 8, 0)) == [("cores=500", "0.5 cores")]


def test_a_run_that_ran_out_of_memory_gets_more_whatever_the_samples_saw() -> None:
    plain = spec(memory=64 * GIB)
    assert sized(plain, memory=Peak("a-0", GIB, 64 * GIB, 0), ran_out=True) == [(f"memory={96 * GIB}", "Memory 96 GiB")]


def test_cores_that_a_limit_held_back_are_not_taken_for_what_is_needed() -> None:
    assert sized(spec(cpu=8), cores=Peak("a-0", 7.9, 8, 0)) == []


def test_a_much_too_long_time_limit_is_shortened_and_a_fitting_one_kept() -> None:
    limited = spec(template={"time_limit_seconds": 43200})
    assert sized(limited, longest=3600.0) == [("time=5400", "Time limit 1h30m")]
    assert sized(limited, longest=30000.0) == []


def test_nothing_is_sized_that_has_no_one_size_or_was_not_measured() -> None:
    assert sized(spec(memory=64 * GIB)) == []
    share = load_spec({"task_template": {"image": "busybox", "requested_resources": {"node_fraction": 0.5}}})
    assert sized(share, memory=Peak("a-0", GIB, None, 0)) == []
    assert more_memory(share) is None
    groups = spec(worker_groups=[{"name": "ps", "count": 1}])
    assert sized(groups, memory=Peak("a-0", GIB, GIB, 0), ran_out=True) == []


def test_more_is_half_as_much_memory_and_twice_the_time_up_to_what_there_may_be() -> None:
    assert more_memory(spec(memory=512 * MIB)).label == "768 MiB"  # type: ignore[union-attr]
    assert more_time(spec(template={"time_limit_seconds": 3600})).label == "2h"  # type: ignore[union-attr]
    assert more_time(spec(template={"time_limit_seconds": TIME_LIMIT_MAX})) is None
    assert more_time(spec()) is None
    assert rounded(4 * GIB + 1) == 5 * GIB
    assert rounded(1) == 128 * MIB
