"""`/metrics` of the console itself: what it tells, and to whom."""

import re

import pytest
from channels.testing import WebsocketCommunicator
from django.test import Client

from astraconsole.sockets import counted, open_sockets
from astraconsole.tenancy.permissions import Role
from runs import health, tasks
from runs.scheduling import passes
from tests.world import World, make_world

pytestmark = pytest.mark.django_db
LINE = re.compile(r'(astra_[a-z_]+)(\{(?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*\})? (-?[0-9.e+]+|NaN)')


@pytest.fixture
def world() -> World:
    return make_world()


def rows(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            match = LINE.fullmatch(line)
            assert match, line
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


def test_it_tells_runs_queue_machines_inbox_and_passes(client, world, settings):
    settings.METRICS_TOKEN = "scrape-me"
    tasks.tick(world.cluster.pk)
    answer = client.get("/metrics", HTTP_AUTHORIZATION="Bearer scrape-me")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = rows(answer.content.decode())
    east = 'organisation="acme",cluster="gpu-east"'
    assert found[f'astra_runs{{{east},state="Pending"}}'] == 1
    assert found[f'astra_runs{{{east},state="Running"}}'] == 0
    assert found[f"astra_queue_depth{{{east}}}"] == 1
    assert found['astra_machines{organisation="acme",cluster="lab",state="Ready"}'] == 1
    assert found['astra_machines_connected{organisation="acme",cluster="lab"}'] == 1
    assert found[f"astra_inbox_entries{{{east}}}"] == 0
    assert found[f"astra_scheduler_pass_seconds_count{{{east}}}"] >= 1
    assert found['astra_websocket_viewers{kind="page"}'] == 0
    assert "resnet50" not in answer.content.decode()


def test_it_is_for_the_token_and_for_staff(client, world, settings):
    as_program = {"HTTP_ACCEPT": "application/json"}
    assert client.get("/metrics").status_code == 302
    for given in ("", "scrape-me"):
        settings.METRICS_TOKEN = given
        assert client.get("/metrics", HTTP_AUTHORIZATION="Bearer wrong", **as_program).status_code in (302, 401)
        assert client.get("/metrics", HTTP_AUTHORIZATION="Bearer ", **as_program).status_code in (302, 401)
    for who, status in ((world.members[Role.ADMIN], 403), (world.staff, 200)):
        signed_in = Client()
        signed_in.force_login(who)
        assert signed_in.get("/metrics").status_code == status


def test_a_label_cannot_break_out_of_its_quotes():
    family = health.Family("astra_x", "gauge", "X.", [({"name": 'a"} 1\nastra_y 2\\'}, 1)])
    lines = list(family.lines())
    assert lines[2] == 'astra_x{name="a\\"} 1\\nastra_y 2\\\\"} 1'


def test_every_pass_is_counted_with_its_time(world):
    before, _ = passes.counted([world.cluster.pk])[world.cluster.pk]
    assert passes.timed(world.cluster.pk, lambda: True) is True
    count, seconds = passes.counted([world.cluster.pk])[world.cluster.pk]
    assert count == before + 1
    assert seconds > 0


async def test_open_websockets_are_counted_by_kind():
    async def application(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        await receive()

    socket = WebsocketCommunicator(counted(application), "/ws/o/acme/w/vision/jobs/c/r/log")
    await socket.connect(timeout=30)
    assert open_sockets["log"] == 1
    await socket.disconnect(timeout=30)
    assert open_sockets["log"] == 0
