"""One request to a webhook: with a deadline, to a checked address, and without redirects."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

import httpcore

from labeler.webhooks.addresses import AddressRefused, resolve
from storage.tables.runs.webhooks import Attempt

CONNECT_SECONDS = 5.0
TOTAL_SECONDS = 15.0
"""From the first connection attempt to the end of the response's head."""
MAX_BODY_BYTES = 4_096
"""How much of a response's body is read; nothing uses it, but the receiver may be waiting."""
MAX_RETRY_AFTER = 86_400.0
"""Seconds that a receiver can ask for."""
_SUCCESS = range(200, 300)
_REDIRECTS = range(300, 400)
_SHOWN = 200
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")


class _DeadlineStream(httpcore.NetworkStream):
    """A connection whose operations together end at the deadline.

    A timeout for each operation alone lets a receiver answer one byte at a time, without end.
    """

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self._stream, self._deadline = stream, deadline

    def _left(self, timeout: float | None) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("deadline")
        return left if timeout is None else min(left, timeout)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        secured = self._stream.start_tls(ssl_context, server_hostname, self._left(timeout))
        return _DeadlineStream(secured, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _CheckedBackend(httpcore.NetworkBackend):
    """Resolves the host once, and connects only to addresses that are allowed."""

    def __init__(self, *, allow_private: bool, deadline: float) -> None:
        self._allow_private, self._deadline = allow_private, deadline
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 (the deadline counts)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failure: Exception = httpcore.ConnectError("no address")
        for address in resolve(host, port, allow_private=self._allow_private):
            left = min(CONNECT_SECONDS, self._deadline - time.monotonic())
            if left <= 0:
                break
            try:
                stream = self._backend.connect_tcp(
                    address, port, left, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                return _DeadlineStream(stream, self._deadline)
        raise failure


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def post(
    url: str,
    body: bytes,
    headers: dict[str, str],
    *,
    allow_private: bool,
    seconds: float = TOTAL_SECONDS,
) -> Attempt:
    """Send one POST; any status code from 200 to 299 accepts the event.

    Takes at most `seconds`, apart from the look-up of the host's name.  Redirects are not followed,
    because they could lead to an address that was not checked or reveal the event to others.
    """
    backend = _CheckedBackend(allow_private=allow_private, deadline=time.monotonic() + seconds)
    timeouts = {"connect": CONNECT_SECONDS, "read": seconds, "write": seconds, "pool": seconds}
    try:
        with (
            httpcore.ConnectionPool(
                ssl_context=_tls(), network_backend=backend, max_keepalive_connections=0
            ) as pool,
            pool.stream(
                "POST",
                url,
                headers=[*headers.items(), ("Connection", "close")],
                content=body,
                extensions={"timeout": timeouts},
            ) as response,
        ):
            code, wait = response.status, _retry_after(response.headers)
            _read_some(response)
    except AddressRefused as error:
        return Attempt(error=str(error))
    except (httpcore.TimeoutException, TimeoutError):
        return Attempt(error=f"The receiver did not answer within {seconds:g} seconds.")
    except (socket.gaierror, UnicodeError) as error:
        return Attempt(error=f"The host cannot be found: {short(error)}.")
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
        return Attempt(error=f"The connection failed: {short(error)}.")
    if code in _SUCCESS:
        return Attempt(code=code)
    hint = "; redirects are not followed" if code in _REDIRECTS else ""
    return Attempt(code=code, error=f"The receiver answered {code}{hint}.", retry_after=wait)


def _retry_after(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """The seconds of the header ``Retry-After``, which is a number or a date; 0 without one."""
    found = next((value for name, value in headers if name.lower() == b"retry-after"), b"")
    text = found.decode("ascii", "replace").strip()
    if text.isdecimal():
        return min(float(text[:10]), MAX_RETRY_AFTER)
    try:
        asked = parsedate_to_datetime(text)
        left = (asked - datetime.now(asked.tzinfo)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(0.0, left), MAX_RETRY_AFTER)


def _read_some(response: httpcore.Response) -> None:
    """Read the beginning of the body; its end does not matter once the status is known."""
    size = 0
    try:
        for part in response.iter_stream():
            size += len(part)
            if size >= MAX_BODY_BYTES:
                return
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
        return


def short(error: Exception) -> str:
    """The cause in one line of printable characters."""
    cause = _ERRNO.sub("", str(error)) or type(error).__name__
    return "".join(c if c.isprintable() else " " for c in cause)[:_SHOWN].rstrip(".")
