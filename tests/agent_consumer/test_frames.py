"""What an agent says and is told on its connection."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from django.utils import timezone

from machines import connections, dispatch, inbox, presence, protocol
from machines.connections import Beat
from machines.models import Liveness, Machine, MachineState
from machines.orders import Order
from machines.protocol import Close
from tests.fleet import (
    TOKEN,
    Agent,
    a_machine,
    a_report,
    an_order,
    drained,
    in_database,
    reread,
    until,
)

pytestmark = pytest.mark.django_db(transaction=True)


# ---- malformed frames ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\xff" * 100,
        msgspec.msgpack.encode({"type": "nonsense"}),
        msgspec.msgpack.encode({"type": "reports", "items": [{"attempt": "x"}]}),
        protocol.encode(protocol.Goodbye(1, "the wrong way round")),
    ],
)
async def test_a_malformed_frame_closes_the_connection(machine, frame):
    agent = Agent(TOKEN)
    await agent.greet()
    await agent.socket.send_input({"type": "websocket.receive", "bytes": frame})
    await agent.is_closed(Close.MALFORMED)
    await agent.leave()
    assert (await reread(machine)).connection == ""


async def test_text_is_malformed(agent):
    await agent.socket.send_to(text_data="hello")
    await agent.is_closed(Close.MALFORMED)


async def test_a_heartbeat_before_the_hello_is_malformed(machine):
    agent = Agent(TOKEN)
    assert await agent.connect()
    await agent.say(protocol.Heartbeat(0, 1.0))
    await agent.is_closed(Close.MALFORMED)


async def test_a_frame_that_is_too_large_closes_the_connection(agent):
    await agent.socket.send_to(bytes_data=b"\0" * (protocol.MAX_BYTES_FROM_AGENT + 1))
    await agent.is_closed(Close.TOO_LARGE)


# ---- heartbeats ------------------------------------------------------------------------------------------------------


async def test_a_heartbeat_is_written_with_its_receive_time_and_the_clocks_difference(agent, machine):
    before = timezone.now()
    await agent.say(protocol.Heartbeat(0, (before + timedelta(seconds=300)).timestamp()))

    async def is_written():
        return (await reread(machine)).last_seen_at >= before

    await until(is_written)
    assert 299 < machine.clock_skew_seconds < 301
    assert machine.last_seen_at < before + timedelta(seconds=60), "not the machine's clock"


async def test_a_push_that_was_lost_is_made_good_by_the_next_heartbeat(agent, machine):
    order = an_order()
    await in_database(lambda: _assign_unpushed(machine, order))
    assert await agent.hears_nothing()
    await agent.say(protocol.Heartbeat(0, 1.0))
    assert await agent.hear() == protocol.Assignments(1, [order], [])
    await agent.say(protocol.Heartbeat(1, 1.0))

    async def is_applied():
        return (await reread(machine)).applied_revision == 1

    await until(is_applied)
    assert await agent.hears_nothing()


def _assign_unpushed(machine: Machine, order: Order) -> None:
    """As when Redis is away at the commit."""
    connection = Machine.objects.values_list("connection", flat=True).get(pk=machine.pk)
    Machine.objects.update(connection="")
    dispatch.assign([(machine.pk, order)])
    Machine.objects.update(connection=connection)


async def test_a_thousand_heartbeats_are_written_by_two_queries(machine, django_assert_num_queries):
    def write():
        machines = Machine.objects.bulk_create(
            Machine(cluster=machine.cluster, name=f"m{number}", token_digest=str(number), connection="c")
            for number in range(1000)
        )
        beats = [Beat(each.pk, "c", datetime.now(UTC), 0, 0.25) for each in machines]
        with django_assert_num_queries(2):
            return connections.seen(beats)

    assert await in_database(write) == connections.Seen(frozenset(), {}, {})


async def test_the_daphne_is_known_to_be_alive(agent):
    async def is_alive():
        return await in_database(lambda: Liveness.objects.filter(kind="daphne").exists())

    await until(is_alive)


async def test_a_machine_that_was_lost_meanwhile_is_made_to_say_hello_again(agent, machine):
    await in_database(lambda: Machine.objects.update(state=MachineState.LOST, connection=""))
    await agent.say(protocol.Heartbeat(0, 1.0))
    await agent.is_closed(Close.HELLO_AGAIN)
    again = Agent(TOKEN)
    await again.greet()
    assert (await reread(machine)).state == MachineState.READY
    await again.leave()


# ---- assignments and reports -----------------------------------------------------------------------------------------


async def test_new_assignments_reach_the_machine_at_once(agent, machine):
    order = an_order()
    await in_database(lambda: dispatch.assign([(machine.pk, order)]))
    assert await agent.hear() == protocol.Assignments(1, [order], [])
    await in_database(lambda: dispatch.withdraw([uuid.UUID(order.attempt)]))
    assert await agent.hear() == protocol.Assignments(2, [], [])


async def test_reports_go_to_the_inbox_and_are_acknowledged_once_applied(agent, machine):
    reports = [a_report(seq=number) for number in range(3)]
    await agent.say(protocol.Reports(reports))
    entries = []

    async def all_came():
        entries.extend(entry for entry in await drained(machine) if entry.report)
        return len(entries) == 3

    await until(all_came)
    assert [(entry.machine_id, entry.machine_uid, entry.report) for entry in entries] == [
        (machine.pk, machine.uid, report) for report in reports
    ]
    acknowledged = []
    while len(acknowledged) < 3:
        message = await agent.hear()
        assert isinstance(message, protocol.Acknowledge)
        acknowledged += message.items
    assert acknowledged == [(report.attempt, report.seq) for report in reports]


async def test_reports_and_heartbeats_ask_the_database_nothing_frame_by_frame(agent, machine, monkeypatch):
    asked = []
    monkeypatch.setattr(presence.DatabaseThread, "run", lambda self, function, *args: asked.append(function))
    for number in range(20):
        await agent.say(protocol.Reports([a_report(seq=number)]))
        await agent.say(protocol.Heartbeat(0, 1.0))
    client = presence.presence().redis

    async def all_came():
        return await client.xlen(inbox.stream(machine.cluster_id)) >= 20

    await until(all_came)
    monkeypatch.undo()
    assert len(asked) <= 2, asked  # the loop's own: once a second for all machines


# ---- calls -----------------------------------------------------------------------------------------------------------


async def test_a_call_reaches_the_machine_and_its_answer_the_caller(agent, machine):
    request = protocol.TailLog("a" * 32, 100, 1000)
    calling = asyncio.create_task(dispatch.call(machine.uid, request, timeout=10))
    call = await agent.hear()
    assert isinstance(call, protocol.Call)
    assert (call.request, call.deadline_seconds) == (request, 10)
    chunk = protocol.LogChunk(0, b"\xff" * 256 * 1024, 256 * 1024, ended=True)
    await agent.say(protocol.Reply(call.id, chunk))
    assert await calling == chunk


async def test_a_failure_is_an_answer_too(agent, machine):
    calling = asyncio.create_task(dispatch.call(machine.uid, protocol.ReadLog("a" * 32, 0, 1), timeout=10))
    call = await agent.hear()
    failure = protocol.Failure("not_found", "no such attempt")
    await agent.say(protocol.Reply(call.id, failure))
    assert await calling == failure


async def test_a_machine_cannot_answer_a_call_that_was_made_to_another(agent, machine, caplog):
    other = await in_database(lambda: a_machine(machine.cluster, "gpu-08", token="other"))
    impostor = Agent("other")
    await impostor.greet()
    calling = asyncio.create_task(dispatch.call(machine.uid, protocol.ReadLog("a" * 32, 0, 1), timeout=10))
    call = await agent.hear()
    await impostor.say(protocol.Reply(call.id, protocol.Failure("internal", "forged")))
    assert await impostor.hears_nothing()
    assert "a call that was not made to it" in caplog.text
    answer = protocol.LogChunk(0, b"true", 4, ended=True)
    await agent.say(protocol.Reply(call.id, answer))
    assert await calling == answer
    await impostor.leave()
    assert (await reread(other)).connection == ""


async def test_a_call_to_a_machine_that_is_not_connected_is_unreachable(machine, monkeypatch):
    monkeypatch.setattr(dispatch, "TAKEN_SECONDS", 0.1)
    with pytest.raises(dispatch.Unreachable):
        await dispatch.call(machine.uid, protocol.ReadLog("a" * 32, 0, 1), timeout=10)
