"""Streams of events: what happens arrives, once, in order, over breaks; and nothing arrives for who may not listen."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator

from astraconsole import asgi
from astraconsole.tenancy import services as tenancy
from astraconsole.tenancy.models import AuditEvent
from astraconsole.tenancy.permissions import Role
from runs import event_queries
from runs.consumers import event_stream
from tests import builders
from tests.api_calls import WORKSPACE
from tests.builders import T0
from tests.fleet import in_database
from tests.world import World, make_world

SSE, LINES = "text/event-stream", "application/x-ndjson"
WAIT = 30  # seconds at most for what is to come


@pytest.fixture
def world(transactional_db: None) -> World:
    return make_world()


class Listener:
    """A client of one stream."""

    def __init__(self, world: World, role: Role | None = Role.VIEWER, query: str = "", last: str = "", form: str = SSE):
        headers = [(b"accept", form.encode())]
        if role is not None:
            headers.append((b"authorization", world.bearer(role)["HTTP_AUTHORIZATION"].encode()))
        if last:
            headers.append((b"last-event-id", last.encode()))
        scope = {"type": "http", "method": "GET", "path": f"{WORKSPACE}/events", "headers": headers}
        scope |= {"query_string": query.encode(), "http_version": "1.1", "scheme": "http"}
        self.communicator = ApplicationCommunicator(asgi.application, scope)
        self.status = 0
        self.text = ""

    async def start(self) -> None:
        await self.communicator.send_input({"type": "http.request", "body": b""})
        self.status = (await self.communicator.receive_output(WAIT))["status"]

    async def read(self) -> bool:
        """More of the body; False when it has ended."""
        message = await self.communicator.receive_output(WAIT)
        self.text += message.get("body", b"").decode()
        return bool(message.get("more_body"))

    async def messages(self, count: int) -> list[dict[str, str]]:
        """The next so many messages with data, as their fields."""
        async with asyncio.timeout(2 * WAIT):
            return await self._messages(count)

    async def _messages(self, count: int) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        while len(found) < count:
            while "\n\n" not in self.text:
                await self.read()
            block, _, self.text = self.text.partition("\n\n")
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            if "data" in fields:
                found.append(fields)
            else:
                self.last = fields["id"]
        return found

    async def refusal(self) -> dict[str, Any]:
        while await self.read():
            pass
        return json.loads(self.text)


@asynccontextmanager
async def listening(world: World, *args: Any, **options: Any) -> AsyncIterator[Listener]:
    listener = Listener(world, *args, **options)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.communicator.send_input({"type": "http.disconnect"})
        await listener.communicator.wait(WAIT)


async def submit(world: World, name: str) -> None:
    await in_database(lambda: builders.submit(world.access(), world.cluster, name, cpu=1))


async def test_what_happens_arrives_with_ids_that_a_new_connection_goes_on_from(world: World) -> None:
    async with listening(world, query="kind=run&tail=1") as first:
        (old,) = await first.messages(1)
        assert json.loads(old["data"])["name"] == "resnet50"
        await submit(world, "one")
        (heard,) = await first.messages(1)
    assert json.loads(heard["data"])["id"] == heard["id"]
    for name in ("two", "three"):
        await submit(world, name)
    async with listening(world, query="kind=run&tail=1", last=heard["id"]) as second:
        await submit(world, "four")
        names = [json.loads(message["data"])["name"] for message in await second.messages(3)]
    assert names == ["two", "three", "four"]


async def test_a_stream_that_has_heard_nothing_yet_says_where_to_go_on(world: World) -> None:
    async with listening(world) as first:
        while "id: " not in first.text:
            await first.read()
        reached = first.text.strip().removeprefix("id: ")
    await submit(world, "meanwhile")
    async with listening(world, last=reached) as second:
        assert json.loads((await second.messages(1))[0]["data"])["name"] == "meanwhile"


async def test_every_event_of_busy_writers_arrives_once_and_in_the_lists_order(world: World) -> None:
    async def write(number: int) -> None:
        for step in range(10):
            await submit(world, f"busy-{number}-x{step}")

    async with listening(world, query="kind=worker") as stream:
        writers = asyncio.gather(*(write(number) for number in range(4)))
        heard = [message["id"] for message in await stream.messages(40)]
        await writers
    listed = await in_database(
        lambda: event_queries.newest(world.workspace.pk, event_queries.wanted("", "worker", ""), limit=40)
    )
    assert heard == [str(event.position) for event in reversed(listed.items)]


async def test_json_lines_are_events_too(world: World) -> None:
    async with listening(world, form=LINES, query="tail=3") as stream:
        while stream.text.count("\n") < 3:
            await stream.read()
    events = [json.loads(line) for line in stream.text.splitlines()]
    assert [event["kind"] for event in events] == ["schedule", "run", "worker"]


async def test_a_stream_whose_hints_are_lost_looks_by_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "IDLE_SECONDS", 0.2)
    values = {"workspace": world.workspace, "kind": "member", "name": "ada", "state": "Added", "actor": "x", "at": T0}
    async with listening(world) as stream:
        await in_database(lambda: AuditEvent.objects.create(**values))
        assert json.loads((await stream.messages(1))[0]["data"])["name"] == "ada"


async def test_a_stream_ends_when_its_listener_is_a_member_no_more(world: World) -> None:
    async with listening(world) as stream:
        await in_database(lambda: tenancy.remove_member(world.access(Role.ADMIN), world.member_id))
        while await stream.read():
            pass
    assert '"code": "NOT_FOUND"' in stream.text
    assert "event: end" in stream.text
    assert "Removed" not in stream.text


@pytest.mark.parametrize(
    ("role", "query", "last", "status", "code"),
    [
        (None, "", "", 401, "UNAUTHENTICATED"),
        (Role.VIEWER, "kind=x", "", 400, "VALIDATION_ERROR"),
        (Role.VIEWER, "tail=501", "", 400, "VALIDATION_ERROR"),
        (Role.VIEWER, "tail=1&after=1.0.1", "", 400, "VALIDATION_ERROR"),
        (Role.VIEWER, "", "tomorrow", 400, "VALIDATION_ERROR"),
        (Role.VIEWER, "limit=3", "", 400, "UNKNOWN_FIELD"),
    ],
)
async def test_a_stream_is_refused_as_the_api_refuses(
    world: World, role: Role | None, query: str, last: str, status: int, code: str
) -> None:
    async with listening(world, role, query=query, last=last) as stream:
        assert stream.status == status
        assert (await stream.refusal())["code"] == code


async def test_a_stranger_finds_no_stream(world: World) -> None:
    stranger = Listener(world, None)
    header = world.bearer(world.neighbour)["HTTP_AUTHORIZATION"].encode()
    stranger.communicator.scope["headers"].append((b"authorization", header))
    await stranger.start()
    assert (stranger.status, (await stranger.refusal())["code"]) == (404, "NOT_FOUND")


async def test_nobody_has_more_streams_than_the_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "STREAMS_MAX", 1)
    async with listening(world):
        async with listening(world) as second:
            assert (second.status, (await second.refusal())["code"]) == (429, "TOO_MANY_REQUESTS")
        async with listening(world, Role.EDITOR) as other:
            assert other.status == 200
    async with listening(world) as third:
        assert third.status == 200
