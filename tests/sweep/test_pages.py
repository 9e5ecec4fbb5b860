"""Every page, for everybody: nobody is asked to sign in, strangers find nothing, viewers write nothing."""

import re
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client

from astraconsole.tenancy.permissions import Action, Role, allows
from tests.sweep.routes import (
    ALL_ROUTES,
    FIELDS,
    METHODS,
    NOT_HERE,
    OWN,
    PAGES,
    PUBLIC,
    REDIRECTS,
    address_of,
    send,
    signed_in,
)
from tests.world import World

FORM = {"content_type": "application/x-www-form-urlencoded"}


ADMIN_ROUTES = [route for route in ALL_ROUTES if route.startswith("admin/")]


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


@pytest.mark.parametrize("route", sorted(PUBLIC - {"sign-out"}))
@pytest.mark.django_db
def test_what_is_public_answers_anybody(route: str) -> None:
    assert Client().get(f"/{route}", follow=True).status_code == 200
