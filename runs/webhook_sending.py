"""One signed POST to somebody's address: where it may go, how it is signed, how long it may take. No database.

The name is resolved here and the address that was checked is the one that is connected to: a name that answers
something else the second time leads nowhere.
"""

import contextlib
import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import SplitResult, urlsplit

URL_LENGTH = 500
SECONDS = 10.0  # of one try, from looking up the name to the first bytes of the answer's body
ANSWER_BYTES = 500  # of the answer's body, that are kept
PORTS = {"https": 443, "http": 80}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Reach(StrEnum):
    """How far webhooks may reach, each further than the one before."""

    PUBLIC = "public"
    PRIVATE = "private"
    LOOPBACK = "loopback"


@dataclass(frozen=True)
class Outcome:
    """Of one try. `status`: None where nobody answered; `error`: "" where it was taken."""

    status: int | None
    duration_ms: int
    answer: str
    error: str


class NotAllowed(Exception):
    pass


def signature(secret: str, at: int, body: bytes) -> str:
    """`t=<Unix seconds>,v1=<HMAC-SHA256 of "<t>.<body>", in hexadecimal>`."""
    return f"t={at},v1={hmac.new(secret.encode(), f'{at}.'.encode() + body, hashlib.sha256).hexdigest()}"


def url_rule(url: object, reach: Reach) -> str:
    """The rule that an address breaks; "" for one that may be tried."""
    if not isinstance(url, str) or not 1 <= len(url) <= URL_LENGTH:
        return f"must be an address of at most {URL_LENGTH} characters"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "must be an address with a host and a port from 0 to 65535"
    if not url.isascii() or not url.isprintable() or " " in url or not host or parts.fragment:
        return "must be an address such as https://hooks.example.com/astra"
    if "@" in parts.netloc:
        return "must not hold a user or a password: the signature says who sends"
    if parts.scheme == "https" or (parts.scheme == "http" and reach is Reach.LOOPBACK and _is_loopback(host)):
        literal = _literal(host)
        return "" if literal is None or is_allowed(literal, reach) else f"must not lead to {host}"
    return "must begin with https://"


def is_allowed(address: str, reach: Reach) -> bool:
    ip = _inner(ipaddress.ip_address(address.partition("%")[0]))
    if ip.is_multicast or ip.is_unspecified or ip.is_link_local:
        return False
    if ip.is_loopback:
        return reach is Reach.LOOPBACK
    if ip.is_global:
        return True
    return ip.is_private and reach is not Reach.PUBLIC


def _inner(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address that one of IPv6 stands for."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else ip)


def _literal(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    literal = _literal(host)
    return host == "localhost" or (literal is not None and ipaddress.ip_address(literal).is_loopback)


# ---- sending ---------------------------------------------------------------------------------------------------------


def post(url: str, body: bytes, headers: dict[str, str], reach: Reach, seconds: float = SECONDS) -> Outcome:
    """Never raises for what a receiver does. Anything but a status 2xx has failed; a redirect is not followed."""
    began = time.monotonic()
    status, answer, error = None, "", ""
    try:
        if rule := url_rule(url, reach):
            raise NotAllowed(f"the address {rule}")
        with _connected(urlsplit(url), reach, began + seconds) as connection:
            target = urlsplit(url)
            path = (target.path or "/") + (f"?{target.query}" if target.query else "")
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            status = response.status
            with contextlib.suppress(OSError, http.client.HTTPException):
                answer = response.read(ANSWER_BYTES).decode(errors="replace").replace("\0", "�")
    except NotAllowed as refusal:
        error = str(refusal)
    except ssl.SSLError as failure:
        error = f"TLS: {failure.reason or failure}"
    except (OSError, http.client.HTTPException) as failure:
        error = str(failure) or type(failure).__name__
    spent = time.monotonic() - began
    if status is None and spent >= seconds:
        error = f"no answer within {seconds:g} s"
    return Outcome(status, round(spent * 1000), answer, error or _status_error(status))


def _status_error(status: int | None) -> str:
    if status is not None and 200 <= status < 300:
        return ""
    redirect = status is not None and 300 <= status < 400
    return f"answered {status}" + (": redirects are not followed" if redirect else "")


@contextlib.contextmanager
def _connected(parts: SplitResult, reach: Reach, deadline: float) -> Iterator[http.client.HTTPConnection]:
    """A connection to an address that is allowed. Past the deadline it is cut, however slowly bytes still come."""
    host, port = str(parts.hostname), parts.port or PORTS[parts.scheme]
    plain = _dial(host, port, reach, deadline)
    cut = threading.Timer(max(0.0, deadline - time.monotonic()), _cut, [plain])
    cut.daemon = True
    cut.start()
    sock = plain
    try:
        if parts.scheme == "https":
            sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        connection = http.client.HTTPConnection(parts.netloc)
        connection.sock = sock
        yield connection
    finally:
        cut.cancel()
        sock.close()
        plain.close()


def _dial(host: str, port: int, reach: Reach, deadline: float) -> socket.socket:
    found = [info[4] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not found or not all(is_allowed(str(address[0]), reach) for address in found):
        raise NotAllowed(f"{host} leads to an address that webhooks may not reach")
    error: OSError | None = None
    for address in found:
        try:
            return socket.create_connection((str(address[0]), port), max(0.1, deadline - time.monotonic()))
        except OSError as failure:
            error = failure
    raise error or OSError("no address")


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
