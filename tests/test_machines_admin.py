"""What staff see of machines in the admin, and what they may do there."""

import pytest
from django.contrib.admin.sites import site

from astraconsole.tenancy.models import User, Workspace
from machines import inbox
from machines.models import Credential, DataOnMachine, JoinToken, SetAsideReport, Volume
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


def test_staff_sees_where_credentials_drives_and_models_are_and_changes_none(cluster, client):
    workspace = Workspace.objects.get()
    token = Credential.objects.create(
        workspace=workspace,
        name="hf-token",
        provider="vault",
        reference="gpu/hf#token",
        created_at=NOON,
        changed_at=NOON,
    )
    llama = Volume.objects.create(
        workspace=workspace, kind="model", name="llama", form="copy", source="s3://weights/llama", created_at=NOON
    )
    machine = a_machine(cluster)
    for kind, item, state, message in (
        ("credential", token, "Failed", "Vault denies access <to> it"),
        ("model", llama, "Filling", ""),
    ):
        DataOnMachine.objects.create(
            machine=machine, kind=kind, uid=item.uid, state=state, message=message, changed_at=NOON
        )
    client.force_login(User.objects.create_superuser("root"))
    for page, item, words in (
        ("credential", token, ["gpu/hf#token", "gpu-07: Failed Vault denies access &lt;to&gt; it"]),
        ("volume", llama, ["s3://weights/llama", "gpu-07: Filling"]),
    ):
        assert item.name in client.get(f"/admin/machines/{page}/?q={item.name}").content.decode()
        shown = client.get(f"/admin/machines/{page}/{item.pk}/change/").content.decode()
        assert [word for word in words if word not in shown] == []
        assert client.post(f"/admin/machines/{page}/{item.pk}/delete/", {"post": "yes"}).status_code == 403
        assert client.post(f"/admin/machines/{page}/{item.pk}/change/", {"name": "other"}).status_code == 403
        assert client.get(f"/admin/machines/{page}/add/").status_code == 403


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
