"""Hints to open pages: each page hears of its own run or workspace, and of nothing else."""

from collections.abc import Callable

import pytest
from channels.testing import WebsocketCommunicator
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.utils import timezone

from astraconsole import asgi, events
from astraconsole.tenancy.models import Membership, User
from astraconsole.tenancy.permissions import Role
from runs.consumers import pages
from runs.services import stopping
from tests.fleet import in_database
from tests.world import World, make_world

pytestmark = pytest.mark.django_db(transaction=True)
SECONDS = 30


@pytest.fixture
def world(transactional_db: None) -> World:
    return make_world()


async def page_of(world: World, path: str, who: User | None = None) -> WebsocketCommunicator:
    """The websocket of an open page of acme/vision."""
    key = await in_database(lambda: session_of(who or world.members[Role.VIEWER]))
    headers = [(b"cookie", f"sessionid={key}".encode()), (b"origin", b"http://localhost"), (b"host", b"localhost")]
    socket = WebsocketCommunicator(asgi.application, f"/ws/o/acme/w/vision/{path}", headers)
    opened, _ = await socket.connect(SECONDS)
    assert opened
    return socket


async def leave(socket: WebsocketCommunicator) -> None:
    await socket.disconnect(timeout=SECONDS)
    await in_database(lambda: None)  # closes the connection of the thread that consumers read on


def session_of(user: User) -> str:
    session = SessionStore()
    session["_auth_user_id"] = str(user.pk)
    session["_auth_user_backend"] = "django.contrib.auth.backends.ModelBackend"
    session["_auth_user_hash"] = user.get_session_auth_hash()
    session.create()
    return str(session.session_key)


@pytest.mark.parametrize("path", ["runs", "jobs/gpu-east/resnet50", "workers/gpu-east/resnet50-0"])
async def test_a_page_hears_that_its_run_changed(world: World, path: str) -> None:
    socket = await page_of(world, path)
    await in_database(lambda: stopping.stop_run(world.access(), world.run, "", timezone.now()))
    assert await socket.receive_from(SECONDS) == "changed"
    await leave(socket)


async def test_a_page_hears_nothing_of_other_runs_and_workspaces(world: World) -> None:
    run = await page_of(world, "jobs/gpu-east/resnet50")
    listing = await page_of(world, "runs")
    await in_database(lambda: events.runs_changed(world.workspace.pk + 1000, [world.cluster.uid]))
    assert await run.receive_nothing(0.5)
    assert await listing.receive_nothing(0.1)
    await leave(run)
    await leave(listing)


async def test_a_burst_of_changes_is_few_hints(world: World) -> None:
    socket = await page_of(world, "runs")
    for _ in range(200):
        await in_database(lambda: events.runs_changed(world.workspace.pk, [world.run.uid]))
    assert await socket.receive_from(SECONDS) == "changed"
    hints = 1
    while not await socket.receive_nothing(3 * pages.GAP_SECONDS):
        await socket.receive_from(SECONDS)
        hints += 1
    assert hints < 50
    await leave(socket)


def leaves_the_workspace(user: User) -> None:
    Membership.objects.filter(user=user).delete()


def signs_out(user: User) -> None:
    Session.objects.all().delete()


def changes_the_password(user: User) -> None:
    user.set_password("another one")
    user.save()


def is_deactivated(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


@pytest.mark.parametrize("ends", [leaves_the_workspace, signs_out, changes_the_password, is_deactivated])
async def test_somebody_who_may_not_look_any_more_stops_hearing(
    world: World, monkeypatch: pytest.MonkeyPatch, ends: Callable[[User], None]
) -> None:
    monkeypatch.setattr(pages, "REJOIN_SECONDS", 0.05)
    socket = await page_of(world, "runs")
    assert await socket.receive_from(SECONDS) == "changed"  # it looks again after every round
    await in_database(lambda: ends(world.members[Role.VIEWER]))
    while (message := await socket.receive_output(SECONDS))["type"] == "websocket.send":
        pass
    assert message == {"type": "websocket.close", "code": pages.GONE}
    await leave(socket)
