"""A container's output, followed into the agent's own copy until it has ended and all of it is there."""

import asyncio
import logging
from pathlib import Path

import aiodocker

from machines.agent import clock
from machines.agent.runtimes.docker_engine import RETRY_SECONDS, TROUBLE, Engine
from machines.agent.runtimes.docker_log import Entry, FrameDecoder, OutputCopy, OutputNotWritten

log = logging.getLogger(__name__)

WRITE_RETRY_SECONDS = 10.0  # after a write to the copy failed: the disk is full, say
OUTPUT_TRIES = 5  # to write the rest of an ended container's output, before its end is told without it
TAIL_ENTRIES = 1000
LINGER_SECONDS = 1.0  # of a follower, after the container's end


class OutputFollower:
    """`attempt`: the container's. `output`: the file of the copy."""

    def __init__(self, engine: Engine, attempt: str, output: Path) -> None:
        self._engine = engine
        self._attempt = attempt
        self._output = output

    async def follow(self, end: asyncio.Task[None]) -> None:
        """Follow the output while the container runs. What a follower saw is never known to be all: the engine ends it
        when it leaves itself, and Docker's may miss the last words. So afterwards the rest is read once more."""
        while not end.done():
            pause = RETRY_SECONDS
            try:
                await self._follow_once(end)
            except OutputNotWritten as error:
                log.warning("The output of attempt %s is not copied: %s", self._attempt, error)
                pause = WRITE_RETRY_SECONDS
            except TROUBLE as error:
                log.info("Following the output of attempt %s broke off: %s", self._attempt, error)
            await asyncio.wait((end,), timeout=pause)
        await self._finish()

    async def _finish(self) -> None:
        why = ""
        for _ in range(OUTPUT_TRIES):
            try:
                await self._engine.patiently(self._copy_rest)
                return
            except OutputNotWritten as error:
                why = str(error)
                log.warning("The output of attempt %s is not copied: %s", self._attempt, why)
                await asyncio.sleep(WRITE_RETRY_SECONDS)
            except aiodocker.DockerError as error:
                log.info("The engine has no output of attempt %s: %s", self._attempt, error)
                return
        OutputCopy(self._output).mark_lost(why)

    async def _follow_once(self, end: asyncio.Task[None]) -> None:
        """Until the engine ends it, or a little after the container's end. Where followers are not to be relied on:
        what there is, again and again, spending a tenth of the time on it."""
        if not self._engine.keeps_entries:
            began = clock.now()
            await self._copy_all(follow=False)
            await asyncio.wait((end,), timeout=9 * (clock.now() - began))
            return
        following = asyncio.create_task(self._copy_all(follow=True))
        try:
            await asyncio.wait((following, end), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((following,), timeout=LINGER_SECONDS)
            if following.done():
                following.result()
        finally:
            following.cancel()

    async def _copy_all(self, *, follow: bool) -> None:
        copy, decoder = OutputCopy(self._output), FrameDecoder()
        resume = copy.resume()
        async for chunk in self._engine.output(self._attempt, follow=follow):
            if entries := decoder.feed(chunk):
                copy.append(resume.take(entries), resume.cursor)

    async def _copy_rest(self) -> None:
        """Of an ended container: among its last entries, if the newest copied one is there, else from the start."""
        if self._engine.keeps_entries:
            copy, decoder = OutputCopy(self._output), FrameDecoder()
            resume, entries = copy.resume(), list[Entry]()
            async for chunk in self._engine.output(self._attempt, tail=TAIL_ENTRIES):
                entries += decoder.feed(chunk)
            if len(entries) < TAIL_ENTRIES or resume.is_reached_from(entries[0]):
                copy.append(resume.take(entries), resume.cursor)
                return
        await self._copy_all(follow=False)
