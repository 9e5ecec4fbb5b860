"""Calling the JSON API as a member of the world of `tests.world`."""

import json
import re
from typing import Any

from django.test import Client

from astraconsole.tenancy.permissions import Role
from machines.protocol import Phase
from tests import bodies, builders
from tests.builders import GIB, after
from tests.world import World

API = "/api/v1/orgs/acme/workspaces/vision/clusters/gpu-east/api"
WORKSPACE = "/api/v1/orgs/acme/workspaces/vision"
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
RESNET50 = bodies.RESNET50 | {"metadata": {"name": "resnet50-b"}}  # another `resnet50` is there already


class Caller:
    """A member who uses the API."""

    def __init__(self, world: World, role: Role = Role.EDITOR) -> None:
        self.client = Client(raise_request_exception=False)
        self.headers = world.bearer(role)

    def get(self, address: str, **parameters: Any) -> Any:
        return self.client.get(address, parameters, **self.headers)

    def post(self, address: str, body: object = None, raw: bytes | None = None) -> Any:
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        return self.client.post(address, data, content_type="application/json", **self.headers)

    def delete(self, address: str) -> Any:
        return self.client.delete(address, **self.headers)


def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.content
    body = answer.json()
    assert body["code"] == code
    return body


def run_resnet50(world: World) -> tuple[Any, Any]:
    """Place the world's worker on a GPU of a machine and have it run; the attempt and its machine."""
    machine = builders.machine(world.cluster, "gpu-08", cpu=64, memory=512 * GIB, gpus=8)
    attempt = builders.place(builders.workers(world.run)[0], machine, gpus=[3], now=after(1))
    assert attempt is not None
    builders.report(attempt, (Phase.PREPARING, 3), (Phase.STARTING, 2), (Phase.RUNNING, 1), at=after(10))
    return attempt, machine
