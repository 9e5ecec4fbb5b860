"""`make bench-logs`: 500 websocket viewers on 50 workers of a whole console in real processes, and a page of 5,000
lines in Chromium. Every figure is printed, none is judged.

Each worker prints a line with the time twice a second. Printed: looks at machines in 4 s (each is one read, and a frame
to each viewer of its worker), how long after its printing a line reaches a viewer, CPU time of each kind of process;
then what Chromium spends on a page of 5,000 lines and on finding in it. Where others use the machine too, CPU time says
more than delays.
"""

import asyncio
import json
import re
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from playwright.sync_api import sync_playwright
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake

from bench.console import cpu_printed
from tests.console import Console, eventually, running_console

WORKERS, VIEWERS, SECONDS = 50, 500, 32
FOLLOW_SECONDS = 4
CHROMIUM = "/usr/bin/chromium"
PRINTER = "while :; do date +at=%s.%N=; sleep 0.5; done"
MACHINE = ("--machines", "5", "--runtime", "process", "--machine-cpus", "64", "--machine-memory", "64Gi")


@dataclass
class Seen:
    """By all viewers together."""

    viewers: int = 0  # that have had a frame
    frames: int = 0
    lines: int = 0
    delays: list[float] = field(default_factory=list)
    complete: asyncio.Event = field(default_factory=asyncio.Event)  # all viewers have had a frame


def main() -> None:
    with running_console(*MACHINE) as console:
        submit(console, "viewed", PRINTER, array={"count": WORKERS})
        eventually(lambda: console.run("viewed")["task_counts"].get("Running") == WORKERS, seconds=120)
        cookie = sign_in(console)
        with cpu_printed(console):
            asyncio.run(watch(console, cookie))
        console.api.post("jobs/viewed/stop", json={})
        submit(console, "long", "seq -f 'step %.0f loss 1.234 lr 2.0e-05 and some more words' 1 20000; sleep 3600")
        console.wait_for("long", "Running")
        in_chromium(console)


def submit(console: Console, name: str, script: str, **spec: Any) -> None:
    console.submit(name, "sh", "-c", script, **spec)


def sign_in(console: Console) -> str:
    """The session's cookie."""
    with httpx.Client(base_url=console.url, follow_redirects=True) as client:
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', client.get("/sign-in").text)
        assert token is not None
        form = {"username": console.ready["username"], "password": console.ready["password"]}
        client.post("/sign-in", data={**form, "csrfmiddlewaretoken": token[1]}, headers={"referer": console.url})
        return "; ".join(f"{cookie.name}={cookie.value}" for cookie in client.cookies.jar)


async def watch(console: Console, cookie: str) -> None:
    seen, connecting = Seen(), asyncio.Semaphore(20)
    viewers = [
        asyncio.create_task(view(console, cookie, number % WORKERS, seen, connecting)) for number in range(VIEWERS)
    ]
    began = time.monotonic()
    await asyncio.wait_for(seen.complete.wait(), 300)
    print(f"{seen.viewers} viewers connected in {time.monotonic() - began:.1f} s")
    before = Seen(seen.viewers, seen.frames, seen.lines)
    seen.delays.clear()
    await asyncio.sleep(SECONDS)
    for viewer in viewers:
        viewer.cancel()
    broken = [error for error in await asyncio.gather(*viewers, return_exceptions=True) if isinstance(error, Exception)]
    for error in broken[:3]:
        print(f"a viewer broke off: {error!r}")
    looks = (seen.frames - before.frames) / VIEWERS * WORKERS
    delays = statistics.quantiles(seen.delays, n=100)
    lines = seen.lines - before.lines
    print(f"{VIEWERS} viewers of {WORKERS} workers for {SECONDS} s: {lines} lines, {len(broken)} broken")
    print(f"machine reads in {FOLLOW_SECONDS} s: {looks / SECONDS * FOLLOW_SECONDS:.1f}")
    print(f"a new line is visible after p50 {delays[49]:.2f} s, p95 {delays[94]:.2f} s, p99 {delays[98]:.2f} s")


async def view(console: Console, cookie: str, worker: int, seen: Seen, connecting: asyncio.Semaphore) -> None:
    """One viewer, until cancelled."""
    place = f"/ws/o/{console.ready['organisation']}/w/{console.ready['workspace']}"
    address = f"{console.url.replace('http', 'ws')}{place}/workers/{console.ready['cluster']}/viewed-{worker}/log"
    headers = {"cookie": cookie, "origin": console.url}
    async with connecting:
        socket = None
        while socket is None:
            with suppress(InvalidHandshake, OSError, TimeoutError):  # too many at once: again, as a page does
                socket = await connect(address, additional_headers=headers, max_size=None, open_timeout=30)
    async with socket:
        first = True
        async for message in socket:
            now = time.time()
            seen.viewers += first
            first = False
            if seen.viewers == VIEWERS:
                seen.complete.set()
            times = re.findall(r"at=([0-9.]+)=", json.loads(message)["html"])
            seen.frames += 1
            seen.lines += len(times)
            seen.delays += [now - float(text) for text in times]


def in_chromium(console: Console) -> None:
    page_address = f"/o/{console.ready['organisation']}/w/{console.ready['workspace']}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(f"{console.url}/sign-in")
        page.get_by_label("User name").fill(console.ready["username"])
        page.get_by_label("Password").fill(console.ready["password"])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/runs")
        metrics = page.context.new_cdp_session(page)
        metrics.send("Performance.enable")

        def spent() -> dict[str, float]:
            return {entry["name"]: entry["value"] for entry in metrics.send("Performance.getMetrics")["metrics"]}

        def tell(what: str, before: dict[str, float]) -> None:
            after, names = spent(), ("ScriptDuration", "RecalcStyleDuration", "LayoutDuration")
            milliseconds = {name: (after[name] - before.get(name, 0)) * 1000 for name in names}
            each = ", ".join(
                f"{name.removesuffix('Duration').lower()} {took:.0f} ms" for name, took in milliseconds.items()
            )
            print(f"{what}: {each}")

        for _ in range(3):
            page.goto(f"{console.url}{page_address}/workers/{console.ready['cluster']}/long-0")
            page.locator("[data-says][data-how=live]").wait_for()
            tell(f"Chromium, a page of {page.locator('.log li').count()} lines", {})
        for text in ("step 1999", "words", ""):
            before = spent()
            page.get_by_label("Find in the log").fill(text)
            page.wait_for_timeout(500)
            tell(f"Chromium, finding “{text}” in it", before)
        browser.close()


if __name__ == "__main__":
    main()
