"""Code, drives and models in containers, on a real engine."""

import asyncio
import hashlib
import os
import uuid

import pytest

from machines.orders import CodeUse, DataKind, Order, VolumeSource, VolumeUse
from machines.protocol import DataState, EndReason, Phase
from tests import archives
from tests.agent.agents import eventually, order
from tests.agent.fake_console import FakeConsole
from tests.agent.sources import http_source
from tests.engine import IMAGE

pytestmark = pytest.mark.engine
PACKED_DATA = {
    "run.sh": "#!/bin/sh\npwd; cat lib/data.txt; id -u; echo > lib/new && echo > new",
    "lib/data.txt": "42\n",
}


@pytest.mark.parametrize("user", [None, "1234"])
async def test_a_container_works_in_its_code_and_may_write_there_as_any_user(
    console, make_agent, engine, user, monkeypatch
):
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    agent = make_agent(runtime="docker")
    packed = archives.packed(PACKED_DATA, ["run.sh"])
    item = order("./run.sh", image=IMAGE, user=user, code=CodeUse(hashlib.sha256(packed).hexdigest(), len(packed)))
    console.code[str(uuid.UUID(item.attempt))] = packed
    await console.connected()
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    assert agent.output(item).decode().split() == ["/workspace", "42", user or "0"]


DRIVE, MODEL = DataKind.DRIVE, DataKind.MODEL
MIB = 1024**2


@pytest.fixture
def docker_agent(make_agent, engine, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    return lambda **more: make_agent(runtime="docker", **more)


@pytest.fixture
def source():
    with http_source() as made:
        yield made


def defined(name: str, form: str, source: str, kind: DataKind = DRIVE, **more: object) -> VolumeSource:
    return VolumeSource(uuid.uuid4().hex, 1, kind, name, form, source, **more)


def reads(command: str, *volumes: VolumeUse) -> Order:
    return order("sh", "-c", command, image=IMAGE, workspace=1, volumes=list(volumes))


async def waits(console: FakeConsole, item: Order, sentence: str) -> None:
    def told() -> bool:
        report = console.newest(item.attempt)
        return report is not None and sentence in report.waiting

    await console.until(told)


def state_of(console: FakeConsole, source: VolumeSource) -> DataState:
    return next((one for one in console.data if one.uid == source.uid), DataState(source.kind, source.uid, ""))


async def outcome(console: FakeConsole, agent, item: Order) -> tuple[EndReason | None, int | None, str]:
    reason, code = await console.ended(item.attempt)
    return reason, code, agent.output(item).decode()


async def test_a_folder_of_the_machine_is_mounted_where_its_owner_allows_it(console, docker_agent, tmp_path):
    root = tmp_path / "drives"
    (root / "a b é").mkdir(parents=True)
    (root / "a b é" / "in").write_text("inside")
    (root / "out").symlink_to("/etc")
    agent = docker_agent(drive_roots=[str(root)])
    console.volumes = [
        defined("good", "folder", f"{root}/a b é"),
        defined("ro", "folder", f"{root}/a b é", read_only=True),
        defined("out", "folder", f"{root}/out"),
        defined("up", "folder", f"{root}/../secret"),
        defined("gone", "folder", f"{root}/gone"),
    ]
    good = reads(
        "cat /d/in; echo new > /d/new; echo no > /r/in", VolumeUse(DRIVE, "good", "/d"), VolumeUse(DRIVE, "ro", "/r")
    )
    asked = reads("echo no > /d/in", VolumeUse(DRIVE, "good", "/d", read_only=True))
    bad = {name: reads("true", VolumeUse(DRIVE, name, "/d")) for name in ("out", "up", "gone", "unknown")}
    await console.connected()
    await console.assign(good, asked, *bad.values())
    reason, code, output = await outcome(console, agent, good)
    assert (reason, code) == (EndReason.EXITED, 1)
    assert "inside" in output
    assert (root / "a b é" / "new").read_text() == "new\n"
    assert "Read-only file system" in output
    assert (await console.ended(asked.attempt))[1] == 1
    await waits(console, bad["out"], "Waiting for data volume out: this machine's owner has not allowed")
    await waits(console, bad["up"], "Waiting for data volume up: this machine's owner has not allowed")
    await waits(console, bad["gone"], "Waiting for data volume gone: there is no folder")
    await waits(console, bad["unknown"], "Waiting for data volume unknown: the workspace has no drive of this name")
    (root / "gone").mkdir()
    assert await console.ended(bad["gone"].attempt) == (EndReason.EXITED, 0)


async def test_a_copy_is_filled_once_for_all_who_wait_and_mounted_whole(console, docker_agent, source):
    source.files["/data/big.bin"] = os.urandom(9 * MIB)
    source.files["/data/sub dir/ü.txt"] = b"small"
    agent = docker_agent()
    drive = defined("imagenet", "copy", f"{source.url}/data/")
    model = defined("llama", "copy", f"{source.url}/data/big.bin", MODEL)
    console.volumes = [drive, model]
    source.held.clear()
    digest = hashlib.sha256(source.files["/data/big.bin"]).hexdigest()
    check = "sha256sum < /data/big.bin; cat '/data/sub dir/ü.txt'; echo x > /data/x"
    items = [reads(check, VolumeUse(DRIVE, "imagenet", "/data")) for _ in range(3)]
    other = reads("sha256sum < /model/big.bin; echo x > /model/x", VolumeUse(MODEL, "llama", "/model"))
    await console.connected()
    await console.assign(*items, other)
    await waits(console, items[0], "Waiting for drive imagenet to be filled")
    await waits(console, other, "Waiting for model llama to be filled")
    await console.until(lambda: state_of(console, drive).state == "Filling")
    source.held.set()
    for item in items:
        reason, code, output = await outcome(console, agent, item)
        assert (reason, code) == (EndReason.EXITED, 1)
        assert digest in output
        assert "small" in output
        assert "Read-only file system" in output
    assert digest in (await outcome(console, agent, other))[2]
    ranges = [wanted for path, wanted in source.requests if path == "/data/big.bin"]
    assert len(ranges) == 2 * 3  # three pieces each, for the drive and the model
    await console.until(lambda: state_of(console, drive).state == state_of(console, model).state == "Ready")
    assert state_of(console, drive).done_bytes == state_of(console, drive).total_bytes == 9 * MIB + 5


async def test_an_agent_killed_while_it_fills_goes_on_where_it_was(console, docker_agent, source):
    source.files["/big.bin"] = os.urandom(20 * MIB)
    agent = docker_agent()
    drive = defined("big", "copy", f"{source.url}/big.bin")
    console.volumes = [drive]
    item = reads("sha256sum /data/big.bin", VolumeUse(DRIVE, "big", "/data"))
    source.hold_after = 9 * MIB
    await console.connected()
    await console.assign(item)
    part = agent.state / "data" / drive.uid / "part" / "big.bin"
    await eventually(lambda: part.exists() and part.stat().st_size == 8 * MIB)
    await waits(console, item, "to be filled: 40 %")
    agent.kill()
    assert not (agent.state / "data" / drive.uid / "copy").exists()
    source.requests.clear()
    source.hold_after = None
    agent.start()
    assert hashlib.sha256(source.files["/big.bin"]).hexdigest() in (await outcome(console, agent, item))[2]
    assert source.requests[0] == ("/big.bin", f"bytes={8 * MIB}-{12 * MIB - 1}")


async def test_a_worker_is_started_when_its_drive_is_made_and_its_source_has_come_back(console, docker_agent, source):
    agent = docker_agent()
    item = reads("cat /data/x", VolumeUse(DRIVE, "late", "/data"))
    await console.connected()
    await console.assign(item)
    await waits(console, item, "Waiting for data volume late: the workspace has no drive of this name")
    drive = defined("late", "copy", f"{source.url}/x")
    console.volumes = [drive]
    await console.assign(item)
    await waits(console, item, "Waiting for drive late to be filled: there is nothing at")
    await console.until(lambda: state_of(console, drive).state == "Failed")
    assert "tried again in" in state_of(console, drive).message
    source.files["/x"] = b"here"
    assert await outcome(console, agent, item) == (EndReason.EXITED, 0, "here")


async def test_a_removed_drives_copy_goes_once_nobody_uses_it(console, docker_agent, source):
    source.files["/x"] = b"here"
    agent = docker_agent()
    drive = defined("d", "copy", f"{source.url}/x")
    console.volumes = [drive]
    item = reads("while [ ! -e /tmp/end ]; do sleep 0.1; done", VolumeUse(DRIVE, "d", "/data"))
    await console.connected()
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    console.volumes = []
    await console.assign(item)
    await console.until(lambda: state_of(console, drive).state == "")
    agent.kill()
    agent.start()  # the next one knows what the worker has mounted
    await console.until(lambda: len(console.hellos) == 2)
    await console.assign(item)
    copy = agent.state / "data" / drive.uid
    await asyncio.sleep(0.5)  # nothing is to happen, and nobody tells that
    assert (copy / "copy" / "x").read_bytes() == b"here"
    await console.assign()
    await console.ended(item.attempt)
    await eventually(lambda: not copy.exists())


async def test_filling_stops_when_the_last_worker_that_waits_is_stopped(console, docker_agent, source):
    source.files["/big.bin"] = os.urandom(20 * MIB)
    source.hold_after = 5 * MIB
    docker_agent()
    drive = defined("big", "copy", f"{source.url}/big.bin")
    console.volumes = [drive]
    item = reads("true", VolumeUse(DRIVE, "big", "/data"))
    await console.connected()
    await console.assign(item)
    await waits(console, item, "to be filled: 20 %")
    await console.assign()
    assert await console.ended(item.attempt) == (EndReason.STOPPED, None)
    source.hold_after = None
    await console.until(lambda: state_of(console, drive).state == "Waiting")
    assert len(source.requests) < 5
