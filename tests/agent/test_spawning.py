"""Programs that the agent runs for itself end with all that they have begun."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from machines.agent.spawning import kill, spawn
from tests.agent.agents import eventually
from tests.console import processes_of


def hanging(folder: Path) -> list[str]:
    """Named after the folder, with a child that would hold its output for long."""
    return ["/bin/sh", "-c", f": {folder}; (: {folder}; sleep 1000; :) & wait"]


async def all_gone(folder: Path) -> None:
    await eventually(lambda: processes_of(folder, parent=-1) == [])


async def test_a_program_is_killed_with_its_children(tmp_path: Path) -> None:
    process = await spawn(hanging(tmp_path))
    await eventually(lambda: len(processes_of(tmp_path, parent=-1)) == 2)
    kill(process)
    await process.wait()
    await all_gone(tmp_path)
    kill(process)


async def test_a_program_that_has_ended_unnoticed_may_still_be_killed() -> None:
    process = await spawn(["/bin/sleep", "0.1"])
    with suppress(ChildProcessError):  # asyncio's own thread was first
        os.waitpid(process.pid, 0)  # noqa: ASYNC222  (the loop must not hear of it)
    kill(process)


@pytest.mark.parametrize("steps", range(8))
async def test_one_that_is_given_up_while_it_begins_leaves_nothing_and_holds_nobody_up(
    tmp_path: Path, steps: int
) -> None:
    beginning = asyncio.create_task(spawn(hanging(tmp_path)))
    for _ in range(steps):
        await asyncio.sleep(0)
    beginning.cancel()
    (answer,) = await asyncio.wait_for(asyncio.gather(beginning, return_exceptions=True), 30)
    if not isinstance(answer, asyncio.CancelledError):
        kill(answer)
    await all_gone(tmp_path)
