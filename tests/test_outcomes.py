"""What the end of an attempt leads to: the table, whole, and the page that tells it."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines.protocol import PullFailure
from runs import states_page
from runs.outcomes import (
    RETRY,
    End,
    EndCause,
    Outcome,
    Policy,
    Retry,
    backoff,
    outcome,
)
from runs.state_machine import PLACED, RunState, WorkerState, check_move

S = WorkerState

POLICY = Policy(image="busybox", time_limit_seconds=43200)
NEVER = replace(POLICY, restart_policy="Never")
ALWAYS = replace(POLICY, restart_policy="Always")
SERVICE = replace(POLICY, lifetime="Service")
FAIL_JOB = replace(POLICY, on_failure="FailJob")
LISTED = replace(POLICY, retry_exit_codes={75, 85})
OOM = "OOMKilled: the container exceeded its memory limit"
MISSING = "Image busybox is not present and the pull policy is None"
AWAY = "ErrImagePull: the registry cannot be reached: words"


def pulled(failure: PullFailure) -> End:
    return End(EndCause.IMAGE_PULL, message="words", pull_failure=failure)


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
    (End(EndCause.OOM_KILLED, 137), NEVER, 0, S.FAILED, OOM, 0),
    (End(EndCause.OOM_KILLED, 0), POLICY, 0, S.RESTARTING, OOM, 1),
    (End(EndCause.TIME_LIMIT, 143), POLICY, 0, S.FAILED, "Exceeded its time limit of 12h", 0),
    (End(EndCause.TIME_LIMIT, 0), ALWAYS, 0, S.FAILED, "Exceeded its time limit of 12h", 0),
    (End(EndCause.TIME_LIMIT, 143), SERVICE, 0, S.FAILED, "Exceeded its time limit of 12h", 0),
    (End(EndCause.IMAGE_PULL, message="invalid reference"), POLICY, 0, S.FAILED, "ErrImagePull: invalid reference", 0),
    (pulled(PullFailure.NOT_FOUND), ALWAYS, 0, S.FAILED, "ErrImagePull: the registry has no such image: words", 0),
    (pulled(PullFailure.DENIED), POLICY, 0, S.FAILED, "ErrImagePull: the registry denies access: words", 0),
    (pulled(PullFailure.UNREACHABLE), POLICY, 0, S.RESTARTING, AWAY, 1),
    (pulled(PullFailure.UNREACHABLE), NEVER, 0, S.FAILED, AWAY, 0),
    (pulled(PullFailure.UNREACHABLE), POLICY, 10, S.FAILED, "Retry budget exhausted after 10/10 restarts", 10),
    (pulled(PullFailure.DISK_FULL), POLICY, 0, S.RESTARTING, "ErrImagePull: the machine's disk is full: words", 1),
    (pulled(PullFailure.DENIED), SERVICE, 30, S.RESTARTING, "ErrImagePull: the registry denies access: words", 31),
    (End(EndCause.IMAGE_MISSING), SERVICE, 0, S.RESTARTING, MISSING, 1),
    (
        End(EndCause.PROBE_FAILED, 143, "Liveness probe failed: x"),
        POLICY,
        0,
        S.RESTARTING,
        "Liveness probe failed: x",
        1,
    ),
    (End(EndCause.ENGINE_ENDED, 0, "The engine ended: x"), NEVER, 0, S.FAILED, "The engine ended: x", 0),
    (End(EndCause.PROBE_FAILED, 0, "Startup probe failed: x"), NEVER, 0, S.FAILED, "Startup probe failed: x", 0),
    (
        End(EndCause.PROBE_FAILED, 137, "Startup probe failed: x"),
        SERVICE,
        40,
        S.RESTARTING,
        "Startup probe failed: x",
        41,
    ),
    (End(EndCause.EXITED, 75), LISTED, 10, S.RESTARTING, "Exited with code 75", 10),
    (End(EndCause.EXITED, 75, ran_seconds=600), LISTED, 10, S.RESTARTING, "Exited with code 75", 0),
    (End(EndCause.EXITED, 76), LISTED, 10, S.FAILED, "Retry budget exhausted after 10/10 restarts", 10),
    (End(EndCause.EXITED, 75), replace(LISTED, restart_policy="Never"), 0, S.FAILED, "Exited with code 75", 0),
    (End(EndCause.EXITED, 75), replace(LISTED, on_failure="FailJob"), 0, S.FAILED, "Exited with code 75", 0),
    (End(EndCause.OOM_KILLED, 137), replace(POLICY, retry_exit_codes={137}), 0, S.RESTARTING, OOM, 1),
    (End(EndCause.IMAGE_MISSING), POLICY, 0, S.FAILED, MISSING, 0),
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


def test_a_listed_exit_code_waits_all_the_same() -> None:
    assert outcome(End(EndCause.EXITED, 75), LISTED, 0).wait_seconds == 10
    assert outcome(End(EndCause.EXITED, 75), LISTED, 2).wait_seconds == 40


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
    pull_failure=st.none() | st.sampled_from(PullFailure),
)
policies = st.builds(
    Policy,
    restart_policy=st.sampled_from(["OnFailure", "Always", "Never"]),
    on_failure=st.sampled_from(["RestartTask", "RestartJob", "FailJob"]),
    whole=st.booleans(),
    lifetime=st.sampled_from(["Batch", "Service"]),
    retry_exit_codes=st.frozensets(st.integers(1, 255), max_size=3),
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


@given(ends, policies, st.integers(0, 12))
def test_a_service_ends_for_good_only_by_a_stop_its_time_limit_or_failjob(end: End, policy: Policy, row: int) -> None:
    service = replace(policy, lifetime="Service", whole=True)
    if outcome(end, service, row).state in {S.COMPLETED, S.FAILED, S.CANCELLED}:
        failed_whole = service.on_failure == "FailJob" and not end.succeeded
        assert end.stop_reason is not None or end.cause is EndCause.TIME_LIMIT or failed_whole


# ---- all combinations, as the page has them ----

# What each end means, without asking the code: success, counted, uncounted, free, transient image, image, for good.
KIND = {
    "exit code 0": "success",
    "another exit code": "counted",
    "a code of `retry_exit_codes`": "uncounted",
    "an exit code nobody saw": "counted",
    "memory limit": "counted",
    "time limit": "final",
    "a startup or liveness probe": "counted",
    "no such image, or denied": "image",
    "registry away, or disk full": "counted",
    "image absent, pull policy None": "image",
    "could not be started": "counted",
    "the engine beside it": "counted",
    "refused by the machine": "counted",
    "stopped by its machine": "counted",
    "machine lost": "free",
    "machine rebooted": "free",
    "unknown to its machine": "free",
}


def expected(kind: str, lifetime: str, policy: str, on_failure: str) -> str:
    """The rules in the words of the documentation."""
    service = lifetime == "Service"
    if kind == "success":
        return "again" if service or policy == "Always" else "completed"
    if on_failure == "FailJob":
        return "run fails"
    if kind == "image":
        kind = "counted" if service else "final"
    if kind == "final" or (policy == "Never" and not service):
        return "run fails" if on_failure == "RestartJob" else "failed"
    return ("all " if on_failure == "RestartJob" else "") + f"again, {kind}"


def test_every_combination_leads_where_the_rules_say() -> None:
    assert set(KIND) == {name for name, _ in states_page.ENDS}
    combinations = itertools.product(
        states_page.ENDS, states_page.LIFETIMES, states_page.POLICIES, states_page.ON_FAILURE
    )
    wrong = [
        (name, *choices, found)
        for (name, end), *choices in combinations
        if (found := states_page.told(outcome(end, states_page.policy_of(*choices), 3), end))
        != expected(KIND[name], *choices)
    ]
    assert wrong == []


def test_the_page_of_states_is_what_the_code_says() -> None:
    text = states_page.PAGE.read_text()
    assert states_page.regenerated(text) == text, "python -m runs.states_page writes it anew"


def test_a_generated_part_without_a_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place for diagram"):
        states_page.regenerated("# States\n")


def test_the_page_names_every_state_of_a_run_and_every_end() -> None:
    text = states_page.PAGE.read_text()
    assert all(f"| `{state}` |" in text for state in RunState)
    assert {end.cause for _, end in states_page.ENDS} == set(EndCause)
