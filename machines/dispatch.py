"""What machines are told: assignments (full sets, pushed on commit), acknowledgements, and calls with their answers.

The functions that change assignments are called inside the caller's transaction. They lock machines in id order, after
whatever the caller has locked: runs first, then machines.
"""

import asyncio
import concurrent.futures
import os
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec
import redis
from channels.layers import get_channel_layer
from django.db import transaction

from astraconsole import events
from astraconsole.sql import fetch, prepared
from machines import protocol
from machines.orders import CredentialSource, DataKind, Order, VolumeSource

TAKEN_SECONDS = 2  # within which some daphne must say that it has the machine's connection

# ---- assignments -----------------------------------------------------------------------------------------------------


NO_CREDENTIALS = NO_VOLUMES = msgspec.Raw(msgspec.msgpack.encode([]))


class _EncodedAssignments(msgspec.Struct, tag="assignments"):
    """`protocol.Assignments` with its orders as they are stored: sent without decoding them."""

    revision: int
    orders: list[msgspec.Raw] = []
    forget: list[str] = []
    waiting: list[str] = []
    archive: list[str] = []
    credentials: msgspec.Raw = NO_CREDENTIALS
    volumes: msgspec.Raw = NO_VOLUMES


class AssignmentSet(NamedTuple):
    machine_uid: UUID
    connected: bool
    frame: bytes


def assign(items: Sequence[tuple[int, Order]]) -> None:
    """Have machines (by id) run these attempts."""
    if not items:
        return
    with prepared() as cursor:
        cursor.execute(
            """INSERT INTO machines_assignment (attempt, machine_id, "order", waits)
            SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::bytea[], %s::boolean[])""",
            [
                [UUID(order.attempt) for _, order in items],
                [machine_id for machine_id, _ in items],
                [protocol.encode(order) for _, order in items],
                [order.barrier for _, order in items],
            ],
        )
    _tell({machine_id for machine_id, _ in items})


def open_barriers(attempt_uids: Iterable[UUID]) -> None:
    """Let these attempts start, where they wait for others."""
    opened = fetch(
        "UPDATE machines_assignment SET waits = false WHERE attempt = ANY(%s) AND waits RETURNING machine_id",
        [list(attempt_uids)],
    )
    _tell({machine_id for (machine_id,) in opened})


def withdraw(attempt_uids: Iterable[UUID]) -> None:
    """Have machines stop these attempts, where they run; their logs stay."""
    _tell(_delete_orders(attempt_uids))


def settle(attempt_uids: Iterable[UUID]) -> None:
    """These attempts have ended by themselves: they leave the sets, which is no news to their machines."""
    _delete_orders(attempt_uids)


def forget(items: Iterable[tuple[int, UUID]]) -> None:
    """Have machines (by id) stop these attempts and remove all traces of them: containers, logs, folders."""
    machine_of = {attempt: machine_id for machine_id, attempt in items}
    if not machine_of:
        return
    with prepared() as cursor:
        cursor.execute(
            """INSERT INTO machines_assignment (attempt, machine_id)
            SELECT * FROM unnest(%s::uuid[], %s::bigint[])
            ON CONFLICT (attempt) DO UPDATE SET "order" = NULL, archives = false""",
            [list(machine_of), list(machine_of.values())],
        )
    _tell(set(machine_of.values()))


def archive(items: Iterable[tuple[int, UUID]]) -> None:
    """Have machines (by id) stop these attempts, remove their containers and keep the end of their logs."""
    machine_of = {attempt: machine_id for machine_id, attempt in items}
    with prepared() as cursor:
        cursor.execute(
            """INSERT INTO machines_assignment (attempt, machine_id, archives)
            SELECT u.attempt, u.machine_id, true FROM unnest(%s::uuid[], %s::bigint[]) AS u (attempt, machine_id)
            ON CONFLICT (attempt) DO UPDATE SET "order" = NULL, archives = true
            WHERE machines_assignment."order" IS NOT NULL""",
            [list(machine_of), list(machine_of.values())],
        )
    _tell(set(machine_of.values()))


def forgotten(attempt_uids: Iterable[UUID]) -> None:
    """Their machines have removed all traces: nothing is left to be told."""
    with prepared() as cursor:
        cursor.execute(
            'DELETE FROM machines_assignment WHERE attempt = ANY(%s) AND "order" IS NULL', [list(attempt_uids)]
        )


def archived(attempt_uids: Iterable[UUID]) -> None:
    """Their machines keep no more than the end of their logs."""
    with prepared() as cursor:
        cursor.execute(
            'DELETE FROM machines_assignment WHERE attempt = ANY(%s) AND "order" IS NULL AND archives',
            [list(attempt_uids)],
        )


def sets(machine_ids: Iterable[int]) -> dict[int, AssignmentSet]:
    """The newest set of each machine, encoded: revisions and orders are of one snapshot. Credentials and volumes are
    read after them, and so are at least as new as the revision says."""
    with prepared() as cursor:
        cursor.execute(
            """SELECT m.id, m.uid, m.connection <> '', m.cluster_id, m.revision, a.attempt, a."order", a.waits,
                a.archives
            FROM machines_machine m LEFT JOIN machines_assignment a ON a.machine_id = m.id
            WHERE m.id = ANY(%s)""",
            [list(machine_ids)],
        )
        rows = cursor.fetchall()
    cluster_ids = {row[3] for row in rows}
    credentials, volumes = _credentials(cluster_ids), _volumes(cluster_ids)
    heads: dict[int, tuple[UUID, bool]] = {}
    contents: dict[int, _EncodedAssignments] = {}
    for machine_id, machine_uid, connected, cluster_id, revision, attempt, order, waits, archives in rows:
        heads[machine_id] = (machine_uid, connected)
        if machine_id not in contents:
            known = credentials.get(cluster_id, NO_CREDENTIALS)
            contents[machine_id] = _EncodedAssignments(
                revision, credentials=known, volumes=volumes.get(cluster_id, NO_VOLUMES)
            )
        content = contents[machine_id]
        if order is not None:
            content.orders.append(msgspec.Raw(order))
            if waits:
                content.waiting.append(attempt.hex)
        elif attempt is not None:
            (content.archive if archives else content.forget).append(attempt.hex)
    return {id: AssignmentSet(*heads[id], msgspec.msgpack.encode(content)) for id, content in contents.items()}


def _credentials(cluster_ids: Iterable[int]) -> dict[int, msgspec.Raw]:
    """Where the machines of each cluster may fetch the credentials of the workspaces that use it, encoded."""
    found = fetch(
        """SELECT n.cluster_id, c.uid, w.id, o.slug || '/' || w.slug, c.name, c.provider, c.reference
        FROM machines_credential c JOIN machines_namespace n ON n.workspace_id = c.workspace_id
        JOIN tenancy_workspace w ON w.id = c.workspace_id JOIN tenancy_organisation o ON o.id = w.organisation_id
        WHERE n.cluster_id = ANY(%s) ORDER BY c.id""",
        [list(cluster_ids)],
    )
    sources: dict[int, list[CredentialSource]] = defaultdict(list)
    for cluster_id, uid, *columns in found:
        sources[cluster_id].append(CredentialSource(uid.hex, *columns))
    return {cluster_id: msgspec.Raw(msgspec.msgpack.encode(items)) for cluster_id, items in sources.items()}


def _volumes(cluster_ids: Iterable[int]) -> dict[int, msgspec.Raw]:
    """The drives and models of the workspaces that use each cluster, encoded."""
    found = fetch(
        """SELECT n.cluster_id, v.uid, v.workspace_id, v.kind, v.name, v.form, v.source, v.read_only, v.credential,
            v.checksum, v.endpoint
        FROM machines_volume v JOIN machines_namespace n ON n.workspace_id = v.workspace_id
        WHERE n.cluster_id = ANY(%s) ORDER BY v.id""",
        [list(cluster_ids)],
    )
    sources: dict[int, list[VolumeSource]] = defaultdict(list)
    for cluster_id, uid, workspace_id, kind, *columns in found:
        source = VolumeSource(uid.hex, workspace_id, DataKind(kind), *columns)
        sources[cluster_id].append(source)
    return {cluster_id: msgspec.Raw(msgspec.msgpack.encode(items)) for cluster_id, items in sources.items()}


def data_changed(workspace_id: int) -> None:
    """Tell the machines of the clusters that a workspace uses which credentials, drives and models it has now."""
    machines = fetch(
        """SELECT m.id FROM machines_machine m JOIN machines_namespace n ON n.cluster_id = m.cluster_id
        WHERE n.workspace_id = %s AND m.state <> 'Removed'""",
        [workspace_id],
    )
    _tell({machine_id for (machine_id,) in machines})


def _delete_orders(attempt_uids: Iterable[UUID]) -> set[int]:
    """The machines that had them."""
    with prepared() as cursor:
        cursor.execute(
            'DELETE FROM machines_assignment WHERE attempt = ANY(%s) AND "order" IS NOT NULL RETURNING machine_id',
            [list(attempt_uids)],
        )
        return {machine_id for (machine_id,) in cursor.fetchall()}


def _tell(machine_ids: set[int]) -> None:
    """Count the machines' revisions up, and push their sets once the transaction has committed."""
    if not machine_ids:
        return
    ids = sorted(machine_ids)
    with prepared() as cursor:
        cursor.execute(
            """WITH locked AS (SELECT id FROM machines_machine WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE)
            UPDATE machines_machine m SET revision = m.revision + 1 FROM locked WHERE m.id = locked.id""",
            [ids],
        )
    transaction.on_commit(lambda: _push(ids), robust=True)  # a lost push costs one heartbeat


def _push(machine_ids: Sequence[int]) -> None:
    events.send_groups(
        (events.machine_group(item.machine_uid), {"type": "agent.frame", "frame": item.frame})
        for item in sets(machine_ids).values()
        if item.connected
    )


# ---- acknowledgements ------------------------------------------------------------------------------------------------


def acknowledge(items: Iterable[tuple[UUID, UUID, int]]) -> None:
    """(machine uid, attempt uid, sequence): one frame for each machine. Call it after the commit."""
    of_machine: dict[UUID, list[tuple[str, int]]] = defaultdict(list)
    for machine_uid, attempt, seq in items:
        of_machine[machine_uid].append((attempt.hex, seq))
    events.send_groups(
        (
            events.machine_group(machine_uid),
            {"type": "agent.frame", "frame": protocol.encode(protocol.Acknowledge(acknowledged))},
        )
        for machine_uid, acknowledged in of_machine.items()
    )


def close(machine_uid: UUID, code: protocol.Close, reason: str) -> None:
    """Have the machine's connection closed, once the transaction has committed."""
    message = {"type": "agent.close", "code": int(code), "reason": reason}
    transaction.on_commit(lambda: events.send_group(events.machine_group(machine_uid), message), robust=True)


# ---- calls -----------------------------------------------------------------------------------------------------------


class Unreachable(Exception):
    """No daphne has a connection of the machine."""


class CallTimeout(Exception):
    """The machine is connected but did not answer in time."""


async def call(machine_uid: UUID, request: protocol.Request, timeout: float) -> protocol.Answer:
    """Ask a machine and wait at most `timeout` seconds for its answer (which may be a `protocol.Failure`).

    From synchronous code: `async_to_sync(dispatch.call)(…)`. Raises Unreachable, CallTimeout.
    """
    return await asyncio.wrap_future(_calls.submit(machine_uid, request, timeout))


class _Waiting(NamedTuple):
    """An open call. `taken`: some daphne has passed it on to the machine."""

    taken: asyncio.Event
    answer: asyncio.Future[bytes]


class _Calls:
    """This process's open calls. One reply channel serves them all, on one loop in a thread of its own: a channel made
    for each call could not be given back to the layer, and callers come from many loops."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._listener: asyncio.Task[None] | None = None
        self._channel: asyncio.Future[str] | None = None

    def submit(
        self, machine_uid: UUID, request: protocol.Request, timeout: float
    ) -> concurrent.futures.Future[protocol.Answer]:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="calls", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(self._call(machine_uid, request, timeout), self._loop)

    async def _call(self, machine_uid: UUID, request: protocol.Request, timeout: float) -> protocol.Answer:
        loop = asyncio.get_running_loop()
        call_id = uuid.uuid4().hex
        waiting = self._waiting[call_id] = _Waiting(asyncio.Event(), loop.create_future())
        deadline = loop.time() + timeout
        try:
            await self._send(machine_uid, protocol.Call(call_id, request, timeout))
            async with asyncio.timeout(min(timeout, TAKEN_SECONDS)):
                await waiting.taken.wait()
            async with asyncio.timeout_at(deadline):
                return protocol.decode_answer(await waiting.answer)
        except TimeoutError:
            if waiting.taken.is_set():
                raise CallTimeout(f"the machine did not answer within {timeout:g} s") from None
            raise Unreachable("the machine is not connected") from None
        except redis.RedisError as error:
            raise Unreachable(f"the channel layer does not answer: {error}") from error
        finally:
            del self._waiting[call_id]

    async def _send(self, machine_uid: UUID, call: protocol.Call) -> None:
        message = {
            "type": "agent.call",
            "call": call.id,
            "reply_to": await self._reply_channel(),
            "seconds": call.deadline_seconds,
            "frame": protocol.encode(call),
        }
        await get_channel_layer().group_send(events.machine_group(machine_uid), message)

    async def _reply_channel(self) -> str:
        if self._channel is None or (self._channel.done() and self._channel.exception() is not None):
            self._channel = asyncio.ensure_future(get_channel_layer().new_channel("calls."))
        channel = await asyncio.shield(self._channel)
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen(channel))
        return channel

    async def _listen(self, channel: str) -> None:
        layer = get_channel_layer()
        while True:
            message = await layer.receive(channel)
            waiting = self._waiting.get(message["call"])
            if waiting is None:
                continue  # its caller has given up
            waiting.taken.set()
            if message["type"] == "call.answered" and not waiting.answer.done():
                waiting.answer.set_result(message["answer"])


_calls = _Calls()


def _forget_parent_process() -> None:
    """After a fork the thread of the calls runs in the parent only."""
    global _calls
    _calls = _Calls()


os.register_at_fork(after_in_child=_forget_parent_process)


async def call_taken(reply_to: str, call_id: str) -> None:
    """Tell the caller that its call goes to the machine now: from the consumer that holds the connection."""
    await get_channel_layer().send(reply_to, {"type": "call.taken", "call": call_id})


async def call_answered(reply_to: str, reply: protocol.Reply) -> None:
    message = {"type": "call.answered", "call": reply.call, "answer": protocol.encode(reply.answer)}
    await get_channel_layer().send(reply_to, message)
