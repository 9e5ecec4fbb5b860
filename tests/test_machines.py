"""Joining, cordons, removal, local machines: what people may do with machines, and what comes of it."""

import json
import threading
from datetime import timedelta

import msgspec
import pytest
from django.db import connections as database
from django.test import Client
from django.utils import timezone

from astraconsole import tokens
from astraconsole.errors import (
    Conflict,
    Forbidden,
    JoinTokenExpired,
    JoinTokenUsed,
    MachineAlreadyExists,
    NotFound,
    Unauthenticated,
    ValidationError,
)
from astraconsole.tenancy.permissions import Role
from machines import connections, queries, services
from machines.models import Cluster, JoinToken, Machine, MachineState, Namespace
from machines.protocol import JoinAnswer, JoinRequest
from tests.fleet import NOON, a_cluster, a_machine, a_member, a_workspace, an_order

GPU_07 = JoinRequest("gpu-07", "host-7", "1.0")


def known(token: str) -> connections.Known | None:
    return connections.authenticate([token])[0]


@pytest.fixture
def workspace(db):
    return a_workspace()


@pytest.fixture
def cluster(workspace):
    return a_cluster(workspace)


@pytest.fixture
def admin(workspace):
    return a_member(workspace)


# ---- who may ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.VIEWER, Role.EDITOR])
def test_only_admins_of_the_workspace_manage_machines(workspace, cluster, role):
    member = a_member(workspace, role)
    machine = a_machine(cluster)
    for attempt in (
        lambda: services.create_join_token(member, cluster.slug),
        lambda: services.cordon(member, machine, "a fan is broken", NOON),
        lambda: services.uncordon(member, machine, NOON),
        lambda: services.drain(member, machine, "a fan is broken", NOON),
        lambda: services.remove(member, machine),
    ):
        with pytest.raises(Forbidden):
            attempt()


def test_on_a_cluster_that_other_workspaces_use_only_staff_manages_machines(workspace, cluster, admin):
    machine = a_machine(cluster)
    Namespace.objects.create(workspace=a_workspace("speech", workspace.organisation), cluster=cluster)
    with pytest.raises(Forbidden, match="only staff"):
        services.cordon(admin, machine, "a fan is broken", NOON)
    staff = a_member(workspace, Role.VIEWER, staff=True)
    services.cordon(staff, machine, "a fan is broken", NOON)
    assert queries.may_manage_machines(staff, cluster)
    assert not queries.may_manage_machines(admin, cluster)


def test_machines_of_another_workspace_do_not_exist(admin):
    foreign = a_machine(a_cluster(slug="elsewhere"))
    assert list(queries.machines_for(admin)) == []
    with pytest.raises(NotFound):
        queries.get_machine(admin, "elsewhere", foreign.name)
    with pytest.raises(NotFound):
        queries.get_cluster(admin, "elsewhere")


def test_the_list_of_machines_costs_two_queries_and_leaves_removed_ones_out(admin, cluster, django_assert_num_queries):
    names = [f"gpu-{number:02}" for number in range(20)]
    for name in reversed(names):
        a_machine(cluster, name)
    a_machine(cluster, "gone", state=MachineState.REMOVED)
    with django_assert_num_queries(2):
        machines = list(queries.machines_for(admin, cluster.slug))
        assert [(machine.name, len(machine.gpus.all()), machine.cluster.slug) for machine in machines] == [
            (name, 0, "gpu-east") for name in names
        ]


# ---- joining ---------------------------------------------------------------------------------------------------------


def test_a_machine_joins_once_with_a_token(admin, cluster):
    token = services.create_join_token(admin, cluster.slug)
    answer = services.join(token, GPU_07, timezone.now())
    assert (answer.machine, answer.console) == ("gpu-07", cluster.uid.hex)
    machine = known(answer.token)
    assert machine is not None
    assert (machine.name, machine.cluster_id, machine.removed) == ("gpu-07", cluster.pk, False)
    with pytest.raises(JoinTokenUsed):
        services.join(token, JoinRequest("gpu-08", "host-8", "1.0"), timezone.now())


def test_no_token_is_stored_as_it_is(admin, cluster):
    token = services.create_join_token(admin, cluster.slug)
    answer = services.join(token, GPU_07, timezone.now())
    stored = json.dumps([*JoinToken.objects.values(), *Machine.objects.values()], default=str)
    assert token not in stored
    assert answer.token not in stored


def test_an_unknown_token_joins_nothing(db):
    with pytest.raises(Unauthenticated):
        services.join("astra_join_x", GPU_07, timezone.now())


def test_an_expired_token_joins_nothing(admin, cluster):
    token = services.create_join_token(admin, cluster.slug)
    with pytest.raises(JoinTokenExpired):
        services.join(token, GPU_07, timezone.now() + services.JOIN_TOKEN_LIFETIME + timedelta(seconds=1))
    assert not Machine.objects.exists()


def test_a_token_is_not_used_up_by_a_join_that_was_refused(admin, cluster):
    a_machine(cluster, "gpu-07")
    token = services.create_join_token(admin, cluster.slug)
    with pytest.raises(MachineAlreadyExists):
        services.join(token, GPU_07, timezone.now())
    assert services.join(token, JoinRequest("gpu-08", "host-8", "1.0"), timezone.now()).machine == "gpu-08"


def test_the_name_of_a_machine_that_never_came_can_be_joined_again(admin, cluster):
    first, second = (
        services.join(services.create_join_token(admin, cluster.slug), GPU_07, timezone.now()) for _ in range(2)
    )
    assert known(first.token) is None
    assert known(second.token) is not None


def test_the_name_of_a_removed_machine_can_be_joined_again(admin, cluster):
    services.remove(admin, a_machine(cluster, "gpu-07"))
    services.join(services.create_join_token(admin, cluster.slug), GPU_07, timezone.now())
    assert queries.get_machine(admin, cluster.slug, "gpu-07").state == MachineState.JOINING


@pytest.mark.parametrize("name", ["", "-a", "a-", "a/b", "a b", "ä", "a" * 64, "a\n", "a\0", "..", "a?b"])
def test_a_machines_name_can_stand_in_an_address(admin, cluster, name):
    token = services.create_join_token(admin, cluster.slug)
    with pytest.raises(ValidationError):
        services.join(token, JoinRequest(name, "host", "1"), timezone.now())


@pytest.mark.parametrize("name", ["a", "gpu-07.rack2", "A_1", "a" * 63])
def test_host_names_are_names_of_machines(admin, cluster, name):
    token = services.create_join_token(admin, cluster.slug)
    assert services.join(token, JoinRequest(name, "host\0" + "x" * 500, "v" * 500), timezone.now()).machine == name


@pytest.mark.django_db(transaction=True)
def test_two_machines_at_once_cannot_use_one_token():
    workspace = a_workspace()
    token = services.create_join_token(a_member(workspace), a_cluster(workspace).slug)
    outcomes: list[str] = []

    def try_to_join(name: str) -> None:
        try:
            outcomes.append(services.join(token, JoinRequest(name, "host", "1"), timezone.now()).machine)
        except JoinTokenUsed:
            outcomes.append("used")
        finally:
            database.close_all()

    threads = [threading.Thread(target=try_to_join, args=(f"m{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes)[1:] == ["used", "used", "used"]
    assert Machine.objects.count() == 1


# ---- the first machine of a workspace --------------------------------------------------------------------------------


def test_the_first_machine_of_a_workspace_makes_a_cluster_with_its_namespace(workspace, admin):
    services.create_join_token(admin, "gpu-west")
    cluster = queries.get_cluster(admin, "gpu-west")
    namespace = Namespace.objects.get(cluster=cluster)
    assert (namespace.workspace, namespace.max_priority, namespace.quota_gpus) == (workspace, 0, None)


def test_without_a_name_that_cluster_has_the_workspaces(workspace, admin):
    services.create_join_token(admin, "")
    assert queries.get_cluster(admin, workspace.slug)


def test_editors_make_no_cluster(workspace):
    with pytest.raises(Forbidden):
        services.create_join_token(a_member(workspace, Role.EDITOR), "gpu-west")
    assert not Cluster.objects.exists()


def test_another_workspaces_cluster_is_not_taken_over(workspace):
    a_cluster(workspace, slug="gpu-west")
    stranger = a_member(a_workspace("speech", workspace.organisation))
    with pytest.raises(Conflict):
        services.create_join_token(stranger, "gpu-west")


@pytest.mark.parametrize("slug", ["Gpu", "a b", "-a", "a/b", "x" * 41])
def test_a_clusters_name_can_stand_in_an_address(admin, slug):
    with pytest.raises(ValidationError):
        services.create_join_token(admin, slug)


def test_a_workspace_with_a_cluster_gets_no_second_one(admin, cluster):
    with pytest.raises(NotFound):
        services.create_join_token(admin, "another")


# ---- the agents' door ------------------------------------------------------------------------------------------------


def post_join(body: object, token: str | None = None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    data = body if isinstance(body, (str, bytes)) else json.dumps(body)
    client = Client(enforce_csrf_checks=True)
    return client.post("/agent/v1/join", data, content_type="application/json", headers=headers)


ASKED = {"name": "gpu-07", "hostname": "host-7", "agent_version": "1.0"}


def test_an_agent_joins_over_http(admin, cluster):
    response = post_join(ASKED, services.create_join_token(admin, cluster.slug))
    assert response.status_code == 200
    answer = msgspec.json.decode(response.content, type=JoinAnswer)
    assert known(answer.token) is not None


def test_what_the_door_refuses_has_a_code(admin, cluster):
    used, expired, free = (services.create_join_token(admin, cluster.slug) for _ in range(3))
    assert post_join(ASKED, used).status_code == 200
    JoinToken.objects.filter(digest=tokens.digest(expired)).update(expires_at=NOON - timedelta(days=9))
    refusals = [
        (post_join(ASKED), 401, "UNAUTHENTICATED"),
        (post_join(ASKED, "astra_join_unknown"), 401, "UNAUTHENTICATED"),
        (post_join(ASKED, expired), 401, "JOIN_TOKEN_EXPIRED"),
        (post_join(ASKED, used), 409, "JOIN_TOKEN_USED"),
        (post_join({**ASKED, "name": "a/b"}, free), 400, "VALIDATION_ERROR"),
        (post_join({"name": 3}, free), 400, "VALIDATION_ERROR"),
        (post_join([], free), 400, "VALIDATION_ERROR"),
        (post_join("{", free), 400, "MALFORMED_BODY"),
        (post_join(b"\xff", free), 400, "MALFORMED_BODY"),
        (Client().get("/agent/v1/join"), 405, "METHOD_NOT_ALLOWED"),
    ]
    for response, status, code in refusals:
        body = response.json()
        assert (response.status_code, body["code"]) == (status, code)
        assert body["message"]
    Machine.objects.update(state=MachineState.READY)
    response = post_join(ASKED, free)
    assert (response.status_code, response.json()["code"]) == (409, "MACHINE_ALREADY_EXISTS")


# ---- cordons and removal ---------------------------------------------------------------------------------------------


def test_a_cordon_has_a_reason_and_an_owner_and_can_be_lifted(admin, cluster):
    machine = a_machine(cluster)
    services.cordon(admin, machine, " a fan is broken ", NOON)
    machine.refresh_from_db()
    assert (machine.cordoned_at, machine.cordoned_by, machine.cordon_reason) == (NOON, admin.user, "a fan is broken")
    assert machine.state == MachineState.READY, "what it runs goes on"
    services.uncordon(admin, machine, NOON)
    machine.refresh_from_db()
    assert (machine.cordoned_at, machine.cordoned_by, machine.cordon_reason) == (None, None, "")


@pytest.mark.parametrize("close", [services.cordon, services.drain])
@pytest.mark.parametrize("reason", ["", "  ", "x" * 301, "a\0b"])
def test_who_takes_a_machine_out_of_service_says_why(admin, cluster, close, reason):
    with pytest.raises(ValidationError):
        close(admin, a_machine(cluster), reason, NOON)


def test_a_machines_history_tells_who_did_what_and_why(admin, cluster):
    machine = a_machine(cluster)
    services.cordon(admin, machine, "a fan rattles", NOON)
    services.drain(admin, machine, "it stands still", NOON + timedelta(seconds=1))
    services.uncordon(admin, machine, NOON + timedelta(seconds=2))
    services.remove(admin, machine)
    assert [(event.state, event.reason, event.actor) for event in queries.history_of(machine)] == [
        ("Cordoned", "a fan rattles", admin.actor),
        ("Draining", "it stands still", admin.actor),
        ("Ready", "Takes work again", admin.actor),
        ("Removed", f"Removed by {admin.actor}", admin.actor),
    ]


def test_a_draining_machine_may_be_told_to_keep_what_it_runs(admin, cluster):
    machine = a_machine(cluster)
    services.drain(admin, machine, "new firmware", NOON)
    services.cordon(admin, machine, "not today", NOON)
    assert (machine.draining, machine.cordon_reason) == (False, "not today")
    services.drain(admin, machine, "now", NOON)
    services.uncordon(admin, machine, NOON)
    assert (machine.draining, machine.cordoned_at) == (False, None)


def test_a_removed_machine_is_gone_and_its_token_speaks_for_nobody(admin, cluster):
    machine = a_machine(cluster, token="secret", connection="c1")
    services.remove(admin, machine)
    speaks_for = known("secret")
    assert speaks_for is not None
    assert speaks_for.removed
    assert list(queries.machines_for(admin)) == []
    for again in (lambda: services.remove(admin, machine), lambda: services.cordon(admin, machine, "why", NOON)):
        with pytest.raises(NotFound):
            again()


def test_the_work_of_a_removed_machine_is_to_be_taken_back(admin, cluster):
    machine = a_machine(cluster)
    services.dispatch.assign([(machine.pk, an_order())])
    services.remove(admin, machine)
    assert services.expire_leases(NOON) == [machine.pk]


# ---- local machines --------------------------------------------------------------------------------------------------


def test_a_local_machine_is_made_once_and_gets_a_new_token_at_each_start(cluster):
    first = services.ensure_local_machine(cluster, "local-0")
    second = services.ensure_local_machine(cluster, "local-0")
    assert known(first) is None
    assert known(second) is not None
    assert Machine.objects.get().state == MachineState.JOINING


@pytest.mark.parametrize(
    ("left_in", "found_in"),
    [
        (MachineState.STOPPING, MachineState.JOINING),  # an orderly stop
        (MachineState.READY, MachineState.READY),  # a kill: its workers run on and are adopted
        (MachineState.LOST, MachineState.LOST),
    ],
)
def test_what_a_start_finds_of_an_earlier_one(cluster, left_in, found_in):
    machine = a_machine(cluster, "local-0", state=left_in, connection="c1")
    services.ensure_local_machine(cluster, "local-0")
    machine.refresh_from_db()
    assert (machine.state, machine.connection) == (found_in, "")


def test_machines_of_a_console_that_stops_take_no_work(cluster):
    ready, lost = a_machine(cluster, "a"), a_machine(cluster, "b", state=MachineState.LOST)
    services.set_stopping([ready.pk, lost.pk])
    assert list(Machine.objects.order_by("name").values_list("state", flat=True)) == ["Stopping", "Lost"]
