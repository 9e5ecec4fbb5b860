"""Images on a real engine: pulled, missing, refused."""

import asyncio
from typing import Any

import pytest

from machines.agent.runtimes.base import (
    CannotStart,
    Progress,
)
from machines.protocol import EndReason, Phase, PullFailure
from tests.agent.docker.agent import DEADLINE_SECONDS, Agent, exited
from tests.engine import Engine, import_image
from tests.registry import Registry

pytestmark = pytest.mark.engine


async def refusal(agent: Agent, **fields: Any) -> CannotStart:
    with pytest.raises(CannotStart) as refused:
        await agent.start(agent.order("true", **fields))
    assert agent.containers() == []
    return refused.value


async def test_a_pull_that_fails_is_told_in_the_engines_words(agent: Agent) -> None:
    refused = await refusal(agent, image="127.0.0.1:1/no/such:image")
    assert (refused.reason, refused.pull_failure) == (EndReason.IMAGE_PULL, PullFailure.UNREACHABLE)
    assert "127.0.0.1:1" in refused.message
    assert "connection refused" in refused.message


async def test_a_pulled_image_runs_and_is_known_by_its_digest(agent: Agent, registry: Registry) -> None:
    order = await agent.start(agent.order("echo", "pulled", image=registry.image))
    assert exited(await agent.end_of(order)) == (0, False)
    assert agent.output(order) == b"pulled\n"
    told = [event for event in agent.events_of(order) if isinstance(event, Progress)]
    phases = list(dict.fromkeys(event.phase for event in told))
    assert phases == [Phase.PULLING, Phase.STARTING, Phase.RUNNING]
    assert [event.image_digest for event in told if event.phase is Phase.STARTING] == [registry.digest]
    by_digest = registry.image.replace(":test", f"@{registry.digest}")
    assert exited((await agent.run("true", image=by_digest))[0]) == (0, False)


async def test_a_tag_that_the_registry_does_not_have_is_told_in_its_words(agent: Agent, registry: Registry) -> None:
    refused = await refusal(agent, image=registry.image.replace(":test", ":absent"))
    assert (refused.reason, refused.pull_failure) == (EndReason.IMAGE_PULL, PullFailure.NOT_FOUND)
    assert "manifest" in refused.message
    assert "unknown" in refused.message


async def test_a_registry_that_wants_a_login_is_told_apart_from_a_missing_image(
    agent: Agent, registry: Registry
) -> None:
    registry.login = ("user", "password")
    refused = await refusal(agent, image=registry.image.replace("busybox", "private"))
    assert (refused.reason, refused.pull_failure) == (EndReason.IMAGE_PULL, PullFailure.DENIED)
    assert any(word in refused.message for word in ("authentication required", "no basic auth credentials"))


async def test_always_pulls_though_the_image_is_there(agent: Agent, engine: Engine) -> None:
    import_image(engine, "127.0.0.1:1/cached:test")
    refused = await refusal(agent, image="127.0.0.1:1/cached:test", pull_policy="Always")
    assert exited((await agent.run("true", image="127.0.0.1:1/cached:test"))[0]) == (0, False)
    assert refused.reason is EndReason.IMAGE_PULL


async def test_without_pulling_a_missing_image_says_so(agent: Agent) -> None:
    refused = await refusal(agent, image="nothing:here", pull_policy="None")
    assert refused.reason is EndReason.IMAGE_MISSING
    assert refused.message == "Image nothing:here is not present and the pull policy is None"


@pytest.mark.parametrize("image", ["", "UPPER", "../containers/json", "a b", "x?y=1", "busybox:", "-"])
async def test_what_is_no_image_reference_is_refused(agent: Agent, image: str) -> None:
    refused = await refusal(agent, image=image)
    assert (refused.reason, refused.message) == (EndReason.IMAGE_PULL, f"invalid reference format: {image}")


async def test_a_stop_gives_up_a_pull(agent: Agent) -> None:
    accepted = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await reader.read()  # a registry that never answers
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as registry:
        port = registry.sockets[0].getsockname()[1]
        order = agent.order("true", image=f"127.0.0.1:{port}/slow:image")
        starting = asyncio.create_task(agent.start(order))
        await asyncio.wait_for(accepted.wait(), DEADLINE_SECONDS)
        await agent.runtime.stop(order.attempt, 60)
        with pytest.raises(CannotStart) as refused:
            await asyncio.wait_for(starting, DEADLINE_SECONDS)
        assert refused.value.reason is EndReason.STOPPED
