"""Reading logs in a real Chromium, of real processes."""

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.person import SLOW, place, run_page, somebody
from tests.console import Console, eventually

pytestmark = [pytest.mark.browser, pytest.mark.processes]

# Every line that is ever put into the log, in order, also of those that are taken out again; of a line that came
# unfinished first, what it was last.
WATCH = """
window.seen = new Map();
new MutationObserver((changes) => {
  for (const change of changes) for (const item of change.addedNodes)
    if (item.id) seen.set(item.id, item.lastElementChild.textContent);
}).observe(document.querySelector(".log ol"), { childList: true });
for (const item of document.querySelectorAll(".log li[id]")) seen.set(item.id, item.lastElementChild.textContent);
"""
AT_END = (
    "(() => { const b = document.querySelector('.log'); return b.scrollHeight - b.scrollTop - b.clientHeight < 48 })()"
)


def log_of(console: Console, worker: str) -> str:
    return f"{place(console)}/workers/{console.ready['cluster']}/{worker}"


def says(page: Page) -> Any:
    return page.locator("[data-says]")


def lines(page: Page) -> list[str]:
    return page.locator(".log li:not(.off):not(.gap) > span").all_inner_texts()


def printed(console: Console, name: str, script: str, state: str = "Completed", **spec: Any) -> None:
    console.submit(name, "sh", "-c", script, task_template={"restart_policy": "Never"}, **spec)
    console.wait_for(name, state)


@pytest.mark.parametrize("block", ["", "window.WebSocket = class { constructor() { throw new Error('blocked'); } };"])
def test_a_hundred_thousand_lines_printed_while_somebody_follows_arrive_each_once_and_in_order(
    console: Console, browser: Browser, cookies: Any, block: str
) -> None:
    name = f"flood-{'plain' if block else 'socket'}"
    console.submit(name, "sh", "-c", "echo begin; sleep 4; seq 1 100000; sleep 1; echo the end")
    with somebody(browser, cookies) as context:
        context.add_init_script(block)
        page = context.new_page()
        console.wait_for(name, "Running")
        page.goto(log_of(console, f"{name}-0"))
        page.evaluate(WATCH)
        expect(page.get_by_text("the end", exact=True)).to_be_attached(timeout=4 * SLOW)
        expect(says(page)).to_have_text("ended")
        seen = page.evaluate("[...seen.values()]")
        assert seen == ["begin", *map(str, range(1, 100_001)), "the end"]
        assert page.locator(".log li").count() <= 5000
        assert page.evaluate(AT_END)
        page.get_by_role("link", name="Earlier output").click()
        expect(page.get_by_role("link", name="To the end")).to_be_attached()


def test_somebody_who_has_scrolled_away_is_left_where_they_are_and_told_what_is_new(
    console: Console, page: Page
) -> None:
    script = "seq 1 300; while ! test -e go; do sleep 0.1; done; echo more; sleep 600"
    console.submit("scrolled", "sh", "-c", script)
    console.wait_for("scrolled", "Running")
    page.goto(log_of(console, "scrolled-0"))
    expect(says(page)).to_have_text("live")
    expect(page.locator("li[id] > span", has_text="300")).to_be_visible()
    page.locator(".log").hover()
    page.mouse.wheel(0, -2000)
    expect(page.locator(".log")).not_to_have_js_property("scrollTop", 0)
    eventually(lambda: not page.evaluate(AT_END))
    before = page.locator(".log").evaluate("box => box.scrollTop")
    attempt = next(console.data.glob("**/attempts/*/work"), None)
    assert attempt is not None
    for work in console.data.glob("**/attempts/*/work"):
        (work / "go").touch()
    newer = page.locator("[data-newer]")
    expect(newer).to_have_text("1 new line")
    assert page.locator(".log").evaluate("box => box.scrollTop") == before
    newer.click()
    expect(page.get_by_text("more", exact=True)).to_be_in_viewport()
    expect(newer).to_be_hidden()


def test_find_filters_with_context_counts_and_leads_from_match_to_match(console: Console, page: Page) -> None:
    script = "for i in $(seq 1 200); do echo line $i; done; echo CUDA error here; echo 0 errors; echo Killed; seq 1 20"
    printed(console, "findable", script)
    page.goto(log_of(console, "findable-0"))
    note = page.locator("[data-matches]")
    find = page.get_by_label("Find in the log")
    find.fill("line 15")
    expect(note).to_have_text("11 of 223 lines")
    assert lines(page) == ["line 15", *(f"line {number}" for number in range(150, 160))]
    find.press("Enter")
    expect(note).to_have_text("1 / 11 of 223 lines")
    expect(page.locator("li.current > span")).to_have_text("line 15")
    find.press("Shift+Enter")
    expect(page.locator("li.current > span")).to_have_text("line 159")
    page.get_by_label("Lines around each match").select_option("2")
    assert lines(page)[:5] == ["line 13", "line 14", "line 15", "line 16", "line 17"]
    assert "find=line+15&context=2" in page.url
    find.fill("")
    page.get_by_label("Lines around each match").select_option("0")
    page.get_by_label("Errors only").check()
    assert lines(page) == ["CUDA error here", "0 errors"]
    flagged = page.locator("[data-flagged]")
    expect(flagged.locator("summary")).to_have_text("2 lines look like errors")
    assert page.locator("li.error > span").all_inner_texts() == ["CUDA error here", "Killed"]
    flagged.locator("summary").click()
    expect(flagged).to_contain_text("leaves out Killed, and keeps 0 errors")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "findable-0.log"
    assert download.value.path().read_text().startswith("CUDA error here\n0 errors\n")
    with page.expect_download() as whole:
        page.get_by_role("link", name="Whole log").click()
    assert whole.value.path().read_text() == console.logs("findable-0")
    find.fill("nothing like it")
    expect(page.locator("[data-none]")).to_be_visible()


def test_the_link_of_a_line_shows_that_place_to_somebody_else(
    console: Console, browser: Browser, cookies: Any, page: Page
) -> None:
    printed(console, "linked", "seq 1 30000")
    page.goto(f"{run_page(console, 'linked')}?tab=logs")
    line = page.locator("li", has=page.get_by_text("29990", exact=True))
    line.locator("a").click()
    assert re.search(r"worker=linked-0&attempt=1&at=\d+#L1\.\d+$", page.url)
    expect(line).to_have_class("linked")
    offset = len("".join(f"{number}\n" for number in range(1, 12_345)))
    for javascript in (True, False):
        with somebody(browser, cookies, java_script_enabled=javascript) as context:
            other = context.new_page()
            other.goto(f"{log_of(console, 'linked-0')}?attempt=1&at={offset}")
            shown = other.locator("li.linked > span")
            expect(shown).to_have_text("12345")
            if javascript:
                expect(shown).to_be_in_viewport()
            other.get_by_role("link", name="Later output").click()
            expect(other.locator("ol")).to_contain_text("16000")
            other.get_by_role("link", name="To the end").click()
            expect(other.locator("ol")).to_contain_text("30000")


def test_all_workers_stand_in_one_log_with_their_ranks_and_end_together(console: Console, page: Page) -> None:
    script = "echo from $RANK; while ! test -e go; do sleep 0.1; done; echo late $RANK"
    console.submit("together", "sh", "-c", script, node_selection={"count": 3})
    console.wait_for("together", "Running")
    page.goto(f"{run_page(console, 'together')}?tab=logs")
    page.get_by_label("Log ·").select_option("All workers")
    expect(page.locator(".log li[id]")).to_have_count(3)
    assert lines(page) == ["[0] from 0", "[1] from 1", "[2] from 2"]
    expect(says(page)).to_have_text("live")
    for work in console.data.glob("**/attempts/*/work"):
        (work / "go").touch()
    expect(says(page)).to_have_text("ended")
    assert sorted(lines(page)[3:]) == ["[0] late 0", "[1] late 1", "[2] late 2"]
    assert page.locator("li.gap").count() == 3
    page.locator("li", has_text="late 1").locator("a").click()
    expect(page.locator("li.linked > span")).to_have_text("late 1")
    assert "worker=together-1" in page.url


def test_a_broken_connection_is_told_and_nothing_is_lost_or_repeated_after_it(
    console: Console, browser: Browser, cookies: Any
) -> None:
    script = "i=0; while [ $i -lt 150 ]; do i=$((i+1)); echo line $i; sleep 0.1; done"
    console.submit("broken", "sh", "-c", script)
    console.wait_for("broken", "Running")
    with somebody(browser, cookies) as context:
        page, second = context.new_page(), context.new_page()
        second.goto(log_of(console, "broken-0"))
        page.goto(log_of(console, "broken-0"))
        page.evaluate(WATCH)
        expect(says(page)).to_have_text("live")
        context.set_offline(True)
        page.evaluate("logs[0].socket.close()")
        expect(says(page)).to_have_text(re.compile(r"^reconnecting since \d"))
        eventually(lambda: len(console.logs("broken-0").splitlines()) > 60)
        context.set_offline(False)
        expect(says(page)).to_have_text("ended", timeout=2 * SLOW)
        seen = page.evaluate("[...seen.values()]")
        assert seen == [f"line {number}" for number in range(1, 151)]
        expect(says(second)).to_have_text("ended")
        assert lines(second) == seen


def test_a_worker_that_restarts_while_it_is_followed_goes_on_below_and_its_attempts_can_be_chosen(
    console: Console, page: Page
) -> None:
    script = "echo attempt $ASTRA_ATTEMPT; test $ASTRA_ATTEMPT -gt 1 && sleep 600; exit 3"
    console.submit("again", "sh", "-c", script)
    page.goto(f"{run_page(console, 'again')}?tab=logs")
    expect(page.locator("ol")).to_contain_text("attempt 2 began", timeout=2 * SLOW)
    expect(page.locator("li[id] > span").last).to_have_text("attempt 2")
    assert lines(page) == ["attempt 1", "attempt 2"]
    page.reload()
    page.get_by_label("Attempt", exact=True).select_option("1")
    expect(page.locator("ol")).to_contain_text("its container is gone")
    assert lines(page) == ["attempt 1"]


def test_a_slow_client_of_a_whole_log_does_not_fill_the_consoles_memory(
    console: Console, browser: Browser, cookies: Any
) -> None:
    size = 96 * 1024**2
    printed(console, "large", f"head -c {size} /dev/zero | tr '\\0' x | fold -w 1023")
    jar = "; ".join(f"{cookie['name']}={cookie['value']}" for cookie in cookies["cookies"])
    address = log_of(console, "large-0").removeprefix(console.url)
    daphne = Path("/proc") / str(console.pid_of("daphne")) / "statm"

    def resident() -> int:
        return int(daphne.read_text().split()[1]) * 4096

    with socket.create_connection(("127.0.0.1", int(console.url.rpartition(":")[2]))) as client:
        client.settimeout(120)
        before = resident()
        request = f"GET {address}/log/whole HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {jar}\r\nConnection: close\r\n\r\n"
        client.sendall(request.encode())
        got = client.recv(65536)
        assert got.startswith(b"HTTP/1.1 200"), got[:200]
        length = len(got)
        looks = [0, 1]

        def settled() -> bool:
            looks.append(resident() - before)
            return looks[-1] == looks[-2]

        eventually(settled, seconds=60, every=1)  # nobody reads: what the console takes comes to an end
        assert looks[-1] < 48 * 1024**2
        while piece := client.recv(1024**2):
            length += len(piece)
    assert length > size


def test_what_a_program_prints_cannot_act_on_the_page(console: Console, browser: Browser, cookies: Any) -> None:
    script = r"""echo '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
        printf '\033]0;title\007\033]8;;http://evil.test\033\\link\033]8;;\033\\ \033[31mred\033[0m\033[2J\033[H\n'
        printf 'safe\342\200\256gnp.exe\n'; printf '\033[%s' "$(head -c 5000 /dev/zero | tr '\0' '9')"; echo
        head -c 3000000 /dev/zero | tr '\0' 'x'; echo; echo the last line"""
    printed(console, "hostile", script)
    backgrounds = []
    for scheme in ("light", "dark"):
        with somebody(browser, cookies, color_scheme=scheme) as context:
            page = context.new_page()
            page.goto(log_of(console, "hostile-0"))
            expect(page.get_by_text("the last line", exact=True)).to_be_attached()
            assert page.evaluate("window.hacked") is None
            assert page.locator("ol img, ol script, ol li > span a").count() == 0
            shown = lines(page)
            assert shown[0].startswith('<img src=x onerror="window.hacked=1"><script>')
            assert shown[1] == "link red"
            assert "⟨U+202E⟩" in shown[2]
            assert "line cut: 16 KiB of 2.86 MiB shown" in shown[4]
            backgrounds.append(page.locator(".log").evaluate("box => getComputedStyle(box).backgroundColor"))
    assert backgrounds[0] != backgrounds[1]


def test_without_scripts_a_log_is_read_filtered_and_paged(console: Console, browser: Browser, cookies: Any) -> None:
    printed(console, "plain", "seq 1 8000; echo one error; echo 0 Errors")
    with somebody(browser, cookies, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{run_page(console, 'plain')}?tab=logs")
        expect(page.locator("ol")).to_contain_text("0 Errors")
        page.get_by_label("Find in the log").fill("799")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("[data-matches]")).to_have_text("15 of 5000 lines")
        assert lines(page)[0] == "3799"
        page.get_by_label("Find in the log").fill("")
        page.get_by_label("Errors only").check()
        page.get_by_role("button", name="Show").click()
        expect(page.locator("[data-matches]")).to_have_text("2 of 5000 lines")
        expect(page.locator(".log li:not(.off):not(.gap) > span")).to_have_text(["one error", "0 Errors"])
        page.get_by_role("link", name="Earlier output").click()
        expect(page.locator("ol")).to_contain_text("3002")
