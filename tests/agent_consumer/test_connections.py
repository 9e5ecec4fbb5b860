"""The connection of an agent: who is let in, its hello, its newest connection, its end in an outage."""

import asyncio
import uuid
from datetime import UTC, datetime

import msgspec
import pytest
import redis
from django.conf import settings

from machines import connections, dispatch, inbox, presence, protocol, services
from machines.models import Gpu, Machine, MachineState
from machines.protocol import Close
from tests.fleet import (
    TOKEN,
    Agent,
    a_hello,
    a_machine,
    a_member,
    a_report,
    an_order,
    drained,
    in_database,
    reread,
    until,
)

pytestmark = pytest.mark.django_db(transaction=True)


# ---- the door --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "another token"])
async def test_an_unknown_token_is_refused_in_the_handshake(machine, token):
    assert not await Agent(token).connect()


async def test_a_removed_machine_is_told_to_stop_its_work(machine):
    await in_database(lambda: Machine.objects.update(state=MachineState.REMOVED))
    agent = Agent(TOKEN)
    assert await agent.connect()
    assert "removed" in await agent.is_closed(Close.REMOVED)


async def test_who_says_nothing_is_closed(machine):
    agent = Agent(TOKEN)
    assert await agent.connect()
    [connection] = presence.presence()._connections
    connection.opened_at -= presence.HELLO_SECONDS + 1
    await agent.is_closed(Close.NO_HELLO)


# ---- hello -----------------------------------------------------------------------------------------------------------


async def test_a_hello_makes_the_machine_ready_and_is_answered_with_its_set(machine):
    order, gone = an_order(), uuid.uuid4()
    await in_database(lambda: dispatch.assign([(machine.pk, order)]))
    await in_database(lambda: dispatch.forget([(machine.pk, gone)]))
    agent = Agent(TOKEN)
    assert await agent.connect()
    gpu = protocol.Gpu(0, "GPU-1", "NVIDIA H100", 80 * 2**30, simulated=True)
    inventory = protocol.Inventory("host-7", "docker", 8000, 2**34, [gpu], {"pool": "train"})
    await agent.say(a_hello(inventory=inventory, agent_version="2.1", boot_id="boot-9", stop_grace_seconds=5.0))
    assert await agent.hear() == protocol.Welcome(
        console=machine.cluster.uid.hex,
        machine="gpu-07",
        heartbeat_seconds=settings.MACHINE_HEARTBEAT_SECONDS,
        resend_seconds=settings.MACHINE_HEARTBEAT_SECONDS,
        log_keep_bytes=settings.LOG_KEEP_BYTES,
    )
    assert await agent.hear() == protocol.Assignments(2, [order], [gone.hex])
    await reread(machine)
    assert machine.state == MachineState.READY
    assert (machine.hostname, machine.runtime, machine.cpu_milli) == ("host-7", "docker", 8000)
    assert (machine.labels, machine.memory_bytes, machine.stop_grace_seconds) == ({"pool": "train"}, 2**34, 5.0)
    assert (machine.agent_version, machine.boot_id) == ("2.1", "boot-9")
    assert machine.connection
    assert machine.last_seen_at is not None
    stored = await in_database(lambda: Gpu.objects.get(machine=machine))
    assert (stored.index, stored.uuid, stored.memory_bytes, stored.simulated) == (0, "GPU-1", 80 * 2**30, True)
    await agent.leave()


@pytest.mark.parametrize(("declared", "address"), [("10.0.0.7", "10.0.0.7"), ("", "10.0.0.9")])
async def test_where_others_reach_a_machine_is_what_it_says_or_what_the_console_sees(agent, machine, declared, address):
    await agent.say(a_hello(inventory=protocol.Inventory("host-7", "docker", 1, 1, address=declared)))
    assert isinstance(await agent.hear(), protocol.Welcome)
    await reread(machine)
    assert machine.address == address


async def test_a_second_hello_brings_the_changed_inventory(agent, machine):
    healthy = [protocol.Gpu(index, f"GPU-{index}", "H100", 1) for index in range(3)]
    sick = protocol.Gpu(1, "GPU-1", "H100", 1, healthy=False, health_reason="Xid 79")
    for gpus in (healthy, [healthy[0], sick]):
        await agent.say(a_hello(inventory=protocol.Inventory("host-7", "docker", 1, 1, gpus)))
        assert isinstance(await agent.hear(), protocol.Welcome)
        assert isinstance(await agent.hear(), protocol.Assignments)
    rows = await in_database(
        lambda: list(machine.gpus.order_by("index").values_list("index", "healthy", "health_reason"))
    )
    assert rows == [(0, True, ""), (1, False, "Xid 79")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (MachineState.JOINING, MachineState.READY),
        (MachineState.READY, MachineState.READY),
        (MachineState.LOST, MachineState.READY),
        (MachineState.STOPPING, MachineState.STOPPING),
    ],
)
async def test_what_a_hello_makes_of_a_machine(machine, before, after):
    await in_database(lambda: Machine.objects.update(state=before, state_reason="something"))
    agent = Agent(TOKEN)
    await agent.greet()
    assert (await reread(machine)).state == after
    await agent.leave()


async def test_the_attempts_of_a_hello_go_to_the_inbox(machine):
    known = [uuid.uuid4().hex, uuid.uuid4().hex]
    agent = Agent(TOKEN)
    await agent.greet(attempts=known)
    entries = []
    while not entries:
        entries = await drained(machine)
    assert [(entry.machine_id, entry.hello) for entry in entries] == [(machine.pk, known)]
    await agent.leave()


async def test_an_agent_of_another_version_is_told_which_side_to_upgrade(machine):
    for version, side in ((0, "agent"), (9, "console")):
        agent = Agent(TOKEN)
        assert await agent.connect()
        await agent.say(a_hello(version=version))
        assert (await agent.is_closed(Close.VERSION)).endswith(f"upgrade the {side}")


async def test_a_hello_of_the_future_that_cannot_be_read_is_told_the_same(machine):
    agent = Agent(TOKEN)
    assert await agent.connect()
    await agent.socket.send_to(bytes_data=msgspec.msgpack.encode({"type": "hello", "version": 9, "new": True}))
    assert "version 9" in await agent.is_closed(Close.VERSION)


# ---- two connections of one machine ----------------------------------------------------------------------------------


async def test_the_newest_connection_wins_and_the_older_is_closed(agent, machine):
    newer = Agent(TOKEN)
    await newer.greet()
    await agent.is_closed(Close.REPLACED)
    connection = (await reread(machine)).connection
    await agent.leave()
    assert (await reread(machine)).connection == connection, "the older one's end is not the machine's"
    order = an_order()
    await in_database(lambda: dispatch.assign([(machine.pk, order)]))
    assert await newer.hear() == protocol.Assignments(1, [order], [])
    await newer.leave()
    assert (await reread(machine)).connection == ""


async def test_an_older_connection_that_was_not_told_is_closed_at_its_next_heartbeat(agent, machine):
    await in_database(lambda: Machine.objects.update(connection="newer", last_seen_at=None))
    await agent.say(protocol.Heartbeat(0, 1.0))
    await agent.is_closed(Close.REPLACED)
    assert (await reread(machine)).last_seen_at is None


async def test_of_two_hellos_at_once_exactly_one_connection_stays(machine):
    agents = [Agent(TOKEN), Agent(TOKEN)]
    for agent in agents:
        assert await agent.connect()
    await asyncio.gather(*(agent.say(a_hello()) for agent in agents))
    heard = [[await agent.hear(), await agent.hear()] for agent in agents]
    assert [[type(message) for message in messages] for messages in heard] == [
        [protocol.Welcome, protocol.Assignments]
    ] * 2
    silent = [await agent.hears_nothing() for agent in agents]
    assert sorted(silent) == [False, True]
    await agents[silent.index(False)].is_closed(Close.REPLACED)
    await agents[silent.index(True)].leave()
    assert (await reread(machine)).connection == ""


async def test_a_machine_that_is_removed_is_told_so_at_once(agent, machine):
    def remove():
        services.remove(a_member(machine.cluster.namespaces.get().workspace), machine)

    await in_database(remove)
    await agent.is_closed(Close.REMOVED)


# ---- outages ---------------------------------------------------------------------------------------------------------


async def test_a_flush_of_redis_costs_a_machine_nothing(agent, machine, store):
    store.flushall()
    order = an_order()
    await in_database(lambda: dispatch.assign([(machine.pk, order)]))
    assert await agent.hear() == protocol.Assignments(1, [order], [])
    report = a_report()
    await agent.say(protocol.Reports([report]))
    entries = []

    async def came():
        entries.extend(await drained(machine))
        return bool(entries)

    await until(came)
    assert entries[-1].report == report


async def test_reports_that_redis_does_not_take_are_dropped_and_the_connection_stays(agent, machine, monkeypatch):
    async def away(*args, **content):
        raise redis.ConnectionError("away")

    monkeypatch.setattr(inbox, "append", away)
    await agent.say(protocol.Reports([a_report()]))
    assert await agent.hears_nothing()
    order = an_order()
    await in_database(lambda: dispatch.assign([(machine.pk, order)]))
    assert isinstance(await agent.hear(), protocol.Assignments)


async def test_groups_are_joined_again_every_minute(agent, machine, monkeypatch):
    [connection] = presence.presence()._connections
    await connection.channel_layer.group_discard(f"machine.{machine.uid.hex}", connection.channel_name)
    connection.joined_at -= presence.REJOIN_SECONDS + 1

    async def is_told():
        await in_database(lambda: dispatch.close(machine.uid, Close.TRY_AGAIN, "a test"))
        return not await agent.hears_nothing()

    await until(is_told)


async def test_a_thousand_agents_that_come_back_at_once_cost_a_handful_of_queries(
    machine, django_assert_max_num_queries
):
    def greet(number_of_machines: int) -> list[connections.Greeting | connections.Refused]:
        machines = Machine.objects.bulk_create(
            Machine(cluster=machine.cluster, name=f"m{number}", token_digest=str(number))
            for number in range(number_of_machines)
        )
        hello = a_hello(inventory=protocol.Inventory("h", "docker", 1, 1, [protocol.Gpu(0, "GPU-1", "H100", 1)]))
        arrivals = [connections.Arrival(each.pk, each.name, hello, datetime.now(UTC)) for each in machines]
        with django_assert_max_num_queries(11):
            return connections.connected(arrivals)

    answers = await in_database(lambda: greet(1000))
    assert len(answers) == 1000
    assert not any(isinstance(answer, connections.Refused) for answer in answers)
    assert (
        await in_database(lambda: Machine.objects.filter(state=MachineState.READY).exclude(connection="").count())
        == 1000
    )
    assert await in_database(lambda: Gpu.objects.count()) == 1000


async def test_a_removed_machine_among_those_that_come_back_is_left_out(machine):
    def greet() -> list[connections.Greeting | connections.Refused]:
        gone = a_machine(machine.cluster, "gone", state=MachineState.REMOVED)
        return connections.connected(
            [connections.Arrival(each.pk, "c", a_hello(), datetime.now(UTC)) for each in (gone, machine)]
        )

    answers = await in_database(greet)
    assert [answer == connections.REMOVED for answer in answers] == [True, False]


async def test_a_hello_that_the_inbox_does_not_take_is_to_be_said_again(machine, monkeypatch):
    async def away(*args):
        raise redis.ConnectionError("away")

    monkeypatch.setattr(inbox, "append", away)
    agent = Agent(TOKEN)
    await agent.greet()
    await agent.is_closed(Close.TRY_AGAIN)
    await agent.leave()
