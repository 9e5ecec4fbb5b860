"""Every route, for everybody: nobody is asked to sign in, strangers find nothing, viewers write nothing.

The tables below say what each route takes; the routers say which routes there are. A route without a row fails.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.contrib import admin
from django.contrib.sessions.backends.db import SessionStore
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from astraconsole import asgi
from astraconsole.api import api
from astraconsole.tenancy.models import User
from astraconsole.tenancy.permissions import Action, Role, allows
from tests.fleet import in_database
from tests.world import DELIVERY_ID, TEMPLATE_ID, WEBHOOK_ID, World, make_world

READ, WRITE, MANAGE = Action.READ, Action.WRITE, Action.MANAGE
WS, CLUSTER = "o/<slug:org>/w/<slug:ws>", "<slug:cluster>"
API_WS = "/api/v1/orgs/{org}/workspaces/{ws}"
API = f"{API_WS}/clusters/{{cluster}}/api"

# Pages of a workspace: what each method needs.
PAGES: dict[str, dict[str, Action]] = {
    f"{WS}/runs": {"GET": READ},
    f"{WS}/runs/bulk": {"POST": WRITE},
    f"{WS}/new-run": {"GET": WRITE, "POST": WRITE},
    f"{WS}/new-run/check": {"POST": WRITE},
    f"{WS}/templates": {"GET": READ},
    f"{WS}/save-template": {"GET": WRITE, "POST": WRITE},
    f"{WS}/templates/<str:template>/remove": {"GET": WRITE, "POST": WRITE},
    f"{WS}/schedules": {"GET": READ},
    f"{WS}/new-schedule": {"GET": WRITE, "POST": WRITE},
    f"{WS}/schedules/<slug:name>": {"GET": READ},
    f"{WS}/schedules/<slug:name>/run": {"POST": WRITE},
    f"{WS}/schedules/<slug:name>/enable": {"POST": WRITE},
    f"{WS}/schedules/<slug:name>/disable": {"POST": WRITE},
    f"{WS}/schedules/<slug:name>/remove": {"GET": WRITE, "POST": WRITE},
    f"{WS}/jobs/{CLUSTER}/<slug:name>": {"GET": READ},
    f"{WS}/jobs/{CLUSTER}/<slug:name>/charts": {"GET": READ},
    f"{WS}/jobs/{CLUSTER}/<slug:name>/using": {"GET": READ},
    f"{WS}/workers/{CLUSTER}/<slug:name>/charts": {"GET": READ},
    f"{WS}/events": {"GET": READ},
    f"{WS}/webhooks": {"GET": MANAGE, "POST": MANAGE},
    f"{WS}/webhooks/<str:webhook>": {"GET": MANAGE},
    f"{WS}/webhooks/<str:webhook>/test": {"POST": MANAGE},
    f"{WS}/webhooks/<str:webhook>/enable": {"POST": MANAGE},
    f"{WS}/webhooks/<str:webhook>/disable": {"POST": MANAGE},
    f"{WS}/webhooks/<str:webhook>/secret": {"POST": MANAGE},
    f"{WS}/webhooks/<str:webhook>/remove": {"GET": MANAGE, "POST": MANAGE},
    f"{WS}/webhooks/<str:webhook>/deliveries/<str:delivery>/replay": {"POST": MANAGE},
    f"{WS}/gpus": {"GET": READ},
    f"{WS}/usage": {"GET": READ},
    f"{WS}/jobs/{CLUSTER}/<slug:name>/diff": {"GET": READ},
    f"{WS}/jobs/{CLUSTER}/<slug:name>/stop": {"GET": WRITE, "POST": WRITE},
    f"{WS}/jobs/{CLUSTER}/<slug:name>/delete": {"GET": WRITE, "POST": WRITE},
    f"{WS}/workers/{CLUSTER}/<slug:name>": {"GET": READ},
    f"{WS}/workers/{CLUSTER}/<slug:name>/stop": {"GET": WRITE, "POST": WRITE},
    f"{WS}/workers/{CLUSTER}/<slug:name>/log/lines": {"GET": READ},
    f"{WS}/workers/{CLUSTER}/<slug:name>/log/download": {"GET": READ},
    f"{WS}/workers/{CLUSTER}/<slug:name>/log/whole": {"GET": READ},
    f"{WS}/jobs/{CLUSTER}/<slug:name>/log/lines": {"GET": READ},
    f"{WS}/jobs/{CLUSTER}/<slug:name>/log/download": {"GET": READ},
    f"{WS}/machines": {"GET": READ},
    f"{WS}/machines/add": {"GET": MANAGE, "POST": MANAGE},
    f"{WS}/machines/{CLUSTER}/<str:name>": {"GET": READ},
    f"{WS}/machines/{CLUSTER}/<str:name>/cordon": {"GET": MANAGE, "POST": MANAGE},
    f"{WS}/machines/{CLUSTER}/<str:name>/drain": {"GET": MANAGE, "POST": MANAGE},
    f"{WS}/machines/{CLUSTER}/<str:name>/uncordon": {"POST": MANAGE},
    f"{WS}/machines/{CLUSTER}/<str:name>/remove": {"GET": MANAGE, "POST": MANAGE},
    f"{WS}/drives": {"GET": READ, "POST": MANAGE},
    f"{WS}/drives/<str:name>": {"GET": READ},
    f"{WS}/drives/<str:name>/remove": {"GET": MANAGE, "POST": MANAGE},
    f"{WS}/models": {"GET": READ, "POST": MANAGE},
    f"{WS}/models/<str:name>": {"GET": READ},
    f"{WS}/models/<str:name>/remove": {"GET": MANAGE, "POST": MANAGE},
    f"{WS}/credentials": {"GET": READ, "POST": MANAGE},
    f"{WS}/credentials/<str:name>": {"GET": READ},
    f"{WS}/credentials/<str:name>/remove": {"GET": MANAGE, "POST": MANAGE},
    f"{WS}/members": {"GET": READ, "POST": MANAGE},
    f"{WS}/members/<int:member_id>/role": {"POST": MANAGE},
    f"{WS}/members/<int:member_id>/remove": {"GET": MANAGE, "POST": MANAGE},
}

# Pages of a person, whatever their workspaces.
OWN: dict[str, set[str]] = {
    "": {"GET"},
    "device": {"GET", "POST"},
    "account/tokens": {"GET", "POST"},
    "account/tokens/<int:token_id>/revoke": {"GET", "POST"},
}

# An address that only leads to another, which then asks who it is.
REDIRECTS = {WS: f"{WS}/runs"}

# Forms that need a field to get as far as the question of who may.
FIELDS = {f"{WS}/machines/add": "cluster=lab"}

# For everybody: signing in, and documentation that holds nothing of anybody.
PUBLIC = {"sign-in", "sign-out", "api/v1", "api/v1/docs", "api/v1/openapi.json"}

# The JSON API: (method, path) and what it needs. `runs` is an alias of `jobs` and takes no rows of its own.
OPERATIONS: dict[tuple[str, str], Action] = {
    ("POST", f"{API}/jobs"): WRITE,
    ("GET", f"{API}/jobs"): READ,
    ("GET", f"{API}/jobs/{{job}}"): READ,
    ("DELETE", f"{API}/jobs/{{job}}"): WRITE,
    ("POST", f"{API}/jobs/{{job}}/stop"): WRITE,
    ("GET", f"{API}/jobs/{{job}}/diff"): READ,
    ("GET", f"{API}/metrics/range"): READ,
    ("GET", f"{API}/gpus"): READ,
    ("GET", f"{API}/tasks"): READ,
    ("GET", f"{API}/tasks/{{task}}"): READ,
    ("GET", f"{API}/tasks/{{task}}/logs"): READ,
    ("POST", f"{API}/tasks/{{task}}/stop"): WRITE,
    ("GET", f"{API}/machines"): READ,
    ("GET", f"{API}/machines/{{machine}}"): READ,
    ("POST", f"{API}/machines/{{machine}}/cordon"): MANAGE,
    ("POST", f"{API}/machines/{{machine}}/drain"): MANAGE,
    ("POST", f"{API}/machines/{{machine}}/uncordon"): MANAGE,
    ("GET", f"{API_WS}/jobs"): READ,
    ("GET", f"{API_WS}/templates"): READ,
    ("POST", f"{API_WS}/templates"): WRITE,
    ("DELETE", f"{API_WS}/templates/{{template}}"): WRITE,
    ("GET", f"{API_WS}/schedules"): READ,
    ("POST", f"{API_WS}/schedules"): WRITE,
    ("GET", f"{API_WS}/schedules/{{schedule}}"): READ,
    ("DELETE", f"{API_WS}/schedules/{{schedule}}"): WRITE,
    ("POST", f"{API_WS}/schedules/{{schedule}}/run"): WRITE,
    ("POST", f"{API_WS}/schedules/{{schedule}}/enable"): WRITE,
    ("POST", f"{API_WS}/schedules/{{schedule}}/disable"): WRITE,
    ("GET", f"{API_WS}/clusters"): READ,
    ("GET", f"{API_WS}/events"): READ,
    ("GET", f"{API_WS}/webhooks"): MANAGE,
    ("POST", f"{API_WS}/webhooks"): MANAGE,
    ("GET", f"{API_WS}/webhooks/{{webhook}}"): MANAGE,
    ("DELETE", f"{API_WS}/webhooks/{{webhook}}"): MANAGE,
    ("POST", f"{API_WS}/webhooks/{{webhook}}/enable"): MANAGE,
    ("POST", f"{API_WS}/webhooks/{{webhook}}/disable"): MANAGE,
    ("POST", f"{API_WS}/webhooks/{{webhook}}/secret"): MANAGE,
    ("POST", f"{API_WS}/webhooks/{{webhook}}/test"): MANAGE,
    ("GET", f"{API_WS}/webhooks/{{webhook}}/deliveries"): MANAGE,
    ("POST", f"{API_WS}/webhooks/{{webhook}}/deliveries/{{delivery}}/replay"): MANAGE,
    ("GET", f"{API_WS}/usage"): READ,
    ("GET", f"{API_WS}/drives"): READ,
    ("POST", f"{API_WS}/drives"): MANAGE,
    ("GET", f"{API_WS}/drives/{{name}}"): READ,
    ("DELETE", f"{API_WS}/drives/{{name}}"): MANAGE,
    ("GET", f"{API_WS}/models"): READ,
    ("POST", f"{API_WS}/models"): MANAGE,
    ("GET", f"{API_WS}/models/{{name}}"): READ,
    ("DELETE", f"{API_WS}/models/{{name}}"): MANAGE,
    ("GET", f"{API_WS}/credentials"): READ,
    ("POST", f"{API_WS}/credentials"): MANAGE,
    ("GET", f"{API_WS}/credentials/{{credential}}"): READ,
    ("DELETE", f"{API_WS}/credentials/{{credential}}"): MANAGE,
}

# Operations of a person, whatever their workspaces; and those that anybody may call.
OWN_OPERATIONS = {("GET", "/api/v1/whoami"), ("DELETE", "/api/v1/token")}
PUBLIC_OPERATIONS = {("POST", "/api/v1/device/code"), ("POST", "/api/v1/device/token")}

# Websockets of pages.
SOCKETS = {
    f"ws/{WS}/runs",
    f"ws/{WS}/jobs/{CLUSTER}/<str:name>",
    f"ws/{WS}/workers/{CLUSTER}/<str:name>",
    f"ws/{WS}/workers/{CLUSTER}/<str:name>/log",
    f"ws/{WS}/jobs/{CLUSTER}/<str:name>/log",
}

HEALTH = {"metrics"}  # a token of its own, or staff: see the tests of health
AGENT = {"agent/v1/join", "agent/v1/code/<uuid:attempt>"}  # its own token: see the tests of joining
NAMES = {
    "org": "acme",
    "ws": "vision",
    "cluster": "gpu-east",
    "job": "resnet50",
    "task": "resnet50-0",
    "machine": "gpu-07",
    "template": TEMPLATE_ID,
    "schedule": "nightly",
    "credential": "hf-token",
    "webhook": WEBHOOK_ID,
    "delivery": DELIVERY_ID,
    "name": "imagenet",  # of a drive, and of a model
}
FORM = {"content_type": "application/x-www-form-urlencoded"}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
NOT_HERE = 405


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def committed_world(transactional_db: None) -> World:
    """Seen by other connections too: a consumer reads on a thread of its own."""
    return make_world()


def http_routes(patterns: list[Any], prefix: str = "") -> Iterator[str]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from http_routes(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            yield route


ALL_ROUTES = sorted(set(http_routes(get_resolver().url_patterns)))
ADMIN_ROUTES = [route for route in ALL_ROUTES if route.startswith("admin/")]
OTHER_ROUTES = [route for route in ALL_ROUTES if not route.startswith(("admin/", "api/v1/"))]


def api_operations() -> dict[tuple[str, str], bool]:
    """(method, path) → whether it is documented."""
    found = {}
    for router in api._get_bound_routers():
        for path, view in router.path_operations.items():
            plain = re.sub(r"{\w+:", "{", f"/api/v1{router.prefix}{path}")
            for operation in view.operations:
                for method in operation.methods:
                    found[method, plain] = operation.include_in_schema
    return found


def names_for(address: str) -> dict[str, str]:
    """Machines are those of the cluster that is the workspace's own: only there do its admins manage them."""
    return {**NAMES, "cluster": "lab"} if "/machines" in address else NAMES


def address_of(route: str, world: World) -> str:
    """A page's route with the names of what exists."""
    kinds = {
        "/jobs/": "job",
        "/workers/": "task",
        "/credentials/": "credential",
        "/drives/": "name",
        "/models/": "name",
        "/schedules/": "schedule",
    }
    name = next((NAMES[kind] for part, kind in kinds.items() if part in route), NAMES["machine"])
    ids = {"webhook": WEBHOOK_ID, "delivery": DELIVERY_ID, "member_id": world.member_id, "token_id": world.token_id}
    values = {**names_for(route), "name": name, **ids}
    return "/" + re.sub(r"<\w+:(\w+)>", lambda match: str(values[match[1]]), route)


def send(client: Client, method: str, address: str, **options: Any) -> Any:
    return client.generic(method, address, **options)


# ---- the tables are whole ----


def test_every_http_route_has_a_row() -> None:
    assert set(OTHER_ROUTES) == set(PAGES) | set(OWN) | set(REDIRECTS) | AGENT | HEALTH | {
        route for route in PUBLIC if not route.startswith("api/v1/")
    }


def test_every_api_operation_has_a_row_and_every_alias_its_original() -> None:
    operations = api_operations()
    aliases = {key for key in operations if re.search(r"/runs\b", key[1])}
    assert set(operations) - aliases == set(OPERATIONS) | OWN_OPERATIONS | PUBLIC_OPERATIONS
    assert {(method, re.sub(r"/runs\b", "/jobs", path)) for method, path in aliases} == {
        key for key in operations if re.search(r"/jobs\b", key[1])
    }
    assert all(operations[key] != (key in aliases) for key in operations)


def test_under_the_apis_path_there_are_only_operations_and_documentation() -> None:
    routes = {"/" + re.sub(r"<\w+:(\w+)>|<(\w+)>", r"{\1\2}", r) for r in ALL_ROUTES if r.startswith("api/v1/")}
    documented = {f"/{route}" for route in PUBLIC} | {"/api/v1/"}
    assert routes - documented == {path for _, path in api_operations()}


def test_every_websocket_route_has_a_row() -> None:
    assert {str(route.pattern) for route in asgi.pages} == SOCKETS | {""}  # "" is where nothing is
    assert [str(route.pattern) for route in asgi.websocket.routes] == ["agent/v1", "^"]


# ---- pages ----

PAGE_METHODS = [(route, method, needs) for route, row in PAGES.items() for method, needs in row.items()]


@pytest.mark.parametrize(("route", "method", "needs"), PAGE_METHODS)
def test_a_page_of_a_workspace(world: World, route: str, method: str, needs: Action) -> None:
    address = address_of(route, world)
    anonymous = send(Client(), method, address)
    assert anonymous.status_code == 302
    assert anonymous.url.startswith("/sign-in?next=%2Fo%2F")
    for stranger in (world.stranger, world.neighbour, world.staff):
        assert send(signed_in(stranger), method, address).status_code == 404
    for role, user in world.members.items():
        status = send(signed_in(user), method, address, data=FIELDS.get(route, ""), **FORM).status_code
        if allows(role, needs):
            assert status not in (401, 403, 404, 405), f"{role} should reach it, got {status}"
            assert status < 500
            break  # it may have changed the world
        assert status == 403, f"{role} should not, got {status}"


@pytest.mark.django_db
@pytest.mark.parametrize("route", PAGES)
def test_a_page_takes_no_method_that_is_not_in_its_row(world: World, route: str) -> None:
    client = signed_in(world.members[Role.ADMIN])
    for method in set(METHODS) - set(PAGES[route]):
        assert send(client, method, address_of(route, world)).status_code == NOT_HERE


@pytest.mark.django_db
@pytest.mark.parametrize("route", REDIRECTS)
def test_an_address_that_leads_to_another_tells_nobody_anything(world: World, route: str) -> None:
    target = address_of(REDIRECTS[route], world)
    for client in (Client(), signed_in(world.stranger), signed_in(world.members[Role.VIEWER])):
        assert client.get(address_of(route, world)).url == target


@pytest.mark.parametrize("route", OWN)
def test_a_persons_own_page_asks_others_to_sign_in(world: World, route: str) -> None:
    for method in METHODS:
        answer = send(Client(), method, address_of(route, world))
        if method in OWN[route]:
            assert answer.status_code == 302
            assert answer.url.startswith("/sign-in?next=")
        else:
            assert answer.status_code == NOT_HERE


@pytest.mark.django_db
@pytest.mark.parametrize("route", ADMIN_ROUTES)
def test_the_admin_is_for_staff(world: World, route: str) -> None:
    address = "/" + re.sub(r"<[^>]*>", "1", route).replace("(?P<app_label>auth|machines|runs|tenancy)", "runs")
    address = re.sub(r"\(\?P.*", "x", address).replace("^", "").replace("$", "")
    for client in (Client(), signed_in(world.members[Role.ADMIN])):
        answer = client.get(address)
        if address == "/admin/login/":
            assert answer.status_code == 200
        else:
            assert answer.status_code == 302
            assert answer.url.startswith("/admin/login/") or answer.url == "/admin/"


@pytest.mark.parametrize("model", list(admin.site._registry), ids=lambda model: model.__name__)
def test_staff_can_open_every_list_and_entry_of_the_admin(world: World, model: Any) -> None:
    client = signed_in(world.staff)
    address = f"/admin/{model._meta.app_label}/{model._meta.model_name}"
    assert client.get(f"{address}/", {"q": "a"}).status_code == 200
    for entry in model._default_manager.all()[:1]:
        assert client.get(f"{address}/{entry.pk}/change/").status_code == 200


def test_staff_read_runs_in_the_admin_and_change_none(world: World) -> None:
    client = signed_in(world.staff)
    for address in ("add", f"{world.run.pk}/change", f"{world.run.pk}/delete"):
        assert client.post(f"/admin/runs/run/{address}/", {"name": "other", "post": "yes"}).status_code == 403


# ---- the API ----


def api_address(path: str) -> str:
    address = path.format(**names_for(path))
    return address + "?job=resnet50" if address.endswith("/tasks") else address


def api_paths() -> list[tuple[str, str, Action]]:
    """Every operation, under both of its names."""
    jobs = [(method, path, needs) for (method, path), needs in OPERATIONS.items()]
    runs = [(method, path.replace("/jobs", "/runs"), needs) for method, path, needs in jobs if "/jobs" in path]
    return jobs + runs


@pytest.mark.django_db
@pytest.mark.parametrize(("method", "path", "needs"), api_paths())
def test_an_operation_of_the_api(world: World, method: str, path: str, needs: Action) -> None:
    address = api_address(path)
    assert_refused(send(Client(), method, address), 401, "UNAUTHENTICATED")
    assert_refused(send(Client(), method, address, HTTP_AUTHORIZATION="Bearer wrong"), 401, "UNAUTHENTICATED")
    by_session = signed_in(world.members[Role.ADMIN])
    assert_refused(send(by_session, method, address), 401, "UNAUTHENTICATED")
    for stranger in (world.stranger, world.neighbour, world.staff):
        assert_refused(send(Client(), method, address, **world.bearer(stranger)), 404, "NOT_FOUND")
    for role, user in world.members.items():
        answer = send(Client(), method, address, **world.bearer(user))
        if allows(role, needs):
            assert answer.status_code not in (401, 403, 404, 405), answer.content
            assert answer.status_code < 500
            break  # it may have changed the world
        assert_refused(answer, 403, "FORBIDDEN")


@pytest.mark.parametrize(("method", "path"), sorted(OWN_OPERATIONS))
def test_an_operation_of_a_person_needs_a_token_and_no_workspace(world: World, method: str, path: str) -> None:
    assert_refused(send(Client(), method, path), 401, "UNAUTHENTICATED")
    assert_refused(send(signed_in(world.stranger), method, path), 401, "UNAUTHENTICATED")
    for user in (world.stranger, world.members[Role.VIEWER], world.staff):
        assert send(Client(), method, path, **world.bearer(user)).status_code < 300


@pytest.mark.parametrize(("method", "path"), sorted(PUBLIC_OPERATIONS))
def test_a_public_operation_asks_for_no_token(world: World, method: str, path: str) -> None:
    assert_refused(send(Client(), method, path, data="{}", content_type="application/json"), 400, "VALIDATION_ERROR")


EVERY_OPERATION = {*OPERATIONS, *OWN_OPERATIONS, *PUBLIC_OPERATIONS}


@pytest.mark.django_db
@pytest.mark.parametrize("path", sorted({path for _, path in EVERY_OPERATION}))
def test_an_address_of_the_api_takes_no_other_method(world: World, path: str) -> None:
    taken = {method for method, other in EVERY_OPERATION if other == path}
    for method in set(METHODS) - taken:
        answer = send(Client(), method, api_address(path), **world.bearer(Role.ADMIN))
        assert_refused(answer, 405, "METHOD_NOT_ALLOWED")


@pytest.mark.django_db
@pytest.mark.parametrize("path", sorted({path for _, path in OPERATIONS if "{cluster}" in path}))
def test_what_another_workspace_has_is_not_found_through_ones_own(world: World, path: str) -> None:
    """The neighbour's workspace uses the same cluster, and asks for the same names."""
    for method in (method for method, other in OPERATIONS if other == path):
        if not re.search(r"{job}|{task}", path) and not path.endswith("/tasks"):
            continue
        address = api_address(path).replace("/vision/", "/nlp/")
        assert_refused(send(Client(), method, address, **world.bearer(world.neighbour)), 404, "NOT_FOUND")


@pytest.mark.parametrize("route", sorted(PUBLIC - {"sign-out"}))
@pytest.mark.django_db
def test_what_is_public_answers_anybody(route: str) -> None:
    assert Client().get(f"/{route}", follow=True).status_code == 200


def assert_refused(answer: Any, status: int, code: str) -> None:
    assert answer.status_code == status, answer.content
    assert answer.json()["code"] == code


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


# ---- websockets ----


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("route", sorted(SOCKETS))
async def test_a_websocket_opens_for_members_only(committed_world: World, route: str) -> None:
    world = committed_world
    address = address_of(route, world)
    assert not await opens(address, None)
    for stranger in (world.stranger, world.neighbour, world.staff):
        assert not await opens(address, stranger)
    for user in world.members.values():
        assert await opens(address, user)
    assert not await opens(address, world.members[Role.ADMIN], origin="https://evil.example")
    await in_database(lambda: None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("headers", [[], [(b"authorization", b"Bearer wrong")]])
async def test_the_agents_websocket_opens_for_machines_only(committed_world: World, headers: list[Any]) -> None:
    communicator = WebsocketCommunicator(asgi.application, "/agent/v1", headers=headers)
    connected, _ = await communicator.connect()
    assert not connected
    await in_database(lambda: None)


async def test_a_websocket_without_a_consumer_is_refused(committed_world: World) -> None:
    assert not await opens("/ws/nothing", committed_world.members[Role.ADMIN])
    await in_database(lambda: None)


async def opens(address: str, user: User | None, origin: str = "http://localhost") -> bool:
    headers = [(b"origin", origin.encode()), (b"host", b"localhost")]
    if user is not None:
        headers.append((b"cookie", f"sessionid={await session_of(user)}".encode()))
    communicator = WebsocketCommunicator(asgi.application, address, headers=headers)
    connected, _ = await communicator.connect(timeout=30)
    if connected:
        await communicator.disconnect(timeout=30)
    return connected


async def session_of(user: User) -> str:
    session = SessionStore()
    session["_auth_user_id"] = str(user.pk)
    session["_auth_user_backend"] = "django.contrib.auth.backends.ModelBackend"
    session["_auth_user_hash"] = user.get_session_auth_hash()
    await session.asave()
    return str(session.session_key)
