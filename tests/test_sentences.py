"""The console's plain words: every reason that the state machine can give has them."""

import pytest

from runs.outcomes import End, EndCause, Policy, end_sentence
from runs.sentences import advice, run_sentence, worker_sentence
from runs.state_machine import RunState, WorkerState


@pytest.mark.parametrize("cause", EndCause)
@pytest.mark.parametrize("exit_code", [None, 1, 126, 127, 137])
def test_every_end_that_is_a_failure_has_advice(cause: EndCause, exit_code: int | None) -> None:
    own = {EndCause.PROBE_FAILED: "Liveness probe failed: HTTP 500", EndCause.ENGINE_ENDED: "The engine ended: …"}
    own[EndCause.MACHINE_LOST] = "Machine lost: its agent runs in another place: host-7"
    end = End(cause, exit_code, own.get(cause, "manifest unknown"))
    assert advice(end_sentence(end, Policy(image="busybox"))) is not None


@pytest.mark.parametrize(
    ("reason", "title"),
    [
        ("OOMKilled: the container exceeded its memory limit", "It ran out of memory"),
        ("Exited with code 1", "The program ended with an error"),
        ("Exited with code 127", "The command is not in the image"),
        ("ErrImagePull: invalid reference format", "The image could not be pulled"),
        ("ErrImagePull: the registry has no such image: manifest unknown", "The image does not exist"),
        ("ErrImagePull: the registry denies access: unauthorized", "The registry denies access to the image"),
        ("ErrImagePull: the registry cannot be reached: timeout", "The registry could not be reached"),
        ("ErrImagePull: the machine's disk is full: no space", "The machine has no room for the image"),
        ("Liveness probe failed: HTTP 500", "It stopped answering its liveness probe"),
        ("Startup probe failed: HTTP 500", "It did not get ready in time"),
        ("The engine ended: Exited with code 1", "The engine beside it failed"),
        ("Exceeded its time limit of 12h", "It reached its time limit"),
        ("Machine lost: its lease expired", "Its machine was lost"),
        ("Machine lost: its agent runs in another place: host-7", "Its machine's agent moved"),
        ("Machine lost: it was removed from its cluster", "Its machine was removed from the cluster"),
        ("Retry budget exhausted after 10/10 restarts", "It failed too often in a row"),
        ("Preempted by higher-priority work (x)", "Not a failure: it is queued again"),
    ],
)
def test_advice_is_what_the_reason_calls_for(reason: str, title: str) -> None:
    found = advice(reason)
    assert found is not None
    assert found.title == title


def test_a_reason_that_is_no_failure_has_no_advice() -> None:
    assert advice("Container running") is None


@pytest.mark.parametrize(
    ("state", "reason", "failure", "words"),
    [
        ("Pending", "Gang cannot be placed whole: 1 of 2", "", "Waiting for room for all its workers at once"),
        ("Pending", "No machine fits: no machine has 9 GPUs", "", "No machine can run it as asked"),
        ("Pending", "No machine fits: 5 workers start together; all machines", "", "No machine can run it as asked"),
        (
            "Pending",
            "No machine fits: the only machine that could hold it is cordoned",
            "",
            "The machines that could run it take no work now",
        ),
        (
            "Pending",
            "No machine fits: none of the 3 machines that could hold it takes work: 2 cordoned, 1 not ready",
            "",
            "The machines that could run it take no work now",
        ),
        (
            "Pending",
            "No machine fits: the cluster has no machines",
            "",
            "The cluster has no machines",
        ),
        ("Pending", "something new", "", "Waiting to be placed"),
        ("Failed", "Worker a-0 failed on b: OOMKilled: …", "OOMKilled: the container …", "It ran out of memory"),
        ("Failed", "Worker a-0 failed on b: …", "", "A worker failed"),
        ("Cancelled", "All workers ended; some were cancelled", "", "It was stopped before it completed"),
    ],
)
def test_a_run_in_plain_words(state: str, reason: str, failure: str, words: str) -> None:
    assert run_sentence(state, reason, failure) == words


@pytest.mark.parametrize("state", RunState)
def test_every_state_of_a_run_has_words(state: RunState) -> None:
    assert run_sentence(state, "")


@pytest.mark.parametrize("state", WorkerState)
@pytest.mark.parametrize("stopping", [True, False])
def test_every_state_of_a_worker_has_words(state: WorkerState, stopping: bool) -> None:
    assert worker_sentence(state, "", stopping)


def test_a_worker_that_is_being_stopped_says_so_and_one_that_restarts_says_why() -> None:
    assert worker_sentence("Running", "Stopping: Stopped by anna", stopping=True) == "Stopping"
    assert worker_sentence("Restarting", "Exited with code 1") == "The program ended with an error: it starts again"
