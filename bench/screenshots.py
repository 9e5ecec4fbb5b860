"""Pictures of every page, light, dark and 360 px wide, of a console that has something of everything to show.

    python -m bench.screenshots [--ready FILE] [--out FOLDER]

Without --ready it starts a console of its own on a temporary data folder, with two local machines whose GPUs are
simulated, and stops it afterwards.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = "/usr/bin/chromium"
LOOKS = {"light": ("light", 1360), "dark": ("dark", 1360), "360": ("light", 360)}
START_SECONDS, SETTLE_SECONDS = 180, 90
GIB = 1024**3

TRAIN = """
i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo "[rank$RANK]: step $((i*10)) loss 1.$((900-i*7)) lr 2.0e-05"; done
printf 'Epoch 1:  10%%\\rEpoch 1:  74%%\\rEpoch 1: 100%%\\n'
printf '\\033[32mcheckpoint written\\033[0m to /tmp/step-400\\n'; exec sleep 3600
"""
FAIL = """
echo "[rank0]: step 4410 loss 1.402"; echo "Traceback (most recent call last):"
echo '  File "train.py", line 212, in step'; echo "RuntimeError: CUDA error: device-side assert triggered"; exit 1
"""
DDP = """
sleep 5; [ $RANK = 1 ] && { echo "RuntimeError: CUDA error: device-side assert triggered"; exit 1; }
sleep 2; echo "NCCL WARN: remote process exited"; [ $RANK = 2 ] && exit 6; exec sleep 300
"""

# name → (script, GPUs, further fields of the spec, further fields of its task template)
RUNS: dict[str, tuple[str, int, dict[str, Any], dict[str, Any]]] = {
    "hello": ("echo hello from $ASTRA_WORKER", 0, {}, {}),
    "train-failed": (FAIL, 1, {}, {"restart_policy": "Never"}),
    "rag-index": (FAIL, 0, {}, {"env": {"INDEX": "articles, 2026"}}),
    "ddp-1": ("sleep 25", 4, {"node_selection": {"count": 4}}, {"env": {"LR": "1e-5"}}),
    "ddp-2": (DDP, 4, {"node_selection": {"count": 4}, "on_failure": "FailJob"}, {"env": {"LR": "2e-5"}}),
    "notebook": ("exec sleep 3600", 1, {}, {}),
    "llama-sft": (TRAIN, 8, {"machines": 2}, {"time_limit_seconds": 43200, "env": {"WANDB_MODE": "offline"}}),
    "eval-grid": ("echo $ASTRA_ARRAY_INDEX; sleep 20", 0, {"array": {"count": 24, "parallelism": 6}}, {}),
    "resnet50": (TRAIN, 1, {}, {}),
    "vlm-pretrain": (TRAIN, 16, {"machines": 2}, {"time_limit_seconds": 86400}),
    "too-wide": (TRAIN, 64, {"machines": 4}, {}),
}
STATES = {
    "hello": "Completed",
    "train-failed": "Failed",
    "ddp-1": "Completed",
    "ddp-2": "Failed",
    "rag-index": "Pending",
    "notebook": "Cancelled",
    "llama-sft": "Running",
    "resnet50": "Running",
    "vlm-pretrain": "Pending",
    "too-wide": "Pending",
}
# file name → address below the workspace; those that begin with / are the console's own.
PAGES = {
    "runs": "/runs?state=all",
    "runs-active": "/runs",
    "runs-none": "/runs?search=nothing-like-it",
    "new-run": "/new-run",
    "new-run-json": "/new-run?again={cluster}/llama-sft",
    "run": "/jobs/{cluster}/llama-sft",
    "run-logs": "/jobs/{cluster}/llama-sft?tab=logs",
    "run-metrics": "/jobs/{cluster}/llama-sft?tab=metrics&range=15m",
    "worker-metrics": "/workers/{cluster}/llama-sft-0?tab=metrics&range=15m",
    "gpus": "/gpus",
    "run-history": "/jobs/{cluster}/llama-sft?tab=history",
    "run-array": "/jobs/{cluster}/eval-grid",
    "run-waiting": "/jobs/{cluster}/vlm-pretrain",
    "run-never": "/jobs/{cluster}/too-wide",
    "run-failed": "/jobs/{cluster}/train-failed",
    "run-failed-together": "/jobs/{cluster}/ddp-2",
    "run-receipt": "/jobs/{cluster}/ddp-1",
    "run-diff": "/jobs/{cluster}/ddp-2/diff",
    "new-run-sizes": "/new-run?again={cluster}/ddp-1&sizes=used",
    "usage": "/usage",
    "run-failed-log": "/jobs/{cluster}/train-failed?tab=logs",
    "run-loop": "/jobs/{cluster}/rag-index",
    "run-stop": "/jobs/{cluster}/llama-sft/stop",
    "run-delete": "/jobs/{cluster}/llama-sft/delete",
    "worker": "/workers/{cluster}/llama-sft-0",
    "worker-history": "/workers/{cluster}/llama-sft-0?tab=history",
    "worker-started": "/workers/{cluster}/llama-sft-0?tab=started",
    "machines": "/machines",
    "machine-add": "/machines/add",
    "machine": "/machines/local/local-1",
    "templates": "/templates",
    "template-save": "/save-template?of={cluster}/llama-sft",
    "schedules": "/schedules",
    "schedule": "/schedules/nightly-eval",
    "schedule-new": "/new-schedule?edit=nightly-eval",
    "events": "/events",
    "events-filtered": "/events?kind=run&name=llama-sft",
    "webhooks": "/webhooks",
    "members": "/members",
    "tokens": "//account/tokens",
    "device": "//device",
    "not-found": "/jobs/{cluster}/no-such-run",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ready", type=Path, help="the ready file of a running console, which gets runs to show")
    parser.add_argument("--out", type=Path, default=ROOT / "screenshots", help="default: %(default)s")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.ready:
        return take_all(json.loads(options.ready.read_text()), options.out)
    with own_console() as ready:
        return take_all(ready, options.out)


@contextmanager
def own_console() -> Iterator[dict[str, str]]:
    """A console on a temporary data folder, stopped in order at the end."""
    with tempfile.TemporaryDirectory(prefix="astra-shots-") as folder:
        Path(folder).chmod(0o711)
        ready = Path(folder) / "ready"
        machines = ["--machines", "2", "--simulate-gpus", "8xH100-80GB", "--machine-cpus", "96"]
        command = [sys.executable, "manage.py", "up", "--port", "8791", "--data-dir", f"{folder}/data"]
        options = ["--ready-file", str(ready), "--runtime", "process", "--machine-memory", "1024Gi", *machines]
        process = subprocess.Popen([*command, *options], cwd=ROOT)
        try:
            until(lambda: ready.exists() or process.poll() is not None, START_SECONDS, "the console to be ready")
            yield json.loads(ready.read_text())
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


def take_all(ready: dict[str, str], out: Path) -> int:
    fill(ready)
    wide = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for look, (scheme, width) in LOOKS.items():
            wide += sum(pictures(browser, ready, out, look, scheme, width))
        browser.close()
    print(f"{len(LOOKS) * (len(PAGES) + 6)} pictures in {out}; {wide} wider than their window")
    return 1 if wide else 0


def fill(ready: dict[str, str]) -> None:
    """Submit what is not there yet, and wait until each run is in the state that its picture shows."""
    place = f"{ready['url']}/api/v1/orgs/{ready['organisation']}/workspaces/{ready['workspace']}"
    api = httpx.Client(
        base_url=f"{place}/clusters/{ready['cluster']}/api/",
        headers={"Authorization": f"Bearer {ready['token']}"},
        timeout=30,
    )
    with api:
        for name in RUNS:
            answer = api.post("jobs", json=body_of(name))
            if answer.status_code not in (201, 409):
                raise SystemExit(f"{name}: {answer.text}")
        save_some(api, place, ready["cluster"])
        until(lambda: api.get("jobs/notebook").json()["status"]["state"] != "Pending", SETTLE_SECONDS, "notebook")
        api.post("jobs/notebook/stop", json={"reason": "no longer needed"})
        for name, state in STATES.items():
            until(lambda n=name, s=state: api.get(f"jobs/{n}").json()["status"]["state"] == s, SETTLE_SECONDS, name)


def save_some(api: httpx.Client, place: str, cluster: str) -> None:
    """A template and a schedule that never starts anything by itself while pictures are taken."""
    spec = body_of("llama-sft")["spec"]
    template = {"name": "llama-70b finetune", "description": "16 H100, 24 h, checkpoints on /ckpt", "spec": spec}
    timetable = {"name": "nightly-eval", "cluster": cluster, "cron": "0 3 1 1 *", "zone": "Europe/Berlin", "spec": spec}
    for path, body in (("templates", template), ("schedules", timetable)):
        api.post(f"{place}/{path}", json=body).raise_for_status()


def body_of(name: str) -> dict[str, Any]:
    script, gpus, spec, template = RUNS[name]
    resources: dict[str, Any] = {"cpu_cores": 1, "memory_bytes": GIB}
    if gpus:
        per_gpu = {"cpu_cores": 8, "memory_bytes": 64 * GIB}
        resources = {"gpu_requests": {"count": gpus}, "per_gpu": per_gpu}
    filled = {
        "image": "nvcr.io/nvidia/pytorch:24.08-py3",
        "command": "sh",
        "args": ["-c", script.strip()],
        "requested_resources": resources,
        **template,
    }
    return {"metadata": {"name": name}, "spec": {"task_template": filled, **spec}}


def until(ask: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not ask():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds} s: {what}")
        time.sleep(0.2)


def pictures(browser: Browser, ready: dict[str, str], out: Path, look: str, scheme: str, width: int) -> Iterator[bool]:
    """Take one look of every page; yields for each whether it is wider than its window."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    base = f"{ready['url']}/o/{ready['organisation']}/w/{ready['workspace']}"
    page.goto(f"{ready['url']}/sign-in")
    yield snap(page, out, "sign-in", look)
    page.get_by_label("User name").fill(ready["username"])
    page.get_by_label("Password").fill(ready["password"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/runs")
    for name, address in PAGES.items():
        there = ready["url"] + address[1:] if address.startswith("//") else base + address
        page.goto(there.format(cluster=ready["cluster"]))
        yield snap(page, out, name, look)
    asked = httpx.post(f"{ready['url']}/api/v1/device/code", json={"host": "laptop-of-ada", "program": "astra 0.1.0"})
    page.goto(f"{ready['url']}/device?code={asked.json()['user_code']}")
    yield snap(page, out, "device-asked", look)
    yield from forms(page, base, ready["cluster"], out, look)
    context.close()


def forms(page: Page, base: str, cluster: str, out: Path, look: str) -> Iterator[bool]:
    """What only shows while somebody works with a page."""
    page.goto(f"{base}/new-run")
    texts = {"name": "Resnet50", "image": "nvcr.io/nvidia/pytorch:24.08-py3", "command": "python", "gpus": "64"}
    for field, text in {**texts, "args": "train.py --epochs 90 'two words'"}.items():
        page.locator(f"#{field}").fill(text)
    page.get_by_text("More options").click()
    page.locator("#time_limit").fill("12h")
    page.locator("#env").fill("WANDB_MODE=offline\nNAMES='a, b'")
    page.locator("#notes-env .echo").wait_for()
    page.evaluate("scrollTo(0, 0)")
    yield snap(page, out, "new-run-error", look)
    page.locator("#name").fill("resnet50-b")
    page.locator(".say").wait_for()
    page.evaluate("scrollTo(0, 0)")
    yield snap(page, out, "new-run-never", look)
    page.goto(f"{base}/runs")
    page.locator("input[data-pick]").first.check()
    page.locator("[data-bulk]").get_by_role("button", name="Delete").click()
    page.locator("dialog[open]").wait_for()
    yield snap(page, out, "runs-bulk", look, whole=False)
    page.goto(f"{base}/jobs/{cluster}/ddp-2")
    page.locator("#failed-later summary").click()
    yield snap(page, out, "run-failed-first", look)


def snap(page: Page, out: Path, name: str, look: str, whole: bool = True) -> bool:
    page.wait_for_load_state("networkidle")
    page.screenshot(path=out / f"{name}-{look}.png", full_page=whole)
    wide = bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))
    if wide:
        print(f"wider than its window: {name}-{look}")
    return wide


if __name__ == "__main__":
    raise SystemExit(main())
