"""The tables of the state machine, whole: legal and illegal moves, runs from workers."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.state_machine import (
    ENDED,
    PLACED,
    RUN_ENDED,
    WAITING,
    WORKER_MOVES,
    FirstFailure,
    IllegalMove,
    RunFacts,
    RunState,
    WorkerState,
    check_move,
    derive_run,
    is_ready,
)

S = WorkerState


@pytest.mark.parametrize(("before", "after"), list(itertools.product(WorkerState, WorkerState)))
def test_a_worker_moves_only_along_the_table(before: WorkerState, after: WorkerState) -> None:
    if after in WORKER_MOVES[before]:
        check_move(before, after)
    else:
        with pytest.raises(IllegalMove, match=f"{before} → {after}"):
            check_move(before, after)


def test_every_state_is_waiting_placed_or_ended() -> None:
    assert set(WORKER_MOVES) == set(WorkerState) == WAITING | PLACED | ENDED
    assert len(WAITING) + len(PLACED) + len(ENDED) == len(WorkerState)


@pytest.mark.parametrize("state", sorted(ENDED))
def test_an_end_is_final(state: WorkerState) -> None:
    """But for a worker that has completed, in a run whose workers restart together."""
    assert WORKER_MOVES[state] == (frozenset({S.RESTARTING}) if state is S.COMPLETED else frozenset())


@pytest.mark.parametrize("state", sorted(WAITING | PLACED))
def test_whatever_has_not_ended_can_be_cancelled(state: WorkerState) -> None:
    assert S.CANCELLED in WORKER_MOVES[state]


@pytest.mark.parametrize(
    ("state", "reason", "ready"),
    [
        ("Running", "Container running", True),
        ("Running", "Running, not ready: HTTP 503", False),
        ("Running", "Stopping: Stopped by anna", False),
        ("Starting", "Container running", False),
    ],
)
def test_only_what_runs_and_is_not_held_back_is_ready(state: str, reason: str, ready: bool) -> None:
    assert is_ready(state, reason) is ready


# ---- runs ----

FAILURE = FirstFailure("llama-sft-1", "gpu-08", "Exited with code 1")
TIMED_OUT = FirstFailure("resnet50-0", "gpu-07", "Exceeded its time limit of 12h")


def facts(*states: WorkerState, **others: object) -> RunFacts:
    return RunFacts(Counter(states), **others)  # type: ignore[arg-type]


RUNS = [
    (facts(), RunState.PENDING, "Run created"),
    (facts(stop_requested=True), RunState.CANCELLED, "Stopped before it had workers"),
    (facts(S.PENDING), RunState.PENDING, "Run created"),
    (facts(S.PENDING, S.PENDING), RunState.PENDING, "Run created"),
    (facts(S.PENDING, waiting_reason="Console stopped"), RunState.PENDING, "Console stopped"),
    (facts(S.PREPARING), RunState.STARTING, "0 of 1 workers running"),
    (facts(S.PULLING, S.PENDING), RunState.STARTING, "0 of 2 workers running"),
    (facts(S.STARTING, S.RUNNING), RunState.RUNNING, "1 of 2 workers running"),
    (facts(S.PREPARING, S.PULLING, gang=True), RunState.STARTING, "Starting together: 0 of 2 ready"),
    (facts(S.STARTING, S.PULLING, gang=True), RunState.STARTING, "Starting together: 1 of 2 ready"),
    (facts(S.STARTING, S.RUNNING, gang=True), RunState.RUNNING, "Starting together: 2 of 2 ready"),
    (facts(S.PREPARING, gang=True), RunState.STARTING, "0 of 1 workers running"),
    (facts(S.RUNNING), RunState.RUNNING, "1 of 1 workers running"),
    (facts(S.RUNNING, S.RUNNING, gang=True), RunState.RUNNING, "2 of 2 workers running"),
    (facts(S.RUNNING, S.COMPLETED), RunState.RUNNING, "1 of 2 workers running, 1 done"),
    (facts(S.PENDING, S.COMPLETED), RunState.RUNNING, "0 of 2 workers running, 1 done"),
    (facts(S.RUNNING, S.FAILED, failure=FAILURE), RunState.RUNNING, "1 of 2 workers running, 1 failed"),
    (
        facts(S.RUNNING, S.FAILED, failure=FAILURE, together=True),
        RunState.RUNNING,
        "Worker llama-sft-1 failed on gpu-08: Exited with code 1; stopping the others",
    ),
    (facts(S.RESTARTING, waiting_reason="Exited with code 1"), RunState.PENDING, "Restarting: Exited with code 1"),
    (
        facts(S.RESTARTING, S.PENDING, waiting_reason="Exited with code 1"),
        RunState.PENDING,
        "1 of 2 workers restarting: Exited with code 1",
    ),
    (
        facts(S.RESTARTING, S.RUNNING, restarting="Worker a-1 failed on gpu-08: Exited with code 1"),
        RunState.RUNNING,
        "Worker a-1 failed on gpu-08: Exited with code 1; all workers restart together, 1 of 2 stopped",
    ),
    (
        facts(S.RESTARTING, S.PREPARING, restarting="Machine gpu-08 is drained: a fan rattles"),
        RunState.STARTING,
        "Machine gpu-08 is drained: a fan rattles; all workers restart together, 1 of 2 stopped",
    ),
    (
        facts(S.RESTARTING, S.RESTARTING, restarting="Worker a-1 failed on gpu-08: Exited with code 1"),
        RunState.PENDING,
        "Restarting all 2 workers: Worker a-1 failed on gpu-08: Exited with code 1",
    ),
    (facts(S.COMPLETED), RunState.COMPLETED, "1 of 1 workers completed"),
    (facts(S.COMPLETED, S.CANCELLED), RunState.CANCELLED, "All workers ended; some were cancelled"),
    (
        facts(S.FAILED, S.CANCELLED, failure=FAILURE),
        RunState.FAILED,
        "Worker llama-sft-1 failed on gpu-08: Exited with code 1",
    ),
    (
        facts(S.FAILED, S.CANCELLED, failure=FAILURE, gang=True),
        RunState.FAILED,
        "Worker llama-sft-1 failed on gpu-08: Exited with code 1; the gang does not run without it",
    ),
    (facts(S.FAILED, failure=TIMED_OUT), RunState.FAILED, "Worker resnet50-0: Exceeded its time limit of 12h"),
    (
        facts(S.FAILED, failure=replace(FAILURE, machine="")),
        RunState.FAILED,
        "Worker llama-sft-1 failed: Exited with code 1",
    ),
]


@pytest.mark.parametrize(("given_facts", "state", "reason"), RUNS)
def test_a_run_follows_from_its_workers(given_facts: RunFacts, state: RunState, reason: str) -> None:
    derived = derive_run(given_facts)
    assert (derived.state, derived.reason) == (state, reason)


@given(st.lists(st.sampled_from(WorkerState), min_size=1, max_size=6))
def test_a_run_has_ended_exactly_when_all_its_workers_have(states: list[WorkerState]) -> None:
    derived = derive_run(facts(*states, failure=FAILURE))
    assert (derived.state in RUN_ENDED) == all(state in ENDED for state in states)
    assert (derived.state is RunState.FAILED) == (set(states) <= ENDED and S.FAILED in states)
