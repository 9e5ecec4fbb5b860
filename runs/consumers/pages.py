"""Hints to open pages: the runs list, a run's page, a worker's page. A page that hears "changed" fetches its fragment.

The URL decides what is watched: one group a connection, chosen here. Nothing of a run travels over these sockets.
"""

import asyncio
import contextlib
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer

from astraconsole import events
from astraconsole.errors import AstraError
from astraconsole.tenancy.queries import Access, get_access
from astraconsole.tenancy.sessions import user_of
from runs import queries

GAP_SECONDS = 0.3  # between two hints: a busy run changes a thousand times a second
REJOIN_SECONDS = 60  # groups can vanish with Redis, and memberships end
GONE = 4404  # close code: there is no such page for this person


class PageConsumer(AsyncWebsocketConsumer):
    """Joins the group of its URL, and passes on that something changed, at most once per GAP_SECONDS."""

    group = ""
    _hint: asyncio.Task[None] | None = None
    _keeper: asyncio.Task[None] | None = None
    _hinted_at = 0.0

    def find_group(self, access: Access, cluster: str, name: str) -> str:
        """The group of this page. Raises NotFound."""
        raise NotImplementedError

    async def connect(self) -> None:
        try:
            self.group = await self._authorised_group()
        except AstraError:
            await self.close(GONE)
            return
        await self.channel_layer.group_add(self.group, self.channel_name)
        await self.accept()
        self._keeper = asyncio.create_task(self._keep_joined())

    async def disconnect(self, code: int) -> None:
        for task in (self._keeper, self._hint):
            if task is not None:
                task.cancel()
        if self.group:
            await self.channel_layer.group_discard(self.group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Pages say nothing; what is said is not listened to."""

    async def run_changed(self, event: dict[str, Any]) -> None:
        self._hint_soon()

    async def runs_changed(self, event: dict[str, Any]) -> None:
        self._hint_soon()

    def _hint_soon(self) -> None:
        """The first change of a burst at once, the rest together after the gap."""
        if self._hint is None or self._hint.done():
            self._hint = asyncio.create_task(self._send_hint())

    async def _send_hint(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._hinted_at + GAP_SECONDS - loop.time()))
        self._hinted_at = loop.time()
        await self.send("changed")

    async def _keep_joined(self) -> None:
        while True:
            await asyncio.sleep(REJOIN_SECONDS)
            try:
                await self._authorised_group()
            except AstraError:
                await self.close(GONE)
                return
            with contextlib.suppress(OSError):  # Redis is away: the next round joins again
                await self.channel_layer.group_add(self.group, self.channel_name)
            self._hint_soon()  # hints may have been lost meanwhile

    async def _authorised_group(self) -> str:
        return await database_sync_to_async(self._find)()

    def _find(self) -> str:
        args = self.scope["url_route"]["kwargs"]
        access = get_access(user_of(self.scope), args["org"], args["ws"])
        return self.find_group(access, args.get("cluster", ""), args.get("name", ""))


class RunsConsumer(PageConsumer):
    """The runs list of a workspace."""

    def find_group(self, access: Access, cluster: str, name: str) -> str:
        return events.workspace_group(access.workspace.pk)


class RunConsumer(PageConsumer):
    """One run's page."""

    def find_group(self, access: Access, cluster: str, name: str) -> str:
        return events.run_group(queries.get_run(access, cluster, name).uid)


class WorkerConsumer(PageConsumer):
    """One worker's page: its run's changes."""

    def find_group(self, access: Access, cluster: str, name: str) -> str:
        return events.run_group(queries.get_worker(access, cluster, name).run.uid)
