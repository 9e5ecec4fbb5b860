"""A receiver of webhooks on loopback: it answers as it is told, and keeps what it was sent."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)

    @property
    def names(self) -> list[str]:
        return [item["name"] for item in self.body["items"]]


@dataclass
class Receiver:
    """`answers`: of the next requests: a status, "hang" (no answer), "drip" (a body without end); after them 200."""

    url: str = ""
    answers: list[int | str] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.received.append(Received(dict(self.headers), raw))
            answer = receiver.answers.pop(0) if receiver.answers else 200
            if answer == "hang":
                receiver.closing.wait()
                return
            self.send_response(200 if answer == "drip" else int(answer))
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()
            self.wfile.write(b"noted")
            while answer == "drip" and not receiver.closing.is_set():
                try:
                    self.wfile.write(b".")
                except OSError:
                    return
                time.sleep(0.02)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook?to=astra"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
