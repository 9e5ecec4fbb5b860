"""An attempt of a gang waits, all but started, until the set no longer lists it as waiting."""

import pytest

from machines.agent.effects import OpenBarrier
from machines.agent.runtimes.base import Progress
from machines.agent.supervisor import Supervisor
from machines.protocol import Assignments, EndReason, Phase, Welcome
from tests.agent.agents import order, script


def phases(report) -> list[Phase]:
    return [age.phase for age in report.phases]


def welcomed() -> Supervisor:
    supervisor = Supervisor("c" * 32)
    supervisor.on_welcome(Welcome("c" * 32, "m", 5, 5, 1 << 30))
    return supervisor


def test_the_barrier_opens_once_when_the_set_says_so():
    supervisor, item = welcomed(), order("true", barrier=True)
    assert OpenBarrier(item.attempt) not in supervisor.on_assignments(Assignments(1, [item], [], [item.attempt]), 1)
    assert supervisor.on_assignments(Assignments(2, [item]), 2) == [OpenBarrier(item.attempt)]
    assert supervisor.on_assignments(Assignments(3, [item]), 3) == []


def test_an_order_whose_barrier_is_open_already_starts_at_once():
    supervisor, item = welcomed(), order("true", barrier=True)
    effects = supervisor.on_assignments(Assignments(1, [item]), 1)
    assert [type(effect).__name__ for effect in effects] == ["Accept", "OpenBarrier"]


def test_ready_is_reported_like_any_phase():
    supervisor, item = welcomed(), order("true", barrier=True)
    supervisor.on_assignments(Assignments(1, [item], [], [item.attempt]), 1)
    supervisor.on_event(Progress(item.attempt, Phase.READY, 2), "", 2)
    (frame,) = supervisor.take_reports(3)
    assert phases(frame.items[0]) == [Phase.PREPARING, Phase.READY]


@pytest.mark.parametrize("runtime", ["process", "simulated"])
async def test_it_starts_when_the_barrier_opens_and_not_before(console, make_agent, runtime):
    make_agent(runtime=runtime)
    item = script("exit 0", barrier=True)
    await console.assign(item, waiting=(item.attempt,))
    report = await console.reached(item.attempt, Phase.READY)
    assert phases(report) == [Phase.PREPARING, Phase.READY]
    await console.assign(item)
    report = await console.reached(item.attempt, Phase.ENDED)
    assert phases(report) == [Phase.PREPARING, Phase.READY, Phase.RUNNING, Phase.ENDED]
    assert report.exit_code == 0


async def test_a_stop_at_the_barrier_ends_it_before_it_began(console, make_agent):
    agent = make_agent()
    item = script("echo begun", barrier=True)
    await console.assign(item, waiting=(item.attempt,))
    await console.reached(item.attempt, Phase.READY)
    await console.assign()
    report = await console.reached(item.attempt, Phase.ENDED)
    assert report.end_reason == EndReason.STOPPED
    assert Phase.RUNNING not in phases(report)
    assert not (agent.state / "attempts" / item.attempt / "output.log").exists()


async def test_an_agent_that_was_killed_at_the_barrier_waits_there_again(console, make_agent):
    agent = make_agent()
    item = script("echo begun", barrier=True)
    await console.assign(item, waiting=(item.attempt,))
    await console.reached(item.attempt, Phase.READY)
    agent.kill()
    agent.start()
    await console.until(lambda: console.newest(item.attempt).seq > 1000)
    assert not (agent.state / "attempts" / item.attempt / "output.log").exists()
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    assert agent.output(item) == b"begun\n"
