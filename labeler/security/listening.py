"""The socket that the web server accepts on."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or one sentence why not."""
    if not 0 <= port <= 65535:
        raise ValueError(f"a port is a number from 0, for a free one, to 65535; {port} is none")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # whoever follows the link at once waits instead of being refused
    except OSError as error:
        listener.close()
        raise ValueError(
            f"cannot listen on {host}, port {port} ({error.strerror}); try --port 0"
        ) from None
    return listener


def is_exposed(host: str, public_url: str | None) -> bool:
    """Whether people beyond this machine can reach a studio that listens on `host`.

    A proxy with a `public_url` lets them in where the studio listens to this machine alone.
    """
    return public_url is not None or host not in ("127.0.0.1", "localhost", "::1")


def public_address(url: str | None) -> str | None:
    """The address that a proxy gives browsers; ValueError for what is none."""
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
    """Where browsers on this machine reach a listener that was made for `host`."""
    named = f"[{host}]" if ":" in host else host  # IPv6 goes into brackets before its port
    return f"http://{named}:{listener.getsockname()[1]}"
