"""What differs from the last good run of its kind."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from astraconsole.tenancy.services import create_token
from runs.models import Firing, Run
from runs.saved import read_schedule
from runs.services.deleting import delete_run
from runs.services.schedules import save_schedule
from tests import builders
from tests.pages.failures import failed, links_of
from tests.pages.place import Place, text_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("machines_are_not_waited_for")]


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
