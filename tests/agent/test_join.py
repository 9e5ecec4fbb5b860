"""Joining a console: one HTTP request, before there is a machine token."""

import json
import os
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from machines.agent.main import main

ANSWER = {"machine": "gpu-07", "token": "machine-token", "console": "c" * 32}
REFUSAL = {"code": "UNAUTHENTICATED", "message": "this join token was used before"}


class Door(BaseHTTPRequestHandler):
    """Takes one join token."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], body))  # type: ignore[attr-defined]
        allowed = self.headers["Authorization"] == "Bearer join-token"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(json.dumps(ANSWER if allowed else REFUSAL).encode())

    def log_message(self, *_: object) -> None:
        """Nothing to standard error."""


@pytest.fixture
def door() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Door)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def join(server: HTTPServer, state: Path, *more: str) -> Result:
    console = f"http://127.0.0.1:{server.server_port}/"
    return CliRunner().invoke(
        main, ["join", "--console", console, "--state-dir", str(state), "--name", "gpu-07", *more]
    )


def test_a_machine_that_joined_holds_its_token_and_its_console(door, tmp_path):
    result = join(door, tmp_path / "state", "--token", "join-token")
    assert result.output == "Joined as gpu-07\n"
    assert (tmp_path / "state" / "token").read_text() == "machine-token"
    assert (tmp_path / "state" / "console").read_text() == "c" * 32
    assert (tmp_path / "state" / "address").read_text() == f"http://127.0.0.1:{door.server_port}/"
    ((path, _, body),) = door.asked
    assert path == "/agent/v1/join"
    assert body["name"] == "gpu-07"


def test_the_join_token_can_come_from_a_file(door, tmp_path):
    (tmp_path / "token").write_text("join-token\n")
    assert join(door, tmp_path / "state", "--join-token-file", str(tmp_path / "token")).exit_code == 0


def test_workers_of_another_user_pass_through_the_state_directory_of_a_cautious_one(door, tmp_path):
    before = os.umask(0o077)
    try:
        join(door, tmp_path / "state", "--token", "join-token")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / "state" / name).stat().st_mode) for name in ("", "attempts")] == [0o711, 0o711]
    assert stat.S_IMODE((tmp_path / "state" / "token").stat().st_mode) == 0o600


@pytest.mark.parametrize("command", ["join", "run"])
def test_an_empty_file_for_the_join_token_is_named(tmp_path, command):
    (tmp_path / "join-token").write_text("\n")
    arguments = ["--console", "http://127.0.0.1:9", "--join-token-file", str(tmp_path / "join-token")]
    result = CliRunner().invoke(main, [command, *arguments, "--state-dir", str(tmp_path / "state")])
    assert result.exit_code == 1
    assert result.output == f"Error: {tmp_path / 'join-token'} is empty: write the join token into it\n"


def test_an_agent_that_joined_needs_no_further_word_to_run(door, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr("machines.agent.main._run", lambda machines, keeper_folder: ran.extend(machines))
    join(door, tmp_path / "state", "--token", "join-token")
    result = CliRunner().invoke(main, ["run", "--state-dir", str(tmp_path / "state")])
    assert result.exit_code == 0, result.output
    assert ran[0].console == f"http://127.0.0.1:{door.server_port}/"


def test_joining_while_it_starts_needs_the_consoles_address(tmp_path):
    (tmp_path / "token").write_text("join-token")
    arguments = ["run", "--state-dir", str(tmp_path / "state"), "--join-token-file", str(tmp_path / "token")]
    assert "--console" in CliRunner().invoke(main, arguments).output


def test_a_refusal_is_told_in_the_consoles_words(door, tmp_path):
    result = join(door, tmp_path / "state", "--token", "another")
    assert result.exit_code == 1
    assert result.output == "Error: the console refuses: this join token was used before\n"
    assert not (tmp_path / "state").exists()
