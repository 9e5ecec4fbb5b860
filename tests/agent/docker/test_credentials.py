"""What was prepared, in containers of a real engine: logins to a registry, files of secrets."""

import json
from pathlib import Path
from typing import Any

import pytest

from machines.agent.runtimes.base import CannotStart, Mount, Prepared, RegistryLogin
from machines.agent.secret_files import SecretFiles
from machines.protocol import EndReason, PullFailure
from tests.agent.docker.agent import Agent, exited
from tests.registry import Registry

pytestmark = pytest.mark.engine


@pytest.fixture
def private(registry: Registry) -> Registry:
    registry.login = ("robot$ci", "p\"a:s's wörd")
    return registry


def login(registry: Registry, password: str | None = None) -> Prepared:
    username, right = registry.login or ("", "")
    server = registry.image.partition("/")[0]
    return Prepared(login=RegistryLogin(server, username, right if password is None else password, "reg"))


async def refusal(agent: Agent, prepared: Prepared, image: str) -> CannotStart:
    order = agent.order("true", image=image, pull_policy="Always")
    with pytest.raises(CannotStart) as refused:
        await agent.runtime.start(order, agent.folder(order), prepared)
    assert refused.value.reason is EndReason.IMAGE_PULL
    return refused.value


async def test_a_private_image_is_pulled_with_its_login_and_runs(agent: Agent, private: Registry) -> None:
    order = agent.order("echo", "from a private registry", image=private.image, pull_policy="Always")
    await agent.runtime.start(order, agent.folder(order), login(private))
    assert exited(await agent.end_of(order)) == (0, False)
    assert agent.output(order) == b"from a private registry\n"
    assert "wörd" not in json.dumps(agent.container(order), ensure_ascii=False)


async def test_no_login_a_wrong_one_a_missing_image_and_no_registry_are_told_apart(
    agent: Agent, private: Registry
) -> None:
    without = await refusal(agent, Prepared(), private.image)
    wrong = await refusal(agent, login(private, "not the word"), private.image)
    absent = await refusal(agent, login(private), private.image.replace(":test", ":absent"))
    server, image = "127.0.0.1:1", "127.0.0.1:1/team/train:1"
    away = await refusal(agent, Prepared(login=RegistryLogin(server, "robot$ci", "p")), image)
    found = [each.pull_failure for each in (without, wrong, absent, away)]
    assert found == [PullFailure.DENIED, PullFailure.DENIED, PullFailure.NOT_FOUND, PullFailure.UNREACHABLE]
    assert without.message.endswith("(without a login)")
    assert wrong.message.endswith("(with the login of reg)")
    assert not any("wörd" in each.message or "not the word" in each.message for each in (without, wrong, absent, away))


async def with_files(
    agent: Agent, files: SecretFiles, *argv: str, **fields: Any
) -> tuple[tuple[int | None, bool], bytes]:
    order = agent.order(*argv, **fields)
    source = files.write(order.attempt, 0, {"key.json": b'{"a": 1}', "value": b"whole"})
    prepared = Prepared(env={"TOKEN": "t 1"}, mounts=[Mount(source, "/var/secrets/gcs", read_only=True)])
    await agent.runtime.start(order, agent.folder(order), prepared)
    return exited(await agent.end_of(order)), agent.output(order)


@pytest.fixture
def files(tmp_path: Path) -> Any:
    made = SecretFiles(tmp_path, "test-machine")
    yield made
    made.keep_only([])


@pytest.mark.parametrize("user", [None, "0", "1000:1000"])
async def test_whatever_user_a_container_runs_as_it_reads_its_secrets_and_cannot_change_them(
    agent: Agent, files: SecretFiles, user: str | None
) -> None:
    script = 'cat /var/secrets/gcs/key.json; echo " $TOKEN"; echo x > /var/secrets/gcs/value'
    end, output = await with_files(agent, files, "sh", "-c", script, user=user)
    assert end[0] != 0
    assert b'{"a": 1} t 1\n' in output
    assert b"ead-only file system" in output


def test_nobody_else_on_the_machine_gets_to_the_files_and_they_go_with_their_attempt(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path, "test-machine-2")
    folder = files.write("a" * 32, 0, {"value": b"x"})
    root = folder.parent.parent
    assert root.stat().st_mode & 0o777 == 0o700
    again = files.write("a" * 32, 0, {"other": b"y"})
    assert [path.name for path in again.iterdir()] == ["other"]
    files.write("b" * 32, 1, {"value": b"z"})
    files.discard("a" * 32)
    assert [path.name for path in root.iterdir()] == ["b" * 32]
    SecretFiles(tmp_path, "test-machine-2").keep_only([])
    assert not root.exists()


def test_a_folder_in_memory_that_is_not_ours_alone_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tmp_path / "memory"
    (memory / "astra-m").mkdir(parents=True)
    (memory / "astra-m").chmod(0o755)
    monkeypatch.setattr("machines.agent.secret_files.MEMORY", memory)
    folder = SecretFiles(tmp_path, "m").write("a" * 32, 0, {"value": b"x"})
    assert folder == tmp_path / "credentials" / ("a" * 32) / "0"
    assert list((memory / "astra-m").iterdir()) == []
