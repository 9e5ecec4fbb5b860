"""Frames between the agent and its keeper: a 4-byte length and a JSON list of objects, on a Unix socket.

The keeper's end: one agent at a time, never blocking. Standard library alone.
"""

import json
import select
import socket
import struct
from typing import Any

Message = dict[str, Any]


def encode(messages: list[Message]) -> bytes:
    frame = json.dumps(messages).encode()
    return struct.pack(">I", len(frame)) + frame


def take_frame(buffer: bytearray) -> list[Message] | None:
    """Remove the first whole frame from the buffer; None if there is none yet."""
    if len(buffer) < 4:
        return None
    (length,) = struct.unpack_from(">I", buffer)
    if len(buffer) < 4 + length:
        return None
    frame = bytes(buffer[4 : 4 + length])
    del buffer[: 4 + length]
    messages: list[Message] = json.loads(frame)
    return messages


class Link:
    """The agent of the moment. What it was not told when it left, the next one reads from exit files."""

    def __init__(self, listener: socket.socket, poll: select.poll) -> None:
        self.listener = listener
        self.poll = poll
        self.agent: socket.socket | None = None
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._events: list[Message] = []
        poll.register(listener, select.POLLIN)

    def tell(self, event: Message) -> None:
        if self.agent is not None:
            self._events.append(event)

    def accept(self) -> None:
        """The newest agent is the machine's agent."""
        connection, _ = self.listener.accept()
        self.drop()
        connection.setblocking(False)
        self.agent = connection
        self.poll.register(connection, select.POLLIN)

    def drop(self) -> None:
        if self.agent is not None:
            self.poll.unregister(self.agent)
            self.agent.close()
        self.agent = None
        self._incoming.clear()
        self._outgoing.clear()
        self._events.clear()

    def receive(self) -> list[Message]:
        if self.agent is None:
            return []
        try:
            data = self.agent.recv(1 << 20)
        except BlockingIOError:
            return []  # it only has room again for what we send
        except OSError:
            data = b""
        if not data:
            self.drop()
            return []
        self._incoming += data
        messages: list[Message] = []
        while (frame := take_frame(self._incoming)) is not None:
            messages += frame
        return messages

    def flush(self) -> None:
        if self.agent is None:
            return
        if self._events:
            self._outgoing += encode(self._events)
            self._events.clear()
        if not self._outgoing:
            return
        try:
            del self._outgoing[: self.agent.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self.drop()
            return
        self.poll.modify(self.agent, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
