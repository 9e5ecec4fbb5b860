"""Probes of containers: commands inside them, and http on the machine's network."""

import asyncio

import pytest

from machines.agent.probes import ProbeKind
from machines.agent.runtimes.base import CannotProbe
from machines.orders import ExecCheck, HttpCheck, Order, Probe
from tests.agent.docker.agent import Agent, until

pytestmark = pytest.mark.engine


async def ask(agent: Agent, order: Order, *command: str) -> str:
    return await agent.runtime.probe(order, ProbeKind.LIVENESS, Probe(check=ExecCheck(list(command))))


async def test_a_command_runs_inside_with_the_containers_user_folder_and_environment(agent: Agent) -> None:
    order = await agent.start(agent.order("sleep", "1000", env={"A": "x  y"}, user="1234", working_dir="/tmp"))
    check = 'test "$A" = "x  y" && test "$(id -u)" = 1234 && test "$PWD" = /tmp && touch "a b;c"'
    assert await ask(agent, order, "sh", "-c", check) == ""
    assert await ask(agent, order, "test", "-e", "/tmp/a b;c") == ""
    assert await ask(agent, order, "sh", "-c", "echo one >&2; echo two >&2; exit 3") == "exited with code 3: two"
    assert (await ask(agent, order, "no-such-command")).startswith("exited with code 12")
    await agent.runtime.stop(order.attempt, 0)
    await agent.end_of(order)
    with pytest.raises(CannotProbe):
        await ask(agent, order, "true")


async def test_a_command_that_takes_too_long_is_killed(agent: Agent) -> None:
    order = await agent.start(agent.order("sleep", "1000"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await ask(agent, order, "sleep", "2000")
    top = agent.engine.docker
    await until(lambda: "sleep 2000" not in top("top", f"astra-{order.attempt}"))
    assert await ask(agent, order, "true") == ""
    await agent.runtime.stop(order.attempt, 0)


async def test_http_reaches_a_container_on_the_machines_network(agent: Agent) -> None:
    serve = "mkdir /www; echo hi > /www/ok; exec httpd -f -p 127.0.0.1:18231 -h /www"
    order = await agent.start(agent.order("sh", "-c", serve))

    async def get(path: str) -> str:
        return await agent.runtime.probe(order, ProbeKind.READINESS, Probe(check=HttpCheck(18231, path)))

    for _ in range(600):
        if await get("/ok") == "":
            break
        await asyncio.sleep(0.05)
    assert await get("/ok") == ""
    assert await get("/absent") == "HTTP 404"
    await agent.runtime.stop(order.attempt, 0)
