"""Several workers' logs as one, whole logs, and what a page says beside the lines."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from machines import dispatch
from runs.log_merged import TOGETHER_MAX
from tests import builders
from tests.log_machines import LogMachines

RUN = "/o/acme/w/vision/jobs/gpu-east/ddp"
WORKER = "/o/acme/w/vision/workers/gpu-east/ddp-0"


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogMachines:
    machines = LogMachines(tmp_path)
    monkeypatch.setattr(dispatch, "call", machines.call)
    return machines


class World:
    """`ddp` with three running workers on gpu-07, and somebody who may look at them."""

    def __init__(self) -> None:
        self.workspace = builders.workspace(builders.organisation("acme"))
        self.cluster = builders.cluster(self.workspace)
        self.machine = builders.machine(self.cluster, "gpu-07", cpu=64)
        self.access = builders.access(self.workspace, username="ann")
        self.run = builders.submit(self.access, self.cluster, "ddp", node_selection={"count": 3})
        self.attempts = [builders.run_on(worker, self.machine) for worker in builders.workers(self.run)]

    def client(self) -> Client:
        client = Client()
        client.force_login(self.access.user)
        return client


@pytest.fixture
def world(db: None, machines: LogMachines) -> World:
    return World()


def texts(html: str) -> list[str]:
    found = re.findall(r"<li[^>]*><a[^>]*>[^<]*</a><span>(.*?)</span></li>", html)
    return [unescape(re.sub(r"<[^>]+>", "", text)) for text in found]


def positions_in(html: str) -> dict[str, str]:
    found = re.search(r'data-positions="([^"]*)"', html)
    assert found
    return dict(json.loads(unescape(found[1])))


def test_all_workers_stand_in_one_log_by_rank_and_go_on_as_it_arrives(world: World, machines: LogMachines) -> None:
    for rank, attempt in enumerate(world.attempts):
        machines.prints(attempt.uid, b"start %d\n" % rank)
    client = world.client()
    html = client.get(f"{RUN}?tab=logs&worker=*").content.decode()
    assert texts(html) == ["[0] start 0", "[1] start 1", "[2] start 2"]
    assert "?tab=logs&amp;worker=ddp-1&amp;attempt=1&amp;at=0#L1.0" in html, "a line's link is in its own worker's log"
    positions = positions_in(html)
    machines.prints(world.attempts[2].uid, b"step\n")
    asked = ",".join(f"{worker}~{position}" for worker, position in positions.items())
    frames = client.get(f"{RUN}/log/lines", {"from": asked}).json()
    assert [(frame["worker"], texts(frame["html"])) for frame in frames] == [
        ("ddp-0", []),
        ("ddp-1", []),
        ("ddp-2", ["[2] step"]),
    ]


def test_one_worker_out_of_reach_does_not_hide_the_others(world: World, machines: LogMachines) -> None:
    far = builders.machine(world.cluster, "gpu-99", cpu=64)
    run = builders.submit(world.access, world.cluster, "split", node_selection={"count": 2})
    near, lost = (builders.run_on(w, m) for w, m in zip(builders.workers(run), (world.machine, far), strict=True))
    machines.prints(near.uid, b"here\n")
    machines.silent.add(lost.machine.uid)
    html = world.client().get("/o/acme/w/vision/jobs/gpu-east/split?tab=logs&worker=*").content.decode()
    assert texts(html) == ["[0] here"]
    assert "1 of 2: machine gpu-99 is out of reach" in unescape(html)


@pytest.mark.parametrize("asked", ["", "nobody~", "ddp-0~x", ",".join(f"ddp-{n}~" for n in range(TOGETHER_MAX + 1))])
def test_a_bad_ask_for_several_logs_is_refused(world: World, asked: str) -> None:
    assert world.client().get(f"{RUN}/log/lines", {"from": asked}).status_code in (400, 404)


def test_a_worker_that_the_run_does_not_have_is_not_found(world: World) -> None:
    assert world.client().get(f"{RUN}?tab=logs&worker=ddp-3").status_code == 404


def test_several_logs_are_downloaded_as_they_are_shown(world: World, machines: LogMachines) -> None:
    machines.prints(world.attempts[0].uid, b"one\nan error\n")
    machines.prints(world.attempts[1].uid, b"unfinished error")
    answer = world.client().get(f"{RUN}/log/download?worker=*&errors=on")
    assert answer["Content-Disposition"] == 'attachment; filename="ddp.log"'
    assert answer.content.decode() == "[0] an error\n[1] unfinished error\n"


def test_a_run_of_a_thousand_workers_offers_them_in_spans_with_a_constant_number_of_queries(
    world: World, machines: LogMachines, django_assert_max_num_queries: Any
) -> None:
    run = builders.submit(world.access, world.cluster, "wide", array={"count": 1000})
    builders.workers(run)
    client = world.client()
    with django_assert_max_num_queries(30):
        html = client.get("/o/acme/w/vision/jobs/gpu-east/wide?tab=logs&worker=*64").content.decode()
    assert '<option value="*64" selected>Workers 64 to 127</option>' in html
    assert len(positions_in(html)) == TOGETHER_MAX
    assert "wide-999" in html


def test_the_page_goes_back_through_a_long_log(world: World, machines: LogMachines) -> None:
    machines.prints(world.attempts[0].uid, b"".join(b"%d\n" % number for number in range(30_000)))
    client, address, seen = world.client(), "", set[str]()
    while True:
        html = client.get(f"{WORKER}{address}").content.decode()
        seen.update(texts(html))
        earlier = re.search(r'<a href="([^"]+)">Earlier output', html)
        if earlier is None:
            break
        address = unescape(earlier[1])
    assert {str(number) for number in range(30_000)} <= seen


def test_the_page_says_how_the_count_and_errors_only_differ(world: World, machines: LogMachines) -> None:
    machines.prints(world.attempts[0].uid, b"Killed\n0 errors\n")
    html = world.client().get(f"{WORKER}?errors=on").content.decode()
    assert "1 line looks like an error" in html
    assert "1 of 2 lines" in html
    assert "The two numbers may differ" in html


def test_a_whole_log_is_streamed_piece_by_piece_with_its_gaps(world: World, machines: LogMachines) -> None:
    uid = world.attempts[0].uid
    data = bytes(range(256)) * 4096 * 3
    machines.prints(uid, data)
    machines.drops_all_but(uid, 2 * 1024**2)
    client = world.client()
    answer = client.get(f"{WORKER}/log/whole")
    assert answer["Content-Disposition"] == 'attachment; filename="ddp-0-attempt-1.log"'
    asked = len(machines.calls)
    pieces = list(answer.streaming_content)
    assert b"".join(pieces) == "— 1 MiB not kept —\n".encode() + data[1024**2 :]
    assert max(map(len, pieces)) <= 256 * 1024
    assert (asked, len(machines.calls)) == (1, 9), "a piece is read when the one before it has gone"
    assert client.get(f"{WORKER}/log/whole?attempt=7").status_code == 404
    machines.silent.add(world.machine.uid)
    assert client.get(f"{WORKER}/log/whole").status_code == 400
