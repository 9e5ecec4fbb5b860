"""One reader of a worker's log for all its viewers in this process.

A feed looks at its worker every few seconds: once into the database, once at the machine, however many watch. What it
reads is kept for a while, so that viewers a little behind find it here; who is further behind asks the machine.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from channels.db import database_sync_to_async
from django.conf import settings

from astraconsole.errors import AstraError, NotFound
from machines.protocol import LOG_CHUNK_BYTES, LogChunk
from runs import log_source
from runs.log_follower import Position, advance
from runs.log_frames import Frame, frame_of
from runs.log_html import Owner
from runs.log_source import Followed, Source

KEPT_BYTES = 1024**2  # of an attempt's newest output
FIRST_LOOK_SECONDS = 0.3  # after somebody came: what was printed since the page was read
FRAMES_KEPT = 8  # viewers stand at the same few places

log = logging.getLogger(__name__)


class Feed:
    """Look, tell the viewers, wait. Use `watching`, which starts and ends it."""

    def __init__(self, worker_id: int) -> None:
        self.worker_id = worker_id
        self.viewers = 0
        self.looks = 0  # counts up with each look that viewers should act on
        self.gone = False  # the worker was deleted
        self._followed: Followed | None = None
        self._kept: LogChunk | None = None  # a window on the newest attempt's output, up to its end at the last look
        self._kept_of = 0  # that attempt's number
        self._error: AstraError | None = None  # why the last look could not read
        self._frames: OrderedDict[tuple[int, str, str, bool], asyncio.Task[Frame]] = OrderedDict()
        self._changed = asyncio.Condition()
        self._nudged = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def nudge(self) -> None:
        """Look soon: somebody came, or the run has changed."""
        self._nudged.set()

    def stop(self) -> None:
        self._task.cancel()

    async def wait(self, seen: int) -> int:
        """Until there was another look than number `seen`; its number. Raises NotFound once the worker is gone."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.looks != seen or self.gone)
        if self.gone:
            raise NotFound("this worker was deleted, and its log with it")
        return self.looks

    async def frame(self, position: Position | None, rank: str = "", hurry: bool = False) -> Frame:
        """What has come since `position`, made once for all viewers who stand there. After `wait`. `rank`: told before
        each line, for those who watch several workers."""
        key = (self.looks, str(position), rank, hurry)
        if key not in self._frames:
            self._frames[key] = asyncio.create_task(self._frame(position, rank, hurry))
            while len(self._frames) > FRAMES_KEPT:
                self._frames.popitem(last=False)
        return await asyncio.shield(self._frames[key])

    async def _frame(self, position: Position | None, rank: str, hurry: bool) -> Frame:
        assert self._followed is not None
        batch = await advance(self._followed, position, self._read, hurry)
        return frame_of(batch, self._followed.name, Owner(rank=rank))

    async def _read(self, source: Source, start: int, limit: int) -> LogChunk:
        """From what is kept where it can be; else from the machine."""
        if source.number != self._kept_of:
            return await log_source.read(source, start, limit)
        if self._error is not None:
            raise self._error
        kept = self._kept
        if kept is None or not kept.start <= start <= kept.next:
            return await log_source.read(source, start, limit)
        data = kept.data[start - kept.start :][:limit]
        end = start + len(data)
        return LogChunk(start, data, end, kept.ended and end == kept.next, kept.archived)

    async def _run(self) -> None:
        while True:
            await self._look()
            if self.gone:
                return
            try:
                async with asyncio.timeout(settings.LOG_FOLLOW_SECONDS):
                    await self._nudged.wait()
                    await asyncio.sleep(FIRST_LOOK_SECONDS)  # those who come together are served together
            except TimeoutError:
                pass
            self._nudged.clear()

    async def _look(self) -> None:
        try:
            self._followed = await database_sync_to_async(log_source.look)(self.worker_id)
            await self._refill(self._followed.newest)
        except NotFound:
            self.gone = True
        except Exception:  # the database is away: the next look tries again
            log.exception("Cannot look at the log of worker %s", self.worker_id)
            return
        async with self._changed:
            self.looks += 1
            self._changed.notify_all()

    async def _refill(self, source: Source | None) -> None:
        """Read what the newest attempt has printed since the last look."""
        if source is None:
            return
        if source.number != self._kept_of:
            self._kept, self._kept_of = None, source.number
        kept = self._kept
        try:
            chunk = await log_source.read(source, kept.next if kept else -LOG_CHUNK_BYTES, LOG_CHUNK_BYTES)
            self._error = None
        except AstraError as error:
            self._error = error
            return
        if kept is not None and chunk.start == kept.next:
            data, start = kept.data + chunk.data, kept.start
        else:
            data, start = chunk.data, chunk.start
        dropped = max(len(data) - KEPT_BYTES, 0)
        self._kept = LogChunk(start + dropped, data[dropped:], chunk.next, chunk.ended, chunk.archived)


_feeds: dict[int, Feed] = {}


@asynccontextmanager
async def watching(worker_id: int) -> AsyncIterator[Feed]:
    """The feed of a worker, which lives as long as anybody watches."""
    feed = _feeds.get(worker_id)
    if feed is None or feed.gone:
        feed = _feeds[worker_id] = Feed(worker_id)  # which looks at once
    else:
        feed.nudge()
    feed.viewers += 1
    try:
        yield feed
    finally:
        feed.viewers -= 1
        if feed.viewers == 0:
            feed.stop()
            if _feeds.get(worker_id) is feed:
                del _feeds[worker_id]
