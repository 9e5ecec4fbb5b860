"""An agent, connected to the consumer: real PostgreSQL, Redis and channel layer."""

import pytest
import redis
from django.conf import settings

from machines.models import MachineState
from tests.fleet import (
    TOKEN,
    Agent,
    a_cluster,
    a_machine,
    end_calls,
)


@pytest.fixture(autouse=True)
def store():
    store = redis.Redis.from_url(settings.REDIS_URL)
    store.flushdb()
    yield store
    store.close()
    end_calls()


@pytest.fixture
def machine():
    return a_machine(a_cluster(), token=TOKEN, state=MachineState.JOINING)


@pytest.fixture
async def agent(machine):
    """Connected, and greeted."""
    agent = Agent(TOKEN)
    await agent.greet()
    yield agent
    await agent.leave()
