"""Requests through the ASGI application, as a server hands them over."""

import asyncio
import json
from pathlib import Path

import pytest
from channels.testing import ApplicationCommunicator
from django.conf import settings

from astraconsole.handler import ThreadedHandler

DEADLINE_SECONDS = 30


def ask(method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Status and body of the answer."""
    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}

    async def answer() -> tuple[int, bytes]:
        communicator = ApplicationCommunicator(ThreadedHandler(), scope)
        await communicator.send_input({"type": "http.request", "body": body})
        start = await communicator.receive_output(DEADLINE_SECONDS)
        received, more = b"", True
        while more:
            part = await communicator.receive_output(DEADLINE_SECONDS)
            received += part.get("body", b"")
            more = part.get("more_body", False)
        return start["status"], received

    return asyncio.run(answer())


@pytest.mark.django_db(transaction=True)
def test_a_page_is_answered() -> None:
    status, page = ask("GET", "/sign-in")
    assert status == 200
    assert b"<form" in page


@pytest.mark.django_db(transaction=True)
def test_what_a_view_refuses_is_told_as_json() -> None:
    status, answer = ask("POST", "/agent/v1/join", b"{no json")
    assert (status, json.loads(answer)["code"]) == (401, "UNAUTHENTICATED")


def test_a_static_file_arrives_whole() -> None:
    file = next(Path(settings.BASE_DIR, "static").glob("*.css"))
    assert ask("GET", f"/static/{file.name}") == (200, file.read_bytes())


def test_a_client_that_leaves_within_its_body_is_not_answered() -> None:
    async def leave() -> bool:
        scope = {"type": "http", "method": "POST", "path": "/sign-in", "query_string": b"", "headers": []}
        communicator = ApplicationCommunicator(ThreadedHandler(), scope)
        await communicator.send_input({"type": "http.request", "body": b"half", "more_body": True})
        await communicator.send_input({"type": "http.disconnect"})
        await communicator.wait(DEADLINE_SECONDS)
        return await communicator.receive_nothing()

    assert asyncio.run(leave())
