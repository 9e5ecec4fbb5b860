"""An agent on the tests' own engine, and a registry."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest_asyncio

from tests.agent.docker.agent import Agent
from tests.engine import Engine
from tests.registry import Registry


@pytest_asyncio.fixture
async def agent(engine: Engine, tmp_path: Path) -> AsyncIterator[Agent]:
    opened = await Agent(engine, tmp_path, uuid4().hex).open()
    yield opened
    await opened.close()
    if names := opened.containers():
        engine.docker("rm", "--force", *names)


@pytest_asyncio.fixture
async def registry() -> AsyncIterator[Registry]:
    started = Registry()
    await started.start()
    yield started
    await started.stop()
