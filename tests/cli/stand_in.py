"""A stand-in console on loopback: answers by path, remembers what was asked. Real sockets, no console behind them."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

WORKSPACE = "/api/v1/orgs/acme/workspaces/vision/"
NOT_FOUND = (404, {"code": "NOT_FOUND", "message": "no"})


@dataclass(frozen=True)
class Asked:
    method: str
    path: str  # below the workspace; whole where it is not below it
    parameters: dict[str, str]
    body: Any
    token: str
    headers: dict[str, str]
    target: str  # as it was asked for: a proxy is given the whole address


@dataclass
class StandIn:
    """`answers`: (method, path) → (status, document; bytes are sent as HTML), or a list of them: one for each request,
    the last for all that follow. `hang_up`: how many connections to close without an answer first."""

    url: str
    answers: dict[tuple[str, str], Any] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    hang_up: int = 0

    def answer_to(self, method: str, path: str) -> tuple[int, Any]:
        found = self.answers.get((method, path), NOT_FOUND)
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        return found

    def environment(self) -> dict[str, str]:
        """Signed in, in acme/vision@gpu-east."""
        names = ("ASTRA_TOKEN", "ASTRA_ORG", "ASTRA_WORKSPACE", "ASTRA_CLUSTER")
        return {"ASTRA_URL": self.url, **dict(zip(names, ("secret", "acme", "vision", "gpu-east"), strict=True))}


@contextmanager
def standing_in(tls: ssl.SSLContext | None = None) -> Iterator[StandIn]:
    """`tls`: answers HTTPS, with the context's certificate."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            if stand_in.hang_up > 0:
                stand_in.hang_up -= 1
                self.close_connection = True
                return
            parts = urlsplit(self.path)
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = parts.path.removeprefix(WORKSPACE)
            body = json.loads(content) if content else None
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            stand_in.asked.append(
                Asked(self.command, path, dict(parse_qsl(parts.query)), body, token, dict(self.headers), self.path)
            )
            self.send(*stand_in.answer_to(self.command, path))

        def send(self, status: int, document: Any) -> None:
            html = isinstance(document, bytes)
            data = document if html else b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if html else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = do_PUT = answer

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    stand_in = StandIn(f"{'https' if tls else 'http'}://localhost:{server.server_port}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stand_in
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
