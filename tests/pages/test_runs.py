"""Pages of a run and of a worker, and stopping and deleting, as browsers get them."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from astraconsole.tenancy.permissions import Role
from machines.credentials import save_credential
from machines.models import Namespace
from machines.protocol import EndReason, Phase
from runs.models import Attempt, Run
from runs.scheduling.loop import run_once
from tests import builders
from tests.pages.place import HTMX, Place, text_of

pytestmark = pytest.mark.django_db


# ---- a run's page ----


def test_a_waiting_run_says_why_by_machine(place: Place) -> None:
    first = place.submit("first", gpus=8)
    builders.run_on(first.workers.get(), place.machine, timezone.now(), gpus=range(8))
    run = place.submit("second", gpus=8)
    run_once(place.cluster.pk, timezone.now())
    run.refresh_from_db()
    html = text_of(place.get("/jobs/gpu-east/second"))
    assert run.status_reason in html
    assert "Why it waits No run is ahead of it" in html
    assert "1 8 GPUs wanted, at most 0 free gpu-07" in html


def test_a_waiting_run_is_offered_what_would_start_it(place: Place) -> None:
    first = place.submit("first", gpus=3)
    builders.run_on(first.workers.get(), place.machine, timezone.now(), gpus=range(3))
    place.submit("second", gpus=8)
    run_once(place.cluster.pk, timezone.now())
    html = place.get("/jobs/gpu-east/second")
    assert "What would start it With 5 GPUs instead of 8 : starts at once on gpu-07." in text_of(html)
    assert 'href="/o/acme/w/vision/new-run?again=gpu-east/second&amp;change=gpus%3D5"' in html


def test_a_run_that_can_never_start_is_told_apart_from_one_that_waits(place: Place) -> None:
    place.submit("wide", gpus=9)
    run_once(place.cluster.pk, timezone.now())
    html = text_of(place.get("/jobs/gpu-east/wide"))
    assert "It can never start as it is" in html
    assert "ahead" not in html
    assert "With 8 GPUs instead of 9 : starts at once on gpu-07." in html


def test_a_run_of_which_some_workers_wait_says_why_the_rest_waits(place: Place) -> None:
    run = place.submit("wide", gpus=16, node_selection={"count": 2})
    builders.run_on(run.workers.get(rank=0), place.machine, timezone.now(), gpus=range(8))
    run_once(place.cluster.pk, timezone.now())
    html = text_of(place.get("/jobs/gpu-east/wide"))
    assert "Why the rest of its workers wait Next to run: waits for 8 GPUs" in html
    assert html.count("1 of 2 workers running") == 1
    assert "nothing says when it starts: work without a time limit is in its place" in html


def test_a_run_that_waits_for_its_quota_is_told_what_it_takes_and_not_who_is_ahead(place: Place) -> None:
    place.submit("greedy", gpus=8)
    Namespace.objects.update(quota_gpus=4)
    run_once(place.cluster.pk, timezone.now())
    html = text_of(place.get("/jobs/gpu-east/greedy"))
    assert "Why it waits It waits until other work of this workspace ends, or staff raise the quota." in html
    assert "ahead of it" not in html


def test_a_preempted_run_says_that_it_gave_way_and_shows_no_machine_that_it_is_not_on(place: Place) -> None:
    run = place.submit("low", gpus=8)
    attempt = builders.run_on(run.workers.get(), place.machine, timezone.now(), gpus=range(8))
    Attempt.objects.filter(pk=attempt.pk).update(released_at=timezone.now(), superseded_at=timezone.now())
    run.workers.update(state="Pending", reason="Preempted by higher-priority work (high)")
    Run.objects.update(state="Pending", preemptions=1)
    first = place.submit("high", gpus=8, priority=0)
    builders.run_on(first.workers.get(), place.machine, timezone.now(), gpus=range(8))
    run_once(place.cluster.pk, timezone.now())
    html = text_of(place.get("/jobs/gpu-east/low"))
    assert "It has given its room to higher-priority work 1 time: this costs no retries." in html
    assert "Machines 0" in html


def test_a_running_run_shows_workers_machines_gpus_and_time_left(place: Place) -> None:
    run = place.submit("llama", gpus=8, template={"time_limit_seconds": 43200})
    builders.run_on(run.workers.get(), place.machine, timezone.now(), gpus=range(8))
    html = text_of(place.get("/jobs/gpu-east/llama"))
    assert "Workers 1 of 1 running GPUs 8" in html
    assert "Machines 1 gpu-07 Time left" in html
    assert "of 12h" in html


def failed(place: Place, name: str = "oom", **asked: Any) -> Run:
    run = place.submit(name, template={"restart_policy": "Never"}, **asked)
    attempt = builders.run_on(run.workers.get(), place.machine, timezone.now())
    now = timezone.now()
    builders.report_end(attempt, 137, EndReason.OOM_KILLED, at=now, log_tail="step 4410 loss 1.402\n<Killed>\n")
    return run


def test_a_failed_run_leads_with_what_happened_what_to_do_and_its_log(place: Place) -> None:
    failed(place)
    html = place.get("/jobs/gpu-east/oom")
    panel = html.split('aria-label="Failure"')[1].split("</section>")[0]
    assert "It ran out of memory" in panel
    assert "OOMKilled: the container exceeded its memory limit" in panel
    assert "exit code 137" in panel
    assert "step 4410 loss 1.402" in panel
    assert "&lt;Killed&gt;" in panel
    assert "?tab=logs&amp;worker=oom-0" in panel


def test_a_worker_that_restarts_in_a_loop_is_shown_with_its_next_try(place: Place) -> None:
    run = place.submit("loop")
    attempt = builders.run_on(run.workers.get(), place.machine, timezone.now())
    builders.report_end(attempt, 1, at=timezone.now(), log_tail="Connection refused\n")
    panel = text_of(place.get("/jobs/gpu-east/loop").split('aria-label="Restarting in a loop"')[1])
    assert "1 of 10 tries failed in a row; the next begins" in panel
    assert "Connection refused" in panel


def test_a_worker_that_is_not_ready_says_so_on_its_page_and_on_its_runs(place: Place) -> None:
    probes = {
        "readiness": {"http": {"port": 8000, "path": "/health"}, "period_seconds": 5, "success_threshold": 2},
        "liveness": {"exec": {"command": ["test", "-e", "alive"]}, "initial_delay_seconds": 90},
    }
    run = place.submit("web", lifetime="Service", template={"probes": probes})
    attempt = builders.place(run.workers.get(), place.machine, now=timezone.now())
    builders.report(attempt, (Phase.RUNNING, 1), not_ready="readiness probe failed: HTTP 503", at=timezone.now())
    not_ready = "Running, not ready: readiness probe failed: HTTP 503"
    assert not_ready in text_of(place.get("/jobs/gpu-east/web"))
    assert not_ready in text_of(place.get("/workers/gpu-east/web-0"))
    started = text_of(place.get("/workers/gpu-east/web-0?tab=started"))
    assert "GET http://127.0.0.1:8000/health every 5s, 1s each; fails after 3 in a row, succeeds after 2" in started
    assert "every 10s after 90s, 1s each; fails after 3 in a row" in started


def test_a_worker_that_waits_for_a_credential_leads_to_it_once_there_is_one(place: Place) -> None:
    refs = [{"external_secret_name": "hf-token", "env_vars": {"token": "HF_TOKEN"}}]
    run = place.submit("llama", template={"secret_refs": refs})
    attempt = builders.place(builders.workers(run)[0], place.machine)
    sentence = "waiting for external secret hf-token"
    builders.report(attempt, (Phase.PREPARING, 1.0), waiting=sentence)
    page = place.get("/jobs/gpu-east/llama?tab=history")
    assert f"llama-0 · {sentence}" in text_of(page)
    page = place.get("/workers/gpu-east/llama-0?tab=started")
    assert f"{sentence} · the workspace has no credential of that name yet" in text_of(page)
    assert "hf-token as HF_TOKEN (key token)" in text_of(page)
    save_credential(builders.access(place.workspace, Role.ADMIN), "hf-token", "file", "hf", timezone.now())
    page = place.get("/workers/gpu-east/llama-0")
    assert 'href="/o/acme/w/vision/credentials/hf-token">whether the machine could fetch it' in page


def test_a_service_in_a_loop_has_no_last_try(place: Place) -> None:
    run = place.submit("web", lifetime="Service", template={"retry_exit_codes": [75, 85]})
    attempt = builders.run_on(run.workers.get(), place.machine, timezone.now())
    builders.report_end(attempt, 1, at=timezone.now())
    panel = text_of(place.get("/jobs/gpu-east/web").split('aria-label="Restarting in a loop"')[1])
    assert "1 try failed in a row; the next begins" in panel
    assert "A service is started again until it is stopped." in panel
    started = text_of(place.get("/workers/gpu-east/web-0?tab=started"))
    assert "Service: whenever it ends, then RestartTask; exit codes 75, 85 at no cost" in started


def test_history_is_oldest_first_for_a_run_and_newest_first_for_a_worker(place: Place) -> None:
    failed(place)
    run_states = re.findall(
        r"</svg>(\w+)</span></td><td class=\"reason\">", place.get("/jobs/gpu-east/oom?tab=history")
    )
    worker_states = re.findall(
        r"</svg>(\w+)</span></td><td class=\"reason\">", place.get("/workers/gpu-east/oom-0?tab=history")
    )
    assert run_states[0] == worker_states[-1] == "Pending"
    assert run_states[-1] == worker_states[0] == "Failed"


def test_a_workers_page_shows_how_it_was_started(place: Place) -> None:
    template = {"command": "python", "args": ["two words", "$X"], "env": {"A": "<1>"}, "user": "1000"}
    run = place.submit("web", template=template)
    builders.run_on(run.workers.get(), place.machine, timezone.now())
    html = place.get("/workers/gpu-east/web-0?tab=started")
    for shown_text in (
        "busybox",
        "python",
        "[&quot;two words&quot;, &quot;$X&quot;]",
        "A=&lt;1&gt;",
        "1000",
        "OnFailure",
    ):
        assert shown_text in html
    assert "not used by this machine" in text_of(html)


def test_the_fragment_of_a_live_page_is_the_part_of_the_page_that_it_replaces(place: Place) -> None:
    failed(place)
    for path in ("/jobs/gpu-east/oom", "/jobs/gpu-east/oom?tab=history", "/workers/gpu-east/oom-0?tab=history"):
        page, (title, _, fragment) = place.get(path), place.get(path, **HTMX).partition("</title>")
        assert title.strip() in page
        assert "<html" not in fragment
        assert without_times(fragment.strip()) in without_times(page)


def without_times(html: str) -> str:
    """But for the numbers that move with the clock."""
    return re.sub(r">[\dhms]+(?= ?<)", ">", html)


def test_the_page_has_the_same_for_a_terminal(place: Place) -> None:
    place.submit("resnet50")
    html = place.get("/jobs/gpu-east/resnet50")
    assert "API=http://testserver/api/v1/orgs/acme/workspaces/vision/clusters/gpu-east/api" in html
    assert "astra astraeus status resnet50" in html


def test_the_workers_of_a_large_array_are_paged(place: Place) -> None:
    place.submit("grid", array={"count": 250})
    pages, path = [], "/jobs/gpu-east/grid"
    while path:
        html = place.get(path)
        assert "Workers 250" in text_of(html).replace("Workers <", "Workers ")
        pages.append(re.findall(r'id="worker-\w+" href="[^"]*">grid-(\d+)<', html))
        following = re.search(r'href="/o/acme/w/vision(/jobs/gpu-east/grid\?after=\d+)">Next', html)
        path = following[1] if following else ""
    assert [len(ranks) for ranks in pages] == [100, 100, 50]
    assert [int(rank) for ranks in pages for rank in ranks] == list(range(250))


def test_the_first_failure_is_shown_though_others_failed_after_it(place: Place) -> None:
    run = place.submit("grid", array={"count": 3}, template={"restart_policy": "Never"})
    for rank in (2, 0):
        attempt = builders.run_on(run.workers.get(rank=rank), place.machine, timezone.now())
        builders.report_end(attempt, rank + 1, at=timezone.now())
    panel = text_of(place.get("/jobs/gpu-east/grid").split('aria-label="Failure"')[1])
    assert panel.lstrip("> ").startswith("grid-2 on gpu-07")


# ---- stop and delete ----


def test_the_delete_dialog_says_what_stops_and_is_freed(place: Place) -> None:
    run = place.submit("llama", gpus=8)
    builders.run_on(run.workers.get(), place.machine, timezone.now(), gpus=range(8))
    dialog = place.get("/jobs/gpu-east/llama/delete", **HTMX)
    assert "<html" not in dialog
    assert "1 worker will be stopped and 8 GPUs freed." in dialog


def test_delete_needs_the_typed_name(place: Place) -> None:
    place.submit("resnet50")
    refused = place.post("/jobs/gpu-east/resnet50/delete", typed="resnet5")
    assert "resnet5 is not its name" in refused.content.decode()
    assert Run.objects.get().deleted_at is None
    assert place.post("/jobs/gpu-east/resnet50/delete", typed="resnet50").url == "/o/acme/w/vision/runs"
    assert Run.objects.get().deleted_at is not None


def test_stop_keeps_the_run(place: Place) -> None:
    place.submit("resnet50")
    answer = place.post("/jobs/gpu-east/resnet50/stop", reason="enough")
    assert answer.url == "/o/acme/w/vision/jobs/gpu-east/resnet50"
    run = Run.objects.get()
    assert run.state == "Cancelled"
    assert run.deleted_at is None


def test_a_reason_that_cannot_be_kept_whole_is_refused(place: Place) -> None:
    run = place.submit("resnet50", gpus=1)
    for reason in ("x" * 301, "a\0b"):
        assert place.post("/jobs/gpu-east/resnet50/stop", reason=reason).status_code == 400
    run.refresh_from_db()
    assert run.state == "Pending"


def test_a_worker_is_stopped_alone(place: Place) -> None:
    place.submit("grid", array={"count": 2})
    place.post("/workers/gpu-east/grid-1/stop")
    assert sorted(Run.objects.get().workers.values_list("state", flat=True)) == ["Cancelled", "Pending"]


def test_picked_runs_are_stopped_or_deleted_together_after_a_question(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.submit(name)
    picked = ["gpu-east/a", "gpu-east/b"]
    question = place.post("/runs/bulk", do="delete", run=picked)
    assert "Delete 2 runs?" in question.content.decode()
    assert not Run.objects.exclude(deleted_at=None).exists()
    place.post("/runs/bulk", do="delete", run=picked, confirmed="1")
    assert set(Run.objects.filter(deleted_at=None).values_list("name", flat=True)) == {"c"}


def test_a_pick_that_is_gone_does_not_keep_the_others_from_it(place: Place) -> None:
    for name in ("a", "b"):
        place.submit(name)
    picked = ["gpu-east/gone", "gpu-east/a", "elsewhere/b", "gpu-east/b"]
    question = place.post("/runs/bulk", do="stop", run=picked)
    assert "Stop 2 runs?" in question.content.decode()
    place.post("/runs/bulk", do="stop", run=picked, confirmed="1")
    assert set(Run.objects.values_list("state", flat=True)) == {"Cancelled"}
    told = text_of(place.get("/runs?state=all"))
    assert "gpu-east/gone: there is no such run any more" in told
    assert "Done for 2 of 2" in told
    assert place.post("/runs/bulk", do="stop", run=["gpu-east/gone"], confirmed="1").status_code == 302


def test_what_failed_after_the_first_failure_is_folded(place: Place) -> None:
    run = place.submit("grid", node_selection={"count": 3}, template={"restart_policy": "Never"})
    now = timezone.now()
    for worker in run.workers.order_by("-rank"):
        attempt = builders.run_on(worker, place.machine, now)
        builders.report_end(attempt, exit_code=worker.rank + 1, at=now)
        now += timedelta(seconds=1)
    page = place.get("/jobs/gpu-east/grid")
    assert "grid-2 on gpu-07" in text_of(page.split('aria-label="Failure"')[1].split("</section>")[0])
    folded = text_of(page.split('id="failed-later"')[1].split("</details>")[0])
    assert "2 more workers failed after grid-2: most likely because it did" in folded
    assert folded.index("grid-1") < folded.index("grid-0")


@pytest.mark.parametrize("data", [{}, {"do": "delete"}, {"do": "explode", "run": "gpu-east/a"}])
def test_a_bulk_request_that_makes_no_sense_is_refused(place: Place, data: dict[str, str]) -> None:
    assert place.post("/runs/bulk", **data).status_code == 400


def test_caches_tell_a_page_from_its_fragment(place: Place) -> None:
    for options in ({}, HTMX):
        vary = place.client.get(f"{place.base}/runs", **options)["Vary"]
        assert {"HX-Request", "Cookie"} <= {name.strip() for name in vary.split(",")}
