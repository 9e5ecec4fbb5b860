"""The docker runtime on a real engine."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from machines.agent.runtimes import docker_request
from machines.agent.runtimes.base import (
    Adoptable,
    AttemptFolder,
    CannotStart,
    Exited,
    Failed,
    MemoryKills,
    Progress,
    RuntimeEvent,
    RuntimeUnavailable,
)
from machines.agent.runtimes.docker import DockerRuntime
from machines.protocol import EndReason, Order, Phase
from tests.engine import IMAGE, Engine, import_image

pytestmark = pytest.mark.engine
DEADLINE_SECONDS = 60
MIB = 1024**2


class Agent:
    """A runtime with what an agent keeps: folders and the events so far. `reborn` is the agent after a restart."""

    def __init__(self, engine: Engine, root: Path, machine_id: str) -> None:
        self.engine, self.root, self.machine_id = engine, root, machine_id
        self.runtime = DockerRuntime(engine.url)
        self.events: list[RuntimeEvent] = []
        self.opened = False

    async def open(self) -> "Agent":
        await self.runtime.open(self.machine_id, self.events.append)
        self.opened = True
        return self

    async def close(self) -> None:
        if self.opened:
            self.opened = False
            await self.runtime.close()

    async def reborn(self) -> "Agent":
        await self.close()
        return await Agent(self.engine, self.root, self.machine_id).open()

    def order(self, *args: str, **fields: Any) -> Order:
        uid = uuid4().hex
        return Order(
            **{
                "attempt": uid,
                "worker": uuid4().hex,
                "run": uuid4().hex,
                "worker_name": "run-0",
                "run_name": "run",
                "number": 1,
                "image": IMAGE,
                "command": args[0] if args else None,
                "args": list(args[1:]),
                **fields,
            }
        )

    def folder(self, order: Order) -> AttemptFolder:
        path = self.root / order.attempt
        path.mkdir(exist_ok=True)
        return AttemptFolder(path)

    async def start(self, order: Order) -> Order:
        await self.runtime.start(order, self.folder(order))
        return order

    async def run(self, *args: str, **fields: Any) -> tuple[Exited | Failed, bytes]:
        """Start and see it end: the end and the whole output."""
        order = await self.start(self.order(*args, **fields))
        return await self.end_of(order), self.output(order)

    def output(self, order: Order) -> bytes:
        path = self.folder(order).output
        return path.read_bytes() if path.exists() else b""

    def events_of(self, order: Order) -> list[RuntimeEvent]:
        return [event for event in self.events if event.attempt == order.attempt]

    async def end_of(self, order: Order) -> Exited | Failed:
        def ends() -> list[Exited | Failed]:
            return [event for event in self.events_of(order) if isinstance(event, Exited | Failed)]

        await until(lambda: bool(ends()))
        assert len(ends()) == 1
        assert self.events_of(order)[-1] is ends()[0]
        return ends()[0]

    async def adopt(self, *orders: Order, running: bool = True, rebooted: bool = False) -> list[str]:
        items = [Adoptable(order, self.folder(order), running) for order in orders]
        known = [order.attempt for order in orders]
        return list(await self.runtime.adopt(items, known, rebooted=rebooted))

    def container(self, order: Order) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.engine.docker("inspect", f"astra-{order.attempt}"))[0]
        return found

    def containers(self) -> list[str]:
        label = f"label=astra.machine={self.machine_id}"
        return self.engine.docker("ps", "--all", "--filter", label, "--format", "{{.Names}}").split()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


@pytest_asyncio.fixture
async def agent(engine: Engine, tmp_path: Path) -> AsyncIterator[Agent]:
    opened = await Agent(engine, tmp_path, uuid4().hex).open()
    yield opened
    await opened.close()
    if names := opened.containers():
        engine.docker("rm", "--force", *names)


def exited(end: Exited | Failed) -> tuple[int | None, bool]:
    assert isinstance(end, Exited)
    return end.exit_code, end.oom_killed


# ---- what runs -----------------------------------------------------------------------------------------------------


async def test_arguments_reach_the_program_untouched(agent: Agent) -> None:
    words = ["two words", 'a "quote"', "it's", "$HOME", "`id`", "a;b,c=d", "", "new\nline", "é🚀", "*"]
    end, output = await agent.run("printf", "[%s]\\n", *words)
    assert output.decode() == "".join(f"[{word}]\n" for word in words)
    assert exited(end) == (0, False)


async def test_the_environment_reaches_the_program_untouched(agent: Agent) -> None:
    env = {
        "PLAIN": "1",
        "SPACES": "a  b ",
        "EQUALS": "a=b=c",
        "EMPTY": "",
        "DOLLAR": "$PATH",
        "QUOTE": "\"'",
        "UTF": "é",
    }
    _, output = await agent.run("sh", "-c", "".join(f'printf "[%s]" "${name}";' for name in env), env=env)
    assert output.decode() == "".join(f"[{value}]" for value in env.values())


async def test_a_command_replaces_entrypoint_and_arguments_of_the_image(agent: Agent, engine: Engine) -> None:
    import_image(engine, "localhost/entry:test", 'ENTRYPOINT ["echo", "entrypoint"]', 'CMD ["cmd"]')
    image = "localhost/entry:test"
    assert (await agent.run(image=image))[1] == b"entrypoint cmd\n"
    assert (await agent.run(image=image, args=["args"]))[1] == b"entrypoint args\n"
    assert (await agent.run("echo", image=image))[1] == b"\n"
    assert (await agent.run("echo", "args", image=image))[1] == b"args\n"


async def test_working_folder_user_and_host_name_are_as_asked(agent: Agent) -> None:
    command = ("sh", "-c", "pwd; id -u; hostname")
    _, output = await agent.run(*command, working_dir="/tmp", user="1234", worker_name="My_run-0")
    assert output == b"/tmp\n1234\nmy-run-0\n"


async def test_both_streams_are_in_the_output_byte_for_byte(agent: Agent) -> None:
    _, output = await agent.run(
        "sh", "-c", r"printf 'out\377\0\n'; sleep 0.1; printf 'err\303\n' >&2; sleep 0.1; echo end"
    )
    assert output == b"out\xff\x00\nerr\xc3\nend\n"


@pytest.mark.parametrize("length", [16_383, 16_384, 16_385, 32_768, 300_000])
async def test_a_long_line_is_whole(agent: Agent, length: int) -> None:
    _, output = await agent.run("sh", "-c", f"head -c {length} /dev/zero | tr '\\0' x; echo; printf end")
    assert output == b"x" * length + b"\nend"


async def test_no_line_of_fast_output_is_lost(agent: Agent) -> None:
    _, output = await agent.run("seq", "1", "200000")
    assert output == numbers(1, 200_000)


async def test_phases_are_told_in_order_and_the_image_that_ran_is_named(agent: Agent, engine: Engine) -> None:
    order = await agent.start(agent.order("true"))
    await agent.end_of(order)
    told = [event for event in agent.events_of(order) if isinstance(event, Progress)]
    assert [event.phase for event in told] == [Phase.STARTING, Phase.RUNNING]
    assert told[0].image_digest == json.loads(engine.docker("image", "inspect", IMAGE))[0]["Id"]
    assert told[0].at <= told[1].at <= agent.events_of(order)[-1].at


# ---- limits --------------------------------------------------------------------------------------------------------


async def test_limits_are_set_on_the_container(agent: Agent) -> None:
    order = await agent.start(agent.order("sleep", "60", cpu_milli=64_500, memory_bytes=64 * MIB, shm_bytes=32 * MIB))
    host = agent.container(order)["HostConfig"]
    assert (host["CpuQuota"], host["CpuPeriod"], host["CpuShares"]) == (6_450_000, 100_000, 66_048)
    assert (host["Memory"], host["MemorySwap"], host["ShmSize"]) == (64 * MIB, 64 * MIB, 32 * MIB)
    assert agent.engine.docker("exec", f"astra-{order.attempt}", "df", "-k", "/dev/shm").split()[-5] == str(32 * 1024)


async def test_a_burst_order_has_shares_and_no_quota(agent: Agent) -> None:
    order = await agent.start(agent.order("sleep", "60", cpu_milli=500, cpu_burst=True))
    host = agent.container(order)["HostConfig"]
    assert (host["CpuQuota"], host["CpuShares"], host["Memory"]) == (0, 512, 0)


async def test_an_engines_refusal_is_told_in_its_words(agent: Agent) -> None:
    with pytest.raises(CannotStart) as refused:
        await agent.start(agent.order("true", memory_bytes=1000))
    assert refused.value.reason is EndReason.START_FAILED
    assert "memory" in refused.value.message.lower()


# ---- ends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 125, 255])
async def test_the_exit_code_is_the_programs(agent: Agent, code: int) -> None:
    end, _ = await agent.run("sh", "-c", f"exit {code}")
    assert exited(end) == (code, False)


async def test_a_command_that_is_not_in_the_image_is_127_and_the_log_says_so(agent: Agent) -> None:
    order = agent.order("no-such-command")
    with pytest.raises(CannotStart) as refused:
        await agent.start(order)
    assert (refused.value.reason, refused.value.exit_code) == (EndReason.EXITED, 127)
    assert b"no-such-command" in agent.output(order)
    assert agent.containers() == []


async def test_memory_beyond_the_limit_is_out_of_memory(agent: Agent) -> None:
    end, _ = await agent.run("tail", "/dev/zero", memory_bytes=32 * MIB)
    assert exited(end) == (137, True)


async def test_a_killed_child_is_told_while_the_main_process_lives_and_is_not_its_end(agent: Agent) -> None:
    order = await agent.start(
        agent.order("sh", "-c", "tail /dev/zero; echo $?; sleep 1; exit 3", memory_bytes=32 * MIB)
    )
    assert exited(await agent.end_of(order)) == (3, False)
    assert sorted(agent.output(order).splitlines()) == [b"137", b"Killed"]
    assert MemoryKills(order.attempt, 1) in agent.events_of(order)


async def test_a_kill_from_outside_is_not_out_of_memory(agent: Agent) -> None:
    order = await agent.start(agent.order("sleep", "60", memory_bytes=32 * MIB))
    agent.engine.docker("kill", f"astra-{order.attempt}")
    assert exited(await agent.end_of(order)) == (137, False)


async def test_a_container_removed_by_somebody_else_has_an_unknown_code(agent: Agent) -> None:
    order = await agent.start(agent.order("sleep", "60"))
    agent.engine.docker("rm", "--force", f"astra-{order.attempt}")
    end = await agent.end_of(order)
    assert exited(end) == (None, False)


# ---- stopping ------------------------------------------------------------------------------------------------------


async def test_a_stop_lets_the_program_end_in_order(agent: Agent) -> None:
    order = await agent.start(agent.order("sh", "-c", "trap 'echo bye; exit 4' TERM; echo on; sleep 60 & wait"))
    await until(lambda: agent.output(order) == b"on\n")
    await agent.runtime.stop(order.attempt, 60)
    await agent.runtime.stop(order.attempt, 60)
    assert exited(await agent.end_of(order)) == (4, False)
    assert agent.output(order) == b"on\nbye\n"


async def test_after_the_grace_it_is_killed_and_that_is_not_out_of_memory(agent: Agent) -> None:
    script = "tail /dev/zero; trap '' TERM; echo on; while :; do sleep 1; done"
    order = await agent.start(agent.order("sh", "-c", script, memory_bytes=32 * MIB))
    await until(lambda: b"on\n" in agent.output(order))
    await agent.runtime.stop(order.attempt, 0.3)
    assert exited(await agent.end_of(order)) == (137, False)


async def test_a_second_stop_may_shorten_the_grace(agent: Agent) -> None:
    order = await agent.start(agent.order("sleep", "600"))
    await agent.runtime.stop(order.attempt, 600)
    await agent.runtime.stop(order.attempt, 0.1)
    assert exited(await agent.end_of(order)) == (137, False)


async def test_stopping_what_is_unknown_or_ended_is_no_error(agent: Agent) -> None:
    await agent.runtime.stop(uuid4().hex, 1)
    order = await agent.start(agent.order("true"))
    await agent.end_of(order)
    await agent.runtime.stop(order.attempt, 1)
    assert len([event for event in agent.events_of(order) if isinstance(event, Exited)]) == 1


async def test_removal_leaves_nothing_and_may_be_repeated(agent: Agent) -> None:
    order = await agent.start(agent.order("true"))
    await agent.end_of(order)
    assert agent.containers() == [f"astra-{order.attempt}"]
    await agent.runtime.remove(order.attempt)
    await agent.runtime.remove(order.attempt)
    assert agent.containers() == []


# ---- images --------------------------------------------------------------------------------------------------------


async def refusal(agent: Agent, **fields: Any) -> CannotStart:
    with pytest.raises(CannotStart) as refused:
        await agent.start(agent.order("true", **fields))
    assert agent.containers() == []
    return refused.value


async def test_a_pull_that_fails_is_told_in_the_engines_words(agent: Agent) -> None:
    refused = await refusal(agent, image="127.0.0.1:1/no/such:image")
    assert refused.reason is EndReason.IMAGE_PULL
    assert "127.0.0.1:1" in refused.message
    assert "connection refused" in refused.message


async def test_always_pulls_though_the_image_is_there(agent: Agent, engine: Engine) -> None:
    import_image(engine, "127.0.0.1:1/cached:test")
    refused = await refusal(agent, image="127.0.0.1:1/cached:test", pull_policy="Always")
    assert exited((await agent.run("true", image="127.0.0.1:1/cached:test"))[0]) == (0, False)
    assert refused.reason is EndReason.IMAGE_PULL


async def test_without_pulling_a_missing_image_says_so(agent: Agent) -> None:
    refused = await refusal(agent, image="nothing:here", pull_policy="None")
    assert refused.reason is EndReason.IMAGE_MISSING
    assert refused.message == "Image nothing:here is not present and the pull policy is None"


@pytest.mark.parametrize("image", ["", "UPPER", "../containers/json", "a b", "x?y=1", "busybox:", "-"])
async def test_what_is_no_image_reference_is_refused(agent: Agent, image: str) -> None:
    refused = await refusal(agent, image=image)
    assert (refused.reason, refused.message) == (EndReason.IMAGE_PULL, f"invalid reference format: {image}")


async def test_a_stop_gives_up_a_pull(agent: Agent) -> None:
    accepted = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await reader.read()  # a registry that never answers
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as registry:
        port = registry.sockets[0].getsockname()[1]
        order = agent.order("true", image=f"127.0.0.1:{port}/slow:image")
        starting = asyncio.create_task(agent.start(order))
        await asyncio.wait_for(accepted.wait(), DEADLINE_SECONDS)
        await agent.runtime.stop(order.attempt, 60)
        with pytest.raises(CannotStart) as refused:
            await asyncio.wait_for(starting, DEADLINE_SECONDS)
        assert refused.value.reason is EndReason.STOPPED


# ---- restarts of the agent and of the engine -----------------------------------------------------------------------


async def test_a_restarted_agent_takes_up_what_runs_with_its_whole_log_and_true_code(agent: Agent) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; echo error $i >&2; sleep 0.2; done; exit 7"
    order = await agent.start(agent.order("sh", "-c", script))
    await until(lambda: b"line 3" in agent.output(order))
    reborn = await agent.reborn()
    assert await reborn.adopt(order) == []
    assert exited(await reborn.end_of(order)) == (7, False)
    (running,) = [event for event in reborn.events_of(order) if isinstance(event, Progress)]
    assert running.phase is Phase.RUNNING
    assert reborn.events_of(order)[-1].at - running.at > 1.5  # since it began, not since it was adopted
    lines = agent.output(order).decode().splitlines()
    assert sorted(lines) == sorted(f"{word} {number}" for number in range(1, 10) for word in ("line", "error"))
    await reborn.close()


async def test_an_end_while_the_agent_was_away_is_told_with_its_code_and_log(agent: Agent) -> None:
    order = await agent.start(agent.order("sh", "-c", "echo one; sleep 0.5; echo two; exit 9"))
    await agent.close()
    agent.engine.docker("wait", f"astra-{order.attempt}")
    reborn = await agent.reborn()
    assert await reborn.adopt(order) == []
    assert exited(await reborn.end_of(order)) == (9, False)
    assert agent.output(order) == b"one\ntwo\n"
    await reborn.close()


async def test_what_never_began_is_handed_back_and_can_be_started(agent: Agent) -> None:
    order = agent.order("true")
    agent.engine.docker(
        "create", "--name", f"astra-{order.attempt}", "--label", f"astra.machine={agent.machine_id}",
        "--label", f"astra.attempt={order.attempt}", IMAGE, "true",
    )  # fmt: skip
    absent = agent.order("true")
    assert sorted(await agent.adopt(order, absent, running=False)) == sorted([order.attempt, absent.attempt])
    await agent.start(order)
    assert exited(await agent.end_of(order)) == (0, False)


async def test_a_vanished_container_has_an_unknown_code_or_went_with_a_reboot(agent: Agent) -> None:
    order = agent.order("true")
    assert await agent.adopt(order) == []
    assert exited(await agent.end_of(order)) == (None, False)
    lost = agent.order("true")
    assert await agent.adopt(lost, rebooted=True) == []
    end = await agent.end_of(lost)
    assert isinstance(end, Failed)
    assert end.reason is EndReason.MACHINE_REBOOTED


async def test_leftovers_of_this_machine_are_removed_and_others_left_alone(agent: Agent, tmp_path: Path) -> None:
    ours = await agent.start(agent.order("sh", "-c", "trap 'exit 0' TERM; sleep 60 & wait"))
    other = await Agent(agent.engine, tmp_path, uuid4().hex).open()
    theirs = await other.start(other.order("sleep", "60"))
    reborn = await agent.reborn()
    await reborn.adopt()
    await until(lambda: reborn.containers() == [])
    assert ours.attempt not in other.containers()
    assert other.containers() == [f"astra-{theirs.attempt}"]
    await other.runtime.remove(theirs.attempt)
    await other.close()
    await reborn.close()


async def test_starting_twice_makes_one_container(agent: Agent) -> None:
    order = await agent.start(agent.order("sleep", "60"))
    reborn = await agent.reborn()
    await reborn.start(order)
    assert len(reborn.containers()) == 1
    await reborn.runtime.stop(order.attempt, 0)
    assert exited(await reborn.end_of(order)) == (137, False)
    await reborn.close()


def numbers(first: int, last: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(first, last + 1))


async def test_the_copy_stays_exact_while_the_engine_drops_the_beginning_of_its_log(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_request, "LOG_FILE_BYTES", 1_000_000)
    part = "seq $((i*4000+1)) $((i*4000+4000)); i=$((i+1)); sleep 0.1"
    script = (
        f"i=0; while [ $i -lt 25 ]; do {part}; done; while ! test -e /tmp/go; do sleep 0.1; done; echo more; exit 6"
    )
    order = await agent.start(agent.order("sh", "-c", script))
    await until(lambda: agent.output(order).endswith(b"100000\n"))
    reborn = await agent.reborn()
    await reborn.adopt(order)
    agent.engine.docker("exec", f"astra-{order.attempt}", "touch", "/tmp/go")
    assert exited(await reborn.end_of(order)) == (6, False)
    assert not agent.engine.docker("logs", f"astra-{order.attempt}").startswith("1\n")
    assert agent.output(order) == numbers(1, 100_000) + b"more\n"
    await reborn.close()


async def test_of_output_too_fast_to_follow_the_end_is_there_and_nothing_twice(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_request, "LOG_FILE_BYTES", 1_000_000)
    _, output = await agent.run("seq", "1", "400000")
    copied = [int(line) for line in output.splitlines()]
    assert copied == sorted(set(copied))
    assert copied[-20_000:] == list(range(380_001, 400_001))


async def test_an_engine_restart_costs_nothing(agent: Agent) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; sleep 0.3; done; exit 5"
    order = await agent.start(agent.order("sh", "-c", script))
    await until(lambda: b"line 2" in agent.output(order))
    await asyncio.to_thread(agent.engine.halt)
    await asyncio.to_thread(agent.engine.start)
    assert exited(await agent.end_of(order)) == (5, False)
    assert agent.output(order) == b"".join(b"line %d\n" % number for number in range(1, 10))


async def test_an_engine_that_does_not_answer_is_one_clear_line(tmp_path: Path) -> None:
    runtime = DockerRuntime(f"unix://{tmp_path}/none.sock")
    with pytest.raises(
        RuntimeUnavailable, match=f"the container engine at unix://{tmp_path}/none.sock does not answer"
    ):
        await runtime.open(uuid4().hex, lambda event: None)
