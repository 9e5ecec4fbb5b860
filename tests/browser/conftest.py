"""A whole console and a Chromium, shared by all tests of this folder, and gone before others begin: Playwright keeps an
event loop running in the thread that tests run in."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.person import CHROMIUM, SLOW, sign_in, somebody
from tests.console import Console, running_console

expect.set_options(timeout=SLOW)


@pytest.fixture(scope="package")
def console() -> Iterator[Console]:
    with running_console("--runtime", "process", "--machine-cpus", "16", "--machine-memory", "16Gi") as started:
        yield started


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def cookies(console: Console, browser: Browser) -> Any:
    """Of somebody who has signed in."""
    context = browser.new_context()
    sign_in(context.new_page(), console)
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def page(browser: Browser, cookies: Any) -> Iterator[Page]:
    with somebody(browser, cookies) as context:
        yield context.new_page()
