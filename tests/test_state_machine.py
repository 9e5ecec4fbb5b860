"""The tables of the state machine, whole: legal and illegal moves, ends and what they lead to, runs from workers."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.state_machine import (
    ENDED,
    PLACED,
    RETRY,
    RUN_ENDED,
    WAITING,
    WORKER_MOVES,
    End,
    EndCause,
    FirstFailure,
    IllegalMove,
    Outcome,
    Policy,
    Retry,
    RunFacts,
    RunState,
    WorkerState,
    backoff,
    check_move,
    derive_run,
    end_sentence,
    outcome,
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


# ---- ends ----

POLICY = Policy(image="busybox", time_limit_seconds=43200)
NEVER = replace(POLICY, restart_policy="Never")
ALWAYS = replace(POLICY, restart_policy="Always")
SERVICE = replace(POLICY, lifetime="Service")
FAIL_JOB = replace(POLICY, on_failure="FailJob")

ENDS = [
    # end, policy, failures so far → state, reason, failures after
    (End(EndCause.EXITED, 0), POLICY, 3, S.COMPLETED, "Exited with code 0", 0),
    (End(EndCause.EXITED, 0), NEVER, 0, S.COMPLETED, "Exited with code 0", 0),
    (End(EndCause.EXITED, 0), FAIL_JOB, 0, S.COMPLETED, "Exited with code 0", 0),
    (End(EndCause.EXITED, 0), ALWAYS, 4, S.RESTARTING, "Exited with code 0", 0),
    (End(EndCause.EXITED, 0), SERVICE, 4, S.RESTARTING, "Exited with code 0", 0),
    (End(EndCause.EXITED, 1), POLICY, 0, S.RESTARTING, "Exited with code 1", 1),
    (End(EndCause.EXITED, 1), POLICY, 9, S.RESTARTING, "Exited with code 1", 10),
    (End(EndCause.EXITED, 1), POLICY, 10, S.FAILED, "Retry budget exhausted after 10/10 restarts", 10),
    (End(EndCause.EXITED, 1, ran_seconds=600), POLICY, 10, S.RESTARTING, "Exited with code 1", 1),
    (End(EndCause.EXITED, 1, ran_seconds=599), POLICY, 10, S.FAILED, "Retry budget exhausted after 10/10 restarts", 10),
    (End(EndCause.EXITED, 1), SERVICE, 25, S.RESTARTING, "Exited with code 1", 26),
    (End(EndCause.EXITED, 1), replace(SERVICE, restart_policy="Never"), 0, S.RESTARTING, "Exited with code 1", 1),
    (End(EndCause.EXITED, 1), NEVER, 0, S.FAILED, "Exited with code 1", 0),
    (End(EndCause.EXITED, 1), FAIL_JOB, 0, S.FAILED, "Exited with code 1", 0),
    (End(EndCause.EXITED, 137), NEVER, 0, S.FAILED, "Exited with code 137", 0),
    (End(EndCause.EXITED, None), POLICY, 0, S.RESTARTING, "Ended; its exit code could not be observed", 1),
    (End(EndCause.EXITED, None), NEVER, 0, S.FAILED, "Ended; its exit code could not be observed", 0),
    (End(EndCause.OOM_KILLED, 137), NEVER, 0, S.FAILED, "OOMKilled: the container exceeded its memory limit", 0),
    (End(EndCause.OOM_KILLED, 0), POLICY, 0, S.RESTARTING, "OOMKilled: the container exceeded its memory limit", 1),
    (End(EndCause.TIME_LIMIT, 143), POLICY, 0, S.FAILED, "Exceeded its time limit of 12h", 0),
    (End(EndCause.TIME_LIMIT, 0), ALWAYS, 0, S.FAILED, "Exceeded its time limit of 12h", 0),
    (End(EndCause.TIME_LIMIT, 143), SERVICE, 0, S.FAILED, "Exceeded its time limit of 12h", 0),
    (End(EndCause.IMAGE_PULL, message="manifest unknown"), POLICY, 0, S.FAILED, "ErrImagePull: manifest unknown", 0),
    (End(EndCause.IMAGE_PULL, message="denied"), ALWAYS, 0, S.FAILED, "ErrImagePull: denied", 0),
    (End(EndCause.IMAGE_PULL, message="i/o timeout"), POLICY, 0, S.RESTARTING, "ErrImagePull: i/o timeout", 1),
    (End(EndCause.IMAGE_MISSING), POLICY, 0, S.FAILED, "Image busybox is not present and the pull policy is None", 0),
    (End(EndCause.START_FAILED, message="no such file"), POLICY, 0, S.RESTARTING, "Could not start: no such file", 1),
    (End(EndCause.REFUSED, message="no drives"), NEVER, 0, S.FAILED, "Refused by the machine: no drives", 0),
    (End(EndCause.STOPPED, 143), POLICY, 0, S.RESTARTING, "Stopped by its machine", 1),
    (End(EndCause.MACHINE_LOST), POLICY, 10, S.PENDING, "Machine lost: its lease expired", 10),
    (End(EndCause.MACHINE_LOST), NEVER, 0, S.FAILED, "Machine lost: its lease expired", 0),
    (End(EndCause.MACHINE_LOST), FAIL_JOB, 0, S.FAILED, "Machine lost: its lease expired", 0),
    (
        End(EndCause.MACHINE_REBOOTED),
        POLICY,
        3,
        S.PENDING,
        "Machine rebooted while it ran; its exit code is unknown",
        3,
    ),
    (
        End(EndCause.UNKNOWN_TO_MACHINE),
        POLICY,
        3,
        S.PENDING,
        "Its machine no longer knows it; its exit code is unknown",
        3,
    ),
    (End(EndCause.STOPPED, 143, stop_reason="Stopped by anna"), POLICY, 0, S.CANCELLED, "Stopped by anna", 0),
    (End(EndCause.EXITED, 137, stop_reason="Stopped by anna"), POLICY, 0, S.CANCELLED, "Stopped by anna", 0),
    (End(EndCause.OOM_KILLED, 137, stop_reason="Stopped by anna"), POLICY, 0, S.CANCELLED, "Stopped by anna", 0),
    (End(EndCause.MACHINE_LOST, stop_reason="Stopped by anna"), POLICY, 0, S.CANCELLED, "Stopped by anna", 0),
    (End(EndCause.EXITED, 0, stop_reason="Stopped by anna"), POLICY, 0, S.COMPLETED, "Exited with code 0", 0),
    (End(EndCause.EXITED, 0, stop_reason="Stopped by anna"), SERVICE, 0, S.COMPLETED, "Exited with code 0", 0),
]


@pytest.mark.parametrize(("end", "policy", "failures", "state", "reason", "failures_after"), ENDS)
def test_an_end_leads_where_the_table_says(
    end: End, policy: Policy, failures: int, state: WorkerState, reason: str, failures_after: int
) -> None:
    found = outcome(end, policy, failures)
    assert (found.state, found.reason, found.failures_in_row) == (state, reason, failures_after)


def test_the_table_of_ends_covers_every_cause() -> None:
    assert {end.cause for end, *_ in ENDS} == set(EndCause) == set(RETRY)


def test_an_exhausted_budget_keeps_the_cause_as_the_last_failure() -> None:
    assert outcome(End(EndCause.EXITED, 3), POLICY, 10).failure == "Exited with code 3"


def test_failures_wait_ten_seconds_doubling_to_five_minutes() -> None:
    waits = [outcome(End(EndCause.EXITED, 1), POLICY, failures).wait_seconds for failures in range(10)]
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300, 300, 300]
    assert backoff(10_000, POLICY) == 300


def test_one_failure_stops_the_siblings_only_where_it_is_all_workers() -> None:
    assert outcome(End(EndCause.EXITED, 1), FAIL_JOB, 0).fails_run
    assert not outcome(End(EndCause.EXITED, 1), NEVER, 0).fails_run
    assert outcome(End(EndCause.EXITED, 1), replace(NEVER, on_failure="RestartJob"), 0).fails_run


TOGETHER = replace(POLICY, on_failure="RestartJob")
LOST, CRASH = End(EndCause.MACHINE_LOST), End(EndCause.EXITED, 1)
WHOLE = [
    # (end, policy, failures of the run) → (state, failures, wait, restarts the run, fails the run)
    (CRASH, TOGETHER, 0, (S.RESTARTING, 1, 10, True, False)),
    (CRASH, TOGETHER, 9, (S.RESTARTING, 10, 300, True, False)),
    (CRASH, TOGETHER, 10, (S.FAILED, 10, 0, False, True)),
    (replace(CRASH, ran_seconds=600), TOGETHER, 10, (S.RESTARTING, 1, 10, True, False)),
    (LOST, TOGETHER, 4, (S.RESTARTING, 4, 0, True, False)),
    (End(EndCause.TIME_LIMIT, 143), TOGETHER, 0, (S.FAILED, 0, 0, False, True)),
    (CRASH, replace(TOGETHER, restart_policy="Never"), 0, (S.FAILED, 0, 0, False, True)),
    (CRASH, replace(TOGETHER, whole=False), 0, (S.FAILED, 0, 0, False, True)),
    (LOST, replace(TOGETHER, whole=False), 0, (S.FAILED, 0, 0, False, True)),
    (End(EndCause.EXITED, 0), TOGETHER, 3, (S.COMPLETED, 0, 0, False, False)),
]


@pytest.mark.parametrize(("end", "policy", "failures", "expected"), WHOLE)
def test_where_all_restart_together_one_end_decides_for_all(
    end: End, policy: Policy, failures: int, expected: tuple[object, ...]
) -> None:
    found = outcome(end, policy, failures)
    assert (
        found.state,
        found.failures_in_row,
        found.wait_seconds,
        found.restarts_run,
        found.fails_run,
    ) == expected


STOPPED = End(EndCause.STOPPED, 143, stop_reason="why")
DONE = End(EndCause.EXITED, 0, stop_reason="why")
STOPS = [
    (STOPPED, S.CANCELLED, POLICY, S.CANCELLED),
    (STOPPED, S.PENDING, POLICY, S.PENDING),
    (STOPPED, S.RESTARTING, POLICY, S.RESTARTING),
    (replace(STOPPED, cause=EndCause.EXITED, exit_code=1), S.PENDING, POLICY, S.PENDING),
    (DONE, S.CANCELLED, POLICY, S.COMPLETED),
    (DONE, S.PENDING, POLICY, S.COMPLETED),
    (DONE, S.PENDING, replace(POLICY, restart_policy="Always"), S.PENDING),
    (DONE, S.RESTARTING, POLICY, S.RESTARTING),  # the others start again, and would wait for it
]


@pytest.mark.parametrize(("end", "then", "policy", "state"), STOPS)
def test_what_was_stopped_becomes_what_it_was_stopped_for(
    end: End, then: WorkerState, policy: Policy, state: WorkerState
) -> None:
    found = outcome(replace(end, after_stop=then), policy, 3)
    assert found.state is state
    assert found.failure is None
    if state is not S.COMPLETED:
        assert (found.reason, found.failures_in_row) == ("why", 3)


ends = st.builds(
    End,
    cause=st.sampled_from(EndCause),
    exit_code=st.none() | st.integers(0, 255),
    message=st.text(max_size=20),
    ran_seconds=st.floats(0, 10_000),
    stop_reason=st.none() | st.just("Stopped by anna"),
)
policies = st.builds(
    Policy,
    restart_policy=st.sampled_from(["OnFailure", "Always", "Never"]),
    on_failure=st.sampled_from(["RestartTask", "RestartJob", "FailJob"]),
    whole=st.booleans(),
    lifetime=st.sampled_from(["Batch", "Service"]),
)


@given(ends, policies, st.integers(0, 12))
def test_completed_only_from_an_observed_0(end: End, policy: Policy, failures: int) -> None:
    found = outcome(end, policy, failures)
    if found.state is S.COMPLETED:
        assert end.cause is EndCause.EXITED
        assert end.exit_code == 0


@given(ends, policies, st.integers(0, 12))
def test_what_was_stopped_never_starts_again(end: End, policy: Policy, failures: int) -> None:
    if end.stop_reason is not None:
        assert outcome(end, policy, failures).state in {S.CANCELLED, S.COMPLETED}


@given(ends, policies, st.integers(0, 12))
def test_free_retries_use_up_no_budget(end: End, policy: Policy, failures: int) -> None:
    if RETRY[end.cause] is Retry.FREE and end.stop_reason is None:
        assert outcome(end, policy, failures).failures_in_row in (failures, 0)


@given(ends, policies, st.integers(0, 12))
def test_every_outcome_is_a_legal_move_of_a_running_worker(end: End, policy: Policy, failures: int) -> None:
    found: Outcome = outcome(end, policy, failures)
    for state in PLACED:
        check_move(state, found.state)
    assert found.state is S.RESTARTING or not (found.wait_seconds or found.restarts_run)
    assert found.wait_seconds > 0 or found.restarts_run or found.state is not S.RESTARTING
    assert not (found.restarts_run and found.fails_run)


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


# ---- the page that tells it ----

PAGE = (Path(__file__).parent.parent / "docs/state-machine.md").read_text()


@pytest.mark.parametrize("before", WorkerState)
def test_the_documentation_lists_the_moves_of_each_state(before: WorkerState) -> None:
    after = ", ".join(f"`{state}`" for state in WorkerState if state in WORKER_MOVES[before])
    assert f"| `{before}` | {after or 'final'} |" in PAGE


@pytest.mark.parametrize("cause", EndCause)
def test_the_documentation_lists_each_end_with_its_reason(cause: EndCause) -> None:
    reason = end_sentence(End(cause, 1, "…"), POLICY)
    assert f"| `{cause}` | {RETRY[cause]} | {reason} |" in PAGE


def test_the_documentation_names_every_state_of_a_run() -> None:
    assert all(f"| `{state}` |" in PAGE for state in RunState)
