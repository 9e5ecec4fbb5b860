"""Code that came with a run: in the attempt's working folder before it starts, anew for each attempt."""

import hashlib
import uuid

from machines.orders import CodeUse, Order
from machines.protocol import EndReason, Phase
from tests import archives
from tests.agent.agents import script
from tests.agent.fake_console import FakeConsole

PACKED = archives.packed({"run.sh": "#!/bin/sh\necho from $(basename $PWD) $1", "lib/data.txt": "42"}, ["run.sh"])


def with_code(console: FakeConsole, text: str, packed: bytes = PACKED, **more: object) -> Order:
    item = script(text, code=CodeUse(hashlib.sha256(PACKED).hexdigest(), len(PACKED)), **more)
    console.code[str(uuid.UUID(item.attempt))] = packed
    return item


async def test_a_host_process_works_where_its_code_is_and_may_write_there(console, make_agent):
    agent = make_agent()
    item = with_code(console, "./run.sh fast; cat lib/data.txt; echo > lib/new && echo > new && ls")
    await console.connected()
    await console.assign(item)
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    assert agent.output(item).split() == [b"from", b"code", b"fast", b"42lib", b"new", b"run.sh"]
    assert set(console.tokens) == {"Bearer secret-token"}


async def test_code_that_the_console_does_not_have_ends_the_attempt_with_a_sentence(console, make_agent):
    make_agent()
    await console.connected()
    missing, other = with_code(console, "true"), with_code(console, "true", PACKED + b"more")
    console.code.pop(str(uuid.UUID(missing.attempt)))
    await console.assign(missing, other)
    assert (await console.ended(missing.attempt))[0] is EndReason.START_FAILED
    assert (await console.ended(other.attempt))[0] is EndReason.START_FAILED
    assert "any more (HTTP 404)" in console.newest(missing.attempt).message
    assert "digest differs" in console.newest(other.attempt).message


async def test_code_that_arrives_in_part_is_waited_for(console, make_agent):
    make_agent()
    await console.connected()
    item = with_code(console, "true", PACKED[:50])
    await console.assign(item)
    await console.until(lambda: (report := console.newest(item.attempt)) is not None and report.waiting != "")
    assert console.newest(item.attempt).waiting.startswith("Waiting for the run's code: only 50 of its")
    console.code[str(uuid.UUID(item.attempt))] = PACKED
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)


async def test_an_agent_killed_while_it_waits_for_code_unpacks_it_anew(console, make_agent):
    agent = make_agent()
    await console.connected()
    item = with_code(console, "cat lib/data.txt", PACKED[:50])
    await console.assign(item)
    await console.reached(item.attempt, Phase.PREPARING)
    agent.kill()
    half = agent.state / "attempts" / item.attempt / "code"
    half.mkdir()
    (half / "lib").symlink_to("/tmp")
    console.code[str(uuid.UUID(item.attempt))] = PACKED
    agent.start()
    assert await console.ended(item.attempt) == (EndReason.EXITED, 0)
    assert agent.output(item) == b"42"
