"""What a reader of another tool's file returns, and the helpers that all readers use."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Values = Mapping[str, Any]
Kind = Literal["judgments", "gold", "pairs"]


PERSON = "user-ID"
"""The option that stands for one option for each id of a person, such as `user-5f9e=ana`."""


@dataclass
class Translated:
    """What one row of another tool's file contains.

    `judgments`, `gold` and `pairs` have the columns of these imports.  A judgment without an
    annotator is that of an unknown person.  `left_out` says what the row has besides, and why it is
    not imported; `warnings` are about what is imported.
    """

    judgments: list[dict[str, Any]] = field(default_factory=list)
    gold: list[dict[str, Any]] = field(default_factory=list)
    pairs: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Source:
    """A format: `translate(values, names)` reads a row, or raises ValueError if it is bad.

    `needs` are groups of columns, of which each row has one; `options` are the names that `--map`
    accepts, with what they stand for; `kinds` are the imports that read it.
    """

    title: str
    needs: Sequence[Sequence[str]]
    translate: Callable[[Values, Mapping[str, str]], Translated]
    options: Mapping[str, str] = field(default_factory=dict)
    kinds: Sequence[Kind] = ("judgments",)

    def require_kind(self, kind: str) -> None:
        """ValueError for a kind of import that the format does not have."""
        if kind not in self.kinds:
            known = " or ".join(f"--{each}" for each in self.kinds)
            raise ValueError(f"{self.title} are read with {known}, not --{kind}")

    def require_options(self, names: Mapping[str, str]) -> None:
        """ValueError for a name that the format does not have."""
        unknown = [
            name
            for name in names
            if name not in self.options
            and not (PERSON in self.options and name.startswith("user-"))
        ]
        if unknown:
            known = ", ".join(self.options) or "none"
            raise ValueError(f"{self.title} have no option {unknown[0]}; --map accepts: {known}")


def pair_of(fields: Iterable[str], names: Mapping[str, str]) -> tuple[str, str]:
    """The two fields that hold the responses: those named a and b, or the only two names that
    differ in a last a/b or 1/2, such as `response_a` and `response_b`."""
    fields = list(fields)
    if "a" in names or "b" in names:
        found = names.get("a", ""), names.get("b", "")
        if missing := [name for name in found if name not in fields]:
            raise ValueError(
                f"there is no field {missing[0]!r}; the fields are {', '.join(fields)}"
            )
        return found
    ends = (("a", "b"), ("A", "B"), ("1", "2"), ("0", "1"))
    pairs = [
        (name, name[:-1] + second)
        for first, second in ends
        for name in fields
        if name.endswith(first) and name[:-1] + second in fields
    ]
    if len(pairs) != 1:
        raise ValueError(
            "it is not clear which fields are the two responses; name them with --map a=FIELD and --map "
            f"b=FIELD. The fields are {', '.join(fields)}"
        )
    return pairs[0]


def prompt_of(fields: Values, names: Mapping[str, str], *, besides: Sequence[str]) -> Any:
    """The value of the prompt's field: text, or a list of chat messages."""
    usual = ("prompt", "instruction", "question", "input", "context", "messages", "conversation")
    name = names.get("prompt") or next(
        (each for each in usual if each in fields and each not in besides), None
    )
    if name is None or name not in fields:
        raise ValueError(
            "the prompt is missing; name its field with --map prompt=FIELD. The fields are "
            f"{', '.join(fields)}"
        )
    return fields[name]


def outcome_of(value: str, a: str, b: str, names: Mapping[str, str]) -> str | None:
    """a, b, tie or both_bad, from what an annotator chose; None if it cannot be read.

    `a` and `b` are the fields of the responses.  `--map answer-a=VALUE` and its like say what other
    words mean.
    """
    said = {names.get(f"answer-{each}"): each for each in ("a", "b", "tie", "both-bad")}
    if value in said:
        return said[value].replace("-", "_")
    word = re.sub(r"[^a-z0-9]", "", value.lower())
    for outcome, field_name, words in (
        ("a", a, ("a", "1", "left", "first", "modela", "responsea", "response1")),
        ("b", b, ("b", "2", "right", "second", "modelb", "responseb", "response2")),
        ("tie", "", ("tie", "same", "equal", "both", "bothgood")),
        ("both_bad", "", ("bothbad", "tiebothbad", "neither")),
    ):
        if value == field_name or word in words:
            return outcome
    return None


ANSWERS = {
    "answer-a": "the choice of the first response",
    "answer-b": "the choice of the second response",
    "answer-tie": "the choice of neither",
    "answer-both-bad": "the choice of two bad responses",
}


def messages(value: Any) -> list[dict[str, str]]:
    """A conversation: a list of messages, whose content may be a list of text parts, or its JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError("the conversation is not a list of messages") from None
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise ValueError("the conversation is not a list of messages")
    return [{"role": str(m.get("role")), "content": _content(m.get("content"))} for m in value]


def _content(value: Any) -> str:
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else []
    texts = [part["text"] for part in parts if isinstance(part, Mapping) and part.get("text")]
    if not texts or len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise ValueError("a message has no text, or parts other than text")
    return "\n\n".join(texts)


def split_last(conversation: Any) -> tuple[list[dict[str, str]], str]:
    """The prompt and the last response of a conversation that ends with an assistant's turn."""
    turns = messages(conversation)
    if len(turns) < 2 or turns[-1]["role"] != "assistant":
        raise ValueError("the conversation does not end with an assistant's turn")
    return turns[:-1], turns[-1]["content"]
