"""The Logs tab, what has come since (websocket and plain), the download."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import pytest
from channels.testing import WebsocketCommunicator
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.test import Client

from astraconsole import asgi
from astraconsole.tenancy.models import Membership, User
from machines import dispatch
from runs.log_feed import _feeds
from runs.models import Attempt
from runs.services.deleting import delete_run
from tests import builders
from tests.fleet import in_database, until
from tests.log_machines import LogMachines

DEADLINE = 60


class World:
    """One running worker, `llama-0` on gpu-07, and somebody who may look at it."""

    def __init__(self) -> None:
        self.workspace = builders.workspace(builders.organisation("acme"))
        self.cluster = builders.cluster(self.workspace)
        self.machine = builders.machine(self.cluster, "gpu-07")
        self.access = builders.access(self.workspace, username="ann")
        self.run = builders.submit(self.access, self.cluster, "llama")
        self.worker = builders.workers(self.run)[0]
        self.attempt: Attempt = builders.run_on(self.worker, self.machine)

    def client(self) -> Client:
        client = Client()
        client.force_login(self.access.user)
        return client


WORKER_PAGE = "/o/acme/w/vision/workers/gpu-east/llama-0"
LINES, DOWNLOAD = f"{WORKER_PAGE}/log/lines", f"{WORKER_PAGE}/log/download"


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogMachines:
    machines = LogMachines(tmp_path)
    monkeypatch.setattr(dispatch, "call", machines.call)
    return machines


@pytest.fixture
def world(db: None, machines: LogMachines) -> World:
    return World()


def position_in(html: str) -> str:
    found = re.search(r'data-positions="([^"]*)"', html)
    assert found
    return str(json.loads(unescape(found[1]))["llama-0"])


# ---- the page ----


@pytest.mark.parametrize("address", [WORKER_PAGE, "/o/acme/w/vision/jobs/gpu-east/llama?tab=logs"])
def test_a_page_shows_the_log_and_where_to_go_on(world: World, machines: LogMachines, address: str) -> None:
    machines.prints(world.attempt.uid, b"<b>step 1</b>\nValueError: bad batch\nKilled\n")
    html = world.client().get(address).content.decode()
    assert "&lt;b&gt;step 1&lt;/b&gt;" in html
    assert html.count('class="error"') == 2
    assert "2 lines look like errors" in html
    assert position_in(html) == "1.43.43.43.4.0"


def test_a_failed_run_opens_the_log_of_the_worker_that_failed_first(world: World, machines: LogMachines) -> None:
    run = builders.submit(world.access, world.cluster, "pair", array={"count": 2}, on_failure="FailJob")
    good, bad = [builders.run_on(worker, world.machine) for worker in builders.workers(run)]
    machines.prints(good.uid, b"all is well\n")
    machines.prints(bad.uid, b"what went wrong\n")
    page = "/o/acme/w/vision/jobs/gpu-east/pair?tab=logs"
    assert "all is well" in world.client().get(page).content.decode()
    builders.report_end(bad, 1)
    assert "what went wrong" in world.client().get(page).content.decode()
    assert "all is well" in world.client().get(f"{page}&worker=pair-0").content.decode()


def test_a_page_hides_what_the_filter_drops(world: World, machines: LogMachines) -> None:
    machines.prints(world.attempt.uid, b"CUDA error\nstep error\nKilled\n")
    html = world.client().get(f"{WORKER_PAGE}?find=cuda&errors=on").content.decode()
    assert re.findall(r'<li id="(L1\.\d+)" class="error off"', html) == ["L1.11", "L1.22"]
    assert "1 of 3 lines" in html
    html = world.client().get(f"{WORKER_PAGE}?find=cuda&context=2").content.decode()
    assert re.findall(r'<li id="(L1\.\d+)" class="error( context)?"', html) == [
        ("L1.0", ""),
        ("L1.11", " context"),
        ("L1.22", " context"),
    ]
    assert "<mark>CUDA</mark> error" in html


def test_a_page_of_a_waiting_worker_says_that_it_waits(db: None, machines: LogMachines) -> None:
    workspace = builders.workspace(builders.organisation("acme"))
    access = builders.access(workspace)
    builders.submit(access, builders.cluster(workspace), "llama")
    client = Client()
    client.force_login(access.user)
    html = client.get(WORKER_PAGE).content.decode()
    assert "llama-0 is not on a machine yet: Run created" in html
    assert 'data-status="waiting"' in html


def test_a_page_is_shown_without_its_log_where_the_machine_is_silent(world: World, machines: LogMachines) -> None:
    machines.silent.add(world.machine.uid)
    answer = world.client().get(WORKER_PAGE)
    assert answer.status_code == 200
    assert "machine gpu-07 is out of reach" in answer.content.decode()


def test_a_fragment_of_the_page_does_not_read_the_log(world: World, machines: LogMachines) -> None:
    world.client().get(WORKER_PAGE, headers={"hx-request": "true"})
    assert machines.calls == []


def test_a_linked_line_comes_with_its_neighbours(world: World, machines: LogMachines) -> None:
    machines.prints(world.attempt.uid, b"".join(b"line %d\n" % number for number in range(20_000)))
    html = world.client().get(f"{WORKER_PAGE}?attempt=1&at=8890").content.decode()
    assert 'id="L1.8890"' in html
    assert "data-around" in html


@pytest.mark.parametrize("query", ["at=x&attempt=1", "at=1&attempt=-1", f"attempt={'9' * 30}"])
def test_a_bad_place_in_a_log_is_refused(world: World, query: str) -> None:
    assert world.client().get(f"{WORKER_PAGE}?{query}").status_code == 400


# ---- without a websocket ----


def test_polling_brings_what_has_come_since(world: World, machines: LogMachines) -> None:
    machines.prints(world.attempt.uid, b"one\ntw")
    client = world.client()
    position = position_in(client.get(WORKER_PAGE).content.decode())
    machines.prints(world.attempt.uid, b"o\nthree\n")
    frame = client.get(LINES, {"from": position}).json()[0]
    assert re.findall(r'<li id="(.+?)">.*?<span>(.*?)</span></li>', frame["html"]) == [
        ("L1.4", "two"),
        ("L1.8", "three"),
    ]
    assert frame["status"] == "live"
    assert client.get(LINES, {"from": frame["position"]}).json()[0]["html"] == ""


def test_polling_ends_with_state_and_reason(world: World, machines: LogMachines) -> None:
    machines.prints(world.attempt.uid, b"done\n", ends=True)
    builders.report_end(world.attempt, 0)
    frame = world.client().get(LINES).json()[0]
    assert frame["status"] == "ended"
    assert "<span>llama-0: Completed — Exited with code 0</span></li>" in frame["html"]


@pytest.mark.parametrize("text", ["x", "1.2.3", "1.9.1.1.1.0", "7.0.0.0.1.0"])
def test_polling_from_nowhere_is_a_typed_error(world: World, text: str) -> None:
    assert world.client().get(LINES, {"from": text}).status_code in (400, 404)


def test_a_machine_out_of_reach_is_a_state_of_the_log_and_no_error(world: World, machines: LogMachines) -> None:
    machines.silent.add(world.machine.uid)
    assert world.client().get(LINES).json()[0]["status"] == "reconnecting"


# ---- the download ----


def test_a_download_is_what_is_shown(world: World, machines: LogMachines) -> None:
    machines.prints(world.attempt.uid, b"10%\r100%\n\x1b[31merror\x1b[0m here\nKilled\n")
    answer = world.client().get(DOWNLOAD)
    assert answer["Content-Disposition"] == 'attachment; filename="llama-0.log"'
    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.content.decode() == "100%\nerror here\nKilled\n"
    assert world.client().get(f"{DOWNLOAD}?errors=on").content.decode() == "error here\n"
    assert world.client().get(f"{DOWNLOAD}?find=KILL").content.decode() == "Killed\n"


def test_a_download_from_a_silent_machine_says_why_it_is_empty(world: World, machines: LogMachines) -> None:
    machines.silent.add(world.machine.uid)
    assert "machine gpu-07 is out of reach" in world.client().get(DOWNLOAD).content.decode()


# ---- the websocket ----


@pytest.fixture
def live(transactional_db: None, machines: LogMachines, settings) -> World:
    settings.LOG_FOLLOW_SECONDS = 0.2
    return World()


@contextlib.asynccontextmanager
async def watching(user: User, position: str = "") -> AsyncIterator[WebsocketCommunicator]:
    session = SessionStore()
    session["_auth_user_id"] = str(user.pk)
    session["_auth_user_backend"] = "django.contrib.auth.backends.ModelBackend"
    session["_auth_user_hash"] = user.get_session_auth_hash()
    await session.asave()
    headers = [
        (b"origin", b"http://localhost"),
        (b"host", b"localhost"),
        (b"cookie", f"sessionid={session.session_key}".encode()),
    ]
    socket = WebsocketCommunicator(asgi.application, f"/ws{WORKER_PAGE}/log?from={position}", headers=headers)
    connected, _ = await socket.connect(DEADLINE)
    assert connected
    try:
        yield socket
    finally:
        await socket.disconnect(timeout=DEADLINE)
        await in_database(lambda: None)


async def lines_until(socket: WebsocketCommunicator, last: str) -> list[str]:
    """What is shown, in order, until the line `last` was."""
    seen: dict[str, str] = {}
    deadline = asyncio.get_running_loop().time() + DEADLINE
    while last not in seen.values():
        assert asyncio.get_running_loop().time() < deadline
        frame = json.loads(await socket.receive_from(DEADLINE))
        for number, (name, text) in enumerate(
            re.findall(r"<li(?: id=\"(.+?)\")?.*?<span>(.*?)</span></li>", frame["html"])
        ):
            seen[name or f"mark {len(seen)} {number}"] = text
    return list(seen.values())


async def test_a_websocket_sends_lines_as_they_come_and_ends_with_the_worker(
    live: World, machines: LogMachines
) -> None:
    machines.prints(live.attempt.uid, b"one\ntw")
    async with watching(live.access.user) as socket:
        assert await lines_until(socket, "tw") == ["one", "tw"]
        machines.prints(live.attempt.uid, b"o\nthree\n")
        assert await lines_until(socket, "three") == ["two", "three"]
        machines.prints(live.attempt.uid, b"last\n", ends=True)
        await in_database(lambda: builders.report_end(live.attempt, 0))
        end = "llama-0: Completed — Exited with code 0"
        assert await lines_until(socket, end) == ["last", end]
        closed = await socket.receive_output(DEADLINE)
        assert (closed["type"], closed["code"]) == ("websocket.close", 1000)


async def test_many_viewers_cost_one_read_a_look(live: World, machines: LogMachines, settings) -> None:
    settings.LOG_FOLLOW_SECONDS = 60  # only the looks that are asked for
    machines.prints(live.attempt.uid, b"one\n")
    async with contextlib.AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(watching(live.access.user, "1.4.4.4.2.0")) for _ in range(8)]
        for socket in sockets:
            await socket.receive_from(DEADLINE)
        machines.calls.clear()
        machines.prints(live.attempt.uid, b"two\n")
        (feed,) = _feeds.values()
        feed.nudge()
        for socket in sockets:
            assert await lines_until(socket, "two") == ["two"]
        assert len(machines.calls) <= 2
    assert _feeds == {}


async def test_a_viewer_far_behind_is_served_from_where_it_stands(live: World, machines: LogMachines) -> None:
    machines.prints(live.attempt.uid, b"".join(b"%d\n" % number for number in range(300_000)))
    async with watching(live.access.user, "1.0.0.0.1.0") as socket:
        lines = await lines_until(socket, "299999")
        assert lines[-5000:] == [str(number) for number in range(295_000, 300_000)]


async def test_a_machine_that_goes_and_comes_back_is_told_and_nothing_is_lost(
    live: World, machines: LogMachines
) -> None:
    machines.prints(live.attempt.uid, b"one\n")
    async with watching(live.access.user) as socket:
        await lines_until(socket, "one")
        machines.silent.add(live.machine.uid)

        async def away() -> bool:
            return json.loads(await socket.receive_from(DEADLINE))["status"] == "reconnecting"

        await until(away)
        machines.prints(live.attempt.uid, b"two\n")
        machines.silent.clear()
        assert await lines_until(socket, "two") == ["two"]


async def test_somebody_who_is_no_member_any_more_is_sent_away(live: World, machines: LogMachines) -> None:
    machines.prints(live.attempt.uid, b"one\n")
    async with watching(live.access.user) as socket:
        await lines_until(socket, "one")
        await in_database(lambda: Membership.objects.filter(user=live.access.user).delete())
        await is_closed(socket, 4404)


async def test_somebody_who_signed_out_is_sent_away(live: World, machines: LogMachines) -> None:
    machines.prints(live.attempt.uid, b"one\n")
    async with watching(live.access.user) as socket:
        await lines_until(socket, "one")
        await in_database(lambda: Session.objects.all().delete())
        await is_closed(socket, 4404)


async def test_a_deleted_run_ends_its_logs_viewers(live: World, machines: LogMachines) -> None:
    machines.prints(live.attempt.uid, b"one\n")
    async with watching(live.access.user) as socket:
        await lines_until(socket, "one")
        await in_database(lambda: delete_run(live.access, live.run, datetime.now(UTC)))
        await is_closed(socket, 4404)


async def is_closed(socket: WebsocketCommunicator, code: int) -> None:
    deadline = asyncio.get_running_loop().time() + DEADLINE
    while True:
        assert asyncio.get_running_loop().time() < deadline
        message = await socket.receive_output(DEADLINE)
        if message["type"] == "websocket.close":
            assert message["code"] == code
            return


async def test_a_restart_is_followed_onto_the_next_attempt(live: World, machines: LogMachines) -> None:
    machines.prints(live.attempt.uid, b"one\n")
    async with watching(live.access.user) as socket:
        await lines_until(socket, "one")
        machines.prints(live.attempt.uid, b"Killed\n", ends=True)

        def restart() -> Attempt:
            builders.report_end(live.attempt, 1)
            live.worker.refresh_from_db()
            live.worker.state, live.worker.restart_at = "Pending", None  # its back-off is over
            live.worker.save()
            again = builders.place(live.worker, live.machine)
            assert again is not None
            machines.prints(again.uid, b"resumed\n")
            return again

        await in_database(restart)
        lines = await lines_until(socket, "resumed")
        assert lines[0] == "Killed"
        assert lines[1].startswith("— attempt 2 began")
