"""Builders of tests: clusters, machines, who manages them, and what agents say."""

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from channels.testing import WebsocketCommunicator
from django.db import connections

from astraconsole.tenancy.models import Membership, Organisation, User, Workspace
from astraconsole.tenancy.permissions import Role
from astraconsole.tenancy.queries import Access
from astraconsole.tokens import digest
from machines import dispatch, inbox, protocol
from machines.consumers import AgentConsumer
from machines.models import Cluster, Machine, MachineState, Namespace
from machines.orders import Order

T = TypeVar("T")
_numbers = itertools.count(1)
DEADLINE_SECONDS = 30
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
TOKEN = "the machine's token"


def a_workspace(slug: str = "vision", organisation: Organisation | None = None) -> Workspace:
    if organisation is None:
        organisation = Organisation.objects.create(slug=f"acme-{next(_numbers)}", name="Acme")
    return Workspace.objects.create(organisation=organisation, slug=slug, name=slug)


def a_member(workspace: Workspace, role: Role = Role.ADMIN, staff: bool = False) -> Access:
    user = User.objects.create(username=f"ada-{next(_numbers)}", is_staff=staff)
    Membership.objects.create(user=user, workspace=workspace, role=role)
    return Access(user, workspace, role)


def a_cluster(*workspaces: Workspace, slug: str = "gpu-east") -> Cluster:
    first = workspaces[0] if workspaces else a_workspace()
    cluster = Cluster.objects.create(organisation=first.organisation, slug=slug)
    for workspace in workspaces or (first,):
        Namespace.objects.create(workspace=workspace, cluster=cluster)
    return cluster


def a_machine(cluster: Cluster, name: str = "gpu-07", token: str | None = None, **columns: object) -> Machine:
    token = token or f"secret of {name} in {cluster.pk}"
    return Machine.objects.create(
        cluster=cluster, name=name, token_digest=digest(token), **{"state": MachineState.READY, **columns}
    )


def an_order(attempt: uuid.UUID | None = None, **fields: object) -> Order:
    uid = (attempt or uuid.uuid4()).hex
    names = {"worker": uuid.uuid4().hex, "run": uuid.uuid4().hex, "worker_name": "resnet-0", "run_name": "resnet"}
    return Order(attempt=uid, number=1, image="busybox", **{**names, **fields})


def a_hello(**fields: object) -> protocol.Hello:
    inventory = protocol.Inventory("host-7", "simulated", cpu_milli=8000, memory_bytes=2**34)
    defaults = {"version": protocol.VERSION, "agent_version": "1.0", "boot_id": "boot-1", "stop_grace_seconds": 30.0}
    now = datetime.now(UTC).timestamp()
    return protocol.Hello(**{**defaults, "wall_clock": now, "inventory": inventory, **fields})


def a_report(attempt: uuid.UUID | None = None, seq: int = 1, **fields: object) -> protocol.Report:
    phases = [protocol.PhaseAge(protocol.Phase.RUNNING, 0.5)]
    return protocol.Report(**{"attempt": (attempt or uuid.uuid4()).hex, "seq": seq, "phases": phases, **fields})


async def in_database(work: Callable[[], T]) -> T:
    """From an asynchronous test; leaves no connection open, which would keep the test database from being dropped."""

    def closing() -> T:
        try:
            return work()
        finally:
            connections.close_all()

    return await sync_to_async(closing)()


def end_calls() -> None:
    """End the thread that calls are made from, before Redis goes away under it."""
    calls, dispatch._calls = dispatch._calls, dispatch._Calls()
    if calls._loop is None:
        return

    async def end() -> None:
        if calls._listener is not None:
            calls._listener.cancel()
            await asyncio.wait([calls._listener])
        await get_channel_layer().flush()

    asyncio.run_coroutine_threadsafe(end(), calls._loop).result(DEADLINE_SECONDS)
    calls._loop.call_soon_threadsafe(calls._loop.stop)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds; fails after a while."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_SECONDS
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come about in time"
        await asyncio.sleep(0.02)


class Agent:
    """The agent's end of a connection to the real consumer."""

    def __init__(self, token: str) -> None:
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        self.socket = WebsocketCommunicator(AgentConsumer.as_asgi(), "/agent/v1", headers)
        self.socket.scope["client"] = ("10.0.0.9", 50000)

    async def connect(self) -> bool:
        connected, _ = await self.socket.connect(timeout=DEADLINE_SECONDS)
        return connected

    async def say(self, message: protocol.FromAgent) -> None:
        await self.socket.send_to(bytes_data=protocol.encode(message))

    async def hear(self) -> protocol.ToAgent:
        frame = await self.socket.receive_from(timeout=DEADLINE_SECONDS)
        assert isinstance(frame, bytes)
        return protocol.decode_to_agent(frame)

    async def hears_nothing(self) -> bool:
        return await self.socket.receive_nothing(timeout=0.2)

    async def greet(self, **hello: object) -> protocol.Assignments:
        """Connect and say hello; the set that the console answers with."""
        assert await self.connect()
        await self.say(a_hello(**hello))
        assert isinstance(await self.hear(), protocol.Welcome)
        assignments = await self.hear()
        assert isinstance(assignments, protocol.Assignments)
        return assignments

    async def is_closed(self, code: protocol.Close) -> str:
        """The sentence it was closed with."""
        goodbye = await self.hear()
        assert isinstance(goodbye, protocol.Goodbye)
        assert goodbye.code == code
        closing = await self.socket.receive_output(DEADLINE_SECONDS)
        assert closing == {"type": "websocket.close", "code": code}
        assert type(closing["code"]) is int  # daphne breaks off at anything else
        return goodbye.reason

    async def leave(self) -> None:
        await self.socket.disconnect(timeout=DEADLINE_SECONDS)


async def reread(machine: Machine) -> Machine:
    await in_database(machine.refresh_from_db)
    return machine


def ago(seconds: float, now: datetime = NOON) -> datetime:
    return now - timedelta(seconds=seconds)


async def drained(machine: Machine) -> list[inbox.Entry]:
    """What the inbox of its cluster held."""
    entries: list[inbox.Entry] = []

    def apply(batch: Sequence[inbox.Entry], now: datetime) -> list[inbox.Acknowledgement]:
        entries.extend(batch)
        return [
            (entry.machine_uid, uuid.UUID(entry.report.attempt), entry.report.seq) for entry in batch if entry.report
        ]

    await in_database(lambda: inbox.drain(machine.cluster_id, apply))
    return entries
