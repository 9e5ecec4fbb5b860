"""Samples on their way: over the agent's real connection into the lane."""

import asyncio

import pytest
from django.utils import timezone

from machines import protocol
from machines.metrics import lane
from machines.presence import presence
from tests.fleet import TOKEN, Agent, a_cluster, a_machine, in_database, until

pytestmark = pytest.mark.django_db(transaction=True)


async def test_what_an_agent_samples_reaches_the_lane_within_a_second_or_two():
    machine = await in_database(lambda: a_machine(a_cluster(), token=TOKEN))
    agent = Agent(TOKEN)
    await agent.greet()
    await agent.say(protocol.Samples([], [protocol.GpuUse(0, 0.5, 1, 1)]))

    async def arrived() -> bool:
        return (await asyncio.to_thread(lane.lengths, [machine.cluster_id]))[machine.cluster_id] == 1

    await until(arrived)
    taken: list[lane.Frame] = []

    def take(frames: list[lane.Frame]) -> bool:
        taken.extend(frames)
        return True

    await in_database(lambda: lane.drain(machine.cluster_id, take))
    [(machine_id, received_at, frame)] = taken
    assert machine_id == machine.pk
    assert abs(received_at - timezone.now().timestamp()) < 60
    assert protocol.decode_samples(frame).gpus == [protocol.GpuUse(0, 0.5, 1, 1)]
    await agent.leave()


async def test_more_samples_than_a_second_may_bring_are_dropped_and_nothing_else_is(monkeypatch):
    monkeypatch.setattr(lane, "MAX_ENTRY_BYTES", 100)
    there = presence()
    for number in range(5):
        there.sampled(1, (number, 0.0, b"x" * 40))
    kept, there._samples = there._samples, {}
    assert [frame[0] for frame in kept[1]] == [0, 1]
