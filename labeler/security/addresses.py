"""The addresses under which browsers reach the studio: allowed values of Host and Origin.

Another site can make its own name resolve to this machine (DNS rebinding). The browser then treats
the studio as part of that site, and only the Host header shows the difference.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]?#]+)(:\d{1,5})?")
_USUAL_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True)
class Addresses:
    """The studio's names (lower case, no ports) and its public URL behind a proxy.

    With `numeric`, all IP addresses are allowed too, because DNS cannot redirect them.
    """

    names: frozenset[str] = frozenset(LOOPBACK)
    numeric: bool = False
    public_url: str | None = None

    @classmethod
    def of(
        cls, *, host: str = "127.0.0.1", public_url: str | None = None, more: Iterable[str] = ()
    ) -> Addresses:
        """The addresses of a server on `host`, with the machine's name if beyond loopback."""
        names = {*LOOPBACK, *more}
        beyond = host not in LOOPBACK
        if beyond:
            machine = socket.gethostname()
            names |= {host, machine, f"{machine}.local"}
        public = public_url.rstrip("/") if public_url else None
        if public:
            names.add(urlsplit(public).hostname or "")
        return cls(frozenset(name.lower() for name in names), beyond, public)

    @property
    def secure(self) -> bool:
        """Whether browsers use TLS."""
        return self.public_url is not None and self.public_url.startswith("https:")

    def knows(self, host: str) -> bool:
        """Whether a Host header names the studio. Tunnels change the port, so any is allowed."""
        found = _HOST.fullmatch(host.lower())
        if found is None:
            return False
        name = found[1].strip("[]")
        return name in self.names or (self.numeric and _is_numeric(name))

    def is_public(self, host: str) -> bool:
        """Whether this is the host and port of the public URL."""
        return self.public_url is not None and urlsplit(self.public_url).netloc == host

    def same_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this site sent the request, by its Origin; `host` is a known Host.

        Behind a proxy that terminates TLS, the server does not know its own scheme. So https is
        accepted for all names, and http for all but those of an https public URL.
        """
        try:
            parts = urlsplit(origin.lower())
        except ValueError:  # such as an unclosed bracket
            return False
        if parts.scheme not in _USUAL_PORTS or not parts.netloc:
            return False
        public = _origin(self.public_url) if self.public_url else None
        if _origin(origin) == public:
            return True
        ours = parts.netloc == host.lower()
        return ours and (not self.secure or _origin(f"https://{parts.netloc}") != public)


def _origin(url: str) -> str:
    """Scheme, name and port, as browsers write them."""
    parts = urlsplit(url.lower())
    return f"{parts.scheme}://{parts.netloc.removesuffix(_USUAL_PORTS.get(parts.scheme, ':'))}"


def _is_numeric(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def network(address: str) -> str:
    """The address, or the /64 network of an IPv6 address, because a client can use all of it."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
