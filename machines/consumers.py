"""The console's end of an agent's connection: thin. It decodes frames and passes on what they say."""

import logging
import time
import uuid
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
import redis
from autobahn.exception import Disconnected
from channels.consumer import get_handler_name
from channels.generic.websocket import AsyncWebsocketConsumer
from django import db
from django.utils import timezone

from astraconsole import events
from astraconsole.tokens import bearer
from machines import connections, dispatch, inbox, protocol
from machines.connections import Arrival, Beat, Known
from machines.data_states import Told
from machines.presence import REASONS, presence
from machines.protocol import Close

log = logging.getLogger(__name__)
MAX_OPEN_CALLS = 1_000  # of one machine


class AgentConsumer(AsyncWebsocketConsumer):
    """One connection of one machine.

    A machine's newest connection is the one whose id stands in its row. Everything written for a connection is written
    under that condition, so an older one that has not noticed yet changes nothing; it is closed when it is told
    (`agent_replaced`), and at the latest when its next heartbeat is written.
    """

    machine: Known
    machine_id = 0
    joined_at = 0.0
    ended = False

    async def dispatch(self, message: dict[str, Any]) -> None:
        """Without channels' own look at the database connections, which costs a change of thread for each frame."""
        await getattr(self, get_handler_name(message))(message)

    # ---- the connection

    async def connect(self) -> None:
        try:
            known = await self._known()
        except db.Error as error:
            log.warning("An agent is turned away, the database does not answer: %s", error)
            return await self.close()
        if known is None:
            log.warning("An agent at %s is turned away: its machine token is not known", self._client())
            return await self.close()
        self.machine, self.machine_id = known, known.machine_id
        self.connection_id = uuid.uuid4().hex
        self.opened_at = time.monotonic()
        self.calls: dict[str, tuple[str, float]] = {}  # id → (reply channel, deadline on the monotonic clock)
        await self.accept()
        if known.removed:
            return await self.end(Close.REMOVED, REASONS[Close.REMOVED])
        presence().add(self)
        return None

    async def _known(self) -> Known | None:
        token = bearer(dict(self.scope["headers"]).get(b"authorization", b"").decode("latin1"))
        return None if token is None else await presence().authenticate(token)

    def _client(self) -> str | None:
        client = self.scope.get("client")
        return client[0] if client else None

    async def disconnect(self, code: int) -> None:
        self.ended = True
        presence().remove(self)
        if not self.joined_at:
            return
        await self.channel_layer.group_discard(events.machine_group(self.machine.machine_uid), self.channel_name)
        try:
            await presence().disconnected((self.machine_id, self.connection_id))
        except db.Error as error:
            log.warning("Machine %s: its disconnect was not written: %s", self.machine.name, error)

    async def end(self, code: Close, reason: str) -> None:
        """Say why, and close. What still comes in is not listened to."""
        if self.ended:
            return
        self.ended = True
        presence().remove(self)
        log.info("Machine %s: connection closed: %s", self.machine.name, reason)
        with suppress(Disconnected):  # it has gone already, and its disconnect waits its turn
            await self.send(bytes_data=protocol.encode(protocol.Goodbye(code, reason)))
            await self.close(int(code))  # daphne takes no enumeration

    async def push(self, frame: bytes) -> None:
        if not self.ended:
            with suppress(Disconnected):
                await self.send(bytes_data=frame)

    async def join_group(self) -> None:
        await self.channel_layer.group_add(events.machine_group(self.machine.machine_uid), self.channel_name)
        self.joined_at = time.monotonic()

    # ---- what the agent says

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.ended:
            return None
        received_at = timezone.now()
        if bytes_data is None:
            return await self._malformed("a text frame")
        if len(bytes_data) > protocol.MAX_BYTES_FROM_AGENT:
            return await self.end(Close.TOO_LARGE, f"a frame is larger than {protocol.MAX_BYTES_FROM_AGENT} bytes")
        try:
            message = protocol.decode_from_agent(bytes_data)
        except msgspec.DecodeError as error:
            return await self._undecodable(bytes_data, error)
        if not self.joined_at and not isinstance(message, protocol.Hello):
            return await self._malformed(f"{type(message).__name__} before Hello")
        if isinstance(message, protocol.Samples):
            presence().sampled(self.machine.cluster_id, (self.machine_id, received_at.timestamp(), bytes_data))
            return None
        return await self._on(message, received_at)

    async def _on(self, message: protocol.FromAgent, received_at: datetime) -> None:
        match message:
            case protocol.Heartbeat(applied_revision, wall_clock):
                skew = connections.skew(wall_clock, received_at)
                presence().beat(Beat(self.machine_id, self.connection_id, received_at, applied_revision, skew))
            case protocol.Reports(items):
                await self._append(received_at, reports=items)  # what is not taken is repeated
            case protocol.DataStates(items):
                presence().tell(Told(self.machine_id, self.connection_id, received_at, items))
            case protocol.Reply():
                await self._on_reply(message)
            case protocol.Hello():
                await self._on_hello(message, received_at)

    async def _on_hello(self, hello: protocol.Hello, received_at: datetime) -> None:
        if hello.version != protocol.VERSION:
            return await self._wrong_version(hello.version)
        try:
            await self.join_group()  # before the set is read: a newer one that is pushed meanwhile waits in the channel
            arrival = Arrival(self.machine_id, self.connection_id, hello, received_at, self._client() or "")
            greeting = await presence().connected(arrival)
        except (db.Error, redis.RedisError) as error:
            log.warning("Machine %s: its hello was not taken: %s", self.machine.name, error)
            return await self.end(Close.TRY_AGAIN, "the console cannot take a hello just now")
        if isinstance(greeting, connections.Refused):
            return await self.end(greeting.code, greeting.reason)
        await self.push(greeting.welcome)
        await self.push(greeting.assignments)
        if not await self._append(received_at, hello=hello.attempts):  # which is not repeated
            await self.end(Close.TRY_AGAIN, "the console cannot take a hello just now")
        return None

    async def _append(self, received_at: datetime, **content: Any) -> bool:
        """Whether the inbox took it."""
        machine = self.machine
        said = inbox.Said(machine.cluster_id, machine.machine_id, machine.machine_uid, received_at, **content)
        try:
            await presence().append(said)
        except redis.RedisError as error:
            log.warning("Machine %s: the inbox did not take a frame: %s", self.machine.name, error)
            return False
        return True

    async def _on_reply(self, reply: protocol.Reply) -> None:
        reply_to, _ = self.calls.pop(reply.call, ("", 0.0))
        if not reply_to:
            log.warning("Machine %s: a reply to a call that was not made to it, or too late", self.machine.name)
            return
        try:
            await dispatch.call_answered(reply_to, reply)
        except redis.RedisError as error:
            log.warning("Machine %s: an answer was dropped: %s", self.machine.name, error)

    async def _undecodable(self, frame: bytes, error: msgspec.DecodeError) -> None:
        version = protocol.hello_version(frame)
        if version is not None and version != protocol.VERSION:
            return await self._wrong_version(version)
        return await self._malformed(str(error))

    async def _malformed(self, what: str) -> None:
        log.warning("Machine %s: a malformed frame: %s", self.machine.name, what)
        await self.end(Close.MALFORMED, f"a frame is malformed: {what}")

    async def _wrong_version(self, version: int) -> None:
        ours = protocol.VERSION
        reason = f"the agent speaks version {version} of the protocol, this console version {ours}"
        await self.end(Close.VERSION, f"{reason}: upgrade the {'agent' if version < ours else 'console'}")

    # ---- what the rest of the console says, through the machine's group

    async def agent_frame(self, message: dict[str, Any]) -> None:
        await self.push(message["frame"])

    async def agent_call(self, message: dict[str, Any]) -> None:
        """Pass a call on, once its caller can be answered."""
        now = time.monotonic()
        if len(self.calls) >= MAX_OPEN_CALLS:
            self.calls = {id: call for id, call in self.calls.items() if call[1] > now}
        if self.ended or len(self.calls) >= MAX_OPEN_CALLS:
            return
        self.calls[message["call"]] = (message["reply_to"], now + message["seconds"])
        await dispatch.call_taken(message["reply_to"], message["call"])
        await self.push(message["frame"])

    async def agent_replaced(self, message: dict[str, Any]) -> None:
        if message["connection"] == self.connection_id:
            return
        newest = await presence().thread.run(connections.newest_connection, self.machine_id)
        if newest != self.connection_id:
            await self.end(Close.REPLACED, REASONS[Close.REPLACED])

    async def agent_close(self, message: dict[str, Any]) -> None:
        await self.end(Close(message["code"]), message["reason"])
