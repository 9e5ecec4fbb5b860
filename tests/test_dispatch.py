"""What machines are told: their sets, in one snapshot with their revisions; acknowledgements; calls."""

import asyncio
import threading
import uuid

import pytest
import redis
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

from astraconsole import events
from machines import dispatch, protocol
from machines.models import Assignment
from tests.fleet import a_cluster, a_machine, an_order, end_calls, in_database


@pytest.fixture(autouse=True)
def calls_end():
    yield
    end_calls()


def told(machine) -> protocol.Assignments:
    message = protocol.decode_to_agent(dispatch.sets([machine.pk])[machine.pk].frame)
    assert isinstance(message, protocol.Assignments)
    return message


@pytest.fixture
def machine(db):
    return a_machine(a_cluster(), connection="c1")


def test_a_machine_without_assignments_is_told_an_empty_set(machine):
    assert told(machine) == protocol.Assignments(0, [], [])


def test_an_order_arrives_as_it_was_given(machine):
    order = an_order(args=["a b", '"$x"', ""], env={"K": "é\n"}, gpu_indexes=[3], time_limit_seconds=60.0)
    dispatch.assign([(machine.pk, order)])
    assert told(machine) == protocol.Assignments(1, [order], [])


def test_each_change_counts_the_revision_of_its_machines_up_once(machine):
    other = a_machine(machine.cluster, "gpu-08")
    bystander = a_machine(machine.cluster, "gpu-09")
    orders = [an_order() for _ in range(4)]
    dispatch.assign([(machine.pk, orders[0]), (machine.pk, orders[1]), (other.pk, orders[2])])
    dispatch.assign([(machine.pk, orders[3])])
    assert [told(each).revision for each in (machine, other, bystander)] == [2, 1, 0]
    assert told(machine).orders == [orders[0], orders[1], orders[3]]


def test_a_withdrawn_attempt_leaves_the_set(machine):
    kept, gone = an_order(), an_order()
    dispatch.assign([(machine.pk, kept), (machine.pk, gone)])
    dispatch.withdraw([uuid.UUID(gone.attempt)])
    assert told(machine) == protocol.Assignments(2, [kept], [])


def test_withdrawing_what_is_not_assigned_changes_no_revision(machine):
    dispatch.withdraw([uuid.uuid4()])
    assert told(machine).revision == 0


def test_an_attempt_that_has_ended_leaves_the_set_without_a_new_revision(machine):
    order = an_order()
    dispatch.assign([(machine.pk, order)])
    dispatch.settle([uuid.UUID(order.attempt)])
    assert told(machine) == protocol.Assignments(1, [], [])


def test_an_attempt_to_forget_is_listed_until_the_machine_has_forgotten_it(machine):
    running, ended = an_order(), uuid.uuid4()
    dispatch.assign([(machine.pk, running)])
    dispatch.forget([(machine.pk, uuid.UUID(running.attempt)), (machine.pk, ended)])
    assert set(told(machine).forget) == {running.attempt, ended.hex}
    assert told(machine).orders == []
    dispatch.withdraw([ended])
    assert ended.hex in told(machine).forget, "withdrawing stops; it does not take back that traces are to go"
    dispatch.forgotten([uuid.UUID(running.attempt), ended])
    assert told(machine).forget == []
    assert not Assignment.objects.exists()


def test_an_attempt_to_archive_is_listed_until_that_is_done_and_may_still_be_forgotten(machine):
    running, ended = an_order(), uuid.uuid4()
    dispatch.assign([(machine.pk, running)])
    dispatch.archive([(machine.pk, uuid.UUID(running.attempt)), (machine.pk, ended)])
    assert set(told(machine).archive) == {running.attempt, ended.hex}
    assert told(machine).orders == told(machine).forget == []
    dispatch.settle([uuid.UUID(running.attempt)])
    assert running.attempt in told(machine).archive
    dispatch.forget([(machine.pk, ended)])
    dispatch.archive([(machine.pk, ended)])
    assert told(machine).forget == [ended.hex], "what is to go does not come back"
    dispatch.archived([uuid.UUID(running.attempt), ended])
    assert told(machine).archive == []
    assert told(machine).forget == [ended.hex]


def test_that_an_attempt_was_forgotten_takes_no_order_away(machine):
    order = an_order()
    dispatch.assign([(machine.pk, order)])
    dispatch.forgotten([uuid.UUID(order.attempt)])
    assert told(machine).orders == [order]


def test_all_changed_machines_are_read_in_three_queries(machine, django_assert_num_queries):
    machines = [machine, *(a_machine(machine.cluster, f"m{n}") for n in range(5))]
    dispatch.assign([(each.pk, an_order()) for each in machines for _ in range(3)])
    with django_assert_num_queries(3):
        sets = dispatch.sets([each.pk for each in machines])
    assert {len(protocol.decode_to_agent(item.frame).orders) for item in sets.values()} == {3}


def test_an_assignment_costs_the_same_queries_for_any_number(machine, django_assert_num_queries):
    others = [a_machine(machine.cluster, f"m{n}") for n in range(10)]
    with django_assert_num_queries(2):
        dispatch.assign([(each.pk, an_order()) for each in others for _ in range(8)])


# ---- through the channel layer ---------------------------------------------------------------------------------------


class Listener:
    """Who listens to groups of the channel layer as a consumer does."""

    async def join(self, group: str) -> "Listener":
        self.layer = get_channel_layer()
        self.channel = await self.layer.new_channel()
        await self.layer.group_add(group, self.channel)
        return self

    async def hear(self) -> dict:
        async with asyncio.timeout(10):
            return await self.layer.receive(self.channel)


async def test_synchronous_code_and_the_layer_itself_reach_the_same_group():
    listener = await Listener().join("run.1")
    await asyncio.to_thread(events.send_groups, [("run.1", {"type": "a", "frame": b"\0"}), ("run.1", {"type": "b"})])
    await listener.layer.group_send("run.1", {"type": "c"})
    assert [await listener.hear() for _ in "abc"] == [{"type": "a", "frame": b"\0"}, {"type": "b"}, {"type": "c"}]


def test_a_hint_that_cannot_be_sent_harms_nobody(monkeypatch, caplog):
    monkeypatch.setattr(events, "_redis", redis.Redis(unix_socket_path="/nowhere/redis.sock"))
    events.send_group("run.1", {"type": "a"})
    assert "Hints were not sent" in caplog.text


@pytest.mark.django_db(transaction=True)
class TestPushes:
    async def test_a_set_is_pushed_once_its_transaction_has_committed(self):
        machine = await in_database(lambda: a_machine(a_cluster(), connection="c1"))
        listener = await Listener().join(events.machine_group(machine.uid))
        order, refused = an_order(), an_order()

        def change():
            with transaction.atomic():
                dispatch.assign([(machine.pk, refused)])
                transaction.set_rollback(True)
            with transaction.atomic():
                dispatch.assign([(machine.pk, order)])

        await in_database(change)
        message = await listener.hear()
        assert message["type"] == "agent.frame"
        assert protocol.decode_to_agent(message["frame"]) == protocol.Assignments(1, [order], [])

    async def test_reports_are_acknowledged_in_one_frame_for_each_machine(self):
        machine = uuid.uuid4()
        attempts = [uuid.uuid4(), uuid.uuid4()]
        listener = await Listener().join(events.machine_group(machine))
        items = [(machine, attempts[0], 4), (uuid.uuid4(), uuid.uuid4(), 1), (machine, attempts[1], 7)]
        await asyncio.to_thread(dispatch.acknowledge, items)
        message = await listener.hear()
        expected = protocol.Acknowledge([(attempts[0].hex, 4), (attempts[1].hex, 7)])
        assert protocol.decode_to_agent(message["frame"]) == expected


# ---- calls -----------------------------------------------------------------------------------------------------------

CHUNK = protocol.LogChunk(0, b"hello\xff", 6, ended=False)
REQUEST = protocol.ReadLog("a" * 32, 0, 100)


async def serve_one(listener: Listener, *, taken: bool = True, answer: protocol.Answer | None = CHUNK) -> None:
    """What the consumer of a machine does with a call."""
    message = await listener.hear()
    call = protocol.decode_to_agent(message["frame"])
    assert isinstance(call, protocol.Call)
    assert call.request == REQUEST
    if taken:
        await dispatch.call_taken(message["reply_to"], call.id)
    if answer is not None:
        await dispatch.call_answered(message["reply_to"], protocol.Reply(call.id, answer))


async def test_a_call_brings_the_machines_answer():
    machine = uuid.uuid4()
    listener = await Listener().join(events.machine_group(machine))
    serving = asyncio.create_task(serve_one(listener))
    assert await dispatch.call(machine, REQUEST, timeout=10) == CHUNK
    await serving


async def test_many_calls_at_once_get_each_its_own_answer():
    machines = [uuid.uuid4() for _ in range(20)]
    answers = [protocol.LogChunk(number, b"", number, ended=True) for number in range(20)]
    listeners = [await Listener().join(events.machine_group(machine)) for machine in machines]
    serving = [serve_one(listener, answer=answer) for listener, answer in zip(listeners, answers, strict=True)]
    calls = [dispatch.call(machine, REQUEST, timeout=10) for machine in machines]
    assert (await asyncio.gather(*calls, *serving))[:20] == answers


async def test_a_call_to_a_machine_that_nobody_has_a_connection_of_is_unreachable(monkeypatch):
    monkeypatch.setattr(dispatch, "TAKEN_SECONDS", 0.1)
    with pytest.raises(dispatch.Unreachable):
        await dispatch.call(uuid.uuid4(), REQUEST, timeout=10)


async def test_a_call_that_is_not_answered_in_time_says_so():
    machine = uuid.uuid4()
    listener = await Listener().join(events.machine_group(machine))
    serving = asyncio.create_task(serve_one(listener, answer=None))
    with pytest.raises(dispatch.CallTimeout):
        await dispatch.call(machine, REQUEST, timeout=0.5)
    await serving


def test_a_call_works_from_synchronous_code():
    machine = uuid.uuid4()
    ready = threading.Event()

    async def serve() -> None:
        listener = await Listener().join(events.machine_group(machine))
        ready.set()
        await serve_one(listener)

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    ready.wait(10)
    assert async_to_sync(dispatch.call)(machine, REQUEST, timeout=10) == CHUNK
    server.join(10)
