"""The connection of a machine, with simulated work: what a console sees of an agent."""

import asyncio

import pytest

from machines import protocol
from machines.agent import connection, output
from machines.agent.connection import (
    FIRST_PAUSE_SECONDS,
    LONGEST_LOCAL_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Connection,
    is_local,
    websocket_url,
)
from machines.protocol import (
    VERSION,
    Assignments,
    Close,
    EndReason,
    Goodbye,
    Hello,
    Inventory,
    LogChunk,
    Phase,
    ReadLog,
    TailLog,
    ToAgent,
    Welcome,
)
from tests.agent.agents import eventually, order


@pytest.mark.parametrize(
    ("console", "expected"),
    [
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/agent/v1"),
        ("http://127.0.0.1:8000/", "ws://127.0.0.1:8000/agent/v1"),
        ("https://console.example", "wss://console.example/agent/v1"),
        ("https://example.org/astra/", "wss://example.org/astra/agent/v1"),
        ("http://[::1]:8000", "ws://[::1]:8000/agent/v1"),
    ],
)
def test_the_websockets_address(console, expected):
    assert websocket_url(console) == expected


def test_only_loopback_is_reached_past_a_proxy():
    assert is_local("ws://127.0.0.1:1/agent/v1")
    assert not is_local("wss://console.example/agent/v1")


@pytest.mark.parametrize(
    ("console", "longest"),
    [("https://console.example", LONGEST_PAUSE_SECONDS), ("http://127.0.0.1:8000", LONGEST_LOCAL_PAUSE_SECONDS)],
)
def test_pauses_between_tries_begin_short_and_grow_to_a_bound(console, longest):
    connection = Connection(console, str, None)
    assert all(0 < connection._pause(1) <= FIRST_PAUSE_SECONDS for _ in range(20))
    assert all(longest / 2 <= connection._pause(50) <= longest for _ in range(20))


async def test_a_hello_declares_the_machine_and_its_token_goes_in_the_header(console, make_agent):
    what = {"cpus": 4, "memory_bytes": 1 << 34, "labels": {"pool": "a"}, "stop_grace_seconds": 7}
    make_agent(runtime="simulated", simulate_gpus="2xH100-80GB", **what)
    await console.connected()
    hello = console.hellos[0]
    inventory = hello.inventory
    assert hello.stop_grace_seconds == 7
    assert console.tokens == ["Bearer secret-token"]
    assert (inventory.runtime, inventory.cpu_milli, inventory.memory_bytes) == ("simulated", 4000, 1 << 34)
    assert [(gpu.index, gpu.model, gpu.memory_bytes, gpu.simulated) for gpu in inventory.gpus] == [
        (0, "H100-80GB", 80 << 30, True),
        (1, "H100-80GB", 80 << 30, True),
    ]
    assert inventory.labels == {"pool": "a"}
    assert hello.attempts == []


async def test_heartbeats_carry_the_revision_that_is_applied(console, make_agent):
    make_agent(runtime="simulated")
    await console.connected()
    await console.assign()
    await console.until(lambda: any(beat.applied_revision == 1 for beat in console.heartbeats))


async def test_a_simulated_worker_runs_and_writes_and_ends(console, make_agent):
    make_agent(runtime="simulated")
    item = order("anything", env={"ASTRA_SIMULATE_EXIT_CODE": "3", "ASTRA_SIMULATE_LINES": "2"})
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 3)
    text = b"simulated line 1 of 2\nsimulated line 2 of 2\n"
    assert await console.call(TailLog(item.attempt, 10, 1000)) == LogChunk(0, text, len(text), True)


async def test_a_simulated_pull_is_given_up_when_stopped(console, make_agent):
    make_agent(runtime="simulated")
    item = order("sleep", "1000", env={"ASTRA_SIMULATE_PULL_SECONDS": "1000"})
    await console.assign(item)
    await console.reached(item.attempt, Phase.PULLING)
    await console.assign()
    assert await console.ended(item.attempt) == (EndReason.STOPPED, None)


async def test_a_simulated_worker_goes_on_under_the_next_agent(console, make_agent):
    agent = make_agent(runtime="simulated")
    item = order("sleep", "1000")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    agent.kill()
    agent.start()
    await console.until(lambda: len(console.hellos) == 2)
    await console.assign()
    assert await console.ended(item.attempt) == (EndReason.STOPPED, 143)


async def test_a_bad_simulation_is_refused(console, make_agent):
    make_agent(runtime="simulated")
    item = order("x", env={"ASTRA_SIMULATE_SECONDS": "soon"})
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.REFUSED, None)


async def test_a_log_of_an_attempt_that_is_not_here_is_a_typed_failure(console, make_agent):
    make_agent(runtime="simulated")
    await console.connected()
    answer = await console.call(ReadLog("a" * 32, 0, 100))
    assert answer.code == "not_found"


async def test_a_frame_that_is_not_understood_changes_nothing(console, make_agent):
    make_agent(runtime="simulated")
    await console.connected()
    await console.connection.send(b"\xc1 no message")
    await console.connection.send("text")
    item = order("x")
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    assert len(console.hellos) == 1


async def test_after_hello_again_the_agent_returns_at_once(console, make_agent):
    make_agent(runtime="simulated")
    await console.connected()
    for count in range(2, 6):
        connection = console.connection
        await connection.send(protocol.encode(Goodbye(Close.HELLO_AGAIN, "hold on")))
        await connection.close(Close.HELLO_AGAIN)
        await console.until(lambda count=count: len(console.hellos) == count)


class Listener:
    """A machine that says hello, and keeps what it is told."""

    name = "listener"

    def __init__(self) -> None:
        self.told: list[ToAgent | str] = []

    def hello(self, local_address: str) -> Hello:
        return Hello(VERSION, "0", "boot", 0.0, Inventory("listener", "simulated", 1_000, 1 << 30), 30)

    def on_message(self, message: ToAgent) -> None:
        self.told.append(message)

    def on_disconnected(self) -> None:
        self.told.append("disconnected")


async def test_an_agent_whose_welcome_is_lost_says_hello_again(console, monkeypatch):
    """Without it there is no heartbeat, and so the machine would be lost while its connection stands."""
    monkeypatch.setattr(connection, "WELCOME_SECONDS", 0.2)
    console.welcomes = False  # the set of assignments comes, which is no welcome
    listener = Listener()
    running = asyncio.create_task(Connection(console.url, lambda: "token", listener).run())
    await console.until(lambda: len(console.hellos) == 2)
    console.welcomes = True
    await eventually(lambda: any(isinstance(message, Welcome) for message in listener.told))
    assert [isinstance(each, Assignments) for each in listener.told[:2]] == [True, False]
    assert listener.told[1] == "disconnected"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_removed_machine_stops_its_workers_and_its_agent_ends(console, make_agent):
    agent = make_agent()
    item = order("sleep", "1000")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    connection = console.connection
    await connection.send(protocol.encode(Goodbye(Close.REMOVED, "the machine was removed")))
    await connection.close(Close.REMOVED)
    assert await asyncio.to_thread(agent.process.wait, 30) == 0
    assert agent.processes_of(item) == []
    assert len(console.hellos) == 1
    assert not (agent.state / "token").exists()  # so that it can join again


async def test_old_output_is_dropped_and_the_gap_can_be_seen(console, make_agent):
    console.log_keep_bytes = 2 << 20
    agent = make_agent()
    item = order("/bin/sh", "-c", "yes 0123456789abcdef | head -c 10000000; echo; echo end")
    await console.assign(item)
    await console.ended(item.attempt)

    size = 10000000 + len("\nend\n")
    log = agent.state / "attempts" / item.attempt / "output.log"
    await eventually(lambda: output.read(log, 0, 10).start > 0)
    start = (await console.call(ReadLog(item.attempt, 0, 10))).start
    assert 2 << 20 <= size - start < 4 << 20
    assert (await console.call(TailLog(item.attempt, 1, 100))).data == b"end\n"
    assert log.stat().st_size == size
