"""Two agents with one machine's token and state: a copied directory, a cloned disk, a machine that was started anew."""

from datetime import timedelta

import pytest
from django.utils import timezone

from machines import connections, dispatch, services
from machines.models import Assignment, Machine, MachineEvent, MachineState
from machines.protocol import Close
from tests.fleet import TOKEN, Agent, a_hello, an_order, in_database, reread

pytestmark = pytest.mark.django_db(transaction=True)

HERE, THERE = {"place": "here", "boot_id": "boot-1"}, {"place": "there", "boot_id": "boot-1"}
CLONED = {"place": "here", "boot_id": "boot-2"}


async def turned_away(**hello: object) -> tuple[Close, str]:
    agent = Agent(TOKEN)
    assert await agent.connect()
    await agent.say(a_hello(**hello))
    goodbye = await agent.hear()
    await agent.leave()
    return Close(goodbye.code), goodbye.reason


async def silence(machine: Machine) -> None:
    """Nothing was heard of its agent for a while; its connection stands."""
    await in_database(lambda: Machine.objects.update(last_seen_at=timezone.now() - timedelta(minutes=1)))


@pytest.mark.parametrize("other", [THERE, CLONED], ids=["a copied directory", "a cloned disk"])
async def test_a_second_agent_is_turned_away_while_the_first_is_heard(machine, other):
    first = Agent(TOKEN)
    await first.greet(**HERE)
    for _ in range(2):
        assert await turned_away(**other) == (Close.IN_USE, connections.IN_USE)
    connected = await reread(machine)
    assert (connected.place, connected.boot_id, connected.state) == ("here", "boot-1", MachineState.READY)
    told = await in_database(lambda: list(MachineEvent.objects.order_by("id").values_list("reason", flat=True)))
    assert told == ["Has connected", "A second agent with its token is turned away: host-7"]
    await first.leave()


async def test_the_same_agent_may_connect_anew_at_any_time(machine):
    first, second = Agent(TOKEN), Agent(TOKEN)
    await first.greet(**HERE)
    await second.greet(**HERE)
    await first.is_closed(Close.REPLACED)
    await second.leave()


async def test_a_machine_that_was_started_anew_is_taken_when_its_old_connection_is_silent(machine):
    first, second = Agent(TOKEN), Agent(TOKEN)
    await first.greet(**HERE)
    await silence(machine)
    await second.greet(**CLONED)
    assert (await reread(machine)).boot_id == "boot-2"
    await first.is_closed(Close.REPLACED)
    await second.leave()


async def test_another_place_gets_no_order_that_the_first_one_had(machine):
    """It would start it a second time. What the first had is taken back as a lost machine's; then it may take over."""
    first = Agent(TOKEN)
    await first.greet(**HERE)
    await in_database(lambda: dispatch.assign([(machine.pk, an_order())]))
    await first.leave()
    assert await turned_away(**THERE) == (Close.TRY_AGAIN, connections.GIVING_UP)
    lost = await reread(machine)
    assert (lost.state, lost.state_reason) == ("Lost", "Machine lost: its agent runs in another place: host-7")
    assert await in_database(lambda: services.expire_leases(timezone.now())) == [machine.pk]
    assert (await turned_away(**THERE))[0] == Close.TRY_AGAIN
    await in_database(Assignment.objects.all().delete)
    second = Agent(TOKEN)
    assert (await second.greet(**THERE)).orders == []
    taken = await reread(machine)
    assert (taken.place, taken.state) == ("there", MachineState.READY)
    await second.leave()


async def test_an_older_agent_that_names_no_place_is_taken_as_before(machine):
    first, second = Agent(TOKEN), Agent(TOKEN)
    await first.greet(**HERE)
    await second.greet(place="", boot_id="boot-1")
    await first.is_closed(Close.REPLACED)
    await second.leave()
