"""What is on the disk after the agent is gone."""

import resource
import shutil
import stat
from pathlib import Path

import pytest

from machines.agent.attempt import Attempt
from machines.agent.journal import Journal, Stamp, StateDirectoryError
from machines.protocol import EndReason, Phase
from tests.agent.agents import order


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "state")
    journal.open()
    yield journal
    journal.close()


def again(journal: Journal) -> Journal:
    journal.close()
    journal.open()
    return journal


def accepted(journal: Journal, **more) -> Attempt:
    item = order("true")
    attempt = Attempt(item.attempt, None, item.stop_grace_seconds, phases=[(Phase.PREPARING, 10.0)], **more)
    journal.accept(item, attempt)
    return attempt


def test_the_last_status_counts(journal):
    attempt = accepted(journal)
    for code in (1, 2, 3):
        attempt.exit_code, attempt.end_reason = code, EndReason.EXITED
        journal.save(attempt)
    (kept,) = again(journal).load()
    assert kept.attempt == attempt
    assert not kept.rebooted


def test_an_order_alone_is_an_attempt_that_prepares(journal):
    attempt = accepted(journal)
    (kept,) = again(journal).load()
    assert kept.attempt == attempt
    assert kept.order.attempt == attempt.uid


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_status_cut_short_leaves_the_one_before(journal, cut):
    attempt = accepted(journal)
    attempt.exit_code = 1
    journal.save(attempt)
    path = journal.attempts / attempt.uid / "journal"
    whole = path.read_bytes()
    attempt.exit_code = 2
    journal.save(attempt)
    path.write_bytes(path.read_bytes()[: len(whole) + cut])
    (kept,) = again(journal).load()
    assert kept.attempt.exit_code == 1


def test_what_is_written_after_a_status_cut_short_counts(journal):
    attempt = accepted(journal)
    path = journal.attempts / attempt.uid / "journal"
    path.write_bytes(path.read_bytes() + b"\0\0\0\x40half a status")
    again(journal).load()
    attempt.exit_code = 2
    journal.save(attempt)
    (kept,) = again(journal).load()
    assert kept.attempt.exit_code == 2


@pytest.fixture
def room():
    """`room(path, size)`: no file grows beyond what this one has and `size` bytes; `room()`: all may again."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(path: Path | None = None, size: int = 0) -> None:
        soft = before[0] if path is None else path.stat().st_size + size
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, before[1]))

    yield limit
    limit()


def test_a_full_disk_leaves_no_half_of_a_status_behind(journal, room):
    attempt = accepted(journal)
    path = journal.attempts / attempt.uid / "journal"
    attempt.exit_code = 1
    room(path, 10)
    journal.save(attempt)
    room()
    attempt.exit_code = 2
    journal.save(attempt)
    (kept,) = again(journal).load()
    assert kept.attempt.exit_code == 2


def test_an_order_that_the_disk_has_no_room_for_is_not_accepted(journal, room, tmp_path):
    (tmp_path / "empty").touch()
    room(tmp_path / "empty", 100)
    with pytest.raises(OSError, match="No space left on device"):
        accepted(journal)
    room()
    assert again(journal).load() == []


def test_a_copy_of_a_state_directory_is_another_place_and_keeps_only_what_has_ended(journal, tmp_path):
    accepted(journal)
    over = accepted(journal)
    over.end_reason = EndReason.EXITED
    over.phases.append((Phase.ENDED, 11.0))
    journal.save(over)
    first = (journal.place, journal.machine_id())
    shutil.copytree(journal.folder, tmp_path / "copy")
    copy = Journal(tmp_path / "copy")
    copy.open()
    assert [kept.attempt.uid for kept in copy.load()] == [over.uid]
    assert (copy.place, copy.machine_id()) != first
    assert len(again(journal).load()) == 2
    assert (journal.place, journal.machine_id()) == first
    assert again(copy).place != journal.place
    copy.close()


def test_times_of_an_earlier_boot_are_put_on_this_boots_clock(journal):
    attempt = accepted(journal, stop_at=12.0)
    journal.save(attempt)
    now = Journal(journal.folder)
    now.stamp = Stamp("another boot", journal.stamp.zero + 100)
    (kept,) = now.load()
    assert kept.rebooted
    assert kept.attempt.phases == [(Phase.PREPARING, pytest.approx(-90.0))]
    assert kept.attempt.stop_at == pytest.approx(-88.0)
    assert kept.clock_shift == pytest.approx(-100.0)


def test_a_removed_attempt_is_gone_even_if_removing_was_interrupted(journal):
    attempt = accepted(journal)
    journal.attempts.joinpath(attempt.uid).rename(journal.folder / "removed" / attempt.uid)
    assert again(journal).load() == []
    assert list((journal.folder / "removed").iterdir()) == []


def test_a_folder_with_half_an_order_is_removed(journal):
    attempt = accepted(journal)
    (journal.attempts / attempt.uid / "journal").write_bytes(b"\0\0\0")
    assert again(journal).load() == []
    assert list(journal.attempts.iterdir()) == []


def test_secrets_are_readable_by_nobody_else(journal):
    journal.write_text("token", "secret")
    assert journal.read_text("token") == "secret"
    assert stat.S_IMODE((journal.folder / "token").stat().st_mode) == 0o600
    assert journal.read_text("missing") == ""


def test_a_machines_id_stays(journal):
    assert journal.machine_id() == again(journal).machine_id()


def test_a_state_directory_has_one_agent(journal):
    with pytest.raises(StateDirectoryError, match="another agent runs on"):
        Journal(journal.folder).open()


def test_a_state_directory_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirectoryError, match="cannot use"):
        Journal(tmp_path / "file" / "state").open()
