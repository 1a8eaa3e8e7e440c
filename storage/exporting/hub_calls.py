"""Calls of the Hugging Face hub for a push: how long they wait, and their errors as one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import get_session

# The HTTPError of httpx or httpx2, whichever this version of huggingface_hub uses.
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError
from huggingface_hub.utils import validate_repo_id

from storage.errors import explain

WAIT = 120.0
"""Seconds without a byte of the hub after which a call ends; by default, the library waits without limit."""
_LONGEST = 300
_ADVICE = {
    409: "somebody else is changing this repository; push again",
    413: "a file is larger than the hub accepts",
    429: "wait and push again",
}


@contextmanager
def hub_calls(repository: str, token: str | None, *, denied: str) -> Iterator[None]:
    """Raise every error of the calls inside as ValueError: what happened, and what to do.

    `denied` is the advice if the hub refuses.  The library raises errors of many types for an answer that it cannot read.  None may show the token.
    """
    try:
        get_session().timeout = WAIT
        yield
    except Exception as problem:
        text = _sentence(repository, _root(problem), denied)
        raise ValueError(_without(token, text)) from None


def check_repository(name: str) -> None:
    """ValueError unless the name is an OWNER/NAME that the hub accepts."""
    try:
        validate_repo_id(name)
        if re.fullmatch(r"[\x21-\x7e]+/[\x21-\x7e]+", name):
            return
    except HFValidationError:
        pass
    raise ValueError(
        f"{_short(repr(name))} is not a repository; write OWNER/NAME, such as my-lab/policy-3: letters, "
        "digits, single '-', '_' and '.' between them, at most 96 characters"
    )


def check_token(token: str, where: str) -> None:
    """ValueError unless a header of HTTP can contain the token; `where` says where it is from."""
    if not re.fullmatch(r"[\x21-\x7e]{1,500}", token):
        raise ValueError(
            f"{where} does not hold a token of the hub; it must be one line of letters, digits and '_', "
            "without spaces"
        )


def _root(problem: BaseException) -> BaseException:
    """The library hides what the hub answered to a large file in a RuntimeError."""
    cause = problem.__cause__
    hidden = isinstance(problem, RuntimeError) and isinstance(cause, HTTPError | OSError)
    return cause if hidden and cause is not None else problem


def _sentence(repository: str, problem: BaseException, denied: str) -> str:
    if isinstance(problem, HfHubHTTPError):
        status = problem.response.status_code
        answer = _first_line(f"HTTP {status} {problem.server_message or ''}")
        if status >= 500:
            return f"the hub failed while it stored {repository}: {answer} (push again later)"
        return f"the hub refused {repository}: {answer} ({_ADVICE.get(status, denied)})"
    if isinstance(problem, OSError) and problem.filename:
        return explain(problem)  # a file of the upload, not the network
    # The text of a cut connection or a timeout can be empty.
    reason = _first_line(str(problem)) or type(problem).__name__
    if isinstance(problem, HTTPError | OSError):
        return (
            f"{repository} did not reach the hub: {reason} (check the network and HF_ENDPOINT, and push "
            "again)"
        )
    return (
        f"the hub's answer about {repository} is not that of a hub: {reason} (check HF_ENDPOINT, and push "
        "again later)"
    )


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _short(lines[0]).rstrip(".:") if lines else ""


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _without(token: str | None, text: str) -> str:
    """The text without the token, in which an error may quote its characters as Python does."""
    for form in {token, repr(token)[1:-1]} if token else ():
        text = text.replace(form, "…")
    return text
