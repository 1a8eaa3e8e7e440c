"""Annotators over HTTP: what the page in the browser does, for programs.

See docs/http.md.  A client sees what a person sees (a conversation and two responses on the
left and the right), answers with *a*, *b*, *tie* or *both_bad*, and sends an answer again under
the same id until the server has said that it is saved.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx

from pipeline.simulation.annotators import Choice
from storage.reports import Blocked

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds; doubles from attempt to attempt
_PAUSE = 0.5  # seconds between looks at the loop


class ServerRefused(RuntimeError):
    """The server refused a request for good; the message is its reason."""


@dataclass(frozen=True, kw_only=True)
class LeasedPair:
    """A pair as it stands on the screen; `prompt` is the conversation as one text."""

    id: str
    prompt: str
    left: str
    right: str

    @property
    def words(self) -> int:
        """Words on the screen."""
        return sum(len(text.split()) for text in (self.prompt, self.left, self.right))


def conversation(messages: Sequence[Mapping[str, str]]) -> str:
    """A lone user turn as its text; a longer chat as "role: content" paragraphs."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"{m['role']}: {m['content']}" for m in messages)


class LabelClient:
    """One annotator's connection; a context manager.  Not shared between threads.

    While the server is away or out of disk space, requests are sent again for `patience`
    seconds; `timeout` seconds is the longest wait for one reply.
    """

    def __init__(
        self, base_url: str, token: str, *, timeout: float = 30.0, patience: float = 10.0
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=timeout)
        self._patience = patience

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.close()

    def next(self, count: int) -> list[LeasedPair]:
        """Up to `count` pairs leased to this annotator; none when nothing waits for them."""
        reply = self._send("GET", "/label/api/next", params={"n": count})
        return [_shown(pair) for pair in reply["pairs"]]

    def judge(self, comparison: str, verdict: Choice, *, id: str | None = None) -> None:
        """Store a judgment; returns once the server says it is saved."""
        self._send(
            "POST",
            "/label/api/judgments",
            json={
                "id": id or str(uuid.uuid4()),
                "comparison": comparison,
                "outcome": verdict.outcome,
                "strength": verdict.strength,
                "milliseconds": verdict.milliseconds,
            },
        )

    def _send(self, method: str, path: str, **request: Any) -> Any:
        """The JSON of a reply; sends again (judgments carry their id) while the server is away."""
        give_up, pause = time.monotonic() + self._patience, _FIRST_PAUSE
        while True:
            last = time.monotonic() + pause > give_up
            try:
                reply = self._http.request(method, path, **request)
            except httpx.TransportError:
                if last:
                    raise
            else:
                if reply.is_success:
                    return reply.json()
                if reply.status_code != httpx.codes.SERVICE_UNAVAILABLE or last:
                    raise ServerRefused(f"{method} {path}: {reply.status_code} {reason(reply)}")
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)


NO_TIMEOUT = ("import", "export", "backup", "verify")
"""Commands that take as long as there are data; cut short, they would go on unseen."""


class AdminClient:
    """Commands to a live server; a context manager.  Address and token are in server.json.

    `timeout` seconds is the longest wait for a connection, and for the reply to a command whose
    time does not grow with the data.
    """

    def __init__(self, base_url: str, token: str, *, timeout: float = 60.0) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=timeout)
        self._timeout = timeout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.close()

    def __call__(self, command: str, arguments: dict[str, Any]) -> Any:
        """The command's result; ``ValueError`` with a sentence when it is refused or unheard."""
        body = {"command": command, "arguments": arguments}
        reading = None if command in NO_TIMEOUT else self._timeout
        try:
            reply = self._http.post(
                "/admin/api/call", json=body, timeout=httpx.Timeout(self._timeout, read=reading)
            )
        except httpx.ReadTimeout:
            raise ValueError(
                f"the server at {self._http.base_url} has not answered `{command}` for "
                f"{self._timeout:g} s and may still be running it; check `status` before you send it again"
            ) from None
        except httpx.TransportError as error:
            url = self._http.base_url
            raise ValueError(
                f"the server at {url} does not answer ({error}); stop the process that has the "
                "workspace open, or wait for it"
            ) from None
        if reply.is_success:
            return reply.json()["result"]
        raise ValueError(reason(reply))


class Tally:
    """How many judgments are still to be made, shared by the clients of one iteration."""

    def __init__(self, wanted: int, names: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._wanted = wanted
        self._claimed = self.saved = 0
        self._empty_handed_at = dict.fromkeys(names, -1)

    def claim(self) -> bool:
        """Reserve one judgment; False when all are spoken for."""
        with self._lock:
            if self._claimed == self._wanted:
                return False
            self._claimed += 1
            return True

    def count(self) -> None:
        """A claimed judgment has been saved."""
        with self._lock:
            self.saved += 1

    def all_claimed(self) -> bool:
        with self._lock:
            return self._claimed == self._wanted

    def empty_handed(self, name: str) -> bool:
        """Note that nothing waits for `name`; True when nothing waits for anybody.

        A judgment saved since may have opened a pair to a second annotator, so only those who
        came back empty-handed after the last one count.
        """
        with self._lock:
            self._empty_handed_at[name] = self.saved
            nothing_open = self._claimed == self.saved
            return nothing_open and all(at == self.saved for at in self._empty_handed_at.values())

    def close(self) -> None:
        """Let everybody stop: a client has failed."""
        with self._lock:
            self._claimed = self._wanted


def reason(reply: httpx.Response) -> str:
    """Why the server refused: the sentence in its reply, else the name of the status."""
    try:
        body = reply.json()
    except ValueError:
        return reply.reason_phrase
    return str(body.get("error", body)) if isinstance(body, dict) else str(body)


def _shown(pair: Mapping[str, Any]) -> LeasedPair:
    turns = [{"role": turn["role"], "content": turn["text"]} for turn in pair["prompt"]]
    return LeasedPair(
        id=pair["id"],
        prompt=conversation(turns),
        left=pair["a"]["text"],
        right=pair["b"]["text"],
    )


def what_stopped(blocked: Blocked) -> str:
    """Which stage stopped, why, and what helps."""
    resume = "`resume` (from its last checkpoint), " if blocked.resumable else ""
    label = " or `label-more` (back to labeling)" if blocked.stage == "reward" else ""
    reason = str(blocked.reason).rstrip(".")
    return (
        f"the {blocked.stage} stage stopped: {reason}. Go on with "
        f"`python launch.py` {resume}`retry` (from scratch; --set changes a setting){label}"
    )


def follow(
    call: Callable[[str], Any], *, until: str, tell: Callable[[str], None], after: int = 0
) -> dict[str, Any]:
    """Move the loop, telling each step, until a phase of an iteration later than `after`.

    Raises RuntimeError when a stage stops, ValueError when there is nothing to start with.
    """
    told = ""
    while True:
        state = call("advance")
        if stopped := state["blocked"]:
            raise RuntimeError(what_stopped(Blocked(**stopped)))
        if state["iteration"] is None:
            raise ValueError("there are no prompts yet; import some with `launch.py import`")
        line = f"iteration {state['iteration']}: {_doing(state['phase_name'], state['message'])}"
        if line != told:
            tell(line)
            told = line
        if state["phase"] == until and state["iteration"] > after:
            return state
        time.sleep(_PAUSE)


def _doing(phase: str, message: str) -> str:
    """What the loop does; a stage that is called like its phase is not named twice."""
    return message if message.startswith(f"{phase} ") else f"{phase} {message}".strip()
