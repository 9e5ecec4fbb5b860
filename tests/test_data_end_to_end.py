"""Drives, models and code from the API to two machines' containers and back, through every real part."""

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import archives
from tests.agent.sources import PIECE, Source, http_source
from tests.console import Console, eventually, running_console
from tests.engine import Engine

pytestmark = [pytest.mark.processes, pytest.mark.engine]
FILE = "/d/big.bin"


@pytest.fixture(scope="module")
def source() -> Iterator[Source]:
    with http_source() as made:
        made.files[FILE] = os.urandom(3 * PIECE)
        yield made


@pytest.fixture(scope="module")
def console(engine: Engine, source: Source, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    options = ("--runtime", "docker", "--machines", "2", "--machine-cpus", "4", "--machine-memory", "4Gi")
    options += ("--drive-root", str(tmp_path_factory.getbasetemp()))
    with running_console(*options, env={"DOCKER_HOST": engine.url, "STOP_GRACE_SECONDS": "3"}) as running:
        yield running


def workspace(console: Console, path: str) -> str:
    return f"{str(console.api.base_url).partition('/clusters/')[0]}/{path}"


def states(console: Console, drive: str) -> dict[str, Any]:
    found = console.api.get(workspace(console, f"drives/{drive}")).json()["machines"]
    return {one["machine"]: one["state"] for one in found}


def test_two_machines_fill_at_once_each_once_and_the_worker_says_how_far_it_is(
    console: Console, source: Source
) -> None:
    template = {"datavolume_refs": [{"name": "big", "mount_path": "/data"}], "model_refs": [{"name": "m"}]}
    source.hold_after = 2 * PIECE
    console.submit("reads", "sh", "-c", "cat /data/big.bin /model/big.bin | wc -c", task_template=template, machines=2)
    waits = "Waiting for data volume big: the workspace has no drive of this name"
    eventually(lambda: console.task("reads-0")["status"]["reason"] == waits)
    for kind in ("drives", "models"):
        made = {"name": "big" if kind == "drives" else "m", "kind": "copy", "source": f"{source.url}{FILE}"}
        assert console.api.post(workspace(console, kind), json=made).status_code == 201
    eventually(lambda: "Waiting for drive big to be filled: 33 %" in console.task("reads-1")["status"]["reason"])
    eventually(lambda: set(states(console, "big").values()) == {"Filling"} and len(states(console, "big")) == 2)
    refused = console.api.delete(workspace(console, "drives/big"))
    assert (refused.status_code, refused.json()["message"]) == (409, "big is used by runs in progress: reads")
    source.hold_after = None
    run = console.wait_for("reads", "Completed", "Failed")
    assert (run["status"]["state"], run["status"]["reason"]) == ("Completed", "2 of 2 workers completed")
    assert {console.logs(f"reads-{rank}") for rank in (0, 1)} == {f"{6 * PIECE}\n"}
    assert len([wanted for path, wanted in source.requests if path == FILE]) == 4 * 3  # two machines, two volumes
    assert eventually(lambda: set(states(console, "big").values()) == {"Ready"})
    assert console.api.delete(workspace(console, "drives/big")).status_code == 204


def test_code_comes_with_a_run_and_again_by_its_digest(console: Console) -> None:
    packed = archives.packed(
        {"run.sh": "#!/bin/sh\nset -e; cat lib/x; echo y >> lib/x; pwd", "lib/x": "x\n"}, ["run.sh"]
    )
    made = console.submit("coded", "./run.sh", code=base64.b64encode(packed).decode())
    assert made["spec"]["code"]["size_bytes"] == len(packed)
    assert console.wait_for("coded", "Completed", "Failed")["status"]["state"] == "Completed"
    console.submit("again", "./run.sh", code=made["spec"]["code"])
    assert console.wait_for("again", "Completed", "Failed")["status"]["state"] == "Completed"
    assert console.logs("coded-0") == console.logs("again-0") == "x\n/workspace\n"


def test_what_a_run_writes_to_a_folder_drive_is_there_for_the_next(console: Console, tmp_path: Path) -> None:
    made = {"name": "scratch", "kind": "folder", "source": str(tmp_path)}
    assert console.api.post(workspace(console, "drives"), json=made).status_code == 201
    template = {"datavolume_refs": [{"name": "scratch", "mount_path": "/scratch"}]}
    console.submit("writes", "sh", "-c", "echo kept > /scratch/out", task_template=template)
    assert console.wait_for("writes", "Completed", "Failed")["status"]["state"] == "Completed"
    assert (tmp_path / "out").read_text() == "kept\n"
    console.submit("then", "cat", "/scratch/out", task_template=template)
    console.wait_for("then", "Completed")
    assert console.logs("then-0") == "kept\n"
