"""Credentials in the console: who may do what with them, what machines are told, what pages and the API show."""

import json

import pytest
from django.test import Client

from astraconsole.errors import Conflict, Forbidden, NotFound, ValidationError
from astraconsole.tenancy.permissions import Role
from machines import credentials, data_states, dispatch, protocol, queries
from machines.data_states import Told
from machines.models import Assignment, Credential, Machine
from machines.orders import DataKind, SecretUse
from machines.protocol import DataState
from runs.services.credentials import delete_credential
from runs.services.stopping import stop_run
from tests import builders as make
from tests.builders import T0, after
from tests.world import World, make_world

pytestmark = pytest.mark.django_db

API = "/api/v1/orgs/acme/workspaces/vision/credentials"
PAGE = "/o/acme/w/vision/credentials"
SECRET = {"external_secret_name": "hf", "env_vars": {"token": "HF_TOKEN"}}


@pytest.fixture
def admin():
    return make.access(make.workspace(), Role.ADMIN)


@pytest.fixture
def east(admin):
    return make.cluster(admin.workspace)


def save(access, name="hf", provider="file", reference="hf/token", now=T0):
    return credentials.save_credential(access, name, provider, reference, now)[0]


def told(machine: Machine) -> list[tuple[str, str, str, str]]:
    frame = dispatch.sets([machine.pk])[machine.pk].frame
    found = protocol.decode_to_agent(frame).credentials
    return [(each.place, each.name, each.provider, each.reference) for each in found]


# ---- what machines are told ----


def test_the_machines_of_the_workspaces_clusters_are_told_and_no_others(admin, east) -> None:
    here = make.machine(east)
    elsewhere = make.machine(make.cluster(make.workspace()))
    save(admin)
    here.refresh_from_db()
    elsewhere.refresh_from_db()
    assert told(here) == [(str(admin.workspace), "hf", "file", "hf/token")]
    assert (told(elsewhere), here.revision, elsewhere.revision) == ([], 1, 0)


def test_workspaces_that_share_a_cluster_may_use_the_same_name(admin) -> None:
    other = make.access(make.workspace(admin.workspace.organisation, "nlp"), Role.ADMIN)
    machine = make.machine(make.cluster(admin.workspace, other.workspace))
    save(admin)
    save(other, reference="elsewhere")
    assert [(place, reference) for place, _, _, reference in told(machine)] == [
        (str(admin.workspace), "hf/token"),
        (str(other.workspace), "elsewhere"),
    ]


def test_an_order_names_credentials_and_holds_where_nothing_of_them_is(admin, east) -> None:
    save(admin)
    template = {"secret_refs": [SECRET], "registry_secret_ref": {"external_secret_name": "registry-login"}}
    make.place(make.workers(make.submit(admin, east, template=template))[0], make.machine(east))
    order = protocol.decode_to_agent(
        b"\x83\xa4type\xabassignments\xa8revision\x01\xa6orders\x91" + bytes(Assignment.objects.get().order)
    ).orders[0]
    assert order.workspace == admin.workspace.pk
    assert order.secrets == [SecretUse("hf", {"token": "HF_TOKEN"})]
    assert order.registry_secret == SecretUse("registry-login")
    assert b"hf/token" not in bytes(Assignment.objects.get().order)


# ---- saving and removing ----


def test_replacing_says_something_else_under_another_identity(admin, east) -> None:
    first = save(admin)
    again, is_new = credentials.save_credential(admin, "hf", "file", "hf/token", after(1))
    assert (again.uid, is_new, again.changed_at) == (first.uid, False, T0)
    replaced = save(admin, provider="vault", reference="gpu/hf#token", now=after(2))
    assert replaced.uid != first.uid
    assert (replaced.provider, replaced.created_at, replaced.changed_at) == ("vault", T0, after(2))


def test_a_name_used_again_after_removal_is_another_credential(admin, east) -> None:
    machine = make.machine(east, connection="one")
    first = save(admin)
    data_states.write([Told(machine.pk, "one", T0, [DataState(DataKind.CREDENTIAL, first.uid.hex, "Synced")])])
    delete_credential(admin, "hf")
    assert told(machine) == []
    second = save(admin)
    assert queries.data_on_machines(admin, [second.uid]) == {}


@pytest.mark.parametrize(
    ("name", "provider", "reference", "fields"),
    [
        ("", "file", "x", ["name"]),
        ("-x", "file", "x", ["name"]),
        ("a/b", "file", "x", ["name"]),
        ("x" * 64, "file", "x", ["name"]),
        (None, None, None, ["name", "provider", "reference"]),
        (5, ["file"], {}, ["name", "provider", "reference"]),
        ("x", "s3", "x", ["provider"]),
        ("x", "file", "  ", ["reference"]),
        ("x", "file", "x" * 501, ["reference"]),
        ("x", "file", "a\nb", ["reference"]),
        ("x", "file", "/etc/shadow", ["reference"]),
        ("x", "vault", "a/../b", ["reference"]),
        ("x", "environment", "A-B", ["reference"]),
    ],
)
def test_a_bad_credential_is_told_field_by_field(admin, name, provider, reference, fields) -> None:
    with pytest.raises(ValidationError) as refused:
        save(admin, name, provider, reference)
    assert [entry["field"] for entry in refused.value.detail] == fields
    assert not Credential.objects.exists()


@pytest.mark.parametrize("role", [Role.VIEWER, Role.EDITOR])
def test_only_admins_change_credentials(admin, role) -> None:
    save(admin)
    other = make.access(admin.workspace, role)
    for act in (lambda: save(other, "new"), lambda: delete_credential(other, "hf")):
        with pytest.raises(Forbidden):
            act()
    assert [each.name for each in queries.credentials_of(other)] == ["hf"]


def test_another_workspaces_credential_is_not_there(admin) -> None:
    save(admin)
    stranger = make.access(make.workspace(), Role.ADMIN)
    with pytest.raises(NotFound):
        delete_credential(stranger, "hf")


@pytest.mark.parametrize(
    "asked",
    [
        {"template": {"secret_refs": [SECRET]}},
        {"template": {"registry_secret_ref": {"external_secret_name": "hf"}}},
        {"worker_groups": [{"name": "a", "count": 1, "task_template": {"secret_refs": [SECRET]}}]},
    ],
)
def test_it_is_not_removed_while_a_run_in_progress_uses_it(admin, east, asked) -> None:
    save(admin)
    run = make.submit(admin, east, "llama", **asked)
    make.submit(admin, east, "other", template={"env": {"external_secret_name": "hf"}})
    with pytest.raises(Conflict, match=r"hf is used by runs in progress: llama$"):
        delete_credential(admin, "hf")
    stop_run(admin, run, "", after(1))
    delete_credential(admin, "hf")


def test_an_unknown_credential_is_accepted_with_a_run(admin, east) -> None:
    run = make.submit(admin, east, template={"secret_refs": [SECRET]})
    assert run.state == "Pending"


# ---- the API ----


@pytest.fixture
def world() -> World:
    return make_world()


def call(world: World, method: str, path: str = "", role: Role = Role.ADMIN, body: object = None):
    data = "" if body is None else json.dumps(body)
    return Client().generic(method, API + path, data, content_type="application/json", **world.bearer(role))


def test_the_api_creates_replaces_lists_and_deletes(world) -> None:
    made = call(world, "POST", body={"name": "reg", "provider": "vault", "reference": "gpu/reg"})
    assert made.status_code == 201
    document = made.json()
    assert (document["metadata"]["created_by"], document["provider"], document["reference"]) == (
        "admin",
        "vault",
        "gpu/reg",
    )
    assert document["machines"] == [
        {
            "machine": "gpu-07",
            "cluster": "lab",
            "state": "Waiting",
            "message": "the machine has not said yet",
            "changed_at": None,
        }
    ]
    assert call(world, "POST", body={"name": "reg", "provider": "file", "reference": "r"}).status_code == 200
    listed = call(world, "GET", role=Role.VIEWER).json()
    assert [(item["metadata"]["name"], item["provider"]) for item in listed["items"]] == [
        ("hf-token", "file"),
        ("reg", "file"),
    ]
    assert call(world, "DELETE", "/reg").status_code == 204
    assert call(world, "GET", "/reg").json()["code"] == "NOT_FOUND"


def test_the_api_tells_each_machines_state(world) -> None:
    uid = Credential.objects.get().uid.hex
    state = DataState(DataKind.CREDENTIAL, uid, "Failed", "hf: No such file or directory")
    data_states.write([Told(world.machine.pk, "socket-1", T0, [state])])
    document = call(world, "GET", "/hf-token", Role.VIEWER).json()
    assert document["status"] == {"state": "Failed", "machines": 1, "synced": 0, "failed": 1}
    assert document["machines"][0]["message"] == "hf: No such file or directory"
    assert document["machines"][0]["changed_at"] == "2026-10-01T01:02:11.402117Z"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "x", "provider": "file", "reference": "x", "value": "secret"}, "UNKNOWN_FIELD"),
        ({"name": "x"}, "VALIDATION_ERROR"),
        ([], "VALIDATION_ERROR"),
        (None, "MALFORMED_BODY"),
    ],
)
def test_the_api_refuses_what_is_no_credential(world, body, code) -> None:
    answer = call(world, "POST", body=body)
    assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_a_list_of_credentials_costs_the_same_queries_for_any_number(world, django_assert_max_num_queries) -> None:
    for number in range(10):
        save(world.access(Role.ADMIN), f"c{number}")
    with django_assert_max_num_queries(7):
        assert len(call(world, "GET").json()["items"]) == 11


# ---- pages ----


def page(world: World, role: Role) -> Client:
    client = Client()
    client.force_login(world.members[role])
    return client


def test_an_admin_adds_one_on_the_page_and_sees_its_machines(world) -> None:
    client = page(world, Role.ADMIN)
    given = {"name": "registry-login", "provider": "vault", "reference": "gpu/registry"}
    answer = client.post(PAGE, given, follow=True)
    assert answer.redirect_chain == [(f"{PAGE}/registry-login", 302)]
    text = answer.content.decode()
    assert "registry-login was added" in text
    assert "gpu-07" in text
    assert "the machine has not said yet" in text


def test_a_broken_rule_stands_at_its_field_and_what_was_typed_is_kept(world) -> None:
    answer = page(world, Role.ADMIN).post(PAGE, {"name": "reg", "provider": "file", "reference": "/etc/shadow"})
    text = answer.content.decode()
    assert answer.status_code == 400
    assert 'id="reference-error"' in text
    assert 'value="/etc/shadow"' in text


def test_a_viewer_sees_the_list_and_nothing_to_change_it_with(world) -> None:
    text = page(world, Role.VIEWER).get(PAGE).content.decode()
    assert "hf-token" in text
    assert "Remove" not in text
    assert "Add or replace" not in text


def test_removing_asks_first_and_says_who_needs_it(world) -> None:
    client = page(world, Role.ADMIN)
    ref = {"external_secret_name": "hf-token", "env_vars": {"t": "T"}}
    make.submit(world.access(), world.cluster, "llama", template={"secret_refs": [ref]})
    assert "Remove hf-token?" in client.get(f"{PAGE}/hf-token/remove").content.decode()
    answer = client.post(f"{PAGE}/hf-token/remove")
    assert answer.status_code == 409
    assert "hf-token is used by runs in progress: llama" in answer.content.decode()
    assert Credential.objects.count() == 1
