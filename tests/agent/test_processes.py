"""Host processes under a real agent and a real keeper."""

import os
import signal
from pathlib import Path

import pytest

from machines.protocol import EndReason, LogChunk, Phase, ReadLog, TailLog
from tests.agent.agents import eventually, order, script

ODD = ["a b", '"quoted"', "it's", "$HOME", "a;b", "c,d", "e=f", "new\nline", "", "😀", "*", "\\"]


async def test_a_process_runs_and_its_exit_code_is_reported(console, make_agent):
    agent = make_agent()
    item = script("echo out; echo err >&2; exit 3")
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 3)
    report = console.newest(item.attempt)
    assert report.log_tail == "out\nerr\n"
    assert [age.phase for age in report.phases] == [Phase.PREPARING, Phase.RUNNING, Phase.ENDED]
    assert agent.output(item) == b"out\nerr\n"


async def test_a_success_carries_no_log(console, make_agent):
    make_agent()
    item = script("echo fine")
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    assert console.newest(item.attempt).log_tail == ""


async def test_arguments_and_environment_arrive_as_they_are(console, make_agent):
    agent = make_agent()
    text = 'printf "%s\\0" "$@" "$V0" "$V1" "$V2" "$V3" "$V4" "$V5" "$V6" "$V7" "$V8" "$V9" "$V10" "$V11"'
    item = script(text, "sh", *ODD, env={f"V{number}": value for number, value in enumerate(ODD)})
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    assert agent.output(item).decode().split("\0")[:-1] == [*ODD, *ODD]


async def test_the_environment_holds_nothing_of_the_agents(console, make_agent, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "of-the-console")
    agent = make_agent()
    item = order("env", env={"MINE": "1"})
    await console.assign(item)
    await console.ended(item.attempt)
    names = {line.split("=")[0] for line in agent.output(item).decode().splitlines()}
    expected = {"PATH", "HOME", "USER", "LOGNAME", "LANG", "CUDA_VISIBLE_DEVICES", "MINE", "ASTRA_ATTEMPT_UID"}
    assert names == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs workers as somebody else")
async def test_as_root_a_worker_is_somebody_who_cannot_read_the_consoles_folder(console, make_agent, open_folder):
    agent = make_agent()
    (open_folder / "services").mkdir(mode=0o700)
    secret = open_folder / "services" / "password"
    secret.write_text("secret")
    text = f"id -u; ls {open_folder}; cat {secret}; cat {agent.state}/token; ls {agent.state}/attempts; touch ../x"
    item = script(text + "; echo mine > file && cat file")
    await console.assign(item)
    await console.ended(item.attempt)
    lines = agent.output(item).decode().splitlines()
    assert lines[0] == "61000"
    assert lines[-1] == "mine"
    assert len([line for line in lines if "Permission denied" in line]) == 5
    assert "secret" not in agent.output(item).decode().replace(str(secret), "")


async def test_a_command_that_is_not_there_exits_with_127(console, make_agent):
    agent = make_agent()
    item = order("no-such-program")
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 127)
    assert agent.output(item) == b"no-such-program: command not found\n"


async def test_a_file_that_is_no_program_exits_with_126(console, make_agent):
    make_agent()
    item = order("/etc/passwd")
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 126)


async def test_a_working_folder_that_is_not_there_is_a_failed_start(console, make_agent):
    make_agent()
    item = order("true", working_dir="/no/such/folder")
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.START_FAILED, None)
    assert console.newest(item.attempt).message == "cannot enter /no/such/folder: No such file or directory"


async def test_a_nul_in_an_argument_is_a_failed_start(console, make_agent):
    make_agent()
    item, other = order("true", "a\0b"), order("true")
    await console.assign(item, other)
    assert await console.ended(item.attempt) == (EndReason.START_FAILED, None)
    assert await console.ended(other.attempt) == (EndReason.EXITED, 0)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"user": "somebody-else"}, "cannot run one as somebody-else"),
        ({"memory_bytes": 1 << 20}, "at least 16 MiB"),
        ({"shm_bytes": 1 << 60}, "shared memory"),
    ],
)
async def test_what_cannot_be_honoured_is_refused(console, make_agent, more, words):
    make_agent()
    item = order("true", **more)
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.REFUSED, None)
    assert words in console.newest(item.attempt).message


async def test_an_order_without_a_command_is_refused(console, make_agent):
    make_agent()
    item = order()
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.REFUSED, None)


async def test_a_process_killed_by_a_signal_exits_with_128_and_its_number(console, make_agent):
    make_agent()
    item = script("kill -SEGV $$")
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 128 + signal.SIGSEGV)


async def test_a_stop_gives_the_grace_and_says_stopped(console, make_agent):
    agent = make_agent()
    item = script("trap 'echo saving; sleep 0.3; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    await eventually(lambda: agent.output(item) == b"ready\n")
    await console.assign()
    assert await console.ended(item.attempt) == (EndReason.STOPPED, 0)
    assert agent.output(item).endswith(b"saving\nsaved\n")


async def test_a_process_that_ignores_the_stop_is_killed_after_its_grace(console, make_agent):
    agent = make_agent()
    item = script("trap '' TERM; echo ready; while :; do sleep 0.05; done", stop_grace_seconds=0.3)
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    await eventually(lambda: agent.output(item) == b"ready\n")
    await console.assign()
    assert await console.ended(item.attempt) == (EndReason.STOPPED, 137)
    assert agent.processes_of(item) == []


async def test_descendants_die_with_their_worker_even_in_sessions_of_their_own(console, make_agent):
    agent = make_agent()
    item = script("(setsid sleep 1000 &) ; setsid sh -c 'sleep 1000 & sleep 1000' & sleep 0.2; echo started; exit 5")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    await eventually(lambda: len(agent.processes_of(item)) >= 4)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 5)
    assert agent.processes_of(item) == []


async def test_a_time_limit_stops_a_worker_and_says_so(console, make_agent):
    make_agent()
    item = order("sleep", "1000", time_limit_seconds=0.5)
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.TIME_LIMIT, 143)


async def test_output_is_complete_and_in_order(console, make_agent):
    agent = make_agent()
    item = script("seq 1 100000; seq 1 1000 >&2")
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    expected = b"".join(b"%d\n" % n for n in [*range(1, 100001), *range(1, 1001)])
    assert agent.output(item) == expected
    data, ended = b"", False
    while not ended:
        chunk = await console.call(ReadLog(item.attempt, len(data), 1 << 30))
        assert isinstance(chunk, LogChunk)
        assert (chunk.start, chunk.next) == (len(data), len(data) + len(chunk.data))
        data += chunk.data
        ended = chunk.ended
    assert data == expected


async def test_a_log_that_can_still_grow_is_not_ended(console, make_agent):
    agent = make_agent()
    item = script("echo one; sleep 1000")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    await eventually(lambda: agent.output(item))
    assert await console.call(ReadLog(item.attempt, 0, 100)) == LogChunk(0, b"one\n", 4, False)
    await console.assign()
    await console.ended(item.attempt)
    assert await console.call(TailLog(item.attempt, 1, 100)) == LogChunk(0, b"one\n", 4, True)


async def test_a_forgotten_attempt_leaves_no_trace(console, make_agent):
    agent = make_agent()
    item = script("mkdir -p a/b; echo x > a/b/c; exit 1")
    await console.assign(item)
    await console.ended(item.attempt)
    await console.assign(forget=(item.attempt,))
    await console.reached(item.attempt, Phase.FORGOTTEN)
    assert not (agent.state / "attempts" / item.attempt).exists()
    answer = await console.call(ReadLog(item.attempt, 0, 10))
    assert answer.code == "not_found"


async def test_an_archived_attempt_keeps_its_last_thousand_lines_also_after_a_restart(console, make_agent):
    agent = make_agent()
    item = script("i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo line $i; done; touch made; exit 1")
    await console.assign(item)
    await console.ended(item.attempt)
    whole = await console.call(ReadLog(item.attempt, 0, 100_000))
    await console.assign(archive=(item.attempt,))
    await console.reached(item.attempt, Phase.ARCHIVED)
    hellos = len(console.hellos)
    agent.kill()
    agent.start()
    await console.until(lambda: len(console.hellos) > hellos)
    kept = await console.call(ReadLog(item.attempt, 0, 100_000))
    lines = kept.data.decode().splitlines()
    assert (kept.archived, lines[0], lines[-1], len(lines)) == (True, "line 4001", "line 5000", 1000)
    assert whole.data[kept.start :] == kept.data, "offsets count on"
    assert not (agent.state / "attempts" / item.attempt / "work").exists()
    await console.assign(forget=(item.attempt,))
    await console.reached(item.attempt, Phase.FORGOTTEN)


async def test_a_thousand_processes_all_end_with_their_code(console, make_agent):
    make_agent()
    items = [script(f"exit {number % 3}") for number in range(300)]
    await console.assign(*items)
    await console.until(lambda: sum(report.end_reason is not None for report in console.reports) >= len(items))
    assert [(await console.ended(item.attempt))[1] for item in items] == [n % 3 for n in range(len(items))]


def limits_are_enforced() -> bool:
    return os.geteuid() == 0 and any(
        os.path.exists(path) for path in ("/sys/fs/cgroup/memory/cgroup.procs", "/sys/fs/cgroup/cgroup.subtree_control")
    )


needs_cgroups = pytest.mark.skipif(not limits_are_enforced(), reason="cgroups are not ours to make here")
EAT = ("tail", "/dev/zero")  # looks for the end of a line that has none, in memory


@needs_cgroups
async def test_a_process_over_its_memory_limit_is_told_as_such(console, make_agent):
    make_agent()
    item = order(*EAT, memory_bytes=64 << 20, cpu_milli=1000)
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.OOM_KILLED, 137)


@needs_cgroups
async def test_a_child_killed_for_memory_beside_a_living_main_process_is_a_warning(console, make_agent):
    make_agent()
    item = script(f"{' '.join(EAT)}; exit 4", memory_bytes=64 << 20)
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 4)
    assert console.newest(item.attempt).process_oom_kills == 1


@needs_cgroups
async def test_a_sigkill_from_elsewhere_is_no_memory_kill(console, make_agent):
    make_agent()
    item = script("kill -KILL $$", memory_bytes=64 << 20)
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 137)


@needs_cgroups
async def test_a_process_is_held_to_its_cores(console, make_agent):
    agent = make_agent()
    item = script("timeout 1 sh -c 'while :; do :; done'; times", cpu_milli=200)
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    minutes, seconds = agent.output(item).decode().splitlines()[1].split()[0].rstrip("s").split("m")
    assert float(minutes) * 60 + float(seconds) < 0.6


@pytest.fixture
def elsewhere():
    """A cgroup that an agent can be started in."""
    path = Path("/sys/fs/cgroup/memory/astra-test-elsewhere")
    path.mkdir()
    yield path
    path.rmdir()


@needs_cgroups
@pytest.mark.skipif(not os.path.exists("/sys/fs/cgroup/memory/cgroup.procs"), reason="version 1 of cgroups only")
async def test_limits_hold_under_a_keeper_that_was_started_from_within_another_cgroup(console, make_agent, elsewhere):
    agent = make_agent()
    held = order("sleep", "1000")
    await console.assign(held)
    await console.reached(held.attempt, Phase.RUNNING)
    agent.kill()
    agent.start(("/bin/sh", "-c", f'echo 0 > {elsewhere}/cgroup.procs && exec "$@"', "sh"))
    item = order(*EAT, memory_bytes=64 << 20)
    await console.assign(held, item)
    assert await console.ended(item.attempt) == (EndReason.OOM_KILLED, 137)
    agent.end()
