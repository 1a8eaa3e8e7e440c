"""The socket that the web server accepts on."""

from __future__ import annotations

import socket


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or one sentence why not."""
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


def address(listener: socket.socket, host: str) -> str:
    """Where browsers on this machine reach a listener that was made for `host`."""
    named = f"[{host}]" if ":" in host else host  # IPv6 goes into brackets before its port
    return f"http://{named}:{listener.getsockname()[1]}"
