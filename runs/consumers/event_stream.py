"""A workspace's events as they happen: `GET …/events` with `Accept: text/event-stream` or `application/x-ndjson`.

Each stream has a position and reads on from it when its workspace's group hears of a change: what travels over Redis is
a hint, and a stream that gets none looks by itself once in a while. A client that lost its connection goes on with the
last id it has seen (`Last-Event-ID`), without loss and without repetition.

Beside Django, since a stream would hold one of its threads for as long as somebody listens.
"""

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from django.db import OperationalError

from astraconsole import events
from astraconsole.errors import AstraError, Detail, TooManyRequests, Unavailable, UnknownField, ValidationError
from astraconsole.handler import Gate
from astraconsole.tenancy.models import User
from astraconsole.tenancy.queries import get_access
from astraconsole.tenancy.services import authenticate_token
from runs import event_queries
from runs.event_positions import Position, parse_position
from runs.event_queries import LIMIT_MAX, Event, Step, Wanted, event_document

IDLE_SECONDS = 15  # without an event: who listens is told that the stream lives, and may still listen
GAP_SECONDS = 0.3  # between two looks: a busy run changes a thousand times a second
UNSETTLED_SECONDS = 0.1  # until the next look where others are still writing
STREAMS_MAX = 10  # of one person, in one process
PARAMETERS = ("name", "kind", "actor", "after", "tail")
SSE, LINES = "text/event-stream", "application/x-ndjson"
_PATH = re.compile(r"/api/v1/orgs/([-\w]+)/workspaces/([-\w]+)/events/?", re.ASCII)
_threads = ThreadPoolExecutor(4, thread_name_prefix="events")
open_streams: Counter[int] = Counter()  # by person

Application = Callable[..., Awaitable[Any]]


def followed(http: Application) -> Application:
    """The application of HTTP, with streams of events answered here."""

    async def serve(scope: dict[str, Any], receive: Any, send: Any) -> None:
        accept = _header(scope, b"accept")
        form = SSE if SSE in accept else LINES if LINES in accept else ""
        match = _PATH.fullmatch(scope["path"])
        if scope["type"] != "http" or not form or match is None or scope["method"] != "GET":
            await http(scope, receive, send)
            return
        await _Answer(scope, receive, send, form, *match.groups()).serve()

    return serve


@dataclass(frozen=True)
class Ask:
    """What a stream was asked for. `after`: where to go on; else the last `tail` events come first."""

    wanted: Wanted
    after: Position | None = None
    tail: int = 0


def read_ask(query: str, last_event_id: str) -> Ask:
    """Raises UnknownField, ValidationError."""
    given = dict(parse_qsl(query, keep_blank_values=True, errors="replace"))
    if unknown := sorted(set(given) - set(PARAMETERS)):
        detail: list[Detail] = [{"field": name, "rule": "is not a parameter of this request"} for name in unknown]
        raise UnknownField(f"parameters this request does not know: {', '.join(unknown)}", detail)
    ask = Ask(event_queries.wanted(given.get("name", ""), given.get("kind", ""), given.get("actor", "")))
    if last_event_id:  # of a client that connects again: whatever it had asked for at first
        return replace(ask, after=parse_position(last_event_id, "Last-Event-ID"))
    if "after" in given and "tail" in given:
        raise _invalid("tail", "cannot be given together with after")
    if "after" in given:
        return replace(ask, after=parse_position(given["after"], "after"))
    return replace(ask, tail=_tail(given.get("tail", "0")))


def _tail(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and int(text) <= LIMIT_MAX):
        raise _invalid("tail", f"must be a number from 0 to {LIMIT_MAX}")
    return int(text)


def _invalid(field: str, rule: str) -> ValidationError:
    return ValidationError(f"{field} {rule}", [{"field": field, "rule": rule}])


# ---- what is written -------------------------------------------------------------------------------------------------


def sse_event(event: Event) -> str:
    return f"id: {event.position}\ndata: {_json(event_document(event))}\n\n"


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False)


class _Form:
    """One of the two ways to write a stream."""

    def __init__(self, form: str) -> None:
        self.sse = form == SSE

    def events(self, items: list[Event]) -> str:
        if self.sse:
            return "".join(map(sse_event, items))
        return "".join(f"{_json(event_document(event))}\n" for event in items)

    def alive(self, reached: Position) -> str:
        """With its id, which a client remembers: nothing before it needs to be looked through again."""
        return f"id: {reached}\n\n" if self.sse else "\n"

    def end(self, error: AstraError) -> str:
        text = _json(error.as_dict())
        return f"event: end\ndata: {text}\n\n" if self.sse else f"{text}\n"


# ---- the stream ------------------------------------------------------------------------------------------------------


@dataclass
class Feed:
    """One stream's reading of the database. Everything here is synchronous."""

    org: str
    ws: str
    header: str | None
    ask: Ask
    reached: Position | None = None

    def admit(self) -> tuple[User, int]:
        """Who listens, and to which workspace. Raises Unauthenticated, NotFound."""
        user = authenticate_token(self.header)
        return user, get_access(user, self.org, self.ws).workspace.pk

    def look(self) -> Step:
        """What has happened since the last look. Raises as `admit`: who may no longer listen is not told."""
        try:
            _, workspace_id = self.admit()
            step = self._step(workspace_id)
        except OperationalError as error:
            raise Unavailable("the database does not answer; try again") from error
        self.reached = step.reached
        return step

    def _step(self, workspace_id: int) -> Step:
        if self.reached is not None:
            return event_queries.read_on(workspace_id, self.ask.wanted, self.reached)
        if self.ask.after is not None:
            return event_queries.read_on(workspace_id, self.ask.wanted, self.ask.after)
        return event_queries.newest_settled(workspace_id, self.ask.wanted, self.ask.tail)


class _Answer:
    """One request for a stream, from its head to its end."""

    def __init__(self, scope: dict[str, Any], receive: Any, send: Any, form: str, org: str, ws: str) -> None:
        self.scope, self.receive, self.send = scope, receive, send
        self.content_type, self.form = form, _Form(form)
        self.org, self.ws = org, ws
        self.gate: Gate | None = None
        self.changed = asyncio.Event()

    async def serve(self) -> None:
        try:
            query = self.scope["query_string"].decode("ascii", "replace")
            ask = read_ask(query, _header(self.scope, b"last-event-id"))
            feed = Feed(self.org, self.ws, _header(self.scope, b"authorization") or None, ask)
            user, workspace_id = await _in_database(feed.admit)
            if open_streams[user.pk] >= STREAMS_MAX:
                raise TooManyRequests(f"you listen to {STREAMS_MAX} streams of events already: close one first", 10)
        except AstraError as error:
            await self._refuse(error)
            return
        open_streams[user.pk] += 1
        try:
            await self._follow(feed, events.workspace_group(workspace_id))
        finally:
            open_streams[user.pk] -= 1
            if not open_streams[user.pk]:
                del open_streams[user.pk]

    async def _refuse(self, error: AstraError) -> None:
        headers = [(b"content-type", b"application/json")]
        if isinstance(error, TooManyRequests):
            headers.append((b"retry-after", str(error.retry_after).encode()))
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": _json(error.as_dict()).encode()})

    async def _follow(self, feed: Feed, group: str) -> None:
        """Until the client goes, or may no longer listen."""
        async with _hints(group, self.changed) as join:
            writing = asyncio.ensure_future(self._write_all(feed, join))
            leaving = asyncio.ensure_future(self._gone())
            try:
                await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (writing, leaving):
                    task.cancel()
                await asyncio.gather(writing, leaving, return_exceptions=True)
                if self.gate is not None:
                    self.gate.remove()

    async def _gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def _write_all(self, feed: Feed, join: Callable[[], Awaitable[None]]) -> None:
        try:
            step = await _in_database(feed.look)  # before the head: of what happens after a 200 nothing is missing
        except AstraError as error:
            await self._refuse(error)
            return
        kind = f"{self.content_type}; charset=utf-8".encode()
        headers = [(b"content-type", kind), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await self._write_on(feed, step, join)
        except AstraError as error:
            await self._write(self.form.end(error))
            await self.send({"type": "http.response.body", "body": b""})

    async def _write_on(self, feed: Feed, step: Step, join: Callable[[], Awaitable[None]]) -> None:
        quiet = True  # the first look is told as a sign of life, too: with it goes where to begin again
        while True:
            if step.items:
                await self._write(self.form.events(step.items))
            elif quiet:
                await self._write(self.form.alive(step.reached))
            if not step.full:
                quiet = await self._pause(step, join)
            self.changed.clear()
            step = await _in_database(feed.look)

    async def _pause(self, step: Step, join: Callable[[], Awaitable[None]]) -> bool:
        """Until there may be more to see. Whether nothing was heard for the whole time."""
        heard = await self._change(UNSETTLED_SECONDS if step.unsettled else IDLE_SECONDS)
        quiet = not heard and not step.unsettled
        if quiet:
            await join()
        await asyncio.sleep(GAP_SECONDS if self.changed.is_set() else 0)
        return quiet

    async def _change(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), seconds)
        return self.changed.is_set()

    async def _write(self, text: str) -> None:
        """When the client has taken what was written before."""
        await self.send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        if self.gate is None and isinstance(self.send, partial):
            self.gate = Gate(self.send.args[0])
        if self.gate is not None:
            await self.gate.passed()


@contextlib.asynccontextmanager
async def _hints(group: str, changed: asyncio.Event) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """While entered, `changed` is set by what is sent to the group. Gives what joins again: groups can vanish."""
    layer = get_channel_layer()
    channel = await layer.new_channel()

    async def join() -> None:
        with contextlib.suppress(
            *events.AWAY
        ):  # Redis is away: the next time, and meanwhile the stream looks by itself
            await layer.group_add(group, channel)

    async def listen() -> None:
        while True:
            await layer.receive(channel)
            changed.set()

    await join()
    listening = asyncio.ensure_future(listen())
    try:
        yield join
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        with contextlib.suppress(*events.AWAY):
            await layer.group_discard(group, channel)


async def _in_database(ask: Callable[[], Any]) -> Any:
    """On threads of their own: a hint that wakes many streams must not hold up everybody's websockets."""
    return await database_sync_to_async(ask, thread_sensitive=False, executor=_threads)()


def _header(scope: Mapping[str, Any], name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
