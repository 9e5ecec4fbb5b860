"""Reading a worker's log from its machine: the last lines, an answer of the API, what has come since."""

import asyncio
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astraconsole.errors import NotFound, ValidationError
from machines import dispatch
from machines.protocol import LOG_CHUNK_BYTES
from runs import log_source
from runs.log_follower import Batch, Position, advance, last_lines, lines_at
from runs.log_html import Mark
from runs.log_source import Followed, Source
from runs.log_text import Place, display_lines
from runs.services.stopping import stop_worker
from tests import builders
from tests.log_machines import LogMachines

START = datetime(2026, 10, 1, 2, 58, 10, tzinfo=UTC)


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogMachines:
    machines = LogMachines(tmp_path)
    monkeypatch.setattr(dispatch, "call", machines.call)
    return machines


def a_source(number: int = 1, over: bool = False) -> Source:
    return Source(uuid.uuid4(), number, uuid.uuid4(), f"gpu-{number:02}", START, over)


def followed(*sources: Source, state: str = "Running", reason: str = "Container running") -> Followed:
    return Followed(1, "llama-sft-1", state, reason, sources)


def shown(batch: Batch) -> list[str]:
    return [item.content.plain if isinstance(item.content, Mark) else item.content.text for item in batch.items]


async def follow(worker: Followed, position: Position | None, hurry: bool = False) -> Batch:
    return await advance(worker, position, log_source.read, hurry)


async def follow_to_the_end(worker: Followed, position: Position | None) -> Batch:
    """All steps in one."""
    batch = await follow(worker, position)
    items = list(batch.items)
    while batch.more:
        batch = await follow(worker, batch.position)
        items += batch.items
    return replace(batch, items=items)


# ---- following ----


async def test_following_goes_on_exactly_where_the_page_ended(machines: LogMachines) -> None:
    source = a_source()
    machines.prints(source.attempt, b"one\ntwo\nthr")
    first = await last_lines(followed(source), None, 1)
    assert shown(first) == ["one", "two", "thr"]
    machines.prints(source.attempt, b"ee\nfour\n")
    second = await follow(followed(source), first.position)
    assert shown(second) == ["three", "four"]
    assert second.items[0].content.offset == first.items[2].content.offset, "the unfinished line keeps its name"
    third = await follow(followed(source), second.position)
    assert (shown(third), third.position, third.status) == ([], second.position, "live")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\xe2\x82\xac", b"\xe2", b"50%\r", b"line\n"]), max_size=20))
def test_pieces_followed_one_by_one_are_the_whole_log(machines: LogMachines, pieces: list[bytes]) -> None:
    source = a_source()
    machines.prints(source.attempt, b"")

    async def all_lines() -> dict[int, tuple[str, int]]:
        position, seen = None, {}
        for piece in pieces:
            machines.prints(source.attempt, piece)
            batch = await follow(followed(source), position and Position.parse(str(position)))
            position = batch.position
            seen |= {item.content.offset: (item.content.text, item.content.number) for item in batch.items}
        return seen

    expected = {line.offset: (line.text, line.number) for line in display_lines(b"".join(pieces))}
    assert asyncio.run(all_lines()) == expected


async def test_a_hundred_thousand_lines_arrive_each_once(machines: LogMachines) -> None:
    source = a_source()
    machines.prints(source.attempt, b"")
    position, got = (await last_lines(followed(source), None, 1)).position, []
    for first in range(1, 100_001, 20_000):
        machines.prints(source.attempt, b"".join(b"%d\n" % number for number in range(first, first + 20_000)))
        more = True
        while more:
            batch = await follow(followed(source), position)
            position, got, more = batch.position, got + shown(batch), batch.more
            assert len(batch.items) <= 5001
    assert got == [str(number) for number in range(1, 100_001)]


async def test_a_growing_progress_bar_without_line_feed_is_read_once(machines: LogMachines) -> None:
    source = a_source()
    machines.prints(source.attempt, b"".join(b"\r%d%%" % number for number in range(100)) * 1000)
    batch = await follow(followed(source), None)
    machines.calls.clear()
    machines.prints(source.attempt, b"\r100%")
    batch = await follow(followed(source), batch.position)
    assert shown(batch) == ["100%"]
    assert max(call.start for call in machines.calls) > 380_000
    assert min(call.start for call in machines.calls) > 380_000, "only the shown state is read again"


async def test_a_growing_huge_line_is_not_read_again_and_again(machines: LogMachines) -> None:
    source = a_source()
    machines.prints(source.attempt, b"x" * 3_000_000)
    first = await follow_to_the_end(followed(source), None)
    machines.calls.clear()
    machines.prints(source.attempt, b"x" * 10 + b"\nnext\n")
    batch = await follow(followed(source), first.position)
    assert [call.limit for call in machines.calls] == [16 * 1024, LOG_CHUNK_BYTES]
    assert [getattr(item.content, "length", None) for item in batch.items] == [3_000_010, 4]


async def test_a_restart_is_marked_and_followed_after_the_rest_of_the_old_log(machines: LogMachines) -> None:
    first, second = a_source(1, over=True), a_source(2)
    machines.prints(first.attempt, b"step 1\n")
    position = (await follow(followed(replace(first, over=False)), None)).position
    machines.prints(first.attempt, b"Killed\n", ends=True)
    machines.prints(second.attempt, b"resuming\n")
    batch = await follow(followed(first, second), position)
    assert shown(batch) == ["Killed", "— attempt 2 began 02:58:10 UTC, on gpu-02 —", "resuming"]
    assert batch.position.attempt == 2


async def test_an_old_copy_that_still_prints_does_not_hold_up_the_new_one(machines: LogMachines) -> None:
    lost, second = a_source(1, over=True), a_source(2)
    machines.prints(lost.attempt, b"still running\n")
    machines.prints(second.attempt, b"elsewhere\n")
    batch = await follow(followed(lost, second), None)
    assert shown(batch)[-1] == "elsewhere"


async def test_an_attempt_out_of_reach_is_left_for_its_successor_with_a_word(machines: LogMachines) -> None:
    lost, second = a_source(1, over=True), a_source(2)
    machines.silent.add(lost.machine)
    machines.prints(second.attempt, b"elsewhere\n")
    batch = await follow(followed(lost, second), Position(1))
    assert shown(batch)[0].startswith("— machine gpu-01 is out of reach")
    assert shown(batch)[-1] == "elsewhere"


async def test_following_ends_with_state_and_reason_after_the_last_byte(machines: LogMachines) -> None:
    source = a_source(over=True)
    machines.prints(source.attempt, b"last words", ends=True)
    done = followed(source, state="Completed", reason="Exited with code 0")
    batch = await follow(done, None)
    assert shown(batch) == ["last words", "llama-sft-1: Completed — Exited with code 0"]
    assert batch.status == "ended"


async def test_following_does_not_end_before_the_machine_has_sent_all(machines: LogMachines) -> None:
    source = a_source(over=True)
    machines.prints(source.attempt, b"first\n")
    done = followed(source, state="Completed", reason="Exited with code 0")
    batch = await follow(done, None)
    assert (shown(batch), batch.status) == (["first"], "live")


async def test_a_machine_out_of_reach_makes_following_wait_where_it_is(machines: LogMachines) -> None:
    source = a_source()
    machines.prints(source.attempt, b"one\n")
    position = (await follow(followed(source), None)).position
    machines.silent.add(source.machine)
    batch = await follow(followed(source), position)
    assert (batch.items, batch.position, batch.status) == ([], position, "reconnecting")
    machines.silent.clear()
    machines.prints(source.attempt, b"two\n")
    assert shown(await follow(followed(source), batch.position)) == ["two"]


async def test_a_worker_that_is_not_placed_is_waited_for(machines: LogMachines) -> None:
    waiting = followed(state="Pending", reason="Run created")
    batch = await follow(waiting, None)
    assert (batch.status, batch.message) == ("waiting", "llama-sft-1 is not on a machine yet: Run created")
    source = a_source()
    assert shown(await follow(followed(source, state="Preparing"), batch.position)) == []
    machines.prints(source.attempt, b"begun\n")
    assert shown(await follow(followed(source), batch.position)) == ["begun"]


async def test_a_worker_that_never_ran_ends_with_its_last_word(machines: LogMachines) -> None:
    batch = await last_lines(followed(state="Cancelled", reason="Stopped by ann"), None, 1)
    assert (shown(batch), batch.status) == (["llama-sft-1: Cancelled — Stopped by ann"], "ended")


async def test_bytes_that_are_not_kept_leave_a_gap_in_the_log(machines: LogMachines) -> None:
    source = a_source()
    machines.prints(source.attempt, b"first\n")
    position = (await follow_to_the_end(followed(source), None)).position
    machines.prints(source.attempt, (b"x" * 1023 + b"\n") * 5000 + b"kept\n")
    machines.drops_all_but(source.attempt, 1024**2)
    texts = shown(await follow_to_the_end(followed(source), position))
    assert (texts[0], texts[-1]) == ("— 3 MiB not kept —", "kept")


async def test_a_page_tells_that_older_output_is_not_kept(machines: LogMachines) -> None:
    source = a_source()
    machines.prints(source.attempt, (b"x" * 1023 + b"\n") * 4097)
    machines.drops_all_but(source.attempt, 1024**2)
    page = await last_lines(followed(source), None, 1)
    linked = await lines_at(followed(source), source.number, 0, 1)
    assert shown(page)[0] == shown(linked)[0] == "— 3 MiB before this not kept —"
    assert page.oldest
    assert linked.oldest
    further = await lines_at(followed(source), source.number, 4 * 1024**2, 1)
    assert not further.oldest


async def test_output_faster_than_reading_is_skipped_with_a_word(machines: LogMachines) -> None:
    source = a_source()
    machines.prints(source.attempt, b"a line of output\n" * 1_000_000)
    machines.prints(source.attempt, b"the end\n")
    first = await follow(followed(source), None)
    assert (len(first.items), first.more) == (5000, True)
    batch = await follow(followed(source), first.position, hurry=True)
    assert len(batch.items) <= 5001
    assert shown(batch)[0] == "— 16.01 MiB not shown: printed faster than it can be —"
    while batch.more:
        batch = await follow(followed(source), batch.position)
    assert shown(batch)[-1] == "the end"
    assert sum(getattr(call, "limit", 0) for call in machines.calls) < 2 * 1024**2


# ---- the page's first look ----


async def test_a_page_shows_the_last_5000_lines_and_says_so(machines: LogMachines) -> None:
    source = a_source()
    machines.prints(source.attempt, b"".join(b"%d\n" % number for number in range(120_000)))
    texts = shown(await last_lines(followed(source), None, 1))
    assert len(texts) == 5001
    assert (texts[0], texts[1], texts[-1]) == ("— 677.63 KiB before this not shown —", "115000", "119999")


async def test_a_page_numbers_lines_where_it_has_the_beginning(machines: LogMachines) -> None:
    source = a_source()
    machines.prints(source.attempt, b"a\nb\n")
    batch = await last_lines(followed(source), None, 1)
    assert [item.content.number for item in batch.items] == [1, 2]


async def test_a_huge_line_leaves_room_for_the_next(machines: LogMachines) -> None:
    source = a_source()
    machines.prints(source.attempt, b"x" * 3_000_000 + b"\nnext line\n")
    huge, after = (await last_lines(followed(source), None, 1)).items
    assert (huge.content.cut_note, after.content.text) == ("line cut: 16 KiB of 2.86 MiB shown", "next line")


async def test_a_line_larger_than_a_page_shows_its_end(machines: LogMachines) -> None:
    source = a_source()
    machines.prints(source.attempt, b"start" + "€".encode() * 3_000_000)
    mark, line = shown(await last_lines(followed(source), None, 1))
    assert mark == "— a part line was cut at 4 MiB: its beginning is not shown —"
    assert set(line) == {"€"}


async def test_a_machine_out_of_reach_is_told_inside_the_page(machines: LogMachines) -> None:
    source = a_source()
    machines.silent.add(source.machine)
    batch = await last_lines(followed(source), None, 1)
    assert (batch.items, batch.status) == ([], "reconnecting")
    assert batch.message == "machine gpu-01 is out of reach: the machine is not connected"


async def test_an_ended_worker_whose_log_is_gone_says_so(machines: LogMachines) -> None:
    source = a_source(over=True)
    batch = await last_lines(followed(source, state="Failed", reason="Exited with code 1"), None, 1)
    assert shown(batch) == ["— machine gpu-01 has no log of attempt 1 —", "llama-sft-1: Failed — Exited with code 1"]


async def test_an_archived_log_says_that_its_container_is_gone(machines: LogMachines) -> None:
    source = a_source(over=True)
    machines.prints(source.attempt, b"last\n", ends=True)
    machines.archived.add(source.attempt.hex)
    assert (
        shown(await last_lines(followed(source), None, 1))[0]
        == "— its container is gone: these are its last 1,000 lines —"
    )


async def test_a_linked_line_is_shown_with_its_neighbours(machines: LogMachines) -> None:
    source = a_source()
    machines.prints(source.attempt, b"".join(b"line %d\n" % number for number in range(100_000)))
    offset = len(b"".join(b"line %d\n" % number for number in range(50_000)))
    batch = await lines_at(followed(source), 1, offset, 1)
    texts = shown(batch)
    assert any(item.content.offset == offset for item in batch.items)
    assert "line 49999" in texts
    assert "line 50001" in texts


async def test_an_attempt_that_never_was_is_not_found(machines: LogMachines) -> None:
    with pytest.raises(NotFound):
        await last_lines(followed(a_source()), 7, 1)
    with pytest.raises(NotFound):
        await follow(followed(a_source()), Position(7))


# ---- positions ----


@given(
    st.integers(1, 10**9),
    st.integers(0, 10**12),
    st.integers(0, 10**6),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.integers(0, 3),
)
def test_a_position_reads_back(
    attempt: int, line: int, to_segment: int, length: int, number: int, returns: int
) -> None:
    segment = line + to_segment
    position = Position(attempt, Place(line, segment, segment + length + returns, number, returns))
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.2.3.4.1",
        "1.5.4.3.1.0",
        "1.0.0.2.1.3",
        "1.0.0.-1.1.0",
        "a.b.c.d.e.f",
        "1.1.1.1.1.0\n",
        "9" * 19 + ".0.0.0.0.0",
        "١.0.0.0.0.0",
    ],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Position.parse(text)


# ---- what is known of a worker ----


@pytest.fixture
def attempt(db: None, machines: LogMachines):
    """Of a running worker."""
    workspace = builders.workspace()
    cluster = builders.cluster(workspace)
    machine = builders.machine(cluster, "gpu-07")
    run = builders.submit(builders.access(workspace, username="ann"), cluster, "llama")
    return builders.run_on(builders.workers(run)[0], machine)


def test_what_is_known_of_a_worker_names_its_attempts_and_machines(attempt) -> None:
    found = log_source.look(attempt.worker_id)
    assert [(source.number, source.machine_name, source.over) for source in found.sources] == [(1, "gpu-07", False)]
    assert (found.name, found.state, found.ended) == ("llama-0", "Running", False)


def test_a_stopped_attempt_is_over(attempt) -> None:
    access = builders.access(attempt.worker.run.workspace)
    stop_worker(access, attempt.worker, "", builders.T0)
    builders.report_end(attempt, 143, at=builders.T0)
    assert log_source.look(attempt.worker_id).sources[0].over
