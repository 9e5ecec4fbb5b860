"""What helps to find why a run failed: the failure panel with its links."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from astraconsole.tenancy.permissions import Role
from machines.credentials import save_credential
from machines.models import Machine, MachineState
from machines.orders import DataKind
from machines.protocol import EndReason, Phase, PullFailure
from machines.volumes import create_volume
from runs.models import Attempt, Run, Worker
from runs.scheduling.types import Placement
from runs.services.lost import machines_lost
from runs.services.placing import place_workers
from tests import builders
from tests.builders import GIB
from tests.metrics.samples import sampled
from tests.pages.failures import failed, links_of, panel_of
from tests.pages.place import Place, signed_in, text_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("machines_are_not_waited_for")]


# What a machine reports → the links that its advice must have beside its log, if that helps at all.
ENDS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "Exited with code 1": ({"exit_code": 1}, {"Its log", "Metrics around it"}),
    "Exited with code 127": ({"exit_code": 127}, {"How it was started"}),
    "Exited with code 126": ({"exit_code": 126}, {"How it was started"}),
    "Exited with code 137": ({"exit_code": 137}, {"Its log", "Machine gpu-07"}),
    "OOMKilled: the container exceeded its memory limit": (
        {"exit_code": 137, "reason": EndReason.OOM_KILLED},
        {"Its log", "Metrics around it", "Run again with 1.5 GiB"},
    ),
    "ErrImagePull: the registry has no such image: x": (
        {"reason": EndReason.IMAGE_PULL, "message": "x", "pull_failure": PullFailure.NOT_FOUND},
        {"How it was started", "Registry credential"},
    ),
    "ErrImagePull: the registry denies access: x": (
        {"reason": EndReason.IMAGE_PULL, "message": "x", "pull_failure": PullFailure.DENIED},
        {"Registry credential"},
    ),
    "ErrImagePull: the registry cannot be reached: x": (
        {"reason": EndReason.IMAGE_PULL, "message": "x", "pull_failure": PullFailure.UNREACHABLE},
        {"Machine gpu-07"},
    ),
    "ErrImagePull: bad reference": (
        {"reason": EndReason.IMAGE_PULL, "message": "bad reference"},
        {"How it was started", "Registry credential"},
    ),
    "Image busybox is not present and the pull policy is None": (
        {"reason": EndReason.IMAGE_MISSING},
        {"How it was started", "Machine gpu-07"},
    ),
    "Exceeded its time limit of 12h": ({"reason": EndReason.TIME_LIMIT}, {"Its log", "Run again with 1d"}),
    "Liveness probe failed: HTTP 500": (
        {"reason": EndReason.PROBE_FAILED, "message": "Liveness probe failed: HTTP 500"},
        {"Its log", "How it was started"},
    ),
    "Could not start: no such user": (
        {"reason": EndReason.START_FAILED, "message": "no such user"},
        {"How it was started", "Machine gpu-07"},
    ),
    "Refused by the machine: no": ({"reason": EndReason.REFUSED, "message": "no"}, {"Machine gpu-07"}),
    "Machine rebooted while it ran; its exit code is unknown": (
        {"reason": EndReason.MACHINE_REBOOTED},
        {"Machine gpu-07", "History"},
    ),
    "Stopped by its machine": ({"reason": EndReason.STOPPED}, {"Machine gpu-07", "History"}),
    "Ended; its exit code could not be observed": ({}, {"Machine gpu-07", "Its log"}),
}


def test_the_last_lines_are_shown_as_in_a_log(place: Place) -> None:
    tail = "10%\r100%\n\x1b[31mred\x1b[0m <b> \u202e\nRuntimeError: lost\n"
    failed(place, "colourful", {"exit_code": 1, "log_tail": tail})
    panel = panel_of(place.get("/jobs/gpu-east/colourful"))
    lines = [
        "100%",
        '<span class="a-fg1">red</span> &lt;b&gt; ⟨U+202E⟩',
        '<span class="error">RuntimeError: lost</span>',
    ]
    assert "\n".join([*lines, "</span></pre>"]) in panel


def test_each_reason_has_its_advice_its_last_lines_and_links_that_lead_somewhere(place: Place) -> None:
    for number, (reason, (ends, links)) in enumerate(ENDS.items()):
        run = failed(place, f"run-{number}", ends, template={"time_limit_seconds": 43200})
        for address in (f"/jobs/gpu-east/{run.name}", f"/workers/gpu-east/{run.name}-0"):
            panel = panel_of(place.get(address))
            assert f"<code>{reason.replace(chr(39), '&#x27;')}</code>" in panel
            assert "its last line" in panel
            assert ": it failed" not in panel, f"no advice for {reason}"
            found = links_of(panel)
            assert links <= set(found), f"{reason}: {sorted(found)}"
        for label, link in found.items():
            assert place.client.get(link).status_code == 200, f"{reason}: {label} leads to {link}"


def test_a_lost_machine_and_one_that_lost_track_lead_to_the_machine(place: Place) -> None:
    lost, unknown = place.submit("lost", on_failure="FailJob"), place.submit("unknown", on_failure="FailJob")
    builders.run_on(lost.workers.get(), place.machine, timezone.now())
    machines_lost([place.machine.pk], timezone.now())
    attempt = builders.run_on(unknown.workers.get(), place.machine, timezone.now())
    builders.report(attempt, (Phase.FORGOTTEN, 0.0), at=timezone.now())
    for name, title in (("lost", "Its machine was lost"), ("unknown", "Its machine lost track of it")):
        panel = panel_of(place.get(f"/jobs/gpu-east/{name}"))
        assert title in panel
        for label in ("Machine gpu-07", "History"):
            assert place.client.get(links_of(panel)[label]).status_code == 200
    Machine.objects.update(state=MachineState.REMOVED)
    assert "Machine gpu-07" not in links_of(panel_of(place.get("/jobs/gpu-east/lost")))


def test_used_up_retries_tell_the_last_failures_cause_too(place: Place, settings: Any) -> None:
    settings.RESTART_BUDGET = 0
    failed(place, "loop", {"exit_code": 137, "reason": EndReason.OOM_KILLED}, on_failure="RestartTask")
    panel = text_of(panel_of(place.get("/jobs/gpu-east/loop")))
    assert "It failed too often in a row Retry budget exhausted after 0/0 restarts" in panel
    assert "The last failure: It ran out of memory. OOMKilled: the container exceeded its memory limit" in panel
    assert "Run again with 1.5 GiB" in panel


def test_the_log_of_a_failure_is_that_of_the_attempt_that_failed(place: Place) -> None:
    run = place.submit("again")
    worker = run.workers.get()
    first = builders.run_on(worker, place.machine, timezone.now())
    builders.report_end(first, 1, at=timezone.now())
    worker.refresh_from_db()
    assert "attempt=1" in links_of(panel_of(place.get("/jobs/gpu-east/again"), "Restarting in a loop"))["Its log"]
    Run.objects.update(state="Running")
    run.workers.update(state="Running", attempt_number=2, failures_in_row=2, restart_at=None)
    assert "attempt=1" in links_of(panel_of(place.get("/jobs/gpu-east/again"), "Restarting in a loop"))["Its log"]


def test_a_preempted_worker_is_no_failure_and_leads_to_its_history(place: Place) -> None:
    run = place.submit("low")
    builders.run_on(run.workers.get(), place.machine, timezone.now())
    run.workers.update(state="Pending", reason="Preempted by higher-priority work (high)")
    html = place.get("/workers/gpu-east/low-0")
    assert "Queued again: more urgent work needed its room" in html
    assert place.client.get(links_of(html)["what happened before"]).status_code == 200


def test_more_memory_is_offered_to_those_who_may_start_runs_and_opens_it_filled_in(place: Place) -> None:
    failed(place, "oom", {"exit_code": 137, "reason": EndReason.OOM_KILLED}, gpus=1, memory=64 * GIB)
    link = links_of(panel_of(place.get("/jobs/gpu-east/oom")))["Run again with 96 GiB per GPU"]
    assert f"&quot;memory_bytes&quot;: {96 * GIB}" in place.client.get(link).content.decode()
    place.client = signed_in(builders.access(place.workspace, Role.VIEWER))
    assert "Run again" not in panel_of(place.get("/jobs/gpu-east/oom"))


def test_a_registry_credential_that_is_there_is_linked_by_name(place: Place) -> None:
    admin = builders.access(place.workspace, Role.ADMIN)
    save_credential(admin, "registry-login", "file", "reg", timezone.now())
    ends = {"reason": EndReason.IMAGE_PULL, "message": "x", "pull_failure": PullFailure.DENIED}
    template = {"registry_secret_ref": {"external_secret_name": "registry-login"}}
    failed(place, "private", ends, template=template)
    link = links_of(panel_of(place.get("/jobs/gpu-east/private")))["Registry credential"]
    assert link.endswith("/credentials/registry-login")


@pytest.mark.parametrize(
    ("sentence", "kind", "refs"),
    [
        ("Waiting for data volume imagenet", DataKind.DRIVE, "datavolume_refs"),
        ("Waiting for drive imagenet to be filled: 3 of 9 GiB", DataKind.DRIVE, "datavolume_refs"),
        ("Waiting for model imagenet to be filled", DataKind.MODEL, "model_refs"),
    ],
)
def test_a_worker_that_waits_for_data_leads_to_it(place: Place, sentence: str, kind: DataKind, refs: str) -> None:
    run = place.submit("train", template={refs: [{"name": "imagenet", "mount_path": "/data"}]})
    attempt = builders.place(run.workers.get(), place.machine, now=timezone.now())
    builders.report(attempt, (Phase.PREPARING, 1.0), waiting=sentence, at=timezone.now())
    assert f"the workspace has no {kind} of that name yet" in place.get("/workers/gpu-east/train-0")
    builders.report(attempt, (Phase.PREPARING, 2.0), waiting="Waiting for data volume imagenet: the workspace has no …")
    assert links_of(place.get("/workers/gpu-east/train-0"))["add one"].endswith(f"/{kind}s")
    given = {"name": "imagenet", "kind": "copy", "source": "s3://data/imagenet"}
    create_volume(builders.access(place.workspace, Role.ADMIN), kind, given, timezone.now())
    link = links_of(place.get("/workers/gpu-east/train-0"))["whether it is reachable or still copying"]
    assert link.endswith(f"/{kind}s/imagenet")
    assert place.client.get(link).status_code == 200


def test_a_model_that_only_the_engine_needs_is_led_to_and_the_wait_for_the_engine_is_not(
    place: Place, settings: Any
) -> None:
    settings.ENGINE_IMAGE = "engine:v1"
    run = place.submit("chat", engine={"model": "llama"})
    attempt = builders.place(run.workers.get(), place.machine, now=timezone.now())
    builders.report(attempt, (Phase.PREPARING, 1.0), waiting="Waiting for model llama to be filled", at=timezone.now())
    page = place.get("/workers/gpu-east/chat-0?tab=started")
    assert links_of(page)["llama"].endswith("/models/llama")
    assert "the workspace has no model of that name yet" in page
    waits = "Waiting for the engine to serve llama"
    served_by = {"waiting": waits, "engine_image": "engine:v1@sha256:aa"}
    builders.report(attempt, (Phase.PREPARING, 2.0), **served_by, at=timezone.now())
    assert "engine:v1@sha256:aa" in place.get("/workers/gpu-east/chat-0?tab=started")
    page = place.get("/workers/gpu-east/chat-0")
    assert waits in page
    assert "of that name yet" not in page


# ---- what failed first ----


def gang(place: Place, name: str = "ddp", **asked: Any) -> tuple[Run, list[Attempt]]:
    """Three workers with two GPUs each, running."""
    given = {"gpus": 6, "machines": 3, "start": "Gang", "on_failure": "FailJob", "memory": 32 * GIB, **asked}
    run = place.submit(name, **given)
    now = timezone.now()
    workers = builders.workers(run)
    place_workers(place.cluster.pk, [_placement(place, worker) for worker in workers], now)
    attempts = [builders.newest_attempt(worker) for worker in workers]
    for attempt in attempts:
        builders.report(attempt, (Phase.STARTING, 1.0), (Phase.RUNNING, 0.0), at=now)
    return run, attempts


def _placement(place: Place, worker: Worker) -> Placement:
    return Placement(
        worker_id=worker.id,
        machine_id=place.machine.id,
        gpu_indexes=(2 * worker.rank, 2 * worker.rank + 1),
        cpu_milli=worker.cpu_milli,
        memory_bytes=worker.memory_bytes,
        run_id=worker.run_id,
        namespace_id=worker.namespace_id,
    )


def test_a_distributed_runs_failures_are_told_in_their_order_with_what_followed_folded(place: Place) -> None:
    _, attempts = gang(place)
    now = timezone.now() + timedelta(seconds=900)
    builders.report_end(attempts[0], 1, ran=890, at=now + timedelta(seconds=12))  # told first, happened later
    builders.report_end(attempts[1], 137, EndReason.OOM_KILLED, ran=880, at=now)
    builders.report_end(attempts[2], 143, EndReason.STOPPED, ran=900, at=now + timedelta(seconds=42))
    page = place.get("/jobs/gpu-east/ddp")
    assert "ddp-1 on gpu-07: It ran out of memory" in text_of(panel_of(page))
    folded = text_of(page.split('id="failed-later"')[1].split("</details>")[0])
    assert "1 more worker failed after ddp-1: most likely because it did; 1 was stopped" in folded
    assert re.search(r"\+0s ddp-1 on gpu-07 OOMKilled: .* 1[45]m\w* after the run began to run", folded)
    assert re.search(r"\+12s ddp-0 on gpu-07 Exited with code 1", folded)
    assert "+42s 1 worker stopped: the run does not go on without ddp-1" in folded


def test_samples_before_a_failure_are_told_as_sentences_and_nothing_is_made_up(place: Place) -> None:
    _, attempts = gang(place)
    failed_at = timezone.now()
    begin = failed_at.timestamp() - 600
    Attempt.objects.update(running_at=failed_at - timedelta(seconds=600))

    def climbing(at: float) -> dict[Any, float]:
        share = (at - begin) / 600
        busy = 0.9 if share < 0.7 else 0.0
        return {
            "task_memory_used_bytes": (8 + 55 * share) * GIB,
            "task_network_receive_bytes_total": 1e9 * min(share, 0.7),
            ("task_gpu_utilization_ratio", 2): 0.9,
            ("task_gpu_utilization_ratio", 3): busy,
        }

    sampled(attempts[1], begin, failed_at.timestamp(), climbing)
    sampled(attempts[0], begin, failed_at.timestamp(), lambda at: {("task_gpu_utilization_ratio", 0): 0.0})
    builders.report_end(attempts[1], 137, EndReason.OOM_KILLED, ran=600, at=failed_at)
    found = text_of(panel_of(place.get("/jobs/gpu-east/ddp")))
    assert re.search(
        r"Memory climbed from [\d.]+ GiB to 6\d[\d.]* GiB of its limit of 64 GiB in the \S+ before it", found
    )
    assert "Another worker&#x27;s GPUs were at 0%" in found
    assert re.search(r"Network traffic stopped \w+ before it\.", found)
    failed(place, "silent", {"exit_code": 1})
    assert "findings" not in panel_of(place.get("/jobs/gpu-east/silent"))


# ---- how many queries ----


def test_what_helps_to_debug_costs_as_many_queries_for_many_workers_as_for_few(place: Place) -> None:
    def queries_of(name: str, workers: int) -> dict[str, int]:
        run = place.submit(name, node_selection={"count": workers}, template={"restart_policy": "Never"})
        for worker in builders.workers(run):
            attempt = builders.run_on(worker, place.machine, timezone.now())
            builders.report_end(attempt, 1, at=timezone.now())
        run.refresh_from_db()
        assert run.state == "Failed"
        counts = {}
        for path in ("", "/diff"):
            with CaptureQueriesContext(connection) as captured:
                place.get(f"/jobs/gpu-east/{name}{path}")
            counts[path] = len(captured)
        return counts

    assert queries_of("few", 2) == queries_of("many", 6)
