"""Where other machines reach this one."""

import socket

import pytest

from machines.agent import address


@pytest.mark.parametrize(
    ("local", "found"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8::7", "2001:db8::7"),
        ("fe80::7%eth0", "fe80::7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
    ],
)
def test_the_address_towards_the_console_serves_the_others_too(local: str, found: str) -> None:
    assert address.reachable(local) == found


@pytest.mark.parametrize("local", ["127.0.0.1", "::1", "127.8.8.8", "::ffff:127.0.0.1", ""])
def test_a_console_on_this_host_says_nothing_of_the_network(local: str) -> None:
    """Then it is the host's own address, by which the host reaches itself as well."""
    with socket.create_server((address.reachable(local), 0)) as server, socket.create_connection(server.getsockname()):
        pass
