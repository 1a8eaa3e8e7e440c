"""The web server: timeouts, connection limits and logging.

uvicorn closes a connection that is idle after a request. But it waits forever for the first
request, for the rest of a request, and for a client that does not read its response. This module
adds timeouts to uvicorn's h11 protocol, whose state says which part is awaited.
"""

from __future__ import annotations

import asyncio
import ctypes
import ipaddress
import json
import logging
import os
import resource
import shutil
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from labeler.security.addresses import network

MAX_HEAD_BYTES = 16_384
"""Bytes of a request's header section, if it takes more than one read."""
HEAD_SECONDS = 10.0
"""From the connection, or the last response, until the header section is complete."""
BODY_SECONDS = 60.0
"""From the headers until the body is complete, plus one for every `BODY_RATE` bytes of it."""
BODY_RATE = 20_000
REST = 33_000_000
"""Bytes of a body that are discarded after an early response: more than the largest upload."""
ANSWER_SECONDS = 60.0
"""Seconds for which a client may not read its response, plus one per `ANSWER_RATE` bytes read."""
ANSWER_RATE = 20_000
UNSENT = 131_072
"""Bytes of a response that the kernel buffers beyond those in flight."""
MAX_CONNECTIONS_PER_ADDRESS = 512
"""Connections per client address; a browser opens six, and offices share an address."""
MAX_OPEN_FILES = 16_384
"""The soft limit of open files, if the hard limit allows it."""
OWN_FILES = 256
"""Open files that the database, the journal and the workers' pipes need."""
BACKLOG = 256
"""Connections waiting to be accepted; also the lines that asyncio logs at once if files run out."""
GRACE = 3
"""Seconds that open requests have when the server stops."""

_CROWDED = "The limit of connections is reached"
_ONE_ADDRESS = "One address has reached its limit of connections"
_DEFECT = "Exception in ASGI application"
_THROTTLED = (
    "socket.accept() out of system resource",
    "Invalid HTTP request received.",
    "Unsupported upgrade request.",
    "No supported WebSocket library detected.",
    _CROWDED,
    _ONE_ADDRESS,
    "A request was refused",
    "A call of the research page was refused",
)
"""Prefixes of log lines that clients can cause without limit."""


def server(app: Any, *, behind_proxy: bool) -> uvicorn.Server:
    """A server for `app`, to be run on a listening socket; raises the limit of open files.

    X-Forwarded-For and -Proto are read only if `behind_proxy`, and only from this machine or the
    addresses in the environment variable FORWARDED_ALLOW_IPS.
    """
    files = raise_file_limit()
    most = max(files - OWN_FILES, files // 2)
    config = uvicorn.Config(
        app,
        http=protocol(most=most, most_each=None if behind_proxy else MAX_CONNECTIONS_PER_ADDRESS),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=behind_proxy,
        forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1"),
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE,
    )
    for name in ("asyncio", "uvicorn.error", "labeler.annotate.routes", "labeler.research.calls"):
        logging.getLogger(name).addFilter(_QUIET)
    return uvicorn.Server(config)


def return_freed_memory() -> bool:
    """Make glibc give freed memory back to the system. Returns whether the C library is glibc.

    A page is a document of about a megabyte. By default, glibc keeps blocks of that size after a few
    were freed, in up to eight arenas per core: tens of megabytes in an hour (mallopt(3)).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(name, value) == 1 for name, value in _MALLOC.items())


_MALLOC = {
    -8: 2,  # M_ARENA_MAX
    -3: 131_072,  # M_MMAP_THRESHOLD, bytes; setting it stops its growth
    -1: 131_072,  # M_TRIM_THRESHOLD, bytes
}


def raise_file_limit(most: int = MAX_OPEN_FILES) -> int:
    """Raise the soft limit of open files, at most to the hard limit; returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return most if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


@contextmanager
def private_cache(workspace: Path) -> Iterator[Path]:
    """A private directory for Gradio's files, empty at the start and deleted at the end.

    By default Gradio uses a shared temporary directory and does not clean it up. Files of a killed
    server are deleted at the next start; ``ValueError`` if that is not possible.
    """
    folder = workspace / "gradio-cache"
    if folder.is_symlink() or folder.is_file():  # removes a link, not its target
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise ValueError(f"{folder} cannot be emptied; remove it, then serve again") from None
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    try:
        yield folder
    finally:
        del os.environ["GRADIO_TEMP_DIR"]
        shutil.rmtree(folder, ignore_errors=True)


class _CountingTransport:
    """A transport that counts the bytes written to it, and is closed by `close`."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)
        self._transport.write(data)

    @property
    def taken(self) -> int:
        """The bytes that the kernel has accepted."""
        return self.written - self._transport.get_write_buffer_size()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _NoPipelining(FlowControl):
    """Stops reading while a pipelined request waits for its turn.

    uvicorn alone would read more with every response: 256 kB for a request of perhaps 50 bytes.
    """

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection) -> None:
        super().__init__(transport)
        self._conn = conn
        self.another_waits = False

    def pause_reading(self) -> None:
        # Otherwise it is the body of the current request, which the application can request.
        self.another_waits = self._conn.their_state is not h11.SEND_BODY
        super().pause_reading()

    def resume_reading(self) -> None:
        if not self.another_waits:
            super().resume_reading()


class _Connection(h11.Connection):
    """Accepts bodies only with Content-Length, so that each read is one event, and announces that
    an early response ends the connection.

    A read of 256 kB can hold 43,690 chunks, and each would be an event.  No browser sends chunks.
    """

    refusal: tuple[HTTPStatus, str] | None = None
    """Status and message of a refused request; nothing after it is parsed."""

    def send(self, event: Any) -> Any:
        if isinstance(event, h11.Response) and self.their_state is h11.SEND_BODY:
            # Otherwise the client may send its next request before it sees the end.
            headers = [*event.headers, (b"Connection", b"close")]
            event = h11.Response(
                status_code=event.status_code, headers=headers, reason=event.reason
            )
        return super().send(event)

    def next_event(self) -> Any:
        if self.refusal is None:
            event = super().next_event()
            names = {name for name, _ in event.headers} if isinstance(event, h11.Request) else ()
            if b"transfer-encoding" not in names:
                return event
            # A proxy may use one and the studio the other, and disagree on the end of the body.
            two = (
                HTTPStatus.BAD_REQUEST,
                "A request cannot have both Content-Length and Transfer-Encoding.",
            )
            none = HTTPStatus.LENGTH_REQUIRED, "Send the body with Content-Length, not in chunks."
            self.refusal = two if b"content-length" in names else none
        status, sentence = self.refusal
        raise h11.RemoteProtocolError(sentence, error_status_hint=status)


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with timeouts for receiving requests and for sending responses.

    Beyond `most` connections, the one for which the server has waited longest is closed.  One
    client address may have at most `most_each`, if that is not None.
    """

    most: ClassVar[int]
    most_each: ClassVar[int | None]
    waiting: ClassVar[dict[TimedProtocol, None]]
    """Connections with an incomplete request, an unread response or pipelined requests, longest
    first."""
    addresses: ClassVar[Counter[str]]
    """The number of connections of each client address."""

    conn: _Connection  # type: ignore[assignment]
    transport: _CountingTransport  # type: ignore[assignment]
    flow: _NoPipelining

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = _Connection(h11.SERVER, MAX_HEAD_BYTES)
        self._rest: int | None = None  # bytes to discard after the last response
        self._timed: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._earned = 0.0  # seconds added for received bytes of a body
        self._patience = ANSWER_SECONDS
        self._taken = 0  # bytes sent at the last update of the patience
        self._since = 0.0  # time of the last update of the patience
        self._answer_timer: asyncio.TimerHandle | None = None
        self._address: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # Writing pauses, and the timeout starts, as soon as the kernel does not accept all bytes.
        transport.set_write_buffer_limits(high=0)
        _limit_unsent_bytes(transport.get_extra_info("socket"))
        counting = _CountingTransport(transport, lambda: self._close(transport))
        super().connection_made(counting)  # type: ignore[arg-type]
        self.flow = _NoPipelining(self.transport, self.conn)  # type: ignore[arg-type]
        self._set_timeout(h11.IDLE)
        self._update_waiting()
        if not self._count_address():
            self.logger.warning(f"{_ONE_ADDRESS} ({self.most_each}); further ones are closed")
            self.give_up()
        elif len(self.connections) > self.most:
            self.logger.warning(f"{_CROWDED} ({self.most}); idle ones are closed")
            next(iter(self.waiting)).give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timeout(None)
        self._stop_answer_timer()
        if self._address is not None:
            self.addresses[self._address] -= 1
            if not self.addresses[self._address]:
                del self.addresses[self._address]
        super().connection_lost(exc)
        self.waiting.pop(self, None)

    def data_received(self, data: bytes) -> None:
        if self._timed is h11.SEND_BODY:
            self._earned += len(data) / BODY_RATE
        if self._rest is None:
            super().data_received(data)
            return
        self._rest -= len(data)
        if self._rest < 0:
            self.give_up()

    def handle_events(self) -> None:
        self.flow.another_waits = False
        super().handle_events()
        state = self.conn.their_state
        if state is h11.IDLE:
            self.flow.resume_reading()
            # After a response, uvicorn's own timer runs until the first byte of the next request.
            self._set_timeout(h11.IDLE if self.timeout_keep_alive_task is None else None)
        else:
            self._set_timeout(h11.SEND_BODY if state is h11.SEND_BODY else None)
        self._update_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._rest is not None:
            self._unset_keepalive_if_required()  # otherwise it closes in five seconds

    def send_400_response(self, msg: str) -> None:
        if self.conn.refusal is None:
            super().send_400_response(msg)
            return
        status, sentence = self.conn.refusal
        body = json.dumps({"error": sentence}).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        head = h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self._close_gracefully()

    def _close(self, transport: asyncio.Transport) -> None:
        """Close the connection; gracefully if the client is still sending a body."""
        if self._rest is None and self.conn.their_state is h11.SEND_BODY:
            self._close_gracefully()
        else:
            transport.close()

    def _close_gracefully(self) -> None:
        """End the connection, but continue to read for a while.

        If it were closed immediately, bytes in flight would reset it, and the peer would lose the
        response.
        """
        self._rest = REST
        self._unset_keepalive_if_required()
        with suppress(OSError):  # the peer has disconnected
            self.transport.write_eof()
        self.flow.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_patience(waited=False)
        self._answer_timer = self.loop.call_later(self._patience, self._check_patience)
        self._update_waiting()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_patience(waited=True)
        self._stop_answer_timer()
        self._update_waiting()

    def _update_waiting(self) -> None:
        """Update `waiting`: the server waits for the peer, or the peer pipelines requests (browsers
        do not)."""
        waits = self.flow.write_paused or self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if waits or self.flow.another_waits:
            self.waiting.setdefault(self, None)
        else:
            self.waiting.pop(self, None)

    def _count_address(self) -> bool:
        """Count the connection; returns whether the client's address is within its limit."""
        # Clients of a tunnel or proxy on this machine all have the machine's own address.
        if self.most_each is None or not self.client or _is_this_machine(self.client[0]):
            return True
        self._address = network(self.client[0])
        self.addresses[self._address] += 1
        return self.addresses[self._address] <= self.most_each

    def _update_patience(self, *, waited: bool) -> None:
        """Subtract the seconds waited from the patience, and add seconds for the bytes read."""
        now, taken = self.loop.time(), self.transport.taken
        spent = now - self._since if waited else 0.0
        earned = (taken - self._taken) / ANSWER_RATE
        self._patience = min(ANSWER_SECONDS, self._patience + earned - spent)
        self._taken, self._since = taken, now

    def _check_patience(self) -> None:
        self._update_patience(waited=True)
        if self._patience > 0:
            self._answer_timer = self.loop.call_later(self._patience, self._check_patience)
        else:
            self.give_up()

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _set_timeout(self, part: Any) -> None:
        """Start or stop the timeout of a part of a request; slow bytes do not restart it."""
        if part is self._timed:
            return
        self._timed = part
        self._earned = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if part is not None and not self.transport.is_closing():
            seconds = HEAD_SECONDS if part is h11.IDLE else BODY_SECONDS
            self._timer = self.loop.call_later(seconds, self._check_timeout)

    def _check_timeout(self) -> None:
        if self._earned:
            earned, self._earned = self._earned, 0.0
            self._timer = self.loop.call_later(earned, self._check_timeout)
        else:
            self.give_up()

    def give_up(self) -> None:
        """Abort the connection: a regular close would wait for a client that does not read."""
        self.waiting.pop(self, None)
        self.transport.abort()


def protocol(*, most: int, most_each: int | None = None) -> type[TimedProtocol]:
    """The protocol of a server with at most `most` connections, `most_each` per address."""
    own = {"most": most, "most_each": most_each, "waiting": {}, "addresses": Counter()}
    return type("Protocol", (TimedProtocol,), own)


def _is_this_machine(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # not TCP
        return True
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _limit_unsent_bytes(connection: socket.socket) -> None:
    """Limit the bytes that the kernel buffers beyond those in flight, so that progress is visible.

    It would buffer megabytes for each peer that does not read.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        with suppress(OSError):  # not TCP
            connection.setsockopt(socket.IPPROTO_TCP, option, UNSENT)


class Throttle(logging.Filter):
    """Passes log lines with one of the prefixes `beginnings` once in `every` seconds, and lines
    with a `place`, or about an error in a request, once for each place.

    The next line that passes has the number of suppressed ones.  All other lines pass.
    """

    def __init__(
        self,
        beginnings: tuple[str, ...],
        *,
        every: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._beginnings = beginnings
        self._every = every
        self._clock = clock
        self._last_logged: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        line = str(record.msg)
        known = getattr(record, "place", None) or _place_of_error(record)
        known = known or next((s for s in self._beginnings if line.startswith(s)), None)
        if known is None:
            return True
        moment = self._clock()
        if moment - self._last_logged.get(known, -self._every) < self._every:
            self._left_out[known] += 1
            return False
        self._last_logged[known] = moment
        if more := self._left_out.pop(known, 0):
            record.msg = f"{line} ({more} more like this were not logged)"
        return True


def _place_of_error(record: logging.LogRecord) -> str | None:
    """Where the error that ended a request was raised: a client can repeat such a request."""
    error = record.exc_info[1] if record.exc_info else None
    if error is None or not str(record.msg).startswith(_DEFECT):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else _DEFECT
    return f"{type(error).__name__} {where}"


_QUIET = Throttle(_THROTTLED)
