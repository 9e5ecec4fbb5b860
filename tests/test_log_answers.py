"""What the API answers about a log: the last lines as text, and bytes from a position on."""

import base64
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astraconsole.errors import TaskLogTimeout, TaskLogUnavailable, TaskNotPlaced, ValidationError
from machines import dispatch
from runs.log_answers import read_slice, tail_text
from runs.models import Attempt
from tests import builders
from tests.api_calls import API, Caller, refused, run_resnet50
from tests.log_machines import LogMachines
from tests.world import make_world

LOGS = f"{API}/tasks/resnet50-0/logs"


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogMachines:
    machines = LogMachines(tmp_path)
    monkeypatch.setattr(dispatch, "call", machines.call)
    return machines


@pytest.fixture
def attempt(db: None, machines: LogMachines) -> Attempt:
    """Of a running worker."""
    workspace = builders.workspace()
    cluster = builders.cluster(workspace)
    machine = builders.machine(cluster, "gpu-07")
    run = builders.submit(builders.access(workspace, username="ann"), cluster, "llama")
    return builders.run_on(builders.workers(run)[0], machine)


def test_an_answer_has_the_lines_from_the_end(attempt: Attempt, machines: LogMachines) -> None:
    machines.prints(attempt.uid, b"".join(b"%d\n" % number for number in range(120_000)))
    text, archived, cut = tail_text(attempt.worker, 1000)
    assert text.splitlines() == [str(number) for number in range(119_000, 120_000)]
    assert (text[-1], archived, cut) == ("\n", False, "")


def test_the_largest_answer_is_ten_thousand_lines(attempt: Attempt, machines: LogMachines) -> None:
    machines.prints(attempt.uid, b"".join(b"%059d\n" % number for number in range(120_000)))
    assert len(tail_text(attempt.worker, 10_000).text.splitlines()) == 10_000


@pytest.mark.parametrize("lines", [0, -1, 10_001])
def test_an_ask_for_too_many_or_no_lines_is_refused(attempt: Attempt, lines: int) -> None:
    with pytest.raises(ValidationError) as caught:
        tail_text(attempt.worker, lines)
    assert caught.value.detail == [{"field": "tail", "rule": "must be from 1 to 10000"}]


def test_an_answer_is_cut_to_900_kib_at_a_line(attempt: Attempt, machines: LogMachines) -> None:
    machines.prints(attempt.uid, b"".join(b"%0199d\n" % number for number in range(10_000)))
    answer = tail_text(attempt.worker, 10_000)
    assert answer.cut == "cut at 900 KiB: 1.03 MiB before this not shown"
    lines = answer.text.splitlines()
    assert {len(line) for line in lines} == {199}
    assert 4500 < len(lines) <= 900 * 1024 // 200


def test_an_answer_cut_inside_a_line_begins_with_a_whole_character(attempt: Attempt, machines: LogMachines) -> None:
    machines.prints(attempt.uid, "€".encode() * 1_000_000)
    text, _, cut = tail_text(attempt.worker, 10)
    assert cut == "a part line was cut at 900 KiB"
    assert set(text) == {"€"}
    assert 900 * 1024 - 4 <= len(text.encode()) <= 900 * 1024


def test_an_answer_after_a_huge_line_still_has_the_next(attempt: Attempt, machines: LogMachines) -> None:
    machines.prints(attempt.uid, b"x" * 3_000_000 + b"\nnext line\n")
    assert tail_text(attempt.worker, 1000).text.endswith("next line\n")


def test_an_answer_counts_a_progress_bar_as_one_line_and_holds_no_colours(
    attempt: Attempt, machines: LogMachines
) -> None:
    machines.prints(
        attempt.uid, b"before\n" + b"".join(b"\r%d%%" % n for n in range(101)) + b"\n\x1b[31mred\x1b[0m \x00\n"
    )
    assert tail_text(attempt.worker, 2).text == "100%\nred ␀\n"


def test_a_worker_without_output_has_an_empty_answer(attempt: Attempt, machines: LogMachines) -> None:
    machines.prints(attempt.uid, b"")
    assert tail_text(attempt.worker, 10).text == ""


def test_an_archived_answer_says_so(attempt: Attempt, machines: LogMachines) -> None:
    machines.prints(attempt.uid, b"x\n", ends=True)
    machines.archived.add(attempt.uid.hex)
    assert tail_text(attempt.worker, 10).archived


def test_a_machine_out_of_reach_is_a_typed_error(attempt: Attempt, machines: LogMachines) -> None:
    machines.silent.add(attempt.machine.uid)
    with pytest.raises(TaskLogUnavailable, match="machine gpu-07 is out of reach"):
        tail_text(attempt.worker, 10)


def test_a_machine_that_is_too_slow_is_a_timeout(attempt: Attempt, machines: LogMachines) -> None:
    machines.slow.add(attempt.machine.uid)
    with pytest.raises(TaskLogTimeout):
        tail_text(attempt.worker, 10)


def test_a_worker_that_waits_is_not_placed(db: None, machines: LogMachines) -> None:
    workspace = builders.workspace()
    run = builders.submit(builders.access(workspace), builders.cluster(workspace), "llama")
    with pytest.raises(TaskNotPlaced, match="llama-0 is not on a machine yet: Run created"):
        tail_text(builders.workers(run)[0], 10)


def test_a_placed_worker_of_which_its_machine_has_not_heard_has_an_empty_answer(attempt: Attempt) -> None:
    assert tail_text(attempt.worker, 10).text == ""


def restarted(attempt: Attempt) -> Attempt:
    """Its worker's next attempt, just placed."""
    builders.report_end(attempt, 1)
    worker = attempt.worker
    worker.refresh_from_db()
    worker.state, worker.restart_at = "Pending", None  # its back-off is over
    worker.save()
    again = builders.place(worker, attempt.machine)
    assert again is not None
    return again


def test_the_attempt_before_is_shown_until_the_new_one_prints(attempt: Attempt, machines: LogMachines) -> None:
    machines.prints(attempt.uid, b"Killed\n", ends=True)
    again = restarted(attempt)
    assert tail_text(attempt.worker, 10).text == "Killed\n"
    assert tail_text(attempt.worker, 10, attempt=2).text == ""
    machines.prints(again.uid, b"resumed\n")
    assert tail_text(attempt.worker, 10).text == "resumed\n"
    assert tail_text(attempt.worker, 10, attempt=1).text == "Killed\n"


# ---- from a position ----


@pytest.fixture
def running(db: None, machines: LogMachines) -> tuple[Caller, Attempt]:
    world = make_world()
    attempt, _ = run_resnet50(world)
    return Caller(world), attempt


def test_a_slice_says_where_it_stands_and_what_attempts_there_are(
    running: tuple[Caller, Attempt], machines: LogMachines
) -> None:
    api, attempt = running
    machines.prints(attempt.uid, b"one\ntwo\n\xe2\x82")
    slice_of = api.get(LOGS, **{"from": 4}).json()
    [placed] = slice_of.pop("attempts")
    assert placed.pop("placed_at").endswith("Z")
    assert placed == {"attempt": 1, "machine": "gpu-08", "over": False}
    assert slice_of == {
        "task_name": "resnet50-0",
        "attempt": 1,
        "start": 4,
        "next": 8,  # half a character is left for the next read
        "data": "two\n",
        "ended": False,
        "archived": False,
        "gap": None,
        "status": {"state": "Running", "reason": "Container running"},
    }
    machines.prints(attempt.uid, b"\xac!", ends=True)
    rest = api.get(LOGS, **{"from": 8, "attempt": 1}).json()
    assert (rest["data"], rest["next"], rest["ended"]) == ("€!", 12, True)


def test_bytes_come_as_they_are_where_asked(running: tuple[Caller, Attempt], machines: LogMachines) -> None:
    api, attempt = running
    machines.prints(attempt.uid, bytes(range(256)) * 5000)
    piece = api.get(LOGS, limit=900 * 1024, encoding="base64").json()
    assert base64.b64decode(piece["bytes_base64"]) == (bytes(range(256)) * 5000)[: 900 * 1024]
    assert (piece["start"], piece["next"], "data" in piece) == (0, 900 * 1024, False)


def test_following_may_begin_with_the_last_lines(running: tuple[Caller, Attempt], machines: LogMachines) -> None:
    api, attempt = running
    machines.prints(attempt.uid, b"one\ntwo\nthree\n")
    begin = api.get(LOGS, tail=2, limit=1000).json()
    assert (begin["data"], begin["start"], begin["next"]) == ("two\nthree\n", 4, 14)


def test_bytes_that_are_not_kept_are_a_gap(running: tuple[Caller, Attempt], machines: LogMachines) -> None:
    api, attempt = running
    machines.prints(attempt.uid, b"x" * 3 * 1024**2)
    machines.drops_all_but(attempt.uid, 1024**2)
    piece = api.get(LOGS, **{"from": 5, "limit": 10}).json()
    assert (piece["gap"], piece["start"]) == ({"start": 5, "end": 2 * 1024**2}, 2 * 1024**2)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.integers(4, 12))
def test_slices_put_together_are_the_whole_text(
    attempt: Attempt, machines: LogMachines, data: bytes, limit: int
) -> None:
    path = machines.folder / f"{attempt.uid.hex}.log"
    path.write_bytes(data)
    machines.ended.add(attempt.uid.hex)
    text, at, ended = "", 0, False
    while not ended:
        chunk, part = read_slice(attempt.worker, 1, at, limit).as_text()
        assert chunk.start == at
        assert chunk.next > at or chunk.ended
        text, at, ended = text + part, chunk.next, chunk.ended
    assert text == data.decode(errors="replace")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"from": "x"}, "from"),
        ({"limit": 3}, "limit"),
        ({"limit": 921_601}, "limit"),
        ({"attempt": 0}, "attempt"),
        ({"from": 1, "tail": 5}, "tail"),
        ({"from": 1, "encoding": "hex"}, "encoding"),
    ],
)
def test_a_bad_place_is_a_validation_error(
    running: tuple[Caller, Attempt], query: dict[str, object], field: str
) -> None:
    body = refused(running[0].get(LOGS, **query), 400, "VALIDATION_ERROR")
    assert [entry["field"] for entry in body["detail"]] == [field]


def test_failures_to_read_are_typed(running: tuple[Caller, Attempt], machines: LogMachines) -> None:
    api, attempt = running
    refused(api.get(LOGS, attempt=2), 404, "NOT_FOUND")
    refused(api.get(LOGS, attempt=2, limit=10), 404, "NOT_FOUND")
    machines.silent.add(attempt.machine.uid)
    refused(api.get(LOGS, **{"from": 0}), 400, "TASK_LOG_UNAVAILABLE")
    machines.silent.clear()
    machines.slow.add(attempt.machine.uid)
    refused(api.get(LOGS, **{"from": 0}), 504, "TASK_LOG_TIMEOUT")
