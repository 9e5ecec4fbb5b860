"""What this daphne process knows of the agents connected to it, and the one loop that writes it down.

Heartbeats never reach the ORM one by one: receive times are collected here and written about once a second, and what
the write finds (a newer set of assignments, a newer connection) is answered from here. One Presence for each event
loop, made by whoever comes first: a request or an agent.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from django import db
from django.conf import settings
from django.utils import timezone

from astraconsole import events
from machines import connections, data_states, inbox, leases
from machines.connections import Beat
from machines.data_states import Told
from machines.metrics import lane
from machines.protocol import Close
from machines.services import record_alive

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")

FLUSH_SECONDS = 1
HELLO_SECONDS = 10
REJOIN_SECONDS = 60
GATHERED = 200  # items of one call, so that rows are not locked for long
REASONS = {
    Close.REMOVED: connections.REMOVED.reason,
    Close.REPLACED: "this machine has a newer connection",
    Close.HELLO_AGAIN: "the console no longer counts on this connection: say hello again",
    Close.NO_HELLO: f"no hello came within {HELLO_SECONDS} s",
}


class Connection(Protocol):
    """What Presence asks of a consumer."""

    connection_id: str
    opened_at: float  # monotonic
    joined_at: float  # monotonic; 0: it has not said hello
    machine_id: int

    async def push(self, frame: bytes) -> None: ...
    async def end(self, code: Close, reason: str) -> None: ...
    async def join_group(self) -> None: ...


class DatabaseThread:
    """A thread with a database connection of its own, so that agents neither wait for pages nor pages for agents."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        def work() -> T:
            db.close_old_connections()
            return function(*args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, db.connections.close_all)
        self._executor.shutdown(wait=False)


class Gathering(Generic[A, R]):
    """A function of a list, called for one item at a time: what comes while it is at work goes together into the next
    call. So a thousand agents that come back at once cost a few transactions, and one alone waits for nobody."""

    def __init__(self, function: Callable[[list[A]], Awaitable[list[R]]]) -> None:
        self._function = function
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, item: A) -> R:
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:GATHERED], self._waiting[GATHERED:]
            try:
                answers = await self._function([item for item, _ in batch])
            except Exception as error:
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
            else:
                for (_, answer), value in zip(batch, answers, strict=True):
                    if not answer.done():
                        answer.set_result(value)


class Presence:
    def __init__(self) -> None:
        self.thread = DatabaseThread("agents")
        self.authenticate = Gathering(partial(self.thread.run, connections.authenticate))
        self.connected = Gathering(partial(self.thread.run, connections.connected))
        self.disconnected = Gathering(partial(self.thread.run, connections.disconnected))
        self.append = Gathering(self._append)
        self.heartbeats = DatabaseThread("heartbeats")
        self.redis = redis.asyncio.Redis.from_url(settings.REDIS_URL)  # one connection serves: see Gathering
        self._process = f"daphne:{socket.gethostname()}:{os.getpid()}"
        self._connections: set[Connection] = set()
        self._beats: dict[int, Beat] = {}
        self._samples: dict[int, list[lane.Frame]] = {}  # by cluster
        self._samples_bytes = 0
        self._told: dict[int, Told] = {}
        self._alive_at = 0.0
        self._woken: set[int] = set()
        self._waker: asyncio.Task[None] | None = None
        self._loop = asyncio.create_task(self._run())

    # ---- what consumers tell

    def add(self, connection: Connection) -> None:
        self._connections.add(connection)

    def remove(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def beat(self, beat: Beat) -> None:
        self._beats[beat.machine_id] = beat

    def tell(self, told: Told) -> None:
        """What a machine holds; the newest counts."""
        self._told[told.machine_id] = told

    def sampled(self, cluster_id: int, frame: lane.Frame) -> None:
        """Kept for the next flush; dropped where a second brings more than an entry of the lane may hold."""
        self._samples_bytes += len(frame[2])
        if self._samples_bytes <= lane.MAX_ENTRY_BYTES:
            self._samples.setdefault(cluster_id, []).append(frame)

    async def _append(self, said: list[inbox.Said]) -> list[None]:
        """Into the inbox; then wake its drains, off the loop. What comes while a wake is on its way shares the next."""
        await inbox.append(self.redis, said)
        self._woken.update(one.cluster_id for one in said)
        if self._waker is None or self._waker.done():
            self._waker = asyncio.create_task(self._wake())
        return [None] * len(said)

    async def _wake(self) -> None:
        while self._woken:
            await asyncio.to_thread(events.wake_now, "reports", self._woken.pop())

    # ---- the loop

    async def _run(self) -> None:
        try:
            while True:
                started = time.monotonic()
                for step in (
                    self._write_alive,
                    self.flush,
                    self.write_data_states,
                    self.flush_samples,
                    self.look_after,
                ):
                    await _guarded(step)
                await asyncio.sleep(max(0.0, FLUSH_SECONDS - (time.monotonic() - started)))
        finally:
            await self._close()

    async def _close(self) -> None:
        """The event loop ends."""
        for thread in (self.thread, self.heartbeats):
            await thread.close()
        await self.redis.aclose()

    async def _write_alive(self) -> None:
        if time.monotonic() - self._alive_at >= settings.MACHINE_HEARTBEAT_SECONDS:
            await self.heartbeats.run(record_alive, self._process, leases.DAPHNE, timezone.now())
            self._alive_at = time.monotonic()

    async def flush(self) -> None:
        """Write the heartbeats collected so far, and answer them."""
        beats, self._beats = self._beats, {}
        if not beats:
            return
        try:
            found = await self.heartbeats.run(connections.seen, list(beats.values()))
        except db.Error:
            self._beats = beats | self._beats
            raise
        self._beats = {machine_id: beats[machine_id] for machine_id in found.unwritten} | self._beats
        for connection in list(self._connections):
            beat = beats.get(connection.machine_id)
            if beat is None or beat.connection_id != connection.connection_id:
                continue
            if code := found.close.get(connection.machine_id):
                await connection.end(code, REASONS[code])
            elif frame := found.assignments.get(connection.machine_id):
                await connection.push(frame)

    async def write_data_states(self) -> None:
        """Of all machines that told theirs since the last time: it may be lost, so it waits its turn."""
        told, self._told = self._told, {}
        if not told:
            return
        try:
            await self.thread.run(data_states.write, list(told.values()))
        except db.Error:
            self._told = told | self._told
            raise

    async def flush_samples(self) -> None:
        """Into their lane; what Redis does not take is lost."""
        frames, self._samples, self._samples_bytes = self._samples, {}, 0
        if frames:
            await lane.append(self.redis, frames)

    async def look_after(self) -> None:
        """Close connections that say nothing; join groups again, which the channel layer may have lost."""
        now = time.monotonic()
        for connection in list(self._connections):
            if not connection.joined_at:
                if now - connection.opened_at > HELLO_SECONDS:
                    await connection.end(Close.NO_HELLO, REASONS[Close.NO_HELLO])
            elif now - connection.joined_at > REJOIN_SECONDS:
                await connection.join_group()


async def _guarded(step: Callable[[], Awaitable[None]]) -> None:
    """An outage of the database or of Redis, or a defect in one step, must not end the loop."""
    try:
        await step()
    except (db.Error, redis.RedisError) as error:
        log.warning("Not done for now: %s: %s", step.__name__, error)
    except Exception:
        log.exception("Not done: %s", step.__name__)


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Presence] = WeakKeyDictionary()


def presence() -> Presence:
    """Of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loop:
        _of_loop[loop] = Presence()
    return _of_loop[loop]


def watched(application: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """An ASGI application that starts its loop's Presence with its first request: also a daphne without a single agent
    must be known to be alive, or the lease of the agent that has gone would never expire."""

    async def started(scope: Any, receive: Any, send: Any) -> None:
        presence()
        await application(scope, receive, send)

    return started
