"""Containers on a real engine: what runs, its limits, how it ends and is stopped."""

import json
from uuid import uuid4

import pytest

from machines.agent.runtimes.base import (
    CannotStart,
    Exited,
    MemoryKills,
    Progress,
)
from machines.protocol import EndReason, Phase
from tests.agent.docker.agent import MIB, Agent, exited, numbers, until
from tests.engine import IMAGE, Engine, import_image

pytestmark = pytest.mark.engine


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
        agent.order("sh", "-c", "tail /dev/zero; echo $?; sleep 5; exit 3", memory_bytes=32 * MIB)
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
