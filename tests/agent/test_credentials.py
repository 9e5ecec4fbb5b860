"""Credentials on a machine: a real agent, host processes that need them."""

import json
import uuid
from pathlib import Path

import pytest

from machines.orders import CredentialSource, Order, SecretUse
from machines.protocol import EndReason, Phase
from tests.agent.agents import Agent, environment, eventually, script
from tests.agent.fake_console import FakeConsole

VALUE = "the-value-of-the-secret"
WAITS = "waiting for external secret hf-token"


def source(name: str = "hf-token", workspace: int = 1, reference: str = "hf", place: str = "acme/vision"):
    return CredentialSource(uuid.uuid4().hex, workspace, place, name, "file", reference)


def needs(text: str, use: SecretUse | None = None, **more: object) -> Order:
    return script(text, workspace=1, secrets=[use or SecretUse("hf-token", {"token": "HF_TOKEN"})], **more)


@pytest.fixture
def folder(open_folder: Path) -> Path:
    """What the machine's owner allows."""
    (open_folder / "secrets").mkdir()
    return open_folder / "secrets"


@pytest.fixture
def agent(console: FakeConsole, make_agent, folder: Path, open_folder: Path) -> Agent:
    (open_folder / "machine").mkdir(mode=0o711)
    (open_folder / "machine" / "credentials.json").write_text(json.dumps({"files": str(folder)}))
    return make_agent()


def secret_folders(item: Order) -> list[Path]:
    return list(Path("/dev/shm").glob(f"astra-*/{item.attempt}"))


async def states(console: FakeConsole, *expected: tuple[CredentialSource, str, str]) -> None:
    wanted = {(item.uid, state, message) for item, state, message in expected}
    await console.until(lambda: {(item.uid, item.state, item.message) for item in console.data} == wanted)


async def test_a_worker_gets_its_secret_in_the_environment_and_the_console_hears_that_the_machine_has_it(
    console, agent, folder
):
    (folder / "hf").write_text(json.dumps({"token": VALUE}))
    console.credentials = [source()]
    item = needs('echo "${#HF_TOKEN} $HF_TOKEN" | cut -c -6')
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    assert agent.output(item) == b"23 the\n"
    await states(console, (console.credentials[0], "Synced", ""))
    kept = [path for path in agent.folder.rglob("*") if path.is_file() and path.parent != folder]
    assert len(kept) > 5
    assert [path for path in kept if VALUE.encode() in path.read_bytes()] == []


async def test_it_waits_until_the_credential_is_defined_and_then_until_it_is_there(console, agent, folder):
    item = needs('echo "got $HF_TOKEN"')
    await console.assign(item)
    await console.waits(item.attempt, WAITS)
    console.credentials = [source()]
    await console.assign(item)
    await states(console, (console.credentials[0], "Failed", "hf: No such file or directory"))
    (folder / "hf").write_text("plain\n")
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    assert agent.output(item) == b"got plain\n"
    assert [age.phase for age in console.newest(item.attempt).phases][0] is Phase.PREPARING


async def test_a_key_that_is_not_there_is_named_and_may_come_with_the_next_value(console, agent, folder):
    (folder / "hf").write_text('{"tokem": "x"}')
    console.credentials = [source()]
    item = needs("exit 0")
    await console.assign(item)
    await console.waits(item.attempt, f"{WAITS}: it has no key token")
    (folder / "hf").write_text('{"token": "x"}')
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)


async def test_what_waits_is_stopped_at_once_and_keeps_nobody_else_waiting(console, agent):
    waiting, other = needs("exit 0", stop_grace_seconds=1000.0), script("exit 7")
    await console.assign(waiting, other)
    assert await console.ended(other.attempt) == (EndReason.EXITED, 7)
    await console.waits(waiting.attempt, WAITS)
    await console.assign(other)
    assert await console.ended(waiting.attempt) == (EndReason.STOPPED, None)


async def test_an_agent_that_was_killed_while_it_prepared_prepares_again(console, agent, folder):
    console.credentials = [source()]
    item = needs('echo "$HF_TOKEN"')
    await console.assign(item)
    await console.waits(item.attempt, WAITS)
    agent.kill()
    (folder / "hf").write_text("after the restart")
    agent.start()
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    assert agent.output(item) == b"after the restart\n"


async def test_the_next_start_gets_the_rotated_value(console, agent, folder):
    console.credentials = [source()]
    for value in ("first", "second"):
        (folder / "hf").write_text(value)
        item = needs('echo "$HF_TOKEN"')
        await console.assign(item)
        assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
        assert agent.output(item) == f"{value}\n".encode()


async def test_two_workspaces_may_use_the_same_name(console, agent, folder):
    (folder / "one").write_text("of the first")
    (folder / "two").write_text("of the second")
    console.credentials = [source(reference="one"), source(workspace=2, reference="two", place="acme/nlp")]
    use = SecretUse("hf-token", {"value": "HF_TOKEN"})
    first = script('echo "$HF_TOKEN"', workspace=1, secrets=[use])
    second = script('echo "$HF_TOKEN"', workspace=2, secrets=[use])
    stranger = script('echo "$HF_TOKEN"', workspace=3, secrets=[use])
    await console.assign(first, second, stranger)
    for item, output in ((first, b"of the first\n"), (second, b"of the second\n")):
        assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
        assert agent.output(item) == output
    await console.waits(stranger.attempt, WAITS)


async def test_a_credential_that_is_deleted_and_made_again_is_another_one(console, agent, folder):
    (folder / "hf").write_text("x")
    first, again = source(), source(reference="absent")
    console.credentials = [first]
    await console.assign()
    await states(console, (first, "Synced", ""))
    console.credentials = []
    await console.assign()
    await states(console)
    console.credentials = [again]
    await console.assign()
    await states(console, (again, "Failed", "absent: No such file or directory"))


async def test_a_host_process_gets_no_files(console, agent, folder):
    (folder / "hf").write_text("x")
    console.credentials = [source()]
    item = needs("exit 0", SecretUse("hf-token", {}, "/var/secrets"))
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.REFUSED, None)
    assert secret_folders(item) == []


async def test_a_registry_secret_waits_with_its_own_sentence_and_a_wrong_one_ends_the_worker(console, agent, folder):
    console.credentials = [source("registry-login", reference="login")]
    item = script("exit 0", workspace=1, registry_secret=SecretUse("registry-login"), image="r.example.com/a")
    await console.assign(item)
    await console.waits(item.attempt, "waiting for registry secret registry-login to be synced to this node")
    (folder / "login").write_text(f"user:{VALUE}")
    assert await console.ended(item.attempt) == (EndReason.IMAGE_PULL, None)
    message = console.newest(item.attempt).message
    assert message == "registry secret registry-login: its value is not JSON with username, password and server"


async def test_the_keeper_and_the_workers_do_not_inherit_the_agents_environment(console, agent, monkeypatch):
    agent.kill()
    monkeypatch.setenv("ASTRA_CREDENTIAL_HF", VALUE)
    agent.start()
    item = script("env; sleep 100")
    await console.assign(item)
    await console.reached(item.attempt, Phase.RUNNING)
    assert VALUE.encode() not in agent.output(item)
    keeper = await eventually(agent.keeper)
    assert not any(VALUE.encode() in entry for entry in environment(keeper))
