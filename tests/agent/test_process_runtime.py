"""Host processes without cgroups: a machine where nobody may make any."""

import asyncio
import os
from pathlib import Path

import pytest

from machines.agent.keeper_client import KeeperClient
from machines.agent.runtimes.base import Adoptable, AttemptFolder, Exited, Failed, Progress, RuntimeEvent
from machines.agent.runtimes.process import ProcessRuntime
from machines.orders import Order
from machines.protocol import EndReason
from tests.agent.agents import environment, eventually, pids, script


class Bench:
    """The runtime, its keeper, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keeper = KeeperClient(folder / "keeper", limits=False)
        self.runtime = ProcessRuntime(self.keeper)
        self.events: list[RuntimeEvent] = []

    async def open(self) -> None:
        await self.runtime.open("m" * 32, self.events.append)

    async def close(self) -> None:
        await self.runtime.close()
        await self.keeper.close()

    def place(self, item: Order) -> AttemptFolder:
        place = AttemptFolder(self.folder / item.attempt)
        place.root.mkdir(mode=0o711, exist_ok=True)
        return place

    async def start(self, item: Order) -> None:
        await self.runtime.start(item, self.place(item))

    async def seen(self, kind: type, item: Order) -> RuntimeEvent:
        return await eventually(
            lambda: next((e for e in self.events if isinstance(e, kind) and e.attempt == item.attempt), None)
        )


@pytest.fixture
async def bench(open_folder):
    bench = Bench(open_folder)
    await bench.open()
    yield bench
    await bench.close()


def marked(item: Order) -> list[int]:
    return [pid for pid in pids() if f"ASTRA_ATTEMPT_UID={item.attempt}".encode() in environment(pid)]


async def test_descendants_in_sessions_of_their_own_die_with_their_worker(bench):
    item = script("(setsid sleep 1000 &) ; setsid sh -c 'sleep 1000 & sleep 1000' & sleep 0.2; exit 5")
    await bench.start(item)
    await eventually(lambda: len(marked(item)) >= 4)
    ended = await bench.seen(Exited, item)
    assert (ended.exit_code, ended.oom_killed) == (5, False)
    assert marked(item) == []


async def test_a_stop_reaches_the_whole_session_and_then_kills(bench):
    item = script("trap '' TERM; sh -c \"trap '' TERM; sleep 1000\" & while :; do sleep 0.05; done")
    await bench.start(item)
    await eventually(lambda: len(marked(item)) >= 2)
    await bench.runtime.stop(item.attempt, 0.2)
    assert (await bench.seen(Exited, item)).exit_code == 137
    assert marked(item) == []


async def test_one_workers_end_leaves_the_others_alone(bench):
    short, long = script("exit 0"), script("sleep 1000")
    await bench.start(long)
    await bench.start(short)
    await bench.seen(Exited, short)
    assert marked(long) != []
    await bench.runtime.stop(long.attempt, 5)
    assert (await bench.seen(Exited, long)).exit_code == 143


async def test_the_same_order_twice_is_one_process(bench):
    item = script("echo once; sleep 1000")
    await bench.start(item)
    await bench.seen(Progress, item)
    await bench.start(item)
    await eventually(lambda: len([e for e in bench.events if isinstance(e, Progress)]) == 2)
    assert bench.place(item).output.read_text() == "once\n"
    await bench.runtime.stop(item.attempt, 5)
    await bench.seen(Exited, item)
    await bench.start(item)
    await eventually(lambda: len([e for e in bench.events if isinstance(e, Exited)]) == 2)
    assert bench.place(item).output.read_text() == "once\n"


async def test_an_order_stopped_before_its_turn_never_runs(bench):
    items = [script("exit 0") for _ in range(40)]
    last = script("echo ran")
    for item in [*items, last]:
        await bench.start(item)
    await bench.runtime.stop(last.attempt, 5)
    ended = await eventually(lambda: next((e for e in bench.events if e.attempt == last.attempt), None))
    assert isinstance(ended, Failed)
    assert bench.place(last).output.read_bytes() == b""
    for item in items:
        await bench.seen(Exited, item)


async def test_what_was_never_started_is_handed_back(bench):
    item = script("exit 0")
    place = bench.place(item)
    assert await bench.runtime.adopt([Adoptable(item, place, False)], [item.attempt], rebooted=False) == [item.attempt]


async def test_an_exit_before_a_reboot_keeps_its_code_and_its_time(bench):
    item, lost = script("exit 0"), script("exit 0")
    bench.place(item).exit.write_bytes(b"S\t0\nE\t9\t500.0\t0\n")
    bench.place(lost).exit.write_bytes(b"S\t0\n")
    found = [Adoptable(item, bench.place(item), True, -600.0), Adoptable(lost, bench.place(lost), True, -600.0)]
    assert await bench.runtime.adopt(found, [], rebooted=True) == []
    assert bench.events[0] == Exited(item.attempt, -100.0, 9)
    assert bench.events[1].reason == EndReason.MACHINE_REBOOTED


async def test_a_keeper_is_found_again_by_its_next_agent(open_folder):
    first = Bench(open_folder)
    await first.open()
    item = script("sleep 1000")
    await first.start(item)
    await first.seen(Progress, item)
    await first.close()
    second = Bench(open_folder)
    await second.open()
    assert second.keeper.keeper_pid == first.keeper.keeper_pid
    left = [Adoptable(item, second.place(item), True)]
    assert await second.runtime.adopt(left, [item.attempt], rebooted=False) == []
    assert (await second.seen(Progress, item)).at == first.events[0].at
    await second.runtime.stop(item.attempt, 5)
    assert (await second.seen(Exited, item)).exit_code == 143
    await second.close()
    await eventually(lambda: not os.path.exists(f"/proc/{second.keeper.keeper_pid}/exe") or marked(item) == [])


async def test_what_a_worker_and_its_children_use_is_told_without_cgroups(bench):
    item = script("(while :; do :; done) & while :; do :; done")
    await bench.start(item)
    await bench.seen(Progress, item)

    async def cpu_seconds() -> float:
        used = (await bench.runtime.usage([item.attempt, "f" * 32])).get(item.attempt)
        return (used and used.cpu_seconds) or 0.0

    deadline = asyncio.get_running_loop().time() + 30
    while await cpu_seconds() < 0.2:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    used = (await bench.runtime.usage([item.attempt]))[item.attempt]
    assert used.memory_bytes
    assert (used.received_bytes, used.transmitted_bytes) == (None, None)
    await bench.runtime.stop(item.attempt, 0)
    await bench.seen(Exited, item)
    assert await bench.runtime.usage([item.attempt]) == {}
