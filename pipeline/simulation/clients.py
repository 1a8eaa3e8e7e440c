"""HTTP clients of the labeling page and of the admin interface (docs/http.md).

A label client gets a conversation with two responses, as a person does, and sends each judgment again
with the same id until the server confirms that it is saved.
"""

from __future__ import annotations

import json
import shlex
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from pipeline.simulation.annotators import Choice
from storage.reports import Blocked, LoopState, from_json

_FIRST_PAUSE, _MAX_PAUSE = 0.1, 2.0  # seconds; doubles from attempt to attempt
_PAUSE = 0.5  # seconds between two requests for the loop's state
_LOADING = 600.0  # seconds that the models of live conversations may take to load


class ServerRefused(RuntimeError):
    """The server refused a request permanently; the message is its reason."""


@dataclass(frozen=True, kw_only=True)
class LeasedPair:
    """A pair as shown on the screen; `prompt` is the conversation as one text."""

    id: str
    prompt: str
    left: str
    right: str

    @property
    def words(self) -> int:
        """Words on the screen."""
        return sum(len(text.split()) for text in (self.prompt, self.left, self.right))


@dataclass(frozen=True, kw_only=True)
class LiveTurn:
    """A turn of a live conversation, whose `pair` has both replies; `last` if none can follow."""

    conversation: str
    pair: LeasedPair
    last: bool


def conversation(messages: Sequence[Mapping[str, str]]) -> str:
    """A single message as its text; a longer chat as "role: content" paragraphs."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"{m['role']}: {m['content']}" for m in messages)


class LabelClient:
    """One annotator's connection; a context manager, not thread-safe.

    While the server is unreachable or out of disk space, requests are retried for `patience`
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
        """Up to `count` pairs leased to this annotator; empty if none is available."""
        reply = self._send("GET", "/label/api/next", params={"n": count})
        return [_leased_pair(pair) for pair in reply["pairs"]]

    def judge(self, comparison: str, verdict: Choice, *, id: str | None = None) -> bool:
        """Store a judgment; returns once the server says it is saved, and whether it was practice."""
        reply = self._send(
            "POST",
            "/label/api/judgments",
            json={
                "id": id or str(uuid.uuid4()),
                "comparison": comparison,
                "outcome": verdict.outcome,
                "strength": verdict.strength,
                "edit": verdict.edit,
                "milliseconds": verdict.milliseconds,
            },
        )
        return "practice" in reply

    def live(self) -> Mapping[str, Any]:
        """What the page needs for live conversations: whether they are possible, and suggestions."""
        return self._send("GET", "/label/api/live")

    def prepare_live(self) -> None:
        """Wait until the models are loaded."""
        self._send("POST", "/label/api/live/prepare", timeout=_LOADING)

    def live_turn(self, text: str, conversation: str | None) -> LiveTurn:
        """Send a message and get both replies; without `conversation` a new one begins.

        A message whose replies ended early, or came while too many others were generated, is sent
        again within `patience`.
        """
        body = {"text": text, "conversation": conversation}
        give_up, pause = time.monotonic() + self._patience, _FIRST_PAUSE
        while True:
            reply = self._request("POST", "/label/api/live/turns", json=body, timeout=_LOADING)
            begun, *_, ended = map(json.loads, reply.text.splitlines())
            if ended["event"] == "pair":
                pair = _leased_pair(ended["pair"])
                return LiveTurn(conversation=begun["conversation"], pair=pair, last=ended["last"])
            if time.monotonic() + pause > give_up:
                raise ServerRefused(f"the live conversation has no replies: {ended['error']}")
            time.sleep(pause)
            pause = min(_MAX_PAUSE, 2 * pause)

    def _send(self, method: str, path: str, **request: Any) -> Any:
        """The JSON of a reply; retries while the server is unreachable."""
        return self._request(method, path, **request).json()

    def _request(self, method: str, path: str, **request: Any) -> httpx.Response:
        """A reply that is a success; retries while the server is unreachable."""
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
                    return reply
                if reply.status_code != httpx.codes.SERVICE_UNAVAILABLE or last:
                    raise ServerRefused(f"{method} {path}: {reply.status_code} {reason(reply)}")
            time.sleep(pause)
            pause = min(_MAX_PAUSE, 2 * pause)


NO_TIMEOUT = ("import", "export", "backup", "verify", "ask")
"""Commands whose duration grows with the data or with a model; after a timeout they would still be running."""


class AdminClient:
    """Sends commands to a running server; a context manager.  server.json has the address and token.

    `timeout` seconds is the longest wait for a connection, and for the reply to a command that is
    not in `NO_TIMEOUT`.
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
        """The command's result; ``ValueError`` with a sentence if it is refused or not answered."""
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
    """Counts the claimed and saved judgments of an iteration; shared by all clients."""

    def __init__(self, wanted: int, names: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._wanted = wanted
        self._claimed = self.saved = 0
        self._empty_handed_at = dict.fromkeys(names, -1)

    def claim(self) -> bool:
        """Reserve one judgment; False if all are reserved."""
        with self._lock:
            if self._claimed == self._wanted:
                return False
            self._claimed += 1
            return True

    def count(self) -> None:
        """Record that a claimed judgment has been saved."""
        with self._lock:
            self.saved += 1

    def all_claimed(self) -> bool:
        with self._lock:
            return self._claimed == self._wanted

    def empty_handed(self, name: str) -> bool:
        """Note that no pair is available to `name`; True if none is available to anybody.

        Only answers since the last saved judgment count, because a judgment can make a pair
        available to a second annotator.
        """
        with self._lock:
            self._empty_handed_at[name] = self.saved
            nothing_open = self._claimed == self.saved
            return nothing_open and all(at == self.saved for at in self._empty_handed_at.values())

    def close(self) -> None:
        """Make all clients stop, after one has failed."""
        with self._lock:
            self._claimed = self._wanted


def reason(reply: httpx.Response) -> str:
    """The sentence in the server's reply, or the name of the status."""
    try:
        body = reply.json()
    except ValueError:
        return reply.reason_phrase
    return str(body.get("error", body)) if isinstance(body, dict) else str(body)


def _leased_pair(pair: Mapping[str, Any]) -> LeasedPair:
    turns = [{"role": turn["role"], "content": turn["text"]} for turn in pair["prompt"]]
    return LeasedPair(
        id=pair["id"],
        prompt=conversation(turns),
        left=pair["a"]["text"],
        right=pair["b"]["text"],
    )


def what_stopped(blocked: Blocked, workspace: Path) -> str:
    """A sentence that says which stage of a workspace stopped, why, and which commands continue."""
    choices = {
        "resume": "from its last checkpoint" if blocked.resumable else "",
        "retry": "from scratch; --set changes a setting",
        "label-more": "back to labeling" if blocked.stage == "reward" else "",
    }
    commands = [
        f"`python launch.py {name} --workspace {shlex.quote(str(workspace))}` ({effect})"
        for name, effect in choices.items()
        if effect
    ]
    reason = str(blocked.reason).rstrip(".")
    return f"the {blocked.stage} stage stopped: {reason}. Continue with {' or '.join(commands)}"


def follow(
    call: Callable[[str], Any],
    workspace: Path,
    *,
    until: str,
    progress: Callable[[str], None],
    after: int = 0,
) -> LoopState:
    """Advance the loop, reporting each step, until a phase of an iteration later than `after`.

    Raises RuntimeError if a stage stops, ValueError if there are no prompts.
    """
    reported = ""
    while True:
        state = from_json(LoopState, call("advance"))
        if state.blocked:
            raise RuntimeError(what_stopped(state.blocked, workspace))
        if state.iteration is None:
            raise ValueError("there are no prompts yet; import some with `launch.py import`")
        line = f"iteration {state.iteration}: {_doing(state)}"
        if line != reported:
            progress(line)
            reported = line
        if state.phase == until and state.iteration > after:
            return state
        time.sleep(_PAUSE)


def _doing(state: LoopState) -> str:
    """The phase with its message, which may already begin with the phase."""
    phase, message = state.phase_name, state.message
    return message if message.startswith(f"{phase} ") else f"{phase} {message}".strip()
