"""Calls of the research page's functions over HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx


class Page:
    """The functions of the page, called as a browser would."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.config = client.get("/research/config").json()
        self.calls = 0

    def of(self, elem_id: str, event: str) -> dict[str, Any]:
        """The function that follows an event of the component with this id."""
        [part] = [p for p in self.config["components"] if p["props"].get("elem_id") == elem_id]
        return next(f for f in self.config["dependencies"] if [part["id"], event] in f["targets"])

    def call(self, function: dict[str, Any], data: list[Any], event: Any = None) -> dict[str, Any]:
        """What the page is told: {"success", "output"}."""
        self.calls += 1
        session = f"session{self.calls}"
        body = {
            "data": data,
            "fn_index": function["id"],
            "session_hash": session,
            "event_data": event,
            "trigger_id": function["targets"][0][0],
        }
        assert self.client.post("/research/gradio_api/queue/join", json=body).status_code == 200
        path = f"/research/gradio_api/queue/data?session_hash={session}"
        with self.client.stream("GET", path) as stream:
            for line in stream.iter_lines():
                if "process_completed" in line:
                    return json.loads(line.removeprefix("data: "))
        raise AssertionError("the stream ended early")
