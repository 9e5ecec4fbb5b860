"""A stand-in for HashiCorp Vault: its AppRole login and the reading of its KV version 2 engine, over HTTP."""

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Vault:
    """`secrets`: path → data, in the mount `secret`. `token`: what it answers to."""

    token: str = "vault-token"
    role: tuple[str, str] = ("role", "role-secret")
    secrets: dict[str, dict[str, Any]] = field(default_factory=dict)
    sealed: bool = False

    def start(self) -> str:
        """Its address."""
        vault = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                vault.read(self)

            def do_POST(self) -> None:
                vault.log_in(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def read(self, request: BaseHTTPRequestHandler) -> None:
        if self.sealed:
            return answer(request, 503, {"errors": ["Vault is sealed"]})
        if request.headers.get("X-Vault-Token") != self.token:
            return answer(request, 403, {"errors": ["permission denied"]})
        data = self.secrets.get(request.path.removeprefix("/v1/secret/data/"))
        if data is None:
            return answer(request, 404, {"errors": []})
        return answer(request, 200, {"data": {"data": data, "metadata": {"version": 1}}})

    def log_in(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        if (body.get("role_id"), body.get("secret_id")) != self.role:
            return answer(request, 400, {"errors": ["invalid role or secret ID"]})
        return answer(request, 200, {"auth": {"client_token": self.token}})


def answer(request: BaseHTTPRequestHandler, status: int, document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
