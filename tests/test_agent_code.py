"""The address that agents fetch code from."""

import uuid

import pytest
from django.test import Client

from astraconsole.tokens import digest
from machines.models import MachineState
from tests import archives, builders
from tests.services.test_codes import with_code

TOKEN = "astra_machine_of-tests"


@pytest.fixture
def code(db: None) -> str:
    workspace = builders.workspace()
    cluster = builders.cluster(workspace)
    machine = builders.machine(cluster)
    machine.token_digest = digest(TOKEN)
    machine.save()
    attempt = builders.place(builders.workers(with_code(builders.access(workspace), cluster))[0], machine)
    assert attempt is not None
    return f"/agent/v1/code/{attempt.uid}"


def test_a_machine_gets_the_code_of_its_attempt_with_its_token(code: str) -> None:
    answer = Client().get(code, headers={"Authorization": f"Bearer {TOKEN}"})
    assert (answer.status_code, answer.content) == (200, archives.packed({"train.py": "print(1)"}))


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}])
def test_nobody_else_does(code: str, headers: dict[str, str]) -> None:
    answer = Client().get(code, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED")


def test_a_removed_machine_and_an_unknown_attempt_get_nothing(code: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert Client().get(f"/agent/v1/code/{uuid.uuid4()}", headers=headers).status_code == 404
    assert Client().post(code, headers=headers).status_code == 405
    builders.Machine.objects.update(state=MachineState.REMOVED)
    assert Client().get(code, headers=headers).status_code == 401
