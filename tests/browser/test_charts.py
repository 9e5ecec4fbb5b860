"""The charts of a Metrics tab in a real Chromium: drawn, live, in both looks, with one time under the pointer."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.person import place, sign_in, somebody
from tests.console import Console, eventually, running_console

pytestmark = [pytest.mark.browser, pytest.mark.processes]
MACHINE = ("--runtime", "process", "--machine-cpus", "16", "--machine-memory", "16Gi", "--simulate-gpus", "2xH100-80GB")
CHARTS = ["CPU", "Memory", "GPU utilisation", "GPU memory", "Tensor cores", "SM activity", "Memory bandwidth"]


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("METRICS_SAMPLE_SECONDS", "1")
        with running_console(*MACHINE) as started:
            submit(started)
            yield started


def submit(console: Console) -> None:
    """train: two workers with a GPU each, that run until the console ends."""
    template = {
        "image": "none", "command": "/bin/sh", "args": ["-c", "while :; do sleep 0.1; done"],
        "requested_resources": {"per_gpu": {"cpu_cores": 1, "memory_bytes": 2**28}, "gpu_requests": {"count": 2}},
    }  # fmt: skip
    spec = {"task_template": template, "node_selection": {"count": 2}}
    console.api.post("jobs", json={"metadata": {"name": "train"}, "spec": spec}).raise_for_status()
    console.wait_for("train", "Running")


@pytest.fixture(scope="module")
def cookies(console: Console, browser: Browser) -> Any:
    context = browser.new_context()
    sign_in(context.new_page(), console)
    state = context.storage_state()
    context.close()
    return state


def open_charts(page: Page, console: Console, address: str = "jobs") -> None:
    """With at least one line in the first of them."""
    name = "train" if address == "jobs" else "train-0"
    page.goto(f"{place(console)}/{address}/{console.ready['cluster']}/{name}?tab=metrics&range=15m")
    expect(page.locator(".chart[data-metric=task_cpu_usage_cores] .scatterlayer .trace").first).to_be_attached()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_runs_charts_are_drawn_a_line_a_worker_in_the_colours_of_the_page(console, browser, cookies, scheme):
    with somebody(browser, cookies, color_scheme=scheme) as context:
        page = context.new_page()
        open_charts(page, console)
        expect(page.locator(".chart h2 span")).to_have_text(CHARTS)
        expect(page.locator(".chart[data-metric=task_gpu_utilization_ratio] .scatterlayer .trace")).to_have_count(2)
        ink = page.evaluate(
            "['.chart .legendtext', 'body'].map((found) => getComputedStyle(document.querySelector(found)))"
            ".map((style, n) => (n ? style.color : style.fill)).join(' ')"
        )
        first, second = re.findall(r"rgb\([^)]*\)", ink)
        assert first == second
        assert (sum(map(int, re.findall(r"\d+", first))) > 380) == (scheme == "dark")
        page.get_by_role("button", name=re.compile("^Theme")).click()
        other = "rgb(18, 22, 29)"
        page.evaluate("document.documentElement.dataset.theme = 'light'")
        ink_now = "getComputedStyle(document.querySelector('.chart .legendtext')).fill"
        eventually(lambda: page.evaluate(ink_now) == other)


def test_what_is_under_the_pointer_in_one_chart_is_shown_in_all(console, browser, cookies):
    with somebody(browser, cookies) as context:
        page = context.new_page()
        open_charts(page, console)
        drawn = "document.querySelector('.chart .plot').data[0].y.filter((y) => y !== null).length"
        eventually(lambda: page.evaluate(drawn) > 2)
        drag = page.locator(".chart[data-metric=task_cpu_usage_cores] .nsewdrag").bounding_box()
        assert drag is not None
        for back in (40, 8):  # what was sampled is at the right end
            page.mouse.move(drag["x"] + drag["width"] - back, drag["y"] + drag["height"] / 2)
        expect(page.locator(".chart:has(.hoverlayer .legend)")).to_have_count(len(CHARTS))
        times = page.locator(".hoverlayer .legendtitletext").all_inner_texts()
        assert len(times) == len(CHARTS)
        assert len(set(times)) == 1


def test_the_charts_go_on_by_themselves(console, browser, cookies):
    with somebody(browser, cookies) as context:
        page = context.new_page()
        open_charts(page, console)
        expect(page.locator("[data-charts-state]")).to_contain_text("live")
        end = "document.querySelector('.chart .plot').layout.xaxis.range[1]"
        before = page.evaluate(end)
        eventually(lambda: page.evaluate(end) > before)


def test_a_worker_without_a_network_of_its_own_says_so_in_its_chart(console, browser, cookies):
    with somebody(browser, cookies) as context:
        page = context.new_page()
        open_charts(page, console, "workers")
        nothing = page.locator(".chart[data-metric=task_network_receive_bytes_total] .nothing")
        expect(nothing).to_contain_text("Not known: host processes")
        expect(page.locator(".chart[data-metric=task_memory_used_bytes] .legendtext")).to_have_text(["Memory", "limit"])


def test_without_scripts_the_tab_is_a_table_of_the_latest_values(console, browser, cookies):
    with somebody(browser, cookies, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{place(console)}/jobs/{console.ready['cluster']}/train?tab=metrics")
        row = page.get_by_role("row", name=re.compile("train-1"))
        expect(row).to_contain_text("256 MiB")
        expect(row).to_contain_text("%")
        page.get_by_role("link", name="24h").click()
        expect(page.get_by_role("link", name="24h")).to_have_attribute("aria-current", "page")


def test_the_gpus_page_shows_who_holds_what_and_marks_simulated_ones(console, browser, cookies):
    with somebody(browser, cookies) as context:
        page = context.new_page()
        page.goto(f"{place(console)}/gpus")
        expect(page.locator(".gpu-map i[data-mark=held]")).to_have_count(2)
        expect(page.get_by_role("row", name=re.compile("local"))).to_have_count(2)
        expect(page.get_by_role("link", name="train").first).to_be_visible()
        expect(page.get_by_text("simulated").first).to_be_visible()
