"""What staff see of machines in the admin, and what they may do there."""

import pytest
from django.contrib.admin.sites import site

from astraconsole.tenancy.models import User
from machines import inbox
from machines.models import JoinToken, SetAsideReport
from machines.protocol import encode
from tests.fleet import NOON, a_cluster, a_machine, a_report, a_workspace


@pytest.fixture
def cluster(db):
    return a_cluster(a_workspace())


def test_staff_sees_machines_and_reports_set_aside_but_no_secret(cluster, client):
    machine = a_machine(cluster, token="secret")
    JoinToken.objects.create(cluster=cluster, digest="d" * 64, expires_at=NOON)
    report = SetAsideReport.objects.create(
        cluster=cluster,
        machine=machine,
        attempt=a_report().attempt,
        payload=b"\x80",
        error="ValueError: no",
        received_at=NOON,
        set_aside_at=NOON,
    )
    client.force_login(User.objects.create_superuser("root"))
    for page in ("cluster", "namespace", "machine", "setasidereport", "jointoken"):
        assert client.get(f"/admin/machines/{page}/").status_code == 200
    assert client.get(f"/admin/machines/setasidereport/{report.pk}/change/").status_code == 200
    shown = client.get(f"/admin/machines/machine/{machine.pk}/change/").content.decode()
    assert "gpu-07" in shown
    assert machine.token_digest not in shown


def test_staff_can_have_a_report_applied_again(cluster, client):
    report = a_report()
    item = SetAsideReport.objects.create(
        cluster=cluster,
        machine=a_machine(cluster),
        attempt=report.attempt,
        seq=report.seq,
        payload=encode(report),
        error="ValueError: no",
        received_at=NOON,
        set_aside_at=NOON,
    )
    client.force_login(User.objects.create_superuser("root"))
    action = {"action": "put_back", "_selected_action": [item.pk]}
    assert client.post("/admin/machines/setasidereport/", action).status_code == 302
    applied = []
    inbox.drain(cluster.pk, lambda entries, now: applied.extend(entry.report for entry in entries) or [])
    assert applied == [report]
    assert not SetAsideReport.objects.exists()


def test_no_page_of_staff_shows_a_digest():
    for model, model_admin in site._registry.items():
        if model._meta.app_label == "machines":
            shown = {*model_admin.list_display, *model_admin.readonly_fields, *(model_admin.fields or ())}
            assert not any("digest" in str(field) for field in shown), model
