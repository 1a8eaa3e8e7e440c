"""One row of a file, read column by column.

Each method returns a checked value, or raises ``ValueError`` with the reason why the row is bad.
Unusual but usable values (a number instead of text) are kept with a warning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from storage.importing.files.filetypes import STRICT, DuplicateKeys, Row, is_missing
from storage.importing.files.row_notes import BadRow
from storage.records import Message, as_messages, now

LONG = 200_000
"""Characters, about 50,000 tokens; a longer text is probably a mistake in the file."""
_CLOCKS_DIFFER = timedelta(minutes=5)
_PROMPT_COLUMNS = ("messages", "prompt", "instruction")


class Cells:
    """The cells of one row, and the warnings about them.

    With `strict`, an unusual value makes the row bad.
    """

    def __init__(self, row: Row, *, strict: bool = False) -> None:
        self.line = row.line
        self._values = row.values
        self._strict = strict
        self.warnings: list[BadRow] = []

    def warn(self, reason: str) -> None:
        self.warnings.append(BadRow(self.line, reason))

    def _unusual(self, reason: str) -> None:
        if self._strict:
            raise ValueError(reason)
        self.warn(reason)

    def has(self, column: str) -> bool:
        """Whether the row has a value in the column; an empty CSV cell counts as missing."""
        value = self._values.get(column)
        return not is_missing(value) and value != ""

    def present(self, column: str) -> bool:
        """Whether the row has the column, even with an empty text."""
        return not is_missing(self._values.get(column))

    def name(self, column: str, default: str | None = None) -> str:
        """A short text such as a name or a label, stripped; numbers are accepted."""
        if not self.has(column):
            return self._default(column, default)
        value = self._values[column]
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # pandas turns a column of integers with gaps into floats
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"{column} must be text, not {_spelled(value)}")
        if not str(value).strip():
            return self._default(column, default)
        return _valid_text(column, str(value).strip())

    def text(self, column: str, default: str | None = None) -> str:
        """Free text, unchanged; numbers and booleans as JSON."""
        value = self._values.get(column)
        if is_missing(value):
            return self._default(column, default)
        return self._as_text(column, value)

    def response(self, column: str) -> str:
        """One assistant turn: text, or a list of one assistant message."""
        value = self._values.get(column)
        if isinstance(value, list):
            messages = self._chat(column, value)
            if len(messages) != 1 or messages[0].role != "assistant":
                raise ValueError(f"{column} must be one assistant message")
            text = messages[0].content
        else:
            text = self.text(column)
        if not text.strip():
            self._unusual(f"{column} is empty")
        return text

    def chat(self, column: str) -> tuple[Message, ...]:
        """A list of {"role", "content"}; plain text is one user turn."""
        value = self._values.get(column)
        if isinstance(value, list):
            return self._chat(column, value)
        return as_messages(self.text(column))

    def is_chat(self, column: str) -> bool:
        return isinstance(self._values.get(column), list)

    def has_prompt(self) -> bool:
        return any(map(self.has, _PROMPT_COLUMNS))

    def prompt(self) -> tuple[Message, ...]:
        """The prompt: `messages`, else `prompt` (text or messages), else `instruction` and
        `input`."""
        if self.has("messages") or self.has("prompt"):
            return self.chat("messages" if self.has("messages") else "prompt")
        if not self.has("instruction"):
            raise ValueError(f"the prompt is missing (one of {', '.join(_PROMPT_COLUMNS)})")
        parts = [self.text("instruction"), self.text("input", "")]
        return as_messages("\n\n".join(part for part in parts if part.strip()))

    def choice(self, column: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of `choices`, in upper or lower case."""
        value = self.name(column, default)
        if value.lower() not in choices:
            raise ValueError(f"{column} is {value!r} and must be one of {', '.join(choices)}")
        return value.lower()

    def integer(self, column: str, *, low: int | None = None, high: int = 2**53) -> int | None:
        """A whole number from `low` to `high`."""
        if not self.has(column):
            return None
        value = self._values[column]
        try:
            if isinstance(value, bool) or float(value) != int(float(value)):
                raise ValueError
            number = int(float(value))
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{column} is {_spelled(value)} and must be a whole number") from None
        if (low is not None and number < low) or number > high:
            raise ValueError(f"{column} is {_spelled(value)} and must be from {low or 0} to {high}")
        return number

    def boolean(self, column: str) -> bool | None:
        """True or false, or 1 or 0, also as text."""
        if not self.has(column):
            return None
        value = self._values[column]
        spelled = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
        try:
            return spelled[str(value).strip().lower()]
        except KeyError:
            raise ValueError(f"{column} is {_spelled(value)} and must be true or false") from None

    def time(self, column: str) -> datetime | None:
        """An ISO 8601 time or a timestamp, not in the future; UTC if it names no zone."""
        if not self.has(column):
            return None
        value = self._values[column]
        try:
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
            moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"{column} is {_spelled(value)} and must be a time like 2026-09-30T14:05:00Z"
            ) from None
        if moment > now() + _CLOCKS_DIFFER:
            raise ValueError(
                f"{column} is {_spelled(value)}, which is in the future (a time without a zone is read as UTC)"
            )
        # A parquet timestamp is a subclass of datetime with nanoseconds.
        return datetime.fromisoformat(moment.isoformat(timespec="microseconds"))

    def mapping(self, column: str) -> dict[str, str]:
        """A JSON object of strings, or its text in CSV and parquet."""
        return {k: str(v) for k, v in self._object(column).items()}

    def lists(self, column: str) -> dict[str, tuple[str, ...]]:
        """The same of lists of strings; empty lists are left out."""
        found = self._object(column)
        for key, texts in found.items():
            if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
                raise ValueError(
                    f'{column}: {key} must be a list of texts, as in {{"a": ["vague"]}}'
                )
        return {key: tuple(texts) for key, texts in found.items() if texts}

    def objects(self, column: str) -> dict[str, tuple[Mapping[str, Any], ...]]:
        """The same of lists of objects."""
        found = self._object(column)
        for key, each in found.items():
            if not isinstance(each, list) or not all(isinstance(one, Mapping) for one in each):
                raise ValueError(f"{column}: {key} must be a list of objects")
        return {key: tuple(each) for key, each in found.items() if each}

    def _object(self, column: str) -> dict[str, Any]:
        """A JSON object, without the keys whose value is null."""
        if not self.has(column):
            return {}
        value = self._values[column]
        try:
            value = json.loads(value, **STRICT) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, DuplicateKeys):
            raise ValueError(f"{column} has {value.twice} twice")
        if not isinstance(value, Mapping):
            raise ValueError(f'{column} must be an object like {{"helpful": "a"}}')
        return {str(k): v for k, v in value.items() if v is not None}

    def _default(self, column: str, default: str | None) -> str:
        if default is None:
            raise ValueError(f"{column} is missing")
        return default

    def _as_text(self, column: str, value: Any) -> str:
        if isinstance(value, bool | int | float):
            kind = "boolean" if isinstance(value, bool) else "number"
            if self._strict:
                raise ValueError(f"{column} must be text, not the {kind} {_spelled(value)}")
            self.warn(f"{column} is the {kind} {_spelled(value)}, kept as text")
            return json.dumps(value)
        if not isinstance(value, str):
            raise ValueError(f"{column} must be text, not {_spelled(value)}")
        if len(value) > LONG:
            self._unusual(
                f"{column} has {len(value):,} characters; the limit for a judgment is {LONG:,}"
            )
        return _valid_text(column, value)

    def _chat(self, column: str, messages: list[Any]) -> tuple[Message, ...]:
        if not messages:
            raise ValueError(f"{column} has no message")
        turns: list[Message] = []
        for message in messages:
            if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
                raise ValueError(f'{column} must be a list of {{"role", "content"}} messages')
            if isinstance(message, DuplicateKeys):
                raise ValueError(f"a message in {column} has {message.twice} twice")
            if is_missing(message["content"]):
                raise ValueError(f"a message in {column} has no content")
            turns.append(Message(str(message["role"]), self._as_text(column, message["content"])))
        return tuple(turns)


def _valid_text(column: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(
            f"{column} contains half of a surrogate pair (\\ud800 to \\udfff), which cannot be stored"
        ) from None
    if "\0" in text:
        raise ValueError(f"{column} contains a NUL character")
    return text


def _spelled(value: Any) -> str:
    """The value as JSON, at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"
