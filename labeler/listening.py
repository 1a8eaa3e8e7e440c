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
            f"cannot listen on {host}:{port} ({error.strerror}); try --port 0"
        ) from None
    return listener
