"""Which failures point at a machine, and how many it takes. Pure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.outcomes import End, EndCause
from runs.quick_failures import BLAME, Blame, QuickFailure, blame, strikes

CODES = [
    (0, Blame.NOBODY),
    (1, Blame.PROGRAM),
    (125, Blame.PROGRAM),
    (126, Blame.NOBODY),
    (127, Blame.NOBODY),
    (134, Blame.PROGRAM),  # abort: the program's own
    (135, Blame.MACHINE),
    (137, Blame.MACHINE),
    (139, Blame.MACHINE),
    (143, Blame.PROGRAM),
    (None, Blame.MACHINE),
]


@pytest.mark.parametrize(("code", "whom"), CODES)
def test_an_exit_points_by_its_code(code: int | None, whom: Blame) -> None:
    assert blame(End(EndCause.EXITED, code, ran_seconds=5), 60) is whom


@pytest.mark.parametrize("cause", EndCause)
def test_every_cause_is_in_the_table(cause: EndCause) -> None:
    assert cause in BLAME
    if cause is not EndCause.EXITED:
        assert blame(End(cause, ran_seconds=5), 60) is BLAME[cause]


def test_a_run_with_its_own_limits_to_blame_never_points_at_a_machine() -> None:
    for cause in (EndCause.OOM_KILLED, EndCause.TIME_LIMIT, EndCause.IMAGE_PULL, EndCause.IMAGE_MISSING):
        assert BLAME[cause] is Blame.NOBODY


def test_only_a_quick_failure_that_nobody_asked_for_counts() -> None:
    assert blame(End(EndCause.EXITED, 1, ran_seconds=59.9), 60) is Blame.PROGRAM
    assert blame(End(EndCause.EXITED, 1, ran_seconds=60), 60) is Blame.NOBODY
    assert blame(End(EndCause.START_FAILED), 60) is Blame.MACHINE
    assert blame(End(EndCause.EXITED, 137, stop_reason="Stopped by anna"), 60) is Blame.NOBODY


ONE, TWO = ("anna", "torch:1", "python"), ("bert", "torch:1", "python")


@pytest.mark.parametrize(
    ("failures", "count"),
    [
        ([], 0),
        ([(1, Blame.MACHINE, ONE), (2, Blame.MACHINE, ONE), (3, Blame.MACHINE, ONE)], 3),
        ([(1, Blame.PROGRAM, ONE), (2, Blame.PROGRAM, ONE), (3, Blame.PROGRAM, ONE)], 1),  # a sweep, or a second try
        ([(1, Blame.PROGRAM, ONE), (2, Blame.PROGRAM, TWO)], 2),
        ([(1, Blame.MACHINE, ONE), (1, Blame.PROGRAM, ONE)], 1),
        ([(1, Blame.PROGRAM, ONE), (1, Blame.MACHINE, ONE), (2, Blame.PROGRAM, ONE)], 2),
    ],
)
def test_different_runs_count_and_one_program_counts_once(
    failures: list[tuple[int, Blame, tuple[str, ...]]], count: int
) -> None:
    assert strikes(QuickFailure(*failure) for failure in failures) == count


quick_failures = st.builds(
    QuickFailure, run_id=st.integers(1, 6), blame=st.sampled_from(Blame), program=st.sampled_from([ONE, TWO])
)


@given(st.lists(quick_failures))
def test_there_are_never_more_strikes_than_runs(failures: list[QuickFailure]) -> None:
    assert strikes(failures) <= len({failure.run_id for failure in failures})


@given(st.lists(quick_failures), st.integers(1, 6))
def test_one_run_alone_is_one_strike_at_most(failures: list[QuickFailure], run_id: int) -> None:
    """So it can never cordon a machine: the setting is 0 or at least 2."""
    assert strikes(failure for failure in failures if failure.run_id == run_id) <= 1
