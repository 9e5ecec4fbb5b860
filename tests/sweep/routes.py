"""What each route takes, and who may; the routers say which routes there are."""

import re
from collections.abc import Iterator
from typing import Any

from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from astraconsole.tenancy.models import User
from astraconsole.tenancy.permissions import Action
from tests.world import DELIVERY_ID, TEMPLATE_ID, WEBHOOK_ID, World

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
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
NOT_HERE = 405


def http_routes(patterns: list[Any], prefix: str = "") -> Iterator[str]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from http_routes(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            yield route


ALL_ROUTES = sorted(set(http_routes(get_resolver().url_patterns)))


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


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client
