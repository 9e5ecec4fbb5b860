"""Following logs by position: over restarts, network breaks, missing machines and deletions. The clock is not real."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from astraconsole.cli import config
from astraconsole.cli.client import Client
from astraconsole.cli.following import FIRST_WAIT, LONGEST_WAIT, Follower, Patience
from astraconsole.cli.problems import Exit, Refused
from tests.cli.stand_in import StandIn, standing_in

LOGS, WORKER = "clusters/gpu-east/api/tasks/llama-0/logs", "clusters/gpu-east/api/tasks/llama-0"


@pytest.fixture
def console() -> Iterator[StandIn]:
    with standing_in() as stand_in:
        yield stand_in


def follower_of(console: StandIn, **options: Any) -> Follower:
    return Follower(Client(config.Config(console.url, "secret", "acme", "vision", "gpu-east")), "llama-0", **options)


def piece(
    data: bytes, start: int, state: str = "Running", *, attempt: int = 1, of: int = 1, ended: bool = False, **more: Any
) -> tuple[int, Any]:
    attempts = [{"attempt": n + 1, "machine": f"gpu-0{n + 1}", "over": n + 1 < of} for n in range(of)]
    return 200, {
        "task_name": "llama-0",
        "attempt": attempt,
        "start": start,
        "next": start + len(data),
        "bytes_base64": base64.b64encode(data).decode(),
        "ended": ended,
        "archived": False,
        "gap": None,
        "attempts": attempts,
        "status": {"state": state, "reason": "Exited with code 0" if state == "Completed" else "as it is"},
        **more,
    }


def refusal(status: int, code: str) -> tuple[int, Any]:
    return status, {"code": code, "message": "so it is"}


def followed(follower: Follower) -> tuple[bytes, list[str], list[float]]:
    """All that it prints, what it says, and how long it waited in between."""
    data, notes, waits = b"", [], []
    patience = Patience(notes.append, waits.append)
    while not follower.ended:
        step = patience.ask(follower.step)
        if step is not None:
            data += step.data
            notes += step.notes
        patience.pause(busy=step is not None and bool(step.data))
        assert len(waits) < 100
    return data, notes, waits


def positions(console: StandIn) -> list[tuple[str | None, str | None, str | None]]:
    asked = [asked.parameters for asked in console.asked if asked.path == LOGS]
    return [(one.get("attempt"), one.get("from"), one.get("tail")) for one in asked]


def test_it_reads_on_from_where_it_stood_until_the_worker_ends(console: StandIn) -> None:
    console.answers["GET", LOGS] = [
        piece(b"step 1\n", 100),
        piece(b"", 107),
        piece(b"step 2\n", 107),
        piece(b"", 114, "Completed", ended=True),
    ]
    follower = follower_of(console, tail=1000)
    assert followed(follower)[0] == b"step 1\nstep 2\n"
    assert positions(console) == [(None, None, "1000"), ("1", "107", None), ("1", "107", None), ("1", "114", None)]
    assert (follower.exit_code, follower.reason) == (Exit.DONE, "Exited with code 0")


@pytest.mark.parametrize(("state", "code"), [("Completed", 0), ("Failed", 1), ("Cancelled", 5)])
def test_the_exit_code_is_the_outcomes(console: StandIn, state: str, code: int) -> None:
    console.answers["GET", LOGS] = piece(b"x", 0, state, ended=True)
    follower = follower_of(console, tail=10)
    followed(follower)
    assert follower.exit_code == code


def test_it_goes_over_restarts_from_attempt_to_attempt_and_says_so(console: StandIn) -> None:
    console.answers["GET", LOGS] = [
        piece(b"one\n", 0),
        piece(b"died\n", 4, "Restarting", ended=True),  # the next attempt is not placed yet
        piece(b"", 9, "Running", ended=True, of=2),
        piece(b"two\n", 0, attempt=2, of=2),
        piece(b"", 4, "Completed", attempt=2, of=2, ended=True),
    ]
    data, notes, _ = followed(follower_of(console))
    assert data == b"one\ndied\ntwo\n"
    assert notes == ["attempt 2 began on gpu-02"]
    assert positions(console)[0] == ("1", "0", None)
    assert positions(console)[3] == ("2", "0", None)


def test_one_attempt_alone_is_followed_to_its_end(console: StandIn) -> None:
    console.answers["GET", LOGS] = [piece(b"one\n", 0, of=2), piece(b"", 4, "Running", ended=True, of=2)]
    follower = follower_of(console, tail=5, only_attempt=1)
    assert followed(follower)[0] == b"one\n"
    assert (follower.state, follower.exit_code) == ("Running", Exit.DONE)


def test_a_network_break_is_waited_out_and_nothing_is_lost_or_doubled(console: StandIn) -> None:
    console.answers["GET", LOGS] = [
        piece(b"one\n", 0),
        refusal(503, "UNAVAILABLE"),
        refusal(504, "TASK_LOG_TIMEOUT"),
        (502, b"<html>bad gateway</html>"),
        piece(b"two\n", 4),
        piece(b"", 8, "Completed", ended=True),
    ]
    console.answers["GET", WORKER] = (200, {"status": {"state": "Running", "reason": ""}})
    follower = follower_of(console)
    console.hang_up = 2
    data, notes, _ = followed(follower)
    assert data == b"one\ntwo\n"
    assert [note.partition(":")[0] for note in notes if "answer" in note][0].startswith("no answer from")
    assert notes.count("the console answers again") == 2


def test_waiting_grows_while_nothing_comes_and_starts_over_when_something_does(console: StandIn) -> None:
    quiet = [piece(b"", 0) for _ in range(6)]
    console.answers["GET", LOGS] = [*quiet, piece(b"x", 0), *quiet, piece(b"", 1, "Completed", ended=True)]
    waits = followed(follower_of(console))[2]
    assert waits[0] == FIRST_WAIT
    assert waits[5] == LONGEST_WAIT
    assert waits[6] < LONGEST_WAIT
    assert max(waits) == LONGEST_WAIT


def test_a_worker_that_is_not_placed_yet_is_waited_for_and_one_that_never_was_ends(console: StandIn) -> None:
    console.answers["GET", LOGS] = refusal(409, "TASK_NOT_PLACED")
    states = ("Pending", "Pending", "Cancelled")
    console.answers["GET", WORKER] = [(200, {"status": {"state": state, "reason": "stopped"}}) for state in states]
    follower = follower_of(console)
    assert followed(follower)[0] == b""
    assert (follower.state, follower.exit_code) == ("Cancelled", Exit.CANCELLED)


def test_a_log_out_of_reach_is_given_up_once_its_worker_has_ended(console: StandIn) -> None:
    console.answers["GET", LOGS] = [piece(b"one\n", 0), refusal(400, "TASK_LOG_UNAVAILABLE")]
    states = ("Running", "Running", "Failed")
    console.answers["GET", WORKER] = [(200, {"status": {"state": state, "reason": "lost"}}) for state in states]
    follower = follower_of(console)
    data, notes, _ = followed(follower)
    assert data == b"one\n"
    assert notes == ["its log cannot be read: TASK_LOG_UNAVAILABLE: so it is"]
    assert follower.exit_code == Exit.FAILED


def test_a_run_that_is_deleted_meanwhile_ends_the_following(console: StandIn) -> None:
    console.answers["GET", LOGS] = [piece(b"one\n", 0), refusal(404, "NOT_FOUND")]
    follower = follower_of(console)
    followed(follower)
    assert follower.exit_code == Exit.GONE


def test_a_worker_that_never_was_is_refused_at_once(console: StandIn) -> None:
    with pytest.raises(Refused, match="NOT_FOUND"):
        follower_of(console).step()


def test_what_is_not_kept_any_more_is_said(console: StandIn) -> None:
    console.answers["GET", LOGS] = piece(b"x", 2048, "Completed", ended=True, gap={"start": 0, "end": 2048})
    assert followed(follower_of(console))[1] == ["2 KiB not kept"]
