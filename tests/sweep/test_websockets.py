"""Every websocket, for everybody."""

from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.contrib.sessions.backends.db import SessionStore

from astraconsole import asgi
from astraconsole.tenancy.models import User
from astraconsole.tenancy.permissions import Role
from tests.fleet import in_database
from tests.sweep.routes import SOCKETS, address_of
from tests.world import World


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("route", sorted(SOCKETS))
async def test_a_websocket_opens_for_members_only(committed_world: World, route: str) -> None:
    world = committed_world
    address = address_of(route, world)
    assert not await opens(address, None)
    for stranger in (world.stranger, world.neighbour, world.staff):
        assert not await opens(address, stranger)
    for user in world.members.values():
        assert await opens(address, user)
    assert not await opens(address, world.members[Role.ADMIN], origin="https://evil.example")
    await in_database(lambda: None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("headers", [[], [(b"authorization", b"Bearer wrong")]])
async def test_the_agents_websocket_opens_for_machines_only(committed_world: World, headers: list[Any]) -> None:
    communicator = WebsocketCommunicator(asgi.application, "/agent/v1", headers=headers)
    connected, _ = await communicator.connect()
    assert not connected
    await in_database(lambda: None)


async def test_a_websocket_without_a_consumer_is_refused(committed_world: World) -> None:
    assert not await opens("/ws/nothing", committed_world.members[Role.ADMIN])
    await in_database(lambda: None)


async def opens(address: str, user: User | None, origin: str = "http://localhost") -> bool:
    headers = [(b"origin", origin.encode()), (b"host", b"localhost")]
    if user is not None:
        headers.append((b"cookie", f"sessionid={await session_of(user)}".encode()))
    communicator = WebsocketCommunicator(asgi.application, address, headers=headers)
    connected, _ = await communicator.connect(timeout=30)
    if connected:
        await communicator.disconnect(timeout=30)
    return connected


async def session_of(user: User) -> str:
    session = SessionStore()
    session["_auth_user_id"] = str(user.pk)
    session["_auth_user_backend"] = "django.contrib.auth.backends.ModelBackend"
    session["_auth_user_hash"] = user.get_session_auth_hash()
    await session.asave()
    return str(session.session_key)
