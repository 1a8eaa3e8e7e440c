"""The connection to a studio: the token, timeouts, retries, errors and downloads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

F = TypeVar("F", bound=Callable[..., Any])

TOKEN = "KITESTRING_TOKEN"
"""The environment variable with the API token."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds between attempts; each pause is twice the one before."""
TRY_AGAIN = frozenset({429, 502, 503, 504})
NO_TOKEN = (
    f"There is no API token. Create one with `python launch.py users add NAME --role researcher "
    f"--token`, and pass it as token=… or in the environment variable {TOKEN}."
)


class StudioError(RuntimeError):
    """The studio refused a request or did not answer.

    `status` is the HTTP status, None if there was no answer.  `message` is the server's sentence.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status, self.message = status, message
        super().__init__(message if status is None else f"{message} (status {status})")


def route(method: str, path: str) -> Callable[[F], F]:
    """Note which route a method calls; a test compares these with the routes of the server."""

    def noted(function: F) -> F:
        vars(function).setdefault("routes", []).append((method, path))
        return function

    return noted


def part(id: str) -> str:
    """An id as a part of an address."""
    if not id:
        raise StudioError("The id is empty.")
    return quote(id, safe="")


class Connection:
    """One person's connection; use it in one thread at a time.

    A GET, and a POST that changes nothing when it is sent again, are retried for `patience` seconds
    while the server is unreachable or busy.  Every other POST is retried only if it was not sent.
    `timeout` is the longest wait for a connection and for each piece of an answer, in seconds.
    """

    def __init__(self, url: str, token: str | None, *, timeout: float, patience: float) -> None:
        token = token or os.environ.get(TOKEN)
        if not token:
            raise StudioError(NO_TOKEN)
        if not url.startswith(("http://", "https://")):
            raise StudioError(f"{url!r} must start with http:// or https://.")
        self.url = url.rstrip("/")
        self._patience = patience
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout)

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of an answer; parameters that are None are left out."""
        return self._request("GET", path, again=True, params=_given(query)).json()

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, again: bool = False, **more: Any
    ) -> Any:
        """The JSON of an answer; fields that are None are left out.

        `again` says that the same request can be sent twice without another effect.
        """
        return self._request("POST", path, again=again, json=_given(body or {}), **more).json()

    def upload(self, path: str, file: Path, **query: Any) -> Any:
        """Send a file as the body."""
        content = file.read_bytes()
        return self._request(
            "POST", path, again=False, content=content, params=_given(query)
        ).json()

    def download(self, path: str, out: Path, **query: Any) -> Path:
        """Write an answer to a file piece by piece; an interrupted download leaves no file.

        The server prepares a large file before it sends the first piece, so there is no limit for
        this wait.
        """
        partial = out.with_name(f".{out.name}.part")
        try:
            with (
                self.stream("GET", path, params=_given(query)) as answer,
                partial.open("wb") as target,
            ):
                for piece in answer.iter_bytes():
                    target.write(piece)
            partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)
        return out

    @contextmanager
    def stream(self, method: str, path: str, **request: Any) -> Iterator[httpx.Response]:
        """An answer that is read piece by piece."""
        timeout = httpx.Timeout(self._http.timeout.connect, read=None)
        try:
            with self._http.stream(method, path, timeout=timeout, **request) as answer:
                if not answer.is_success:
                    answer.read()
                    raise self._refused(answer)
                yield answer
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _request(self, method: str, path: str, *, again: bool, **request: Any) -> httpx.Response:
        give_up, pause = time.monotonic() + self._patience, FIRST_PAUSE
        while True:
            wait = pause
            try:
                answer = self._http.request(method, path, **request)
            except httpx.TransportError as error:
                # A request that never left cannot have had an effect.
                unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
                if not (again or unsent) or time.monotonic() + wait > give_up:
                    raise self._unreachable(error) from None
            else:
                if answer.is_success:
                    return answer
                wait = max(pause, _seconds(answer.headers.get("retry-after")))
                busy = again and answer.status_code in TRY_AGAIN
                if not busy or time.monotonic() + wait > give_up:
                    raise self._refused(answer)
            time.sleep(wait)
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _refused(self, answer: httpx.Response) -> StudioError:
        try:
            body = answer.json()
            sentence = str(body["error"])
            if rows := body.get("rows"):
                lines = "; ".join(f"line {row['line']}: {row['reason']}" for row in rows)
                sentence = f"{sentence.rstrip('.')}: {lines}."
        except (ValueError, KeyError, TypeError):
            sentence = (
                f"{self.url} answered {answer.reason_phrase or 'with an error'}, and not as a "
                "Kitestring studio does. Check the address."
            )
        if answer.status_code == 401:
            sentence = (
                "The studio does not accept the API token. Create another one with `python launch.py "
                "users add NAME --role researcher --token`."
            )
        return StudioError(sentence, answer.status_code)

    def _unreachable(self, error: Exception) -> StudioError:
        why = str(error) or type(error).__name__
        if isinstance(error, httpx.TimeoutException):
            return StudioError(
                f"The studio at {self.url} did not answer in time. It may still do what was asked; "
                "look at its state before you try again."
            )
        return StudioError(
            f"The studio at {self.url} cannot be reached ({why}). Start it with `python launch.py "
            "serve`, or check the address."
        )


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _seconds(header: str | None) -> float:
    return float(header) if header and header.isdecimal() else 0.0
