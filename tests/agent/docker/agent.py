"""What the tests of the docker runtime share: an agent's part around it."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from machines.agent.runtimes.base import (
    Adoptable,
    AttemptFolder,
    Exited,
    Failed,
    RuntimeEvent,
)
from machines.agent.runtimes.docker import DockerRuntime
from machines.orders import Order
from tests.engine import IMAGE, Engine

DEADLINE_SECONDS = 60
MIB = 1024**2


class Agent:
    """A runtime with what an agent keeps: folders and the events so far. `reborn` is the agent after a restart."""

    def __init__(self, engine: Engine, root: Path, machine_id: str) -> None:
        self.engine, self.root, self.machine_id = engine, root, machine_id
        self.runtime = DockerRuntime(engine.url)
        self.events: list[RuntimeEvent] = []
        self.opened = False

    async def open(self) -> "Agent":
        await self.runtime.open(self.machine_id, self.events.append)
        self.opened = True
        return self

    async def close(self) -> None:
        if self.opened:
            self.opened = False
            await self.runtime.close()

    async def reborn(self) -> "Agent":
        await self.close()
        return await Agent(self.engine, self.root, self.machine_id).open()

    def order(self, *args: str, **fields: Any) -> Order:
        uid = uuid4().hex
        return Order(
            **{
                "attempt": uid,
                "worker": uuid4().hex,
                "run": uuid4().hex,
                "worker_name": "run-0",
                "run_name": "run",
                "number": 1,
                "image": IMAGE,
                "command": args[0] if args else None,
                "args": list(args[1:]),
                **fields,
            }
        )

    def folder(self, order: Order) -> AttemptFolder:
        path = self.root / order.attempt
        path.mkdir(exist_ok=True)
        return AttemptFolder(path)

    async def start(self, order: Order) -> Order:
        await self.runtime.start(order, self.folder(order))
        return order

    async def run(self, *args: str, **fields: Any) -> tuple[Exited | Failed, bytes]:
        """Start and see it end: the end and the whole output."""
        order = await self.start(self.order(*args, **fields))
        return await self.end_of(order), self.output(order)

    def output(self, order: Order) -> bytes:
        path = self.folder(order).output
        return path.read_bytes() if path.exists() else b""

    def events_of(self, order: Order) -> list[RuntimeEvent]:
        return [event for event in self.events if event.attempt == order.attempt]

    async def end_of(self, order: Order) -> Exited | Failed:
        def ends() -> list[Exited | Failed]:
            return [event for event in self.events_of(order) if isinstance(event, Exited | Failed)]

        await until(lambda: bool(ends()))
        assert len(ends()) == 1
        assert self.events_of(order)[-1] is ends()[0]
        return ends()[0]

    async def adopt(self, *orders: Order, running: bool = True, rebooted: bool = False) -> list[str]:
        items = [Adoptable(order, self.folder(order), running) for order in orders]
        known = [order.attempt for order in orders]
        return list(await self.runtime.adopt(items, known, rebooted=rebooted))

    def container(self, order: Order) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.engine.docker("inspect", f"astra-{order.attempt}"))[0]
        return found

    def containers(self) -> list[str]:
        label = f"label=astra.machine={self.machine_id}"
        return self.engine.docker("ps", "--all", "--filter", label, "--format", "{{.Names}}").split()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


def exited(end: Exited | Failed) -> tuple[int | None, bool]:
    assert isinstance(end, Exited)
    return end.exit_code, end.oom_killed


def numbers(first: int, last: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(first, last + 1))
