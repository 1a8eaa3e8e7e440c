"""The listening socket of the web server, and its address."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ``ValueError`` if that is not possible."""
    if not 0 <= port <= 65535:
        raise ValueError(f"port {port} must be from 0 (any free port) to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # early requests wait instead of being refused
    except OSError as error:
        listener.close()
        raise ValueError(
            f"cannot listen on {host}, port {port} ({error.strerror}); try --port 0"
        ) from None
    return listener


def is_exposed(host: str, public_url: str | None) -> bool:
    """Whether other machines can reach a studio that listens on `host`.

    If so, users need accounts (`Auth.accounts_required`); otherwise a link is enough.  With a
    `public_url`, a proxy reaches the studio even if it listens only on loopback.
    """
    return public_url is not None or host not in ("127.0.0.1", "localhost", "::1")


def public_address(url: str | None) -> str | None:
    """The public URL without a final slash; ``ValueError`` if it is not one."""
    if url is None:
        return None
    refusal = ValueError(f"--public-url is {url!r} and must be like https://studio.example.org")
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        raise refusal from None
    named = parts.scheme in ("http", "https") and parts.hostname and port_is_fine
    if not named or parts.query or parts.fragment or any(map(str.isspace, url)):
        raise refusal
    return parts.geturl().rstrip("/")


def address(listener: socket.socket, host: str) -> str:
    """The URL of a listener on `host`, for browsers on this machine."""
    named = f"[{host}]" if ":" in host else host  # an IPv6 address needs brackets before the port
    return f"http://{named}:{listener.getsockname()[1]}"
