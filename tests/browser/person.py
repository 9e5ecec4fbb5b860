"""Somebody at a browser: signed in, on a run's page."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page

from tests.console import Console

CHROMIUM = "/usr/bin/chromium"
SLOW = 30_000  # milliseconds that a slow machine may take for what takes one second


@contextmanager
def somebody(browser: Browser, cookies: Any, **options: Any) -> Iterator[BrowserContext]:
    """A signed-in browser in which no page may break a script or the content security policy."""
    context = browser.new_context(storage_state=cookies, **options)
    broken: list[str] = []
    context.on("weberror", lambda error: broken.append(str(error.error)))
    context.on("console", lambda line: broken.append(line.text) if "Security Policy" in line.text else None)
    try:
        yield context
    finally:
        context.close()
    assert not broken


def sign_in(page: Page, console: Console) -> None:
    page.goto(console.url)
    page.get_by_label("User name").fill(console.ready["username"])
    page.get_by_label("Password").fill(console.ready["password"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/runs")


def place(console: Console) -> str:
    return f"{console.url}/o/{console.ready['organisation']}/w/{console.ready['workspace']}"


def run_page(console: Console, name: str) -> str:
    return f"{place(console)}/jobs/{console.ready['cluster']}/{name}"
