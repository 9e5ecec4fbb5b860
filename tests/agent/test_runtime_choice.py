"""Which runtime `auto` means: never one that could not take up the attempts of earlier agents."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from machines.agent import main
from machines.agent.journal import Journal
from machines.agent.main import Agent, Options
from machines.agent.runtimes.base import RuntimeUnavailable

ENGINE = "unix:///nowhere/docker.sock"


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | None], str]]:
    """An agent's start on one state directory, with an engine that answers or None: the name of its runtime."""
    journal = Journal(tmp_path / "state")
    journal.open()

    def start(engine: str | None) -> str:
        monkeypatch.setattr(main, "find_engine", lambda: engine)
        options = Options("http://console", "gpu-1", str(tmp_path / "state"))
        agent = Agent([options], tmp_path / "keeper")
        return agent._machine(options, journal).runtime.name

    yield start
    journal.close()


def hold_an_attempt(folder: Path) -> None:
    (folder / "state" / "attempts" / ("0" * 32)).mkdir()


def test_an_idle_machine_takes_what_is_there(begin: Callable[[str | None], str]) -> None:
    assert [begin(None), begin(ENGINE), begin(None)] == ["process", "docker", "process"]


def test_containers_wait_for_their_engine(begin: Callable[[str | None], str], tmp_path: Path) -> None:
    assert begin(ENGINE) == "docker"
    hold_an_attempt(tmp_path)
    with pytest.raises(RuntimeUnavailable, match="neither Docker nor Podman answers"):
        begin(None)
    assert begin(ENGINE) == "docker"


def test_host_processes_are_not_left_for_an_engine_that_has_come(
    begin: Callable[[str | None], str], tmp_path: Path
) -> None:
    assert begin(None) == "process"
    hold_an_attempt(tmp_path)
    assert begin(ENGINE) == "process"
