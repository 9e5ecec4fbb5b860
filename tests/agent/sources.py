"""Sources of data for tests: an HTTP server that gives ranges, breaks off, changes what it has, or is slow."""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote

PIECE = 4 * 1024**2  # what an agent asks for at a time


class Source:
    """`files` by path, such as `/data.bin`; folders are listed as index pages."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.says_size = True
        self.token = ""
        self.moved_to = ""  # another server, to which every request is sent on
        self.authorizations: list[str | None] = []
        self.break_after: int | None = None  # bytes of answers in all, then every connection is cut
        self.hold_after: int | None = None  # bytes of answers in all; then none comes until it is null again
        self.held = threading.Event()  # answers with content wait for it
        self.held.set()
        self.requests: list[tuple[str, str]] = []  # path, Range
        self.sent = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def tag(self, path: str) -> str:
        return f'"{hashlib.md5(self.files[path]).hexdigest()}"'

    def listing(self, folder: str) -> bytes | None:
        names = {path[len(folder) :].partition("/") for path in self.files if path.startswith(folder)}
        links = sorted({quote(name) + slash for name, slash, _ in names})
        return "".join(f'<a href="{link}">x</a>\n' for link in [*links, "?C=N"]).encode() if links else None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    source: Source

    def do_HEAD(self) -> None:
        self.answer(False)

    def do_GET(self) -> None:
        self.answer(True)

    def answer(self, with_body: bool) -> None:
        source, path = self.source, unquote(self.path)
        source.authorizations.append(self.headers["Authorization"])
        if source.moved_to:
            return self.send(302, b"", with_body, {"Location": source.moved_to + self.path})
        if source.token and self.headers["Authorization"] != f"Bearer {source.token}":
            return self.send(401, b"no", with_body, {})
        body = source.listing(path) if path.endswith("/") else source.files.get(path)
        if body is None:
            return self.send(404, b"nothing", with_body, {})
        if path.endswith("/"):
            return self.send(200, body, with_body, {"Content-Type": "text/html"})
        return self.send_file(path, body, with_body)

    def send_file(self, path: str, body: bytes, with_body: bool) -> None:
        source, wanted = self.source, self.headers["Range"]
        tag = source.tag(path)
        if self.headers["If-Match"] not in (None, tag):
            return self.send(412, b"changed", with_body, {})
        if with_body:
            source.requests.append((path, wanted or ""))
            source.held.wait(30)
            while source.hold_after is not None and source.sent + PIECE > source.hold_after:
                time.sleep(0.02)
        if wanted and source.ranges:
            start, end = (int(text) for text in wanted.removeprefix("bytes=").split("-"))
            if start >= len(body):
                return self.send(416, b"", with_body, {})
            content = {"ETag": tag, "Content-Range": f"bytes {start}-{end}/{len(body)}"}
            return self.send(206, body[start : end + 1], with_body, content)
        return self.send(200, body, with_body, {"ETag": tag})

    def send(self, status: int, body: bytes, with_body: bool, headers: dict[str, str]) -> None:
        source = self.source
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if source.says_size or status != 200:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if with_body:
            left = len(body) if source.break_after is None else max(0, source.break_after - source.sent)
            self.wfile.write(body[:left])
            source.sent += len(body[:left])
            if left < len(body):
                self.close_connection = True

    def log_message(self, *words: object) -> None:
        """Quiet."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are no news."""


@contextmanager
def http_source() -> Iterator[Source]:
    source = Source()
    server = Server(("127.0.0.1", 0), type("Handler", (Handler,), {"source": source}))
    source.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield source
    finally:
        source.held.set()
        server.shutdown()
        server.server_close()
        thread.join()
