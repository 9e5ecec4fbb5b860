"""Every operation of the API, for everybody."""

import re
from typing import Any

import pytest
from django.test import Client

from astraconsole.tenancy.permissions import Action, Role, allows
from tests.sweep.routes import METHODS, OPERATIONS, OWN_OPERATIONS, PUBLIC_OPERATIONS, names_for, send, signed_in
from tests.world import World


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


def assert_refused(answer: Any, status: int, code: str) -> None:
    assert answer.status_code == status, answer.content
    assert answer.json()["code"] == code
