"""What a run has cost: receipts, and usage by month."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from astraconsole.tenancy.services import create_token
from runs.debugging_documents import ReceiptDocument
from runs.models import Attempt, Run
from tests import builders
from tests.builders import GIB
from tests.metrics.samples import sampled
from tests.pages.failures import failed, links_of, panel_of
from tests.pages.place import Place, text_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("machines_are_not_waited_for")]


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
