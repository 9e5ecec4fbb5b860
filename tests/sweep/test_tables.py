"""The tables are whole: a route without a row fails."""

import re

from astraconsole import asgi
from astraconsole.api import api
from tests.sweep.routes import (
    AGENT,
    ALL_ROUTES,
    HEALTH,
    OPERATIONS,
    OWN,
    OWN_OPERATIONS,
    PAGES,
    PUBLIC,
    PUBLIC_OPERATIONS,
    REDIRECTS,
    SOCKETS,
)

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
