"""Follow one worker's log: frames of lines from the position in the address, until the worker has ended."""

import asyncio
import logging
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer

from astraconsole import events
from astraconsole.errors import AstraError, NotFound
from astraconsole.tenancy.queries import get_access
from astraconsole.tenancy.sessions import user_of
from runs import queries
from runs.consumers.pages import GONE
from runs.log_feed import Feed, watching
from runs.log_follower import Position

ENDED = 1000
BROKEN = 1011

log = logging.getLogger(__name__)


class LogConsumer(AsyncWebsocketConsumer):
    """`?from=<position>`; without one, from the first attempt's start. Frames are those of `runs.log_frames`."""

    _feed: Feed | None = None
    _follower: asyncio.Task[None] | None = None
    _group = ""

    async def connect(self) -> None:
        try:
            worker_id, run_uid = await database_sync_to_async(self._find)()
            text = parse_qs(self.scope["query_string"].decode("latin-1")).get("from", [""])[0]
            position = Position.parse(text) if text else None
        except AstraError:
            await self.close(GONE)
            return
        self._group = events.run_group(run_uid)
        await self.channel_layer.group_add(self._group, self.channel_name)
        await self.accept()
        # Its own task: a loop in a handler would keep this connection from hearing that it was closed.
        self._follower = asyncio.create_task(self._follow(worker_id, position))

    async def disconnect(self, code: int) -> None:
        if self._follower is not None:
            self._follower.cancel()
        if self._group:
            await self.channel_layer.group_discard(self._group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Pages say nothing; what is said is not listened to."""

    async def run_changed(self, event: dict[str, Any]) -> None:
        """A worker that ends is shown to have ended at once, not at the next look."""
        if self._feed is not None:
            self._feed.nudge()

    async def _follow(self, worker_id: int, position: Position | None) -> None:
        try:
            async with watching(worker_id) as self._feed:
                await self._send_frames(self._feed, position)
            await self.close(ENDED)
        except AstraError:
            await self.close(GONE)
        except Exception:
            log.exception("Cannot follow the log of worker %s", worker_id)
            await self.close(BROKEN)

    async def _send_frames(self, feed: Feed, position: Position | None) -> None:
        """Until the last one. Every look sends one, so that a page knows that it is still live."""
        seen, ended = 0, False  # a feed that has looked already has something to show
        while not ended:
            seen = await feed.wait(seen)
            worker_id, _ = await database_sync_to_async(self._find)()  # still a member
            if worker_id != feed.worker_id:
                raise NotFound("another worker has this name now")
            frame = await feed.frame(position)
            position, ended = frame.position, frame.status == "ended"
            await self.send(frame.text)

    def _find(self) -> tuple[int, UUID]:
        """(worker id, its run's uid). Raises Unauthenticated, NotFound."""
        args = self.scope["url_route"]["kwargs"]
        access = get_access(user_of(self.scope), args["org"], args["ws"])
        worker = queries.get_worker(access, args["cluster"], args["name"])
        return worker.pk, worker.run.uid
