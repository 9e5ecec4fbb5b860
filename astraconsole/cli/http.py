"""HTTP for the command line, on the standard library: a client with more features costs each start a tenth of a second.

One kept connection to one server, through the proxy that the environment names.
"""

import base64
import http.client
import ssl
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from astraconsole.cli.problems import NotConfigured, Unreachable

TIMEOUT_SECONDS = 30.0
PORTS = {"http": 80, "https": 443}


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


def split_url(url: str) -> SplitResult:
    """Raises NotConfigured for what is no address of a web server."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in PORTS and parts.hostname and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:
        sound = False
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        raise NotConfigured(f"{url!r} is not a console's address: write https://console.example.com")
    return parts


class Session:
    """Requests to one server. Raises Unreachable when it does not answer as a web server does."""

    def __init__(self, url: str) -> None:
        self._url = split_url(url)
        self.base = url.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None
        self._prefix = self._url.path.rstrip("/")  # before every path of a request
        self._extra: dict[str, str] = {}

    def request(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}) -> Answer:
        """`path` begins with `/` and is quoted. A kept connection that the server has closed meanwhile is opened again,
        but never for a POST, which the server may have carried out."""
        if method == "POST":
            self.close()
        kept = self._connection is not None
        try:
            return self._send(method, path, body, headers)
        except (ConnectionError, http.client.RemoteDisconnected) as error:
            if not kept:
                raise self._unreachable(error) from error
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        try:
            return self._send(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def lines(self, path: str, headers: Mapping[str, str]) -> "Answer | Iterator[str]":
        """A GET whose answer goes on: its lines as they come, until the server ends it. Another answer than 200 whole.
        On a connection of its own, closed at the end."""
        connection = self._connect()
        try:
            connection.request("GET", self._prefix + path, None, {**self._extra, **headers})
            response = connection.getresponse()
            if response.status != http.client.OK:
                return Answer(response.status, response.headers, response.read())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unreachable(error) from error
        return self._lines(connection, response)

    def _lines(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> Iterator[str]:
        try:
            while line := response.readline():
                yield line.decode().rstrip("\r\n")
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        connection = self._connection or self._connect()
        self._connection = None  # kept again only after a whole answer
        try:
            connection.request(method, self._prefix + path, body, {**self._extra, **headers})
            response = connection.getresponse()
            answer = Answer(response.status, response.headers, response.read())
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._connection = connection
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        scheme, host = self._url.scheme, str(self._url.hostname)
        port = self._url.port or PORTS[scheme]
        proxy = None if proxy_bypass(host) else getproxies().get(scheme)
        if proxy is None:
            return _connection(scheme, host, port)
        through = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
        connection = _connection(scheme, str(through.hostname), through.port or PORTS["http"])
        if scheme == "https":
            connection.set_tunnel(host, port, headers=_credentials(through))
        else:
            self._prefix = self.base
            self._extra = _credentials(through)
        return connection

    def _unreachable(self, error: Exception) -> Unreachable:
        what = getattr(error, "verify_message", "") or getattr(error, "strerror", "") or str(error)
        return Unreachable(f"no answer from {self.base}: {what or type(error).__name__}")


def _connection(scheme: str, host: str, port: int) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)


def _credentials(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode()}"}
