"""What containers use, as a real engine tells it."""

import pytest

from tests.agent.docker.agent import MIB, Agent

pytestmark = pytest.mark.engine
BUSY = "head -c 20000000 /dev/zero > /dev/shm/held; i=0; while :; do i=$((i+1)); done"


async def test_a_containers_cpu_and_memory_are_told_while_it_runs(agent: Agent) -> None:
    order = await agent.start(agent.order("sh", "-c", BUSY, memory_bytes=256 * MIB))

    async def used() -> object:
        return (await agent.runtime.usage([order.attempt, "f" * 32])).get(order.attempt)

    first = await used()
    seen = []

    async def is_busy() -> bool:
        seen.append(await used())
        return (
            seen[-1].cpu_seconds is not None
            and seen[-1].cpu_seconds > (first.cpu_seconds or 0) + 0.2
            and (seen[-1].memory_bytes or 0) > 19 * MIB
        )

    for _ in range(200):
        if await is_busy():
            break
    assert await is_busy()
    assert seen[-1].oom_kills == 0
    assert seen[-1].received_bytes is None, "the host's network: its part of it is not knowable"
    await agent.runtime.stop(order.attempt, 0)
