"""A page left open: what somebody is doing in it while the cluster goes on, and what it says when its subject ends."""

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.person import place, run_page, somebody
from tests.console import Console

pytestmark = [pytest.mark.browser, pytest.mark.processes]
# Workers 0 and 1 fail, with more last lines than their box shows; 2 and 3 go on.
HALF_FAILS = "[ $ASTRA_ARRAY_INDEX -gt 1 ] && exec sleep 600; seq -f 'line %g' 40; exit 3"
SELECTED = "String(getSelection())"


def half_failed(console: Console, name: str) -> None:
    once = {"restart_policy": "Never"}
    console.submit(name, "sh", "-c", HALF_FAILS, array={"count": 4}, task_template=once)


def test_reading_and_choosing_go_on_while_a_run_changes(console: Console, page: Page) -> None:
    half_failed(console, "reading")
    page.goto(run_page(console, "reading"))
    readout, later = page.locator(".readout"), page.locator("#failed-later")
    expect(readout).to_contain_text("2 of 4 running")
    expect(later).to_contain_text("1 more worker failed")
    later.locator("summary").click()
    tail = page.locator(".callout .tail")
    tail.evaluate("(tail) => { tail.scrollBy(0, -40); getSelection().selectAllChildren(tail) }")  # it begins at its end
    scrolled = tail.evaluate("(tail) => tail.scrollTop")
    assert scrolled != 0
    page.get_by_role("link", name="reading-3", exact=True).focus()
    selected = page.evaluate(SELECTED)
    assert "line 40" in selected

    assert console.api.post("tasks/reading-2/stop").status_code == 200
    expect(readout).to_contain_text("1 of 4 running")

    expect(later).to_have_attribute("open", "")
    assert page.evaluate(SELECTED) == selected
    assert tail.evaluate("(tail) => tail.scrollTop") == scrolled
    expect(page.get_by_role("link", name="reading-3", exact=True)).to_be_focused()
    expect(page.locator("tr", has_text="reading-2")).to_contain_text("Cancelled")

    console.api.post("jobs/reading/stop")
    expect(page).to_have_title("reading · Failed · Astra")


def test_rows_are_themselves_while_others_come_and_go_around_them(console: Console, page: Page) -> None:
    for name in ("row-a", "row-b", "row-c"):
        console.submit(name, "sleep", "600")
    page.goto(f"{place(console)}/runs?search=row-")
    names = page.locator("#runs td.name")
    expect(names).to_have_text(["row-c", "row-b", "row-a"])
    page.get_by_label("Select row-b", exact=True).check()
    rows = page.locator("#runs tbody tr").evaluate_all("(rows) => { window.rows = rows; return rows.length }")
    assert rows == 3

    console.submit("row-d", "sleep", "600")
    expect(names).to_have_text(["row-d", "row-c", "row-b", "row-a"])
    console.api.delete("jobs/row-c")
    expect(names).to_have_text(["row-d", "row-b", "row-a"])

    now = "[...document.querySelectorAll('#runs tbody tr')]"
    assert page.evaluate(f"{now}[1] === window.rows[1] && {now}[2] === window.rows[2]")
    expect(page.get_by_label("Select row-b", exact=True)).to_be_checked()
    expect(page.get_by_text("1 selected")).to_be_visible()
    expect(page.locator("#runs input[data-pick]:checked")).to_have_count(1)


def test_a_page_whose_run_was_deleted_says_so_and_stays_to_be_read(
    console: Console, browser: Browser, cookies: Any
) -> None:
    console.submit("left-open", "sleep", "600")
    with somebody(browser, cookies) as context:
        page = context.new_page()
        page.goto(run_page(console, "left-open"))
        console.api.delete("jobs/left-open")
        expect(page.locator(".live")).to_have_text("deleted")
        expect(page.get_by_role("heading", name="left-open")).to_be_visible()
        page.get_by_role("link", name="Delete", exact=True).click()
        expect(page.get_by_role("status")).to_contain_text("there is no run left-open")
        expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("body", ["", "<!doctype html><title>Wi-Fi</title><h1>Accept our terms</h1>"])
def test_an_answer_that_is_somebody_elses_leaves_the_page_as_it_is(console: Console, page: Page, body: str) -> None:
    page.goto(f"{place(console)}/machines")
    heading = page.get_by_role("heading", name="local-1", exact=True)
    expect(heading).to_be_visible()
    page.route("**/machines", lambda route: route.fulfill(body=body, content_type="text/html"))
    with page.expect_response("**/machines"):
        page.locator("#machines").dispatch_event("changed")
    page.unroute_all(behavior="wait")
    page.evaluate("document.querySelector('#machines h2, #machines h3').textContent = 'until the next answer'")
    page.locator("#machines").dispatch_event("changed")
    expect(heading).to_be_visible()
    expect(page).to_have_title(re.compile("Machines"))


def test_back_brings_a_whole_page_that_goes_on_living_however_often_it_was_refreshed(
    console: Console, page: Page
) -> None:
    console.submit("back-again", "sleep", "600")
    page.goto(f"{place(console)}/runs?state=all&search=back-")
    with page.expect_response("**/runs?*") as answer:
        page.locator("#runs").dispatch_event("changed")
    answer.value.finished()
    page.get_by_role("link", name="back-again", exact=True).click()
    page.wait_for_url("**/jobs/local/back-again")
    page.go_back()
    expect(page.locator(".live")).to_have_text("live")
    console.submit("back-and-live", "true")
    expect(page.get_by_role("link", name="back-and-live", exact=True)).to_be_visible()


def test_a_session_that_ends_leads_to_the_sign_in_and_back(console: Console, browser: Browser, cookies: Any) -> None:
    with somebody(browser, cookies) as context:
        page = context.new_page()
        page.goto(f"{place(console)}/runs?state=all")
        expect(page.locator(".live")).to_have_text("live")
        context.clear_cookies(name="sessionid")
        console.submit("after-the-session", "true")
        page.wait_for_url("**/sign-in?next=**")
        page.get_by_label("User name").fill(console.ready["username"])
        page.get_by_label("Password").fill(console.ready["password"])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/runs?state=all")


def test_a_form_is_sent_once_however_often_its_button_is_pressed(console: Console, page: Page) -> None:
    page.goto(f"{place(console)}/new-run")
    for label, text in (("Name", "pressed-twice"), ("Image", "localhost/busybox:test"), ("Command", "true")):
        page.get_by_label(label).fill(text)
    page.get_by_role("button", name="Start run").dblclick()
    page.wait_for_url("**/jobs/local/pressed-twice")
