"""An engine that serves a model beside an attempt, on a real container engine: it comes first, and goes with it."""

import json
import shutil
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from machines.agent.runtimes.base import Mount
from machines.agent.runtimes.docker_request import LogFiles, Site, engine_request
from machines.agent.usage import Usage
from machines.orders import DataKind, EngineUse, Order, VolumeSource, VolumeUse
from machines.protocol import Close, EndReason, Goodbye, Gpu, Phase, encode
from tests.agent.agents import Agent, eventually, order
from tests.agent.fake_console import FakeConsole
from tests.engine import IMAGE, Engine

pytestmark = pytest.mark.engine
MODEL = VolumeUse(DataKind.MODEL, "llama", "/model", True)
SERVE = "httpd -f -p $HOST:{port} -h {path}"
ASK = 'wget -q -O - "$ASTRA_ENGINE_URL/answer.txt"'


@pytest.fixture
def model(tmp_path: Path) -> VolumeSource:
    folder = tmp_path / "models" / "llama"
    folder.mkdir(parents=True)
    (folder / "answer.txt").write_text("42\n")
    return VolumeSource(uuid.uuid4().hex, 1, DataKind.MODEL, "llama", "folder", str(folder))


@pytest.fixture
async def machine(
    make_agent: Callable[..., Agent], console: FakeConsole, engine: Engine, model: VolumeSource, monkeypatch: Any
) -> AsyncIterator[Callable[[], Agent]]:
    """Starts an agent on the engine, which has the model."""
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    console.volumes = [model]
    others = containers(engine)
    made: list[Agent] = []

    def start() -> Agent:
        made.append(make_agent(runtime="docker", drive_roots=[str(Path(model.source).parent)]))
        return made[-1]

    yield start
    for agent in made:
        with suppress(ProcessLookupError):
            agent.end()
    if names := [name for name in containers(engine) if name not in others]:
        engine.docker("rm", "--force", *names)


def served(command: str, serve: str = SERVE, /, **more: Any) -> Order:
    """One that runs a shell command beside an engine that is one, too."""
    wanted = {"image": IMAGE, "command": "sh", "args": ["-c", serve], "health_path": "/answer.txt", **more}
    return order("sh", "-c", command, image=IMAGE, workspace=1, engine=EngineUse(MODEL, **wanted), stop_grace_seconds=2)


async def failed(console: FakeConsole, item: Order) -> str:
    """The sentence of an attempt that failed for its engine."""
    report = await console.reached(item.attempt, Phase.ENDED)
    assert report.end_reason is EndReason.ENGINE_ENDED
    return report.message


def containers(engine: Engine) -> list[str]:
    return engine.docker("ps", "--all", "--filter", "label=astra.attempt", "--format", "{{.Names}}").split()


def left(engine: Engine, *items: Order) -> list[str]:
    """Containers of these; the engine may have others' too."""
    return [name for name in containers(engine) if any(item.attempt in name for item in items)]


def beside(item: Order) -> str:
    return f"astra-{item.attempt}-engine"


def inspected(engine: Engine, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(engine.docker("inspect", name))[0]
    return found


async def test_a_worker_finds_its_model_served_and_the_engine_ends_with_it(console, machine, engine):
    agent = machine()
    item = served(f"{ASK}; echo $ASTRA_ENGINE_MODEL; sleep 1; exit 3", cpu_milli=500, memory_bytes=32 << 20)
    own = msgspec.structs.replace(served("echo $ASTRA_ENGINE_URL"), env={"ASTRA_ENGINE_URL": "mine"})
    await console.connected()
    await console.assign(item, own)
    await console.waits(item.attempt, "Waiting for the engine to serve llama")
    report = await console.reached(item.attempt, Phase.RUNNING)
    found = inspected(engine, beside(item))
    assert report.engine_image == f"{IMAGE}@{found['Image']}"
    assert [(mount["Destination"], mount["RW"]) for mount in found["Mounts"]] == [("/model", False)]
    assert (found["HostConfig"]["CpuQuota"], found["HostConfig"]["Memory"]) == (50_000, 32 << 20)
    assert found["Config"]["Labels"]["astra.attempt"] == item.attempt
    assert await console.ended(item.attempt) == (EndReason.EXITED, 3)
    assert await console.ended(own.attempt) == (EndReason.EXITED, 0)
    assert beside(item) not in containers(engine)
    assert (agent.output(item), agent.output(own)) == (b"42\nllama\n", b"mine\n")


async def test_an_engine_that_ends_takes_its_worker_with_it_and_says_why(console, machine, engine):
    agent = machine()
    dies = f"({SERVE}) & until [ -e /tmp/stop ]; do sleep 0.1; done; echo out of cards >&2; exit 1"
    stopped = served("trap 'echo told; exit 0' TERM; while :; do sleep 0.1; done", dies)
    crashes = served("until ! wget -q -O /dev/null $ASTRA_ENGINE_URL/answer.txt; do sleep 0.1; done; exit 9", dies)
    await console.connected()
    await console.assign(stopped, crashes)
    for item in (stopped, crashes):
        await console.reached(item.attempt, Phase.RUNNING)
        engine.docker("exec", beside(item), "touch", "/tmp/stop")
        assert await failed(console, item) == "The engine ended: Exited with code 1"
    ends = b"[the end of the engine's log]\nout of cards\n"
    assert agent.output(stopped) == b"told\n" + ends
    assert agent.output(crashes).endswith(b"Connection refused\n" + ends)
    assert b"out of cards" in console.newest(stopped.attempt).log_tail.encode()
    assert not {beside(stopped), beside(crashes)} & set(containers(engine))


async def test_an_engine_that_does_not_get_to_serve_fails_its_worker_before_that_starts(console, machine, engine):
    agent = machine()
    breaks = served("echo ran", "echo no such model; exit 5")
    hangs = served("echo ran", "sleep 1000", start_seconds=1.5)
    absent = served("echo ran", image="127.0.0.1:1/engine:v1")
    wrong = served("echo ran", command="/no/such/program")
    hungry = served("echo ran", "exec tail /dev/zero", memory_bytes=16 << 20)
    await console.connected()
    await console.assign(breaks, hangs, absent, wrong, hungry)
    assert await failed(console, breaks) == "The engine ended: Exited with code 5"
    assert agent.output(breaks) == b"[the end of the engine's log]\nno such model\n"
    assert (await failed(console, hangs)).startswith("The engine did not serve llama within 1.5 seconds: port ")
    assert (await failed(console, absent)).startswith(
        "The engine could not start: its image 127.0.0.1:1/engine:v1 cannot be pulled: "
    )
    assert (await failed(console, wrong)).startswith("The engine could not start: ")
    assert await failed(console, hungry) == "The engine ended: OOMKilled: it exceeded its share of the memory"
    for item in (breaks, hangs, absent, wrong, hungry):
        assert Phase.RUNNING not in [age.phase for age in console.newest(item.attempt).phases]
    assert left(engine, breaks, hangs, absent, wrong, hungry) == []


async def test_a_stop_and_a_time_limit_take_the_engine_as_well_at_whatever_point_it_is(console, machine, engine):
    machine()
    loading = served("echo ran", "sleep 1000")
    running = served("sleep 1000")
    limited = msgspec.structs.replace(served("sleep 1000"), time_limit_seconds=0.5)
    waiting = msgspec.structs.replace(served("echo ran"), barrier=True)
    await console.connected()
    await console.assign(loading, running, limited, waiting, waiting=(waiting.attempt,))
    assert (await console.ended(limited.attempt))[0] is EndReason.TIME_LIMIT
    await console.reached(running.attempt, Phase.RUNNING)
    await console.reached(waiting.attempt, Phase.READY)
    await eventually(lambda: beside(loading) in containers(engine))
    await console.assign()
    for item in (loading, running, waiting):
        assert (await console.ended(item.attempt))[0] is EndReason.STOPPED
    assert [name for name in left(engine, loading, running, waiting) if name.endswith("-engine")] == []
    everything = tuple(item.attempt for item in (loading, running, limited, waiting))
    await console.assign(forget=everything)
    for attempt in everything:
        await console.reached(attempt, Phase.FORGOTTEN)
    assert left(engine, loading, running, limited, waiting) == []


async def test_an_agent_that_was_killed_goes_on_with_the_engines_it_finds(console, machine, engine):
    agent = machine()
    load = f"until [ -e /tmp/loaded ]; do sleep 0.1; done; {SERVE}"
    loading = served(ASK, load)
    running = served("until [ -e /tmp/done ]; do sleep 0.1; done; " + ASK)
    orphan, bereft, removed = served("sleep 1000"), served("sleep 1000"), served("sleep 1000")
    items = (loading, running, orphan, bereft, removed)
    await console.connected()
    await console.assign(*items)
    for item in items[1:]:
        await console.reached(item.attempt, Phase.RUNNING)
    await eventually(lambda: beside(loading) in containers(engine))
    agent.kill()
    before = {item.attempt: inspected(engine, beside(item))["Id"] for item in (loading, running)}
    engine.docker("kill", beside(orphan))
    engine.docker("rm", "--force", f"astra-{bereft.attempt}")
    engine.docker("rm", "--force", beside(removed))
    machine()
    assert await failed(console, orphan) == "The engine ended: Exited with code 137"
    assert agent.output(orphan) == b"[the engine printed nothing]\n"
    assert await failed(console, removed) == "The engine ended: its container was removed"
    assert await console.ended(bereft.attempt) == (EndReason.EXITED, None)
    assert inspected(engine, beside(running))["Id"] == before[running.attempt]
    engine.docker("exec", f"astra-{running.attempt}", "touch", "/tmp/done")
    assert await console.ended(running.attempt) == (EndReason.EXITED, 0)
    assert inspected(engine, beside(loading))["Id"] == before[loading.attempt]
    engine.docker("exec", beside(loading), "touch", "/tmp/loaded")
    assert await console.ended(loading.attempt) == (EndReason.EXITED, 0)
    assert (agent.output(loading), agent.output(running)) == (b"42\n", b"42\n")
    assert [name for name in left(engine, *items) if name.endswith("-engine")] == []


async def test_a_machine_that_is_removed_and_an_engine_that_is_nobodys_leave_nothing(console, machine, engine):
    agent = machine()
    running, forgotten = served("sleep 1000"), served("sleep 1000")
    await console.connected()
    await console.assign(running, forgotten)
    await console.reached(running.attempt, Phase.RUNNING)
    await console.reached(forgotten.attempt, Phase.RUNNING)
    agent.kill()
    shutil.rmtree(agent.state / "attempts" / forgotten.attempt)
    console.orders = [running]
    machine()
    await eventually(lambda: beside(forgotten) not in containers(engine))
    assert beside(running) in containers(engine)
    await console.until(lambda: len(console.hellos) == 2)
    await console.connection.send(encode(Goodbye(Close.REMOVED, "the machine was removed")))
    await console.connection.close(Close.REMOVED)
    await eventually(lambda: beside(running) not in containers(engine))


def test_what_the_engine_is_told_and_may_use() -> None:
    use = EngineUse(
        MODEL, "vllm:1", "serve", ["{path}", "--name={model}", '{"a": "{port}"}', "{other}"], memory_bytes=5
    )
    one = order(gpu_indexes=[1], cpu_milli=7000, memory_bytes=9, shm_bytes=3)
    site = Site("m", {1: Gpu(1, "GPU-1", "H100", 1)}, "host", LogFiles("local", 1 << 20))
    mount = Mount(Path("/models/llama"), "/model", True)
    body = engine_request(one, use, mount, image="vllm:1", port=10_007, site=site)
    assert (body["Entrypoint"], body["Cmd"]) == (["serve"], ["/model", "--name=llama", '{"a": "10007"}', "{other}"])
    assert "NVIDIA_VISIBLE_DEVICES=1" in body["Env"]
    assert "PORT=10007" in body["Env"]
    host = body["HostConfig"]
    assert (host["Memory"], host["ShmSize"], host["NetworkMode"]) == (5, 3, "host")
    assert "CpuQuota" not in host
    assert host["DeviceRequests"][0]["DeviceIDs"] == ["GPU-1"]


def test_what_a_worker_uses_is_with_its_engine() -> None:
    assert Usage(1.5, 10, 2).with_engine(Usage(2.0, 5, None)) == Usage(3.5, 15, 2)
    assert Usage(None, None, 2).with_engine(Usage(2.0, 5, None)) == Usage(None, None, 2)
