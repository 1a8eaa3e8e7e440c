"""The cookies that a browser sends."""

from __future__ import annotations

from collections.abc import Mapping


def read_cookie(headers: Mapping[str, str], wanted: str) -> str:
    """The value of the first cookie `wanted`, or "" without one.

    The header also holds cookies of other programs on this host, and http.cookies stops at the first
    one that it cannot parse.
    """
    pairs = (part.partition("=") for part in headers.get("cookie", "").split(";"))
    return next((value.strip() for name, _, value in pairs if name.strip() == wanted), "")
