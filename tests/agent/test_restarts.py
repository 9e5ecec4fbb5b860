"""Agents and keepers that are killed, machines that lose their connection, consoles that are away."""

import json
import os
import shutil
import signal

import pytest

from machines.agent import clock
from machines.protocol import EndReason, Phase
from tests.agent.agents import Agent, eventually, order, script
from tests.agent.fake_console import FakeConsole


def held(folder) -> str:
    """A script that goes on once a file is there, in a folder that workers may enter."""
    return f"echo begun; while [ ! -e {folder}/go ]; do sleep 0.02; done; echo done; "


@pytest.fixture
def go(open_folder):
    return lambda: (open_folder / "go").touch()


async def test_the_exit_code_survives_a_killed_agent(console, make_agent, open_folder, go):
    agent = make_agent()
    item = script(held(open_folder) + "exit 7")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    agent.kill()
    go()
    await eventually(lambda: b"done" in agent.output(item))
    agent.start()
    assert await console.ended(item.attempt) == (EndReason.EXITED, 7)
    assert agent.output(item) == b"begun\ndone\n"


async def test_a_worker_goes_on_under_the_next_agent_and_is_not_started_twice(console, make_agent, open_folder, go):
    agent = make_agent()
    item = script(held(open_folder) + "exit 7")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    agent.kill()
    agent.start()
    await console.until(lambda: len(console.hellos) == 2)
    assert console.hellos[1].attempts == [item.attempt]
    go()
    assert await console.ended(item.attempt) == (EndReason.EXITED, 7)
    assert agent.output(item) == b"begun\ndone\n"


async def test_the_age_of_running_is_right_after_a_restart(console, make_agent):
    agent = make_agent()
    item = order("sleep", "1000")
    await console.assign(item)
    before = {age.phase: age.seconds_ago for age in (await console.reached(item.attempt, Phase.RUNNING)).phases}
    agent.kill()
    agent.start()
    await console.until(lambda: console.newest(item.attempt).seq > 1000)
    after = {age.phase: age.seconds_ago for age in console.newest(item.attempt).phases}
    assert after[Phase.RUNNING] > before[Phase.RUNNING]
    assert list(after) == [Phase.PREPARING, Phase.RUNNING]


async def test_sigterm_ends_the_agent_and_leaves_its_workers(console, make_agent, open_folder, go):
    agent = make_agent()
    item = script(held(open_folder) + "exit 7")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    assert agent.leave() == 0
    assert agent.processes_of(item)
    go()
    agent.start()
    assert await console.ended(item.attempt) == (EndReason.EXITED, 7)


async def test_without_workers_the_keeper_leaves_with_the_agent(console, make_agent):
    agent = make_agent()
    item = order("true")
    await console.assign(item)
    await console.ended(item.attempt)
    assert agent.keeper() is not None
    assert agent.leave() == 0
    assert agent.keeper() is None


async def test_a_keeper_left_alone_leaves_after_its_last_worker(console, make_agent, open_folder, go):
    agent = make_agent()
    item = script(held(open_folder) + "exit 7")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    agent.kill()
    assert agent.keeper() is not None
    go()
    await eventually(lambda: agent.keeper() is None)


async def test_after_a_killed_keeper_the_worker_goes_on_and_its_exit_code_is_unknown(
    console, make_agent, open_folder, go
):
    agent = make_agent()
    item = script(held(open_folder) + "exit 0")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    first = agent.keeper()
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: agent.keeper() not in (None, first))
    other = order("true")
    await console.assign(item, other)
    assert await console.ended(other.attempt) == (EndReason.EXITED, 0)
    go()
    assert await console.ended(item.attempt) == (EndReason.EXITED, None)
    assert agent.output(item) == b"begun\ndone\n"


async def test_after_a_killed_keeper_a_worker_can_still_be_stopped(console, make_agent, open_folder):
    agent = make_agent()
    item = script("setsid sleep 1000 & sleep 1000")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    first = agent.keeper()
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: agent.keeper() not in (None, first))
    await console.assign()
    assert await console.ended(item.attempt) == (EndReason.STOPPED, None)
    assert agent.processes_of(item) == []


async def test_after_a_killed_agent_and_keeper_the_worker_is_found_again(console, make_agent, open_folder, go):
    agent = make_agent()
    item = script(held(open_folder) + "exit 0")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    os.kill(agent.keeper(), signal.SIGKILL)
    agent.kill()
    agent.start()
    await console.until(lambda: console.newest(item.attempt).seq > 1000)
    assert console.newest(item.attempt).end_reason is None
    go()
    assert await console.ended(item.attempt) == (EndReason.EXITED, None)
    assert agent.output(item) == b"begun\ndone\n"


async def test_what_ended_while_agent_and_keeper_were_dead_has_no_exit_code(console, make_agent, open_folder, go):
    agent = make_agent()
    item = script(held(open_folder) + "exit 0")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    os.kill(agent.keeper(), signal.SIGKILL)
    agent.kill()
    go()
    await eventually(lambda: not agent.processes_of(item))
    agent.start()
    assert await console.ended(item.attempt) == (EndReason.EXITED, None)


async def test_a_reboot_is_told_as_such_and_nothing_starts_again(console, make_agent, open_folder, monkeypatch):
    agent = make_agent()
    item = script("echo begun; sleep 1000")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    agent.kill()
    os.kill(agent.keeper(), signal.SIGKILL)
    for pid in agent.processes_of(item):
        os.kill(pid, signal.SIGKILL)
    journal = agent.state / "attempts" / item.attempt / "journal"
    boot = clock.boot_id().encode()
    journal.write_bytes(journal.read_bytes().replace(boot, b"x" * len(boot)))
    agent.start()
    assert await console.ended(item.attempt) == (EndReason.MACHINE_REBOOTED, None)
    assert agent.output(item) == b"begun\n"


async def test_an_order_that_was_only_half_written_is_started_when_it_is_sent_again(console, make_agent):
    agent = make_agent()
    await console.connected()
    agent.kill()
    item = script("echo once")
    folder = agent.state / "attempts" / item.attempt
    folder.mkdir()
    (folder / "journal").write_bytes(b"\0\0\1\0half")
    await console.assign(item)
    agent.start()
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    assert agent.output(item) == b"once\n"


async def test_an_order_written_down_and_not_started_is_started(console, make_agent, open_folder):
    agent = make_agent()
    item = script("echo once")
    await console.assign(item)
    await console.ended(item.attempt)
    agent.kill()
    folder = agent.state / "attempts" / item.attempt
    journal = (folder / "journal").read_bytes()
    (folder / "journal").write_bytes(journal[: 4 + int.from_bytes(journal[:4])])
    (folder / "exit").write_bytes(b"")
    (folder / "output.log").write_bytes(b"")
    console.reports.clear()
    agent.start()
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    assert agent.output(item) == b"once\n"


async def test_an_end_that_was_not_acknowledged_is_told_after_a_restart(console, make_agent):
    console.acknowledge = False
    agent = make_agent()
    item = script("echo why; exit 9")
    await console.assign(item)
    await console.ended(item.attempt)
    agent.kill()
    console.reports.clear()
    agent.start()
    assert await console.ended(item.attempt) == (EndReason.EXITED, 9)
    assert console.newest(item.attempt).log_tail == "why\n"


async def test_reports_are_repeated_until_they_are_acknowledged(console, make_agent):
    console.acknowledge = False
    make_agent()
    item = order("true")
    await console.assign(item)
    await console.ended(item.attempt)

    def repeated():
        return len([report for report in console.reports if report.end_reason is not None]) >= 3

    await console.until(repeated)
    console.acknowledge = True
    await console.until(lambda: console.heartbeats != [])


async def test_workers_run_and_end_while_the_console_is_away(console, make_agent, open_folder, go):
    agent = make_agent()
    item = script(held(open_folder) + "exit 7")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    await console.close()
    go()
    await eventually(lambda: b"done" in agent.output(item))
    again = FakeConsole()
    again.port = console.port
    again.orders, again.revision = console.orders, console.revision
    await again.open()
    try:
        assert await again.ended(item.attempt) == (EndReason.EXITED, 7)
    finally:
        await again.close()


async def test_a_time_limit_counts_on_while_the_console_is_away_and_over_a_restart(console, make_agent):
    agent = make_agent()
    item = order("sleep", "1000", time_limit_seconds=1.5, stop_grace_seconds=1)
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    await console.close()
    agent.kill()
    agent.start()
    await eventually(lambda: agent.processes_of(item) == [])
    again = FakeConsole()
    again.port = console.port
    again.orders, again.revision = console.orders, console.revision
    await again.open()
    try:
        assert await again.ended(item.attempt) == (EndReason.TIME_LIMIT, 143)
    finally:
        await again.close()


async def test_a_cut_connection_is_opened_again_and_the_set_applied(console, make_agent):
    make_agent()
    await console.connected()
    await console.cut()
    item = order("true")
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)


async def test_another_console_is_not_obeyed(console, make_agent):
    agent = make_agent()
    await console.until(lambda: console.heartbeats != [])
    agent.kill()
    console.uid = "f" * 32
    item = order("true")
    await console.assign(item)
    agent.start()
    log = agent.folder / "agent.log"
    await eventually(lambda: "this machine belongs to the console" in log.read_text())
    assert not (agent.state / "attempts" / item.attempt).exists()


async def test_two_agents_on_one_state_directory_are_one_too_many(console, make_agent):
    agent = make_agent()
    await console.connected()
    first = agent.process
    agent.start()
    assert agent.process.wait(30) == 1
    assert "another agent runs on" in (agent.folder / "agent.log").read_text()
    agent.process = first


async def test_several_machines_share_one_process_and_one_keeper(console, make_agent, open_folder):
    agent = make_agent()
    await console.connected()
    agent.leave()
    entries = json.loads(agent.config.read_text())
    others = [{**entries[0], "name": f"m{n}", "state_dir": str(open_folder / f"m{n}")} for n in range(3)]
    agent.config.write_text(json.dumps(others))
    console.hellos.clear()
    agent.start()
    await console.until(lambda: len(console.hellos) == 3)
    assert agent.keeper() is not None


async def test_a_copied_state_directory_is_another_place_and_leaves_alone_what_the_first_one_runs(
    console, make_agent, open_folder
):
    agent = make_agent()
    runs, over = order("sleep", "1000"), script("echo over")
    await console.assign(runs, over)
    await console.reached(runs.attempt, Phase.RUNNING)
    await console.ended(over.attempt)
    copy = open_folder / "copy"
    shutil.copytree(agent.state, copy)
    entry = json.loads(agent.config.read_text())[0] | {"state_dir": str(copy)}
    console.orders = []
    hello = await hello_of_another(console, open_folder / "copied", entry)
    assert hello.place != console.hellos[0].place
    assert hello.attempts == [over.attempt]
    assert len(agent.processes_of(runs)) == 1
    assert (copy / "machine-id").read_text() != (agent.state / "machine-id").read_text()


async def hello_of_another(console, folder, entry):
    """What an agent with this configuration says, which is then ended."""
    folder.mkdir(mode=0o711)
    other = Agent(folder, console)
    other.config.write_text(json.dumps([entry]))
    heard = len(console.hellos)
    other.start()
    try:
        await console.until(lambda: len(console.hellos) > heard)
    finally:
        other.end()
    return console.hellos[-1]


async def test_a_restarted_agent_is_in_the_same_place(console, make_agent):
    agent = make_agent()
    await console.connected()
    agent.kill()
    agent.start()
    await console.until(lambda: len(console.hellos) == 2)
    assert console.hellos[0].place == console.hellos[1].place != ""
