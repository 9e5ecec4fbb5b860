"""Restarts of the agent and of the engine: what runs is taken up, with its whole log and true end."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from machines.agent.runtimes.base import (
    Failed,
    Progress,
    RuntimeUnavailable,
)
from machines.agent.runtimes.docker import DockerRuntime
from machines.agent.runtimes.docker_log import GAP_MARK
from machines.protocol import EndReason, Phase
from tests.agent.docker.agent import Agent, exited, numbers, until
from tests.engine import IMAGE

pytestmark = pytest.mark.engine


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


async def test_the_copy_stays_exact_while_the_engine_drops_the_beginning_of_its_log(agent: Agent) -> None:
    assert agent.runtime.share_log(8_000_000) == 6_000_000
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


async def test_of_output_too_fast_to_follow_the_end_is_there_and_nothing_twice(agent: Agent) -> None:
    assert agent.runtime.share_log(8_000_000) == 6_000_000
    _, output = await agent.run("seq", "1", "400000")
    copied = [int(line) for line in output.replace(GAP_MARK, b"").splitlines()]
    assert GAP_MARK not in output or len(copied) < 400_000  # what the engine skips in one reading leaves no trace
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
