"""A person at work: a whole console in real processes, and a real Chromium."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser.person import place, run_page, sign_in, somebody
from tests.console import ROOT, Console, eventually

pytestmark = [pytest.mark.browser, pytest.mark.processes]
COUNT = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo line $i; sleep 0.1; done; echo the end"


def state_of(page: Page) -> Any:
    return page.locator("h1 + .state")


def test_somebody_signs_in_starts_a_run_watches_its_log_and_sees_it_complete(
    console: Console, browser: Browser
) -> None:
    with somebody(browser, None) as context:
        page = context.new_page()
        sign_in(page, console)
        page.get_by_role("link", name="New run").first.click()
        page.get_by_label("Name").fill("counting")
        page.get_by_label("Image").fill("localhost/busybox:test")
        page.get_by_label("Command").fill("sh")
        page.get_by_label("Arguments").fill(f"-c '{COUNT}'")
        expect(page.locator("#notes-args")).to_contain_text(f'["-c", "{COUNT}"]')
        page.get_by_role("button", name="Start run").click()
        page.wait_for_url("**/counting")
        expect(state_of(page)).to_have_text("Running")
        page.get_by_role("navigation", name="counting").get_by_role("link", name="Logs").click()
        log = page.get_by_role("log")
        expect(log).to_contain_text("line 1")
        expect(log).to_contain_text("the end")
        expect(state_of(page)).to_have_text("Completed")
        assert page.evaluate("performance.getEntriesByType('navigation')[0].type") == "navigate"  # never reloaded


def test_errors_stand_beside_their_fields_while_typing(console: Console, page: Page) -> None:
    page.goto(f"{place(console)}/new-run")
    page.get_by_label("Name").fill("Upper")
    expect(page.locator("#notes-name")).to_have_text("must be lower case")
    expect(page.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#notes-image")).to_be_empty()
    page.get_by_label("Name").fill("lower")
    expect(page.get_by_label("Name")).not_to_have_attribute("aria-invalid", "true")


def test_resources_are_per_gpu_once_there_are_gpus(console: Console, page: Page) -> None:
    page.goto(f"{place(console)}/new-run")
    expect(page.get_by_label("CPU cores", exact=True)).to_have_value("1")
    page.get_by_label("GPUs").fill("2")
    expect(page.get_by_label("CPU cores per GPU")).to_have_value("8")
    expect(page.get_by_label("Memory per GPU")).to_have_value("64Gi")
    expect(page.locator("#notes-memory")).to_have_text("64 GiB each, 128 GiB in all")
    page.get_by_label("GPUs").fill("0")
    expect(page.get_by_label("Memory", exact=True)).to_have_value("1Gi")


def test_the_form_and_run_again_lead_through_json(console: Console, page: Page) -> None:
    page.goto(f"{place(console)}/new-run")
    page.get_by_label("Name").fill("by-json")
    page.get_by_label("Image").fill("localhost/busybox:test")
    page.get_by_label("Command").fill("true")
    page.get_by_role("button", name="Edit as JSON").click()
    body = page.get_by_label("Run as JSON")
    assert '"command": "true"' in body.input_value()
    page.get_by_role("button", name="Start run").click()
    page.wait_for_url("**/by-json")
    expect(state_of(page)).to_have_text("Completed")
    page.get_by_role("link", name="Run again").first.click()
    assert '"name": "by-json-again"' in page.get_by_label("Run as JSON").input_value()


@pytest.mark.parametrize("blocked", [False, True], ids=["by-websocket", "by-polling"])
def test_changes_appear_on_open_pages_without_a_reload(
    console: Console, browser: Browser, cookies: Any, blocked: bool
) -> None:
    name = f"live-{blocked}".lower()
    with somebody(browser, cookies) as context:
        if blocked:
            context.route_web_socket(re.compile("/ws/"), lambda socket: socket.close())
        listing, run = context.new_page(), context.new_page()
        listing.goto(f"{place(console)}/runs?state=all&search={name}")
        console.submit(name, "sleep", "9" if blocked else "3")
        expect(listing.locator("tr", has_text=name)).to_contain_text("Running")
        run.goto(run_page(console, name))
        expect(state_of(run)).to_have_text("Completed")
        expect(listing.locator("tr", has_text=name)).to_contain_text("Completed")
        expect(run.locator(".live")).to_have_text("every 4 s" if blocked else "live")


@pytest.mark.parametrize("block", ["delete window.WebSocket", "window.WebSocket = function () { throw new Error() }"])
def test_pages_and_logs_go_on_where_a_browser_has_no_websockets(
    console: Console, browser: Browser, cookies: Any, block: str
) -> None:
    name = f"without-{block[:6]}"
    console.submit(name, "sh", "-c", "sleep 6; echo the end; sleep 6")
    with somebody(browser, cookies) as context:
        context.add_init_script(block)
        page, log = context.new_page(), context.new_page()
        page.goto(run_page(console, name))
        log.goto(f"{run_page(console, name)}?tab=logs")
        expect(log.get_by_text("the end", exact=True)).to_be_visible()
        expect(state_of(page)).to_have_text("Completed")


def test_back_leads_from_a_run_to_the_list_as_it_was_and_then_to_the_list_before(console: Console, page: Page) -> None:
    console.submit("look-back", "true")
    console.wait_for("look-back", "Completed")  # the list then stays as it is while it is clicked on
    page.goto(f"{place(console)}/runs?state=all")
    page.locator("#search").fill("look-b")
    page.wait_for_url("**search=look-b")
    page.get_by_role("link", name="look-back", exact=True).click()
    page.wait_for_url("**/jobs/local/look-back")
    page.go_back()
    page.wait_for_url("**search=look-b")
    page.go_back()
    page.wait_for_url("**/runs?state=all")


def press(page: Page, target: Locator) -> None:
    """The button of the mouse goes down on `target`, and stays down."""
    target.hover()
    page.mouse.down()


def test_a_link_pressed_after_typing_a_search_is_followed_however_long_the_press(console: Console, page: Page) -> None:
    console.submit("long-press", "true")
    console.wait_for("long-press", "Completed")
    page.goto(f"{place(console)}/runs?state=all")
    page.locator("#search").fill("long-p")
    page.wait_for_url("**search=long-p")
    press(page, page.get_by_role("link", name="long-press", exact=True))
    with page.expect_response("**/runs?*"):
        page.locator("#runs").dispatch_event("changed")
    page.wait_for_timeout(100)  # for the answer to be put in, if it is
    page.mouse.up()
    page.wait_for_url("**/jobs/local/long-press")


@pytest.mark.parametrize("where", ["#runs a", "#groups a"])
def test_what_changes_while_a_link_is_pressed_waits_for_its_release(console: Console, page: Page, where: str) -> None:
    page.goto(f"{place(console)}/runs?state=all&search=meanwhile")
    page.evaluate("document.addEventListener('click', (event) => event.preventDefault())")
    press(page, page.locator(where).first)
    name = f"meanwhile-{where[1]}"
    with page.expect_response("**/runs?*"):
        console.submit(name, "true")
    page.wait_for_timeout(100)
    expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)
    page.mouse.up()
    expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()


def test_what_was_picked_stays_picked_when_the_list_changes(console: Console, page: Page) -> None:
    console.submit("picked", "sleep", "600")
    page.goto(f"{place(console)}/runs?search=picked")
    page.get_by_label("Select picked").check()
    console.submit("picked-too", "sleep", "600")
    expect(page.get_by_label("Select picked-too")).to_be_visible()
    expect(page.get_by_label("Select picked", exact=True)).to_be_checked()
    expect(page.get_by_text("1 selected")).to_be_visible()
    page.get_by_label("Select picked-too").check()
    page.locator("[data-bulk]").get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete 2 runs").click()
    expect(page.get_by_text("Done for 2 of 2")).to_be_visible()


def test_a_question_asked_while_the_page_is_being_refreshed_is_not_lost(console: Console, page: Page) -> None:
    console.submit("refreshed", "sleep", "600")
    for address, region, opener in (
        ("/runs?search=refreshed", "#runs", page.locator("[data-bulk]").get_by_role("button", name="Stop")),
        (f"/jobs/{console.ready['cluster']}/refreshed", "#run", page.get_by_role("link", name="Stop", exact=True)),
        ("/machines", "#machines", page.get_by_role("link", name="Cordon").first),
    ):
        page.goto(f"{place(console)}{address}")
        if region == "#runs":
            page.get_by_label("Select refreshed").check()
        unanswered = hold(page, address.partition("?")[0])
        page.locator(region).dispatch_event("changed")
        eventually(lambda: page.wait_for_timeout(20) or unanswered)  # noqa: B023
        opener.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        page.unroute_all(behavior="ignoreErrors")


def hold(page: Page, path: str) -> list[Route]:
    """Requests of this page for `path` wait from now on, in the list."""
    held: list[Route] = []
    page.route(re.compile(rf"{path}(\?|$)"), lambda route: held.append(route))
    return held


def test_delete_is_a_dialog_that_the_keyboard_can_use(console: Console, page: Page) -> None:
    console.submit("to-delete", "sleep", "600")
    page.goto(run_page(console, "to-delete"))
    expect(state_of(page)).to_have_text("Running")
    opener = page.get_by_role("link", name="Delete", exact=True)
    opener.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 worker will be stopped and 0 GPUs freed.")
    expect(dialog.get_by_role("textbox")).to_be_focused()
    expect(dialog.get_by_role("button", name="Delete run")).to_be_disabled()
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    expect(opener).to_be_focused()
    page.keyboard.press("Enter")
    dialog.get_by_role("textbox").fill("to-delete")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs")
    expect(page.get_by_text("to-delete was deleted")).to_be_visible()


def test_the_keyboard_reaches_content_and_search(console: Console, page: Page) -> None:
    page.goto(f"{place(console)}/runs")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()


def test_dark_and_light_follow_the_system_until_somebody_chooses(
    console: Console, browser: Browser, cookies: Any
) -> None:
    with somebody(browser, cookies, color_scheme="dark") as context:
        page = context.new_page()
        page.goto(f"{place(console)}/runs")
        assert brightness(page) < 60
        switch = page.get_by_role("button", name=re.compile("Theme"))
        switch.click()  # auto → light
        assert brightness(page) > 200
        page.reload()
        assert brightness(page) > 200
        switch.click()  # → dark
        page.emulate_media(color_scheme="light")
        assert brightness(page) < 60
        switch.click()  # → auto
        assert brightness(page) > 200


def brightness(page: Page) -> float:
    """Of the page's ground, 0 to 255."""
    colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    numbers = [float(number) for number in re.findall(r"[\d.]+", colour)[:3]]
    return sum(numbers) / 3 * (255 if "srgb" in colour else 1)


def test_a_failures_last_lines_are_in_view_and_in_order(console: Console, page: Page) -> None:
    script = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo step $i; done; echo RuntimeError: lost; echo bye; exit 1"
    console.submit("ends-badly", "sh", "-c", script, task_template={"restart_policy": "Never"})
    console.wait_for("ends-badly", "Failed")
    page.goto(run_page(console, "ends-badly"))
    tail = page.get_by_label("Its last lines")
    expect(tail.get_by_text("RuntimeError: lost", exact=True)).to_be_in_viewport()
    assert tail.inner_text().split("\n")[-4:-1] == ["step 40", "RuntimeError: lost", "bye"]


def test_nothing_is_wider_than_a_small_phone(console: Console, browser: Browser, cookies: Any) -> None:
    name = "n" * 50  # wraps
    console.submit(name, "sh", "-c", "echo " + "wide" * 300 + "; exit 1", task_template={"restart_policy": "Never"})
    console.wait_for(name, "Failed")
    base, cluster = place(console), console.ready["cluster"]
    paths = [
        "/runs?state=all",
        "/new-run",
        f"/new-run?again={cluster}/{name}",
        "/machines",
        "/machines/add",
        "/members",
    ]
    paths += [f"/jobs/{cluster}/{name}{tab}" for tab in ("", "?tab=logs", "?tab=history", "/stop", "/delete")]
    paths += [f"/workers/{cluster}/{name}-0{tab}" for tab in ("", "?tab=history", "?tab=started")]
    with somebody(browser, cookies, viewport={"width": 360, "height": 740}) as context:
        page = context.new_page()
        addresses = [base + path for path in paths] + [f"{console.url}/account/tokens", f"{base}/jobs/x/y"]
        assert [address for address in addresses if width_of(page, address) > 360] == []


def width_of(page: Page, address: str) -> int:
    page.goto(address)
    return int(page.evaluate("document.documentElement.scrollWidth"))


def test_without_scripts_the_same_works_by_plain_pages(console: Console, browser: Browser) -> None:
    with somebody(browser, None, java_script_enabled=False) as context:
        page = context.new_page()
        sign_in(page, console)
        page.goto(f"{place(console)}/new-run")
        page.get_by_label("Name").fill("plain")
        page.get_by_label("Image").fill("localhost/busybox:test")
        page.get_by_label("Command").fill("echo")
        page.get_by_label("Arguments").fill("plain words")
        page.get_by_role("button", name="Start run").click()
        page.wait_for_url("**/plain")
        console.wait_for("plain", "Completed")
        page.reload()
        expect(state_of(page)).to_have_text("Completed")
        page.get_by_role("link", name="Logs").click()
        expect(page.get_by_role("log")).to_contain_text("plain words")
        page.get_by_role("link", name="Delete", exact=True).click()
        page.get_by_label("Type plain to confirm").fill("plain")
        page.get_by_role("button", name="Delete run").click()
        expect(page.get_by_text("plain was deleted")).to_be_visible()


def test_times_are_local_with_their_zone_and_utc_on_hover(console: Console, browser: Browser, cookies: Any) -> None:
    console.submit("when", "true")
    with somebody(browser, cookies, timezone_id="Asia/Tokyo", locale="en-GB") as context:
        page = context.new_page()
        page.goto(f"{run_page(console, 'when')}?tab=history")
        moment = page.locator("table.timeline time").first
        expect(moment).to_have_text(re.compile(r"\d\d:\d\d(:\d\d)? GMT\+9"))
        assert re.fullmatch(r"\d+ \w+ \d{4} \d\d:\d\d:\d\d UTC", moment.get_attribute("title") or "")


def test_a_change_is_on_the_page_within_a_second_or_so(console: Console, page: Page) -> None:
    """No bound on time: only that no reload and no polling were needed to see it."""
    console.submit("hinted", "sleep", "600")
    page.goto(run_page(console, "hinted"))
    expect(state_of(page)).to_have_text("Running")
    expect(page.locator(".live")).to_have_text("live")
    page.clock.install()  # from here on no timer of the page fires by itself
    console.api.post("jobs/hinted/stop", json={})
    expect(state_of(page)).to_have_text("Cancelled")


def test_the_printed_command_joins_a_machine_which_may_be_removed_and_join_again(console: Console, page: Page) -> None:
    name = socket.gethostname().partition(".")[0]
    card = page.locator("article", has=page.get_by_role("heading", name=name, exact=True))
    with tempfile.TemporaryDirectory(prefix="astra-joins-") as folder:
        Path(folder).chmod(0o711)
        for time_of_joining in ("first", "second"):
            with joined(page, console, Path(folder)) as agent:
                page.goto(f"{place(console)}/machines")
                expect(card.locator(".state")).to_have_text("Ready")
                console.submit(f"there-{time_of_joining}", "true", node_selection={"names": [name]})
                console.wait_for(f"there-{time_of_joining}", "Completed")
                card.get_by_role("link", name="Remove").click()
                page.get_by_role("dialog").get_by_role("textbox").fill(name)
                page.get_by_role("button", name="Remove machine").click()
                assert agent.wait(30) == 0


@contextmanager
def joined(page: Page, console: Console, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody pastes what the page prints into a shell."""
    page.goto(f"{place(console)}/machines")
    page.get_by_role("link", name="Add a machine").click()
    page.get_by_role("button", name="Make the join command").click()
    command = page.locator("#join").inner_text()
    assert re.search(r"astra_join_\S{43}", command)
    installed = f'astra-agent() {{ {sys.executable} -m machines.agent.main "$@"; }}; umask 077'
    agent = subprocess.Popen(
        ["bash", "-c", f"{installed}\n{command} --runtime process --state-dir state"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        yield agent
    finally:
        if agent.poll() is None:
            os.killpg(agent.pid, signal.SIGTERM)
            agent.wait()


def test_a_token_made_in_the_console_opens_the_api(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/account/tokens")
    page.get_by_label("Name").fill(f"made at {time.monotonic()}")
    page.get_by_role("button", name="New token").click()
    secret = page.locator("#secret").inner_text()
    answer = console.api.get("jobs", headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 200
