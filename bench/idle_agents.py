"""What idle agents cost a daphne: `python -m bench.idle_agents [agents] [seconds]`. Prints; judges nothing.

A private PostgreSQL and Redis, one daphne, and in this process that many agents which say hello, heartbeats and what
their eight idle GPUs do. What the samples cost afterwards, where a Celery worker stores them, is printed beside it.
"""

import asyncio
import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import django
import psutil
import websockets
from django.core.management import call_command

from astraconsole import embedded
from machines import protocol

HEARTBEAT_SECONDS, SAMPLE_SECONDS = 5.0, 10.0


def main(agents: int = 1000, seconds: float = 20) -> None:
    with tempfile.TemporaryDirectory(prefix="astra-bench-") as folder:
        os.chmod(folder, 0o711)
        servers = embedded.start(Path(folder))
        os.environ |= {"DATABASE_URL": servers.database_url, "REDIS_URL": servers.redis_url, "LOG_LEVEL": "WARNING"}
        os.environ |= {"SECRET_KEY": secrets.token_hex()}
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "astraconsole.settings")
        try:
            tokens = prepared(agents)
            port = free_port()
            daphne_command = [sys.executable, "-m", "daphne", "-p", str(port), "--verbosity", "0"]
            with subprocess.Popen([*daphne_command, "astraconsole.asgi:application"]) as daphne:
                try:
                    asyncio.run(measure(port, tokens, psutil.Process(daphne.pid), seconds))
                    store_samples()
                finally:
                    daphne.terminate()
        finally:
            servers.stop()


def prepared(agents: int) -> list[str]:
    """The tokens of that many machines."""
    django.setup()
    call_command("migrate", verbosity=0)
    from astraconsole.tenancy.models import Organisation  # noqa: PLC0415  # needs Django set up
    from machines.models import Cluster  # noqa: PLC0415
    from machines.services import ensure_local_machine  # noqa: PLC0415

    organisation = Organisation.objects.create(slug="bench", name="bench")
    cluster = Cluster.objects.create(organisation=organisation, slug="bench")
    return [ensure_local_machine(cluster, f"m{number}") for number in range(agents)]


def store_samples() -> None:
    """What a Celery worker does with what came, here."""
    from machines.metrics import lane  # noqa: PLC0415  # needs Django set up
    from machines.models import Cluster, GpuUse  # noqa: PLC0415
    from runs.metrics import take_in  # noqa: PLC0415

    [cluster_id] = Cluster.objects.values_list("pk", flat=True)
    waiting = lane.lengths([cluster_id])[cluster_id]
    began = time.process_time()
    take_in(cluster_id)
    spent = time.process_time() - began
    told = GpuUse.objects.count()
    print(f"samples of {waiting} s from {told} machines: {spent / max(waiting, 1):.1%} of one core to store them")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def measure(port: int, tokens: list[str], daphne: psutil.Process, seconds: float) -> None:
    began = time.monotonic()
    ready = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(agent(port, token, ready)) for token in tokens]
    for _ in tokens:
        await ready.acquire()
    cost = sum(daphne.cpu_times()[:2])
    print(f"{len(tokens)} agents greeted in {time.monotonic() - began:.1f} s, {cost:.1f} s of CPU")
    for _ in range(2):
        before, at = sum(daphne.cpu_times()[:2]), time.monotonic()
        await asyncio.sleep(seconds)
        share = (sum(daphne.cpu_times()[:2]) - before) / (time.monotonic() - at)
        print(f"idle: {share:.0%} of one core, {daphne.memory_info().rss / 2**20:.0f} MiB")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def agent(port: int, token: str, ready: asyncio.Semaphore) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    while True:
        try:
            url = f"ws://127.0.0.1:{port}/agent/v1"
            async with websockets.connect(url, additional_headers=headers, compression=None) as connection:
                await live(connection, ready)
        except (OSError, websockets.WebSocketException):
            await asyncio.sleep(1)


async def live(connection: websockets.ClientConnection, ready: asyncio.Semaphore) -> None:
    inventory = protocol.Inventory("host", "simulated", 8000, 2**34)
    await connection.send(
        protocol.encode(protocol.Hello(protocol.VERSION, "bench", "boot", time.time(), inventory, 30))
    )
    for _ in range(2):
        await connection.recv()
    ready.release()
    samples = asyncio.create_task(sample(connection))
    try:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await connection.send(protocol.encode(protocol.Heartbeat(0, time.time())))
    finally:
        samples.cancel()


async def sample(connection: websockets.ClientConnection) -> None:
    """As an idle machine with eight GPUs does."""
    await asyncio.sleep(random.uniform(0, SAMPLE_SECONDS))
    gpus = [protocol.GpuUse(index, 0.0, 512 << 20, 0) for index in range(8)]
    while True:
        await connection.send(protocol.encode(protocol.Samples([], gpus)))
        await asyncio.sleep(SAMPLE_SECONDS)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
