"""Fixtures of the agent's tests: no database, no Django."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.agents import Agent
from tests.agent.fake_console import FakeConsole


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that workers of another user may pass through, as a data folder is; pytest's own is closed to them."""
    path = Path(tempfile.mkdtemp(prefix="astra-agent-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
async def console() -> AsyncIterator[FakeConsole]:
    fake = FakeConsole()
    await fake.open()
    yield fake
    await fake.close()


@pytest.fixture
def make_agent(open_folder: Path, console: FakeConsole) -> Iterator[Callable[..., Agent]]:
    """Starts agents on one folder; what is left of them after the test is killed."""
    made: list[Agent] = []

    def make(**more: object) -> Agent:
        agent = Agent(open_folder, console, **more)  # type: ignore[arg-type]
        made.append(agent)
        agent.start()
        return agent

    yield make
    for agent in made:
        agent.end()
