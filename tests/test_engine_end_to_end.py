"""A run with a drive, a model, code and an engine that serves the model: by API and `astra`, through every part."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import archives
from tests.agent.sources import Source, http_source
from tests.conftest import PROJECT
from tests.console import Console, eventually, running_console
from tests.engine import IMAGE, Engine

pytestmark = [pytest.mark.processes, pytest.mark.engine]
SERVE = "test -s {path}/weights.bin || { echo no weights; exit 5; }; exec httpd -f -p $HOST:{port} -h {path}"
ENGINE = {
    "ENGINE_IMAGE": IMAGE,
    "ENGINE_COMMAND": "sh",
    "ENGINE_ARGS": json.dumps(["-c", SERVE]),
    "ENGINE_HEALTH_PATH": "/weights.bin",
}
ASK = """#!/bin/sh
set -e
wget -q -O - "$ASTRA_ENGINE_URL/weights.bin" > answer
cmp answer /model/weights.bin
echo "$ASTRA_ENGINE_MODEL answered $(wc -c < answer) bytes" | tee /out/result
"""


@pytest.fixture(scope="module")
def source() -> Iterator[Source]:
    with http_source() as made:
        made.files["/llama/weights.bin"] = os.urandom(100_000)
        made.files["/empty/weights.bin"] = b""
        yield made


@pytest.fixture(scope="module")
def console(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    options = ("--runtime", "docker", "--machine-cpus", "4", "--machine-memory", "4Gi")
    options += ("--drive-root", str(tmp_path_factory.getbasetemp()))
    with running_console(*options, env={"DOCKER_HOST": engine.url, "STOP_GRACE_SECONDS": "2", **ENGINE}) as running:
        yield running


def define(console: Console, kind: str, name: str, form: str, source: str) -> None:
    address = f"{str(console.api.base_url).partition('/clusters/')[0]}/{kind}"
    answer = console.api.post(address, json={"name": name, "kind": form, "source": source})
    assert answer.status_code == 201, answer.text


def engines_left(engine: Engine) -> str:
    return engine.docker("ps", "--all", "--quiet", "--filter", "label=astra.role=engine")


def test_code_asks_the_engine_beside_it_and_writes_to_a_drive(
    console: Console, engine: Engine, source: Source, tmp_path: Path
) -> None:
    define(console, "drives", "out", "folder", str(tmp_path))
    template = {"datavolume_refs": [{"name": "out", "mount_path": "/out"}], "model_refs": [{"name": "llama"}]}
    code = base64.b64encode(archives.packed({"ask.sh": ASK}, ["ask.sh"])).decode()
    console.submit("story", "./ask.sh", code=code, engine={"model": "llama"}, task_template=template, machines=1)
    waits = "Waiting for data volume llama: the workspace has no model of this name"
    eventually(lambda: console.task("story-0")["status"]["reason"] == waits)
    define(console, "models", "llama", "copy", f"{source.url}/llama/")
    run = console.wait_for("story", "Completed", "Failed")
    assert (run["status"]["reason"], run["spec"]["engine"]) == ("1 of 1 workers completed", {"model": "llama"})
    assert console.logs("story-0") == (tmp_path / "result").read_text() == "llama answered 100000 bytes\n"
    assert engines_left(engine) == ""


def test_astra_serves_a_model_and_says_why_an_engine_failed(
    console: Console, engine: Engine, source: Source, tmp_path: Path
) -> None:
    define(console, "models", "hollow", "copy", f"{source.url}/empty/")
    person = {"ASTRA_URL": console.url, "ASTRA_TOKEN": console.ready["token"]}
    person |= {"ASTRA_ORG": "demo", "ASTRA_WORKSPACE": "default", "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "astraconsole.cli.main", "astraeus", "run", "--name", "hollow", "--image", IMAGE]
    command += ["--cpus", "0.2", "--mem", "64M", "--model", "hollow", "--with-engine", "--wait", "--", "echo", "ran"]
    done = subprocess.run(command, cwd=PROJECT, env=os.environ | person, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    worker = console.task("hollow-0")
    assert worker["status"] == {**worker["status"], "state": "Failed", "reason": "The engine ended: Exited with code 5"}
    assert worker["last_failure"]["log_tail"] == "[the end of the engine's log]\nno weights\n"
    assert console.logs("hollow-0") == "[the end of the engine's log]\nno weights\n"
    assert engines_left(engine) == ""
