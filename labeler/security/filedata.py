"""Refusal of Gradio calls of functions that a role may not call, that name a file, or make Gradio fail.

Before the function runs, Gradio copies a file that a call names into its cache, or downloads it
from a URL, regardless of the function's components. Kitestring's pages send no files. A session
name that is not UTF-8 would stop Gradio's queue for all users.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any

from starlette.types import Message, Receive

_SESSION = re.compile(r"[\w-]{1,64}", re.ASCII)


READING_ONLY = "Your role allows you to read this page, but not to change anything."


class BadCall(ValueError):
    """The body names a file or an unknown function, or is not JSON; the message is a sentence."""


class NotAllowed(BadCall):
    """The body names a function that is for another role."""


async def checked_call(
    receive: Receive, functions: Container[object], *, allowed: Container[object]
) -> tuple[Receive, object]:
    """Read the body and return a `receive` that repeats it, and the name of the call's session.

    Raises `BadCall` unless it is JSON that names no file, only functions in `functions`, and only
    session names of the form that pages use; `NotAllowed` if the function is not in `allowed`.
    """
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise BadCall("The request ended early.")
        body += message.get("body", b"")
        more = message.get("more_body", False)
    # Gradio gets what was checked: another reader could see another one of two equal keys.
    found = _check(body, functions, allowed) if body else None
    checked = json.dumps(found).encode() if body else b""
    whole: list[Message] = [{"type": "http.request", "body": checked, "more_body": False}]

    async def again() -> Message:
        return whole.pop() if whole else await receive()

    return again, found.get("session_hash") if isinstance(found, dict) else None


def _check(body: bytearray, functions: Container[object], allowed: Container[object]) -> Any:
    """The body's value."""
    try:
        found = json.loads(body)
        json.dumps(found, ensure_ascii=False).encode()  # fails for lone surrogates
    except (ValueError, RecursionError):
        raise BadCall("The request body is not JSON.") from None
    if names_a_file(found):
        raise BadCall("A call cannot name a file; import files from the command line.")
    if not isinstance(found, dict):
        return found  # Gradio refuses it
    function, session = found.get("fn_index"), found.get("session_hash")
    if isinstance(function, str | int | float) and function not in functions:
        raise BadCall("The page has no such function. Reload the page.")
    if isinstance(function, str | int | float) and function not in allowed:
        raise NotAllowed(READING_ONLY)
    if isinstance(session, str) and not _SESSION.fullmatch(session):
        raise BadCall("A session's name has up to 64 letters and digits.")
    return found


def names_a_file(value: Any) -> bool:
    """Whether the value contains an object that Gradio could take for a file."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if "path" in each or "_type" in each:
                return True
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return False
