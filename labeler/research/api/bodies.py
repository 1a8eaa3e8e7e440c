"""The address of the interface, the bodies of requests, and who sends them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Request

from storage.records import Annotator

PREFIX = "/research/api"
Id = Annotated[str, Body(embed=True, min_length=1, max_length=200)]
"""The id of a record, or a name of an account."""
Text = Annotated[str, Body(embed=True, max_length=20_000)]
Word = Annotated[str | None, Body(embed=True, max_length=200)]
Yes = Annotated[bool, Body(embed=True)]
Overrides = Annotated[dict[str, str], Body(embed=True)]
"""Settings by name, such as ``{"ppo.kl_weight": "0.1"}``."""


def person(request: Request) -> Annotator:
    """Who sent the request; the access check has stored them."""
    return request.state.identity.annotator
