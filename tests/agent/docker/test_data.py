"""Code, drives and models in containers, on a real engine."""

import hashlib
import uuid

import pytest

from machines.protocol import CodeUse, EndReason
from tests import archives
from tests.agent.agents import order
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
