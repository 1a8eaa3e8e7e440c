"""Which addresses a webhook may be sent to: only public ones, unless the operator allows others.

A researcher names the URL, and the request comes from the studio's machine.  Without this check, it
could reach services that trust the machine or its network, such as the metadata service of a cloud.
"""

from __future__ import annotations

import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(each)
    for each in (
        "192.0.0.0/24",  # public for some versions of Python; Oracle's metadata service is in it
        "168.63.129.16",  # public by the registry, but only Azure's virtual machines can reach it
    )
)
REFUSED = (
    "{host} has the private address {address}. The operator can allow such addresses with `serve "
    "--allow-private-webhooks`."
)


class AddressRefused(OSError):
    """All addresses of the host are private; the message is a sentence."""


def is_public(text: str) -> bool:
    """Whether an address in numbers is on the public internet.

    Loopback, private, link-local, CGNAT, reserved, multicast and metadata addresses are not, in
    IPv4, in IPv6, and as IPv4 addresses embedded in IPv6 ones.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        if any(not _is_public_v4(each) for each in _embedded(address)):
            return False
        if address.ipv4_mapped is not None:
            return True  # the module's answer on mapped addresses depends on Python's version
        return address.is_global and not address.is_multicast and not address.is_site_local
    return _is_public_v4(address)


def _is_public_v4(address: IPv4Address) -> bool:
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast


def _embedded(address: IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses to which packets for this address may be translated."""
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64 or address in _COMPATIBLE:
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in found if each is not None]


def resolve(host: str, port: int, *, allow_private: bool) -> list[str]:
    """The addresses of a host to which the studio may connect, in numbers.

    Connect to one of these and not to the name: a second look-up could give another address (DNS
    rebinding).  Raises AddressRefused if all are private, OSError if the host is unknown.
    """
    found = [
        str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    ]
    allowed = [each for each in dict.fromkeys(found) if allow_private or is_public(each)]
    if not allowed:
        raise AddressRefused(REFUSED.format(host=host, address=found[0]))
    return allowed


def require_allowed(host: str, *, allow_private: bool) -> None:
    """ValueError for a private address in numbers, or for a name of this machine.

    `resolve` checks all other names when a request is sent.
    """
    if allow_private:
        return
    if host.lower().rstrip(".").rpartition(".")[2] == "localhost":
        raise ValueError(REFUSED.format(host=host, address="127.0.0.1"))
    try:
        public = is_public(host)
    except ValueError:
        return
    if not public:
        raise ValueError(REFUSED.format(host=host, address=host))
