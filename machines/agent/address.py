"""Where the workers of other machines reach this one."""

import ipaddress
import socket

# Kept free for documentation, so nobody's. A connected UDP socket sends nothing: the kernel only chooses a route.
_SOMEWHERE = ("192.0.2.1", 9)
LOOPBACK = "127.0.0.1"


def reachable(local_address: str) -> str:
    """This host's address on the network that its console is on. `local_address`: its own end of the connection to
    the console. A console on this very host says nothing of the network, so the way out of the host does."""
    address = _plain(local_address)
    return _outward() if address is None or address.is_loopback else str(address)


def _plain(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Without a zone (`fe80::1%eth0`); IPv4 within IPv6 is IPv4. None: not an IP address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _outward() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_SOMEWHERE)
        except OSError:
            return LOOPBACK  # a host without a network: whoever reaches it is on it
        return str(probe.getsockname()[0])
