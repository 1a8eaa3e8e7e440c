"""Pushes of models to the Hugging Face hub."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kitestring.client.connection import Connection, part, route
from kitestring.client.records import Push
from kitestring.client.rows import parsed

PUSHES = "/research/api/pushes"
_OVER = ("done", "failed", "cancelled")


class Pushes:
    """``studio.pushes``: trained models as repositories of the hub; the server has the token."""

    def __init__(self, at: Connection) -> None:
        self._at = at

    @route("GET", PUSHES)
    def models(self) -> Mapping[str, Any]:
        """The `models` that can be pushed, and the `reason` if the server has no token."""
        return self._at.get(PUSHES)

    @route("GET", f"{PUSHES}/plan/{{model}}")
    def plan(self, model: str) -> Mapping[str, Any]:
        """What a push uploads: its `files`, `bytes`, and the model `card`."""
        return self._at.get(f"{PUSHES}/plan/{part(model)}")

    @route("POST", PUSHES)
    def start(self, model: str, repository: str, *, private: bool = True) -> Push:
        """Start to upload a model to OWNER/NAME."""
        body = {"model": model, "repository": repository, "private": private}
        return parsed(Push, self._at.post(PUSHES, body))

    @route("GET", f"{PUSHES}/{{id}}")
    def get(self, id: str) -> Push:
        """A push as it is now."""
        return parsed(Push, self._at.get(f"{PUSHES}/{part(id)}"))

    @route("POST", f"{PUSHES}/{{id}}/cancel")
    def cancel(self, id: str) -> Push:
        """Cancel a push whose files are not committed yet."""
        return parsed(Push, self._at.post(f"{PUSHES}/{part(id)}/cancel", again=True))

    def wait(self, push: Push) -> Push:
        """The push when it is over; its `phase` says whether it is done."""
        while push.phase not in _OVER:
            time.sleep(0.5)
            push = self.get(push.id)
        return push
