"""Drives and models of a workspace: the API, the pages, what machines are told of them, and who may do what."""

from typing import Any
from uuid import UUID

import msgspec
import pytest
from django.test import Client

from astraconsole.tenancy.permissions import Role
from machines import dispatch
from machines.models import DataOnMachine, Machine, Volume
from machines.orders import DataKind, Order, VolumeUse
from machines.protocol import decode_to_agent
from tests import builders
from tests.api_calls import WORKSPACE, Caller, refused
from tests.builders import T0
from tests.world import World, make_world

DRIVES, MODELS = f"{WORKSPACE}/drives", f"{WORKSPACE}/models"
PAGES = "/o/acme/w/vision"
FOLDER = {"name": "scratch", "kind": "folder", "source": "/srv/scratch"}


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def admin(world: World) -> Caller:
    return Caller(world, Role.ADMIN)


def signed_in(world: World, role: Role = Role.ADMIN) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(world.members[role])
    return client


def told(world: World, name: str, state: str, **facts: Any) -> DataOnMachine:
    volume = Volume.objects.get(workspace=world.workspace, kind="drive", name=name)
    return DataOnMachine.objects.create(
        machine=world.machine, kind="drive", uid=volume.uid, state=state, changed_at=T0, **facts
    )


# ---- the API ---------------------------------------------------------------------------------------------------------


def test_a_drive_is_created_read_listed_and_removed(world: World, admin: Caller) -> None:
    made = admin.post(DRIVES, FOLDER)
    assert made.status_code == 201
    document = dict(made.json())
    metadata = document.pop("metadata")
    assert (metadata["name"], metadata["created_by"]) == ("scratch", "admin")
    assert document == {
        "kind": "folder", "source": "/srv/scratch", "read_only": False, "credential": "", "checksum": "",
        "endpoint": "", "status": {"state": None, "machines": 0, "ready": 0}, "machines": [],
    }  # fmt: skip
    assert [item["metadata"]["name"] for item in Caller(world, Role.VIEWER).get(DRIVES).json()["items"]] == [
        "imagenet", "scratch"
    ]  # fmt: skip
    assert admin.get(f"{DRIVES}/scratch").json() == made.json()
    refused(admin.post(DRIVES, FOLDER), 409, "CONFLICT")
    assert admin.delete(f"{DRIVES}/scratch").status_code == 204
    refused(admin.get(f"{DRIVES}/scratch"), 404, "NOT_FOUND")
    refused(admin.delete(f"{DRIVES}/scratch"), 404, "NOT_FOUND")


def test_a_model_has_a_version_and_is_always_read_only(admin: Caller) -> None:
    given = {"name": "llama", "kind": "copy", "source": "s3://m/llama", "version": "3.1", "credential": "hf-token"}
    document = admin.post(MODELS, given).json()
    assert (document["version"], document["read_only"], document["credential"]) == ("3.1", True, "hf-token")
    refused(admin.post(MODELS, {**given, "name": "b", "read_only": True}), 400, "UNKNOWN_FIELD")


def test_a_drive_tells_how_far_each_machine_is(world: World, admin: Caller) -> None:
    told(world, "imagenet", "Filling", done_bytes=40, total_bytes=100, message="")
    document = admin.get(f"{DRIVES}/imagenet").json()
    assert document["status"] == {"state": "Filling", "machines": 1, "ready": 0}
    [machine] = document["machines"]
    assert machine.pop("changed_at") == "2026-10-01T01:02:11.402117Z"
    assert machine == {
        "machine": "gpu-07", "cluster": "lab", "state": "Filling", "message": "", "done_bytes": 40, "total_bytes": 100
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "field", "rule"),
    [
        ({"name": "a b"}, "name", "must be 1 to 63"),
        ({"name": ""}, "name", "must be 1 to 63"),
        ({"name": 7}, "name", "must be one line"),
        ({"name": "a\nb"}, "name", "must be one line"),
        ({"kind": "disk"}, "kind", "must be one of folder, nfs, copy"),
        ({"source": ""}, "source", "must have 1 to"),
        ({"source": "srv"}, "source", "must be an absolute path"),
        ({"source": "/srv/../etc"}, "source", "must be an absolute path"),
        ({"source": "/"}, "source", "must be an absolute path"),
        ({"kind": "nfs"}, "source", "must be a folder of a file server"),
        ({"kind": "nfs", "source": "-o:/x"}, "source", "must be a folder of a file server"),
        ({"kind": "nfs", "source": "host:/a/../b"}, "source", "must be a folder of a file server"),
        ({"kind": "copy"}, "source", "must be an address that begins with"),
        ({"kind": "copy", "source": "ftp://x/y"}, "source", "must be an address that begins with"),
        ({"kind": "copy", "source": "https://user:word@x/y"}, "source", "must not hold a user or a password"),
        ({"kind": "copy", "source": "s3:///key"}, "source", "must name a host or a bucket"),
        ({"kind": "copy", "source": "http://h:99999/"}, "source", "with a port"),
        ({"kind": "copy", "source": "file://etc/x"}, "source", "must be file:///path"),
        ({"kind": "copy", "source": "s3://b", "read_only": False}, "read_only", "must be true for a copy"),
        ({"read_only": "yes"}, "read_only", "must be true or false"),
        ({"credential": "hf"}, "credential", "only for a copy"),
        ({"checksum": "sha256:" + "0" * 64}, "checksum", "only for a copy"),
        ({"kind": "copy", "source": "s3://b", "checksum": "md5:1"}, "checksum", "must be sha256:"),
        ({"kind": "copy", "source": "https://h/x", "endpoint": "http://minio"}, "endpoint", "only for a copy from s3"),
        ({"kind": "copy", "source": "s3://b", "endpoint": "minio"}, "endpoint", "must be an address"),
    ],
)
def test_a_definition_that_breaks_a_rule_is_refused_by_field(
    admin: Caller, change: dict[str, Any], field: str, rule: str
) -> None:
    detail = refused(admin.post(DRIVES, {**FOLDER, **change}), 400, "VALIDATION_ERROR")["detail"]
    assert [entry["field"] for entry in detail] == [field]
    assert rule in detail[0]["rule"]


def test_a_drive_in_use_is_kept_and_its_runs_are_named(world: World, admin: Caller) -> None:
    template = {"datavolume_refs": [{"name": "imagenet", "mount_path": "/data"}]}
    run = builders.submit(world.access(), world.cluster, "train", template=template)
    groups = [{"name": "g", "count": 1, "task_template": template}, {"name": "h", "count": 1}]
    builders.submit(world.access(), world.cluster, "grouped", worker_groups=groups)
    builders.submit(world.access(), world.cluster, "other", template={"model_refs": [{"name": "imagenet"}]})
    message = refused(admin.delete(f"{DRIVES}/imagenet"), 409, "CONFLICT")["message"]
    assert message == "imagenet is used by runs in progress: grouped, train"
    assert "other" in refused(admin.delete(f"{MODELS}/imagenet"), 409, "CONFLICT")["message"]
    for name in (run.name, "grouped"):
        assert admin.delete(f"{WORKSPACE}/clusters/gpu-east/api/jobs/{name}").status_code == 204
    assert admin.delete(f"{DRIVES}/imagenet").status_code == 204


# ---- what machines are told ------------------------------------------------------------------------------------------


def test_machines_are_told_the_drives_of_their_workspaces_and_no_others(world: World, admin: Caller) -> None:
    before = Machine.objects.get(pk=world.machine.pk).revision
    admin.post(DRIVES, FOLDER)
    assert Machine.objects.get(pk=world.machine.pk).revision == before + 1
    elsewhere = builders.machine(builders.cluster(builders.workspace()))
    sets = dispatch.sets([world.machine.pk, elsewhere.pk])
    message = decode_to_agent(sets[world.machine.pk].frame)
    drive, model = DataKind.DRIVE, DataKind.MODEL
    assert [(volume.kind, volume.name, volume.form) for volume in message.volumes] == [
        (drive, "imagenet", "copy"), (model, "imagenet", "copy"), (drive, "scratch", "folder")
    ]  # fmt: skip
    assert {volume.workspace for volume in message.volumes} == {world.workspace.pk}
    assert UUID(message.volumes[2].uid) == Volume.objects.get(name="scratch").uid
    assert decode_to_agent(sets[elsewhere.pk].frame).volumes == []


def test_an_order_says_what_is_mounted_where(world: World) -> None:
    template = {
        "datavolume_refs": [{"name": "a", "mount_path": "/a"}, {"name": "b", "mount_path": "/b", "read_only": True}],
        "model_refs": [{"name": "m"}],
    }
    run = builders.submit(world.access(), world.cluster, template=template)
    machine = builders.machine(world.cluster, runtime="docker")
    assert builders.place(builders.workers(run)[0], machine) is not None
    order = msgspec.msgpack.decode(machine.assignments.get().order, type=Order)
    assert order.volumes == [
        VolumeUse(DataKind.DRIVE, "a", "/a"), VolumeUse(DataKind.DRIVE, "b", "/b", read_only=True),
        VolumeUse(DataKind.MODEL, "m", "/model", read_only=True),
    ]  # fmt: skip
    assert order.workspace == world.workspace.pk


# ---- pages -----------------------------------------------------------------------------------------------------------


def test_the_page_lists_drives_and_only_admins_get_the_form(world: World) -> None:
    told(world, "imagenet", "Failed", message="there is nothing at s3://data/imagenet")
    viewer = signed_in(world, Role.VIEWER).get(f"{PAGES}/drives").content.decode()
    assert "imagenet" in viewer
    assert "0 of 1 ready" in viewer
    assert "Add a drive" not in viewer
    assert "Add a drive" in signed_in(world).get(f"{PAGES}/drives").content.decode()


def test_a_drives_page_shows_each_machine_with_a_bar_or_its_error(world: World) -> None:
    row = told(world, "imagenet", "Filling", done_bytes=40 * 2**30, total_bytes=100 * 2**30)
    page = signed_in(world, Role.VIEWER).get(f"{PAGES}/drives/imagenet").content.decode()
    assert '<progress max="100" value="40"' in page
    assert "40 GiB of 100 GiB · 40 %" in page
    row.state, row.message = "Failed", "this machine's disk is full"
    row.save()
    page = signed_in(world, Role.VIEWER).get(f"{PAGES}/drives/imagenet").content.decode()
    assert "this machine&#x27;s disk is full" in page


def test_the_form_adds_a_drive_and_keeps_what_was_typed_when_it_is_refused(world: World) -> None:
    client = signed_in(world)
    wrong = client.post(f"{PAGES}/drives", {"name": "new", "kind": "copy", "source": "ftp://typed"})
    assert wrong.status_code == 400
    assert "must be an address that begins with" in wrong.content.decode()
    assert 'value="ftp://typed"' in wrong.content.decode()
    answer = client.post(f"{PAGES}/drives", {"name": "new", "kind": "copy", "source": "s3://b/x"})
    assert answer.headers["Location"] == f"{PAGES}/drives/new"
    answer = client.post(f"{PAGES}/models", {"name": "new", "kind": "folder", "source": "/srv/m", "version": "1"})
    assert answer.headers["Location"] == f"{PAGES}/models/new"
    assert "version 1" in client.get(f"{PAGES}/models/new").content.decode()


def test_the_commands_of_the_pages_name_this_console(world: World) -> None:
    page = signed_in(world).get(f"{PAGES}/drives").content.decode()
    assert f'curl -sS "http://testserver{WORKSPACE}/drives"' in page


def test_removing_asks_first_and_names_the_runs_that_keep_it(world: World) -> None:
    client = signed_in(world)
    template = {"model_refs": [{"name": "imagenet"}]}
    builders.submit(world.access(), world.cluster, "train", template=template)
    assert "Remove imagenet?" in client.get(f"{PAGES}/models/imagenet/remove").content.decode()
    kept = client.post(f"{PAGES}/models/imagenet/remove")
    assert kept.status_code == 409
    assert "used by runs in progress: train" in kept.content.decode()
    assert client.post(f"{PAGES}/drives/imagenet/remove").headers["Location"] == f"{PAGES}/drives"


def test_a_workers_page_shows_what_was_mounted(world: World) -> None:
    template = {"datavolume_refs": [{"name": "imagenet", "mount_path": "/data", "read_only": True}]}
    builders.submit(world.access(), world.cluster, "train", template=template)
    page = signed_in(world, Role.VIEWER).get(f"{PAGES}/workers/gpu-east/train-0?tab=started").content.decode()
    assert '<span class="mono">/data</span> drive imagenet, read only' in page
