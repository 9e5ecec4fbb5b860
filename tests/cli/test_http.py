"""The command line's HTTP: kept connections, proxies, certificates."""

import ipaddress
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from astraconsole.cli.http import Session
from astraconsole.cli.problems import Unreachable
from tests.cli.stand_in import StandIn, standing_in


@pytest.fixture
def console() -> Iterator[StandIn]:
    with standing_in() as stand_in:
        stand_in.answers = {("GET", "/x"): (200, {}), ("POST", "/x"): (200, {})}
        yield stand_in


def test_a_connection_is_kept_and_opened_again_when_the_server_has_closed_it(console: StandIn) -> None:
    session = Session(console.url)
    assert session.request("GET", "/x").status == 200
    console.hang_up = 1
    assert session.request("GET", "/x").status == 200
    console.hang_up = 2
    with pytest.raises(Unreachable):
        session.request("GET", "/x")


def test_a_post_is_never_sent_twice(console: StandIn) -> None:
    session = Session(console.url)
    session.request("GET", "/x")
    console.hang_up = 1
    with pytest.raises(Unreachable):
        session.request("POST", "/x", b"{}")
    assert [asked.method for asked in console.asked] == ["GET"]


def test_an_address_may_have_a_path(console: StandIn) -> None:
    console.answers["GET", "/astra/x"] = (200, {})
    assert Session(f"{console.url}/astra/").request("GET", "/x").status == 200


def test_the_environments_proxy_is_used_with_its_password(console: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", console.url.replace("://", "://me:p%40ss@"))
    assert Session("http://console.example.test:8000").request("GET", "/x").status == 200
    asked = console.asked[0]
    assert asked.target == "http://console.example.test:8000/x"
    assert asked.headers["Proxy-Authorization"] == "Basic bWU6cEBzcw=="
    assert asked.headers["Host"] == "console.example.test:8000"


def test_a_name_of_no_proxy_is_asked_directly(console: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "example.com, localhost")
    assert Session(console.url).request("GET", "/x").status == 200


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Its own authority, for localhost; with its key in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(1)
    )
    made = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    encoding = serialization.Encoding.PEM
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = tmp_path / "localhost.pem"
    file.write_bytes(made.public_bytes(encoding) + secret)
    return file


def test_a_certificate_that_nobody_vouches_for_is_refused_by_name_and_a_known_one_taken(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    with standing_in(tls) as console:
        console.answers["GET", "/x"] = (200, {})
        with pytest.raises(Unreachable, match="self-signed certificate"):
            Session(console.url).request("GET", "/x")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert Session(console.url).request("GET", "/x").status == 200
