"""Follow the log of one worker, or of several: frames of lines from the positions in the address, until all ended."""

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer

from astraconsole import events
from astraconsole.errors import AstraError, NotFound
from astraconsole.tenancy.queries import Access, get_access
from astraconsole.tenancy.sessions import user_of
from runs import queries
from runs.consumers.pages import GONE
from runs.log_feed import Feed, watching
from runs.log_follower import STEPS_MAX, Position
from runs.log_merged import TOGETHER_MAX, parse_positions
from runs.names import rank_label

ENDED = 1000
BROKEN = 1011

log = logging.getLogger(__name__)


@dataclass
class Watch:
    """One worker's log, and how far its viewer has it."""

    feed: Feed
    position: Position | None
    rank: str
    seen: int = 0  # looks; a feed that has looked already has something to show


class FollowConsumer(AsyncWebsocketConsumer, ABC):
    """Frames are those of `runs.log_frames`. Subclasses say whose logs are asked for."""

    _follower: asyncio.Task[None] | None = None
    _group = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watches: list[Watch] = []

    async def connect(self) -> None:
        try:
            text = parse_qs(self.scope["query_string"].decode("latin-1")).get("from", [""])[0]
            asked = await database_sync_to_async(self._asked)(text)
            workers, run_uid = await database_sync_to_async(self._find)(list(asked))
        except AstraError:
            await self.close(GONE)
            return
        self._group = events.run_group(run_uid)
        await self.channel_layer.group_add(self._group, self.channel_name)
        await self.accept()
        # Its own task: a loop in a handler would keep this connection from hearing that it was closed.
        self._follower = asyncio.create_task(self._follow(asked, workers))

    async def disconnect(self, code: int) -> None:
        if self._follower is not None:
            self._follower.cancel()
        if self._group:
            await self.channel_layer.group_discard(self._group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Pages say nothing; what is said is not listened to."""

    async def run_changed(self, event: dict[str, Any]) -> None:
        """A worker that ends is shown to have ended at once, not at the next look."""
        for watch in self._watches:
            watch.feed.nudge()

    async def _follow(self, asked: dict[str, Position | None], workers: dict[str, int]) -> None:
        try:
            async with AsyncExitStack() as stack:
                for name, position in asked.items():
                    feed = await stack.enter_async_context(watching(workers[name]))
                    self._watches.append(Watch(feed, position, self._rank(name)))
                await self._send_frames(list(workers.values()))
            await self.close(ENDED)
        except AstraError:
            await self.close(GONE)
        except Exception:
            log.exception("Cannot follow the logs of workers %s", workers)
            await self.close(BROKEN)

    async def _send_frames(self, ids: list[int]) -> None:
        """Until the last one. Every look sends one, so that a page knows that it is still live."""
        waiting = {asyncio.create_task(watch.feed.wait(watch.seen)): watch for watch in self._watches}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if not await database_sync_to_async(queries.may_follow)(self._viewer, ids):
                    raise NotFound("signed out, no member any more, or the run was deleted")
                for task in done:
                    watch = waiting.pop(task)
                    watch.seen = task.result()
                    if not await self._send_look(watch):
                        waiting[asyncio.create_task(watch.feed.wait(watch.seen))] = watch
        finally:
            for task in waiting:
                task.cancel()

    async def _send_look(self, watch: Watch) -> bool:
        """All that has come by this look. Whether that was the last of it."""
        for step in range(STEPS_MAX + 1):
            frame = await watch.feed.frame(watch.position, watch.rank, hurry=step == STEPS_MAX)
            await self.send(frame.text)
            watch.position = frame.position
            if not frame.more:
                break
        return frame.status == "ended"

    def _access(self) -> Access:
        """Raises Unauthenticated, NotFound."""
        access = get_access(user_of(self.scope), self._args["org"], self._args["ws"])
        self._viewer = queries.Viewer(self.scope["session"].session_key, access.user, access.workspace.pk)
        return access

    @property
    def _args(self) -> dict[str, str]:
        return self.scope["url_route"]["kwargs"]

    @abstractmethod
    def _asked(self, text: str) -> dict[str, Position | None]:
        """Worker name → where to go on. Raises Unauthenticated, NotFound, ValidationError."""

    @abstractmethod
    def _find(self, names: list[str]) -> tuple[dict[str, int], UUID]:
        """(worker ids by name, their run's uid). Raises Unauthenticated, NotFound."""

    @abstractmethod
    def _rank(self, name: str) -> str:
        """What is told before each of its lines."""


class LogConsumer(FollowConsumer):
    """One worker. `?from=<position>`; without one, from the first attempt's start."""

    def _asked(self, text: str) -> dict[str, Position | None]:
        return {self._args["name"]: Position.parse(text) if text else None}

    def _find(self, names: list[str]) -> tuple[dict[str, int], UUID]:
        worker = queries.get_worker(self._access(), self._args["cluster"], names[0])
        return {names[0]: worker.pk}, worker.run.uid

    def _rank(self, name: str) -> str:
        return ""


class RunLogConsumer(FollowConsumer):
    """Several workers of a run. `?from=<worker>~<position>,…`; without one, the first workers from their start. Lines
    come in the order of their arrival."""

    def _asked(self, text: str) -> dict[str, Position | None]:
        if text:
            return parse_positions(text)
        run = queries.get_run(self._access(), self._args["cluster"], self._args["name"])
        return {name: None for name, _ in queries.names_and_states(run)[:TOGETHER_MAX]}

    def _find(self, names: list[str]) -> tuple[dict[str, int], UUID]:
        run = queries.get_run(self._access(), self._args["cluster"], self._args["name"])
        return queries.worker_ids(run, names), run.uid

    def _rank(self, name: str) -> str:
        return rank_label(self._args["name"], name)
