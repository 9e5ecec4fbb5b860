"""What helps to find why a run failed: the failure panel with its links."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from astraconsole.tenancy.permissions import Role
from astraconsole.tenancy.services import create_token
from machines.credentials import save_credential
from machines.models import Machine, MachineState
from machines.orders import DataKind
from machines.protocol import EndReason, Phase, PullFailure
from machines.volumes import create_volume
from runs.debugging_documents import ReceiptDocument
from runs.models import Attempt, Firing, Run, Worker
from runs.saved import read_schedule
from runs.scheduling.types import Placement
from runs.services.deleting import delete_run
from runs.services.lost import machines_lost
from runs.services.placing import place_workers
from runs.services.schedules import save_schedule
from tests import builders
from tests.builders import GIB
from tests.metrics.samples import sampled
from tests.pages.place import Place, signed_in, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _machines_are_not_waited_for(settings: Any) -> None:
    settings.CALL_TIMEOUT_SECONDS = 0.01


def panel_of(html: str, label: str = "Failure") -> str:
    return html.split(f'aria-label="{label}"')[1].split("</section>")[0]


def links_of(html: str) -> dict[str, str]:
    """Text → address."""
    found = re.findall(r'<a [^>]*href="([^"]+)"[^>]*>([^<]+)</a>', html)
    return {text: address.replace("&amp;", "&") for address, text in found}


def failed(place: Place, name: str, ends: dict[str, Any], **asked: Any) -> Run:
    run = place.submit(name, **{"on_failure": "FailJob", **asked})
    attempt = builders.run_on(run.workers.get(), place.machine, timezone.now())
    builders.report_end(attempt, at=timezone.now(), **{"exit_code": None, "log_tail": "its last line\n", **ends})
    return run


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


# ---- receipts, usage ----


def test_an_ended_run_shows_its_receipt_and_opens_again_with_the_sizes_that_it_used(place: Place) -> None:
    run = place.submit("train", gpus=8, cpu=8, memory=64 * GIB, on_failure="FailJob")
    begin = timezone.now() - timedelta(minutes=11)
    Run.objects.update(created_at=begin, changed_at=begin)
    run.workers.update(changed_at=begin)
    run.workers.get().transitions.update(at=begin)
    attempt = builders.run_on(run.workers.get(), place.machine, begin, gpus=range(8))
    values = {"task_memory_used_bytes": 100 * GIB, **{("task_gpu_utilization_ratio", gpu): 0.5 for gpu in range(8)}}
    sampled(attempt, begin.timestamp() + 1, begin.timestamp() + 600, lambda _: values)
    assert "Receipt" not in place.get("/jobs/gpu-east/train")
    builders.report_end(attempt, 0, ran=600, at=begin + timedelta(seconds=600))
    page = place.get("/jobs/gpu-east/train")
    receipt = text_of(panel_of(page, "Receipt"))
    assert "10m from submit to end" in receipt
    assert "Running 10m" in receipt
    assert re.search(r"GPU-hours held 1\.3\d GPU-hours used 0\.6\d 50% of those held", receipt)
    assert "Peak memory of a worker 100 GiB of 512 GiB asked · train-0" in receipt
    assert "Most cores of a worker unknown no samples" in receipt
    assert "Memory 16 GiB per GPU would do: the most that a worker used is 100 GiB (train-0)" in receipt
    again = place.client.get(links_of(page)["Run again with these sizes"]).content.decode()
    assert f"&quot;memory_bytes&quot;: {16 * GIB}" in again
    assert "Sized by what train used Memory 16 GiB per GPU : the most that a worker used" in text_of(again)


def test_the_api_tells_the_receipt_of_a_run_that_has_ended(place: Place) -> None:
    failed(place, "bad", {"exit_code": 1})
    place.submit("waits")
    _, secret = create_token(place.access.user, "t", timezone.now())
    jobs = "/api/v1/orgs/acme/workspaces/vision/clusters/gpu-east/api/jobs"
    bearer = {"HTTP_AUTHORIZATION": f"Bearer {secret}"}
    told = place.client.get(f"{jobs}/bad", **bearer).json()["receipt"]
    assert list(told) == list(ReceiptDocument.__annotations__)
    assert told["gpu_hours"] == {"held": 0, "used": None, "sampled": 0}
    assert "receipt" not in place.client.get(f"{jobs}/waits", **bearer).json()


def test_usage_is_told_by_month_and_person_on_a_page_as_csv_and_by_the_api(place: Place) -> None:
    assert "No GPU has been held in the last 12 months" in place.get("/usage")
    run = place.submit("train", gpus=8)
    now = timezone.now()
    builders.run_on(run.workers.get(), place.machine, now, gpus=range(8))
    Attempt.objects.update(placed_at=now - timedelta(seconds=1))
    name = place.access.user.username
    assert f"{name} 100%" in text_of(place.get("/usage"))
    lines = place.get("/usage?format=csv").splitlines()
    assert lines[0] == "month,organisation,workspace,user,gpu_hours"
    assert re.fullmatch(rf"{now:%Y-%m},acme,vision,{name},0\.00\d+", lines[-1])
    _, secret = create_token(place.access.user, "t", timezone.now())
    bearer = {"HTTP_AUTHORIZATION": f"Bearer {secret}"}
    path = "/api/v1/orgs/acme/workspaces/vision/usage"
    [item] = place.client.get(f"{path}?from={now:%Y-%m}", **bearer).json()["items"]
    assert (item["user"], item["workspace"], item["month"]) == (name, "vision", f"{now:%Y-%m}")
    for wrong in ("from=2026", "to=2026-13", "from=2027-01&to=2026-01", "scope=all", "month=2026-01"):
        assert place.client.get(f"{path}?{wrong}", **bearer).status_code == 400, wrong
    assert place.client.get(f"{path}?scope=organisation", **bearer).status_code == 403
    assert place.client.get(place.base + "/usage?scope=organisation").status_code == 403
    assert "All of acme" not in place.get("/usage")
    place.access.user.is_staff = True
    place.access.user.save()
    assert "Workspace" in place.get("/usage?scope=organisation")


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


# ---- what changed ----


def completed(place: Place, name: str, digest: str = "", **asked: Any) -> Run:
    run = place.submit(name, **asked)
    attempt = builders.run_on(run.workers.get(), place.machine, timezone.now())
    builders.report_end(attempt, 0, at=timezone.now(), image_digest=digest)
    return run


def compared(place: Place, name: str, query: str = "") -> dict[str, Any]:
    _, secret = create_token(place.access.user, "t", timezone.now())
    address = f"/api/v1/orgs/acme/workspaces/vision/clusters/gpu-east/api/jobs/{name}/diff{query}"
    answer = place.client.get(address, HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_a_failed_run_is_compared_with_the_last_good_one_of_its_name_or_series(place: Place) -> None:
    assert "No good run to compare with" in place.get(f"/jobs/gpu-east/{place.submit('first').name}/diff")
    completed(place, "train-1", "sha256:aa", template={"env": {"LR": "1"}})
    failed(place, "train-2", {"exit_code": 1, "image_digest": "sha256:bb"}, template={"env": {"LR": "2"}})
    page = place.get("/jobs/gpu-east/train-2")
    html = place.get(links_of(page)["What changed"].removeprefix(place.base))
    assert "the last run of this series of names that completed" in html
    shown = text_of(html)
    assert "task_template.env.LR 1 2" in shown
    assert "image digest sha256:aa sha256:bb" in shown
    assert "The same machines and GPU models." in shown
    found = compared(place, "train-2")
    assert found["good"]["name"] == "train-1"
    assert {one["what"] for one in found["differences"]} == {"on_failure", "task_template.env.LR", "image digest"}


def test_the_last_good_run_is_of_the_same_schedule_name_series_or_program_in_this_order(place: Place) -> None:
    program = {"command": "python", "args": ["train.py"]}
    completed(place, "other", template=program)
    failed(place, "mine", {"exit_code": 1}, template=program)
    assert compared(place, "mine")["good"]["name"] == "other"
    assert "same image and command" in compared(place, "mine")["how"]
    delete_run(place.access, Run.objects.get(name="mine"), timezone.now())
    delete_run(place.access, completed(place, "mine"), timezone.now())
    failed(place, "mine", {"exit_code": 1}, template=program)
    assert "same name" in compared(place, "mine")["how"]
    body = {"name": "nightly", "cluster": "gpu-east", "cron": "0 3 * * *", "spec": builders.body()["spec"]}
    schedule, _ = save_schedule(place.access, read_schedule(body), timezone.now())
    for number, run in enumerate([Run.objects.get(name="other"), Run.objects.get(name="mine", deleted_at=None)]):
        due = timezone.now() + timedelta(days=number)
        Firing.objects.create(schedule=schedule, due_at=due, fired_at=due, outcome="Started", run=run, actor="schedule")
    assert compared(place, "mine")["good"]["name"] == "other"
    assert "same schedule" in compared(place, "mine")["how"]
    assert compared(place, "mine", "?against=other")["how"] == "you chose it"
    assert place.client.get(place.base + "/jobs/gpu-east/mine/diff?against=nobody").status_code == 404


def test_another_workspaces_runs_are_never_compared_with(place: Place) -> None:
    other = builders.access(builders.workspace(place.workspace.organisation, "nlp"))
    builders.cluster(other.workspace, slug="west")
    theirs = builders.submit(other, other.workspace.namespaces.get().cluster, "train-1", now=timezone.now())
    Run.objects.filter(pk=theirs.pk).update(state="Completed")
    failed(place, "train-2", {"exit_code": 1})
    assert compared(place, "train-2") == {"good": None, "how": None, "differences": [], "unknown": []}


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
