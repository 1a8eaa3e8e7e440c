"""Chat templates and tokenization, for all stages.

Policy and reward model read the same rendering (`ChatTokenizer.chat`), in training and inference:

    prompt as the template writes it, with the header of the assistant's turn
    + the completion's own tokens
    + the token that ends a turn
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jinja2
from transformers import AutoTokenizer, GenerationConfig

from pipeline.models.context import FALLBACK_TEMPLATE
from pipeline.models.hub import explaining_load_errors, require_model
from storage.records import Message, as_messages

Messages = str | Sequence[Message | Mapping[str, str]]

_KNOWN_ENDS = ("<|im_end|>", "<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "[EOS]", "[SEP]")
_KNOWN_PADS = ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>", "<|finetune_right_pad_id|>", "<unk>")


CONTEXT = "the model's context"
_NAMED = 5
"""Maximum number of rows that a message names."""


class TooLong(ValueError):
    """Texts exceed a limit."""


@dataclass(frozen=True)
class Encoded:
    """A prompt with its completion: token `ids`, of which the first `prompt_tokens` are the prompt's."""

    ids: list[int]
    prompt_tokens: int


def read_messages(text: str) -> tuple[Message, ...]:
    """Messages from their stored form, a JSON list of {"role", "content"}."""
    return as_messages(json.loads(text))


class ChatTokenizer:
    """Converts messages and completions to token ids and back, with one model's tokenizer.

    Adds a missing pad token (it may equal end-of-text, because masks are made from lengths),
    end-of-text token and chat template.
    """

    def __init__(
        self, tokenizer: Any, *, name: str = "the model", stops: Iterable[int] = ()
    ) -> None:
        self.tokenizer = tokenizer
        self.name = name
        _ensure_end(tokenizer, name)
        _ensure_pad(tokenizer)
        _ensure_template(tokenizer)
        self._stops = set(stops)

    @classmethod
    def load(cls, name: str) -> ChatTokenizer:
        """The tokenizer of a model directory or hub id, with all end tokens that the model names.

        Raises `ModelUnavailable` with one sentence.
        """
        path = require_model(name)
        with explaining_load_errors(name):
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
            stops = _generation_stops(path)
        return cls(tokenizer, name=name, stops=stops)

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_token_id

    @cached_property
    def end_id(self) -> int:
        """The token that the template writes after an assistant's turn, else end-of-text."""
        mark = "kitestring"
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": mark}],
            tokenize=False,
            enable_thinking=False,
        )
        after = self.tokenizer(text.rpartition(mark)[2], add_special_tokens=False)["input_ids"]
        control = set(self.tokenizer.added_tokens_decoder) | self._stops
        return next((i for i in after if i in control), self.tokenizer.eos_token_id)

    @cached_property
    def stop_ids(self) -> list[int]:
        """All ids that end a response; chat models often have one for turns and one for texts."""
        return sorted(self._stops | {self.end_id, self.tokenizer.eos_token_id})

    @property
    def declared_stop_ids(self) -> set[int]:
        """Those that the model's files name, at which other engines stop too."""
        return self._stops | {self.tokenizer.eos_token_id}

    def prompt(self, messages: Messages) -> list[int]:
        """Token ids of a conversation up to the header of the assistant's turn.

        Thinking mode is off if the template supports that.  If the template refuses a system
        message, the message is prepended to the first user message.
        """
        turns = [{"role": m.role, "content": m.content} for m in as_messages(messages)]
        try:
            return self._apply(turns)
        except jinja2.TemplateError as error:
            if turns[0]["role"] != "system" or len(turns) < 2:
                raise self._refused(error) from error
        first, second, *rest = turns
        merged = f"{first['content']}\n\n{second['content']}"
        try:
            return self._apply([{"role": second["role"], "content": merged}, *rest])
        except jinja2.TemplateError as error:
            raise self._refused(error) from error

    def completion(self, text: str) -> list[int]:
        """Token ids of a response with its end; control tokens in the text are encoded as text."""
        ids = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return [*ids["input_ids"], self.end_id]

    def chat(self, messages: Messages, completion: str) -> Encoded:
        """A prompt with its completion, as policy and reward model read it."""
        prompt = self.prompt(messages)
        return Encoded([*prompt, *self.completion(completion)], prompt_tokens=len(prompt))

    def plain(self, text: str) -> list[int]:
        """Token ids of plain text."""
        ids = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return ids["input_ids"]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a sampled response, without the token that ended it."""
        kept = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return self.tokenizer.decode(
            kept, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _apply(self, turns: list[dict[str, str]]) -> list[int]:
        return self.tokenizer.apply_chat_template(
            turns,
            add_generation_prompt=True,
            enable_thinking=False,
            return_dict=False,
            # <|im_end|> in a user's message is text.  Older transformers ignore this argument.
            sanitize_control_tokens=True,
        )

    def _refused(self, error: Exception) -> ValueError:
        return ValueError(f"the chat template of {self.name} refuses a conversation: {error}")


@dataclass(frozen=True, kw_only=True)
class LengthLimits:
    """Limits on a row's tokens, by name.

    Longer rows are an error; with `skip` (``model.long_rows``) they are left out, and `warn` is
    called with a sentence about them.
    """

    limits: Mapping[str, int | None]
    skip: bool = False
    warn: Callable[[str], Any] = lambda _: None

    def fitting(self, lengths: Sequence[int], names: Sequence[str], *, what: str) -> list[int]:
        """The indices of the rows that fit, given all rows' token counts and names.

        Raises `TooLong` if rows do not fit and are not skipped, or if none fits.
        """
        known = [(n, name) for name, n in self.limits.items() if n is not None]
        limit, name = min(known, default=(sys.maxsize, ""))
        over = {i: length for i, length in enumerate(lengths) if length > limit}
        if not over:
            return list(range(len(lengths)))
        found = (
            f"{len(over)} of {len(lengths)} {what} exceed {name}={limit} tokens: "
            f"{name_rows([(names[i], length) for i, length in over.items()])}"
        )
        if not self.skip or len(over) == len(lengths):
            raised = f"raise {name}, " if name != CONTEXT else ""
            skipping = "" if self.skip else ", or set model.long_rows=skip to leave them out"
            raise TooLong(f"{found}; {raised}shorten or remove them{skipping}")
        self.warn(f"{found}; they are left out (model.long_rows=skip)")
        return [i for i in range(len(lengths)) if i not in over]


def name_rows(rows: Sequence[tuple[str, int]]) -> str:
    """The names and token counts of the first rows, and the number of the others."""
    named = ", ".join(f"{name} ({tokens} tokens)" for name, tokens in rows[:_NAMED])
    return named + (f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else "")


def _ensure_end(tokenizer: Any, name: str) -> None:
    if tokenizer.eos_token_id is not None:
        return
    vocabulary = tokenizer.get_vocab()
    known = next((token for token in _KNOWN_ENDS if token in vocabulary), None)
    if known is None:
        raise ValueError(
            f"the tokenizer of {name} has no end-of-text token: set its eos_token and save it again"
        )
    tokenizer.eos_token = known


def _ensure_pad(tokenizer: Any) -> None:
    if tokenizer.pad_token_id is not None:
        return
    vocabulary = tokenizer.get_vocab()
    known_pads = (t for t in _KNOWN_PADS if t in vocabulary and t != tokenizer.eos_token)
    tokenizer.pad_token = next(known_pads, tokenizer.eos_token)


def _ensure_template(tokenizer: Any) -> None:
    if tokenizer.chat_template:
        return
    # The template starts with a BOS token only if the tokenizer does.
    starts = tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
    bos = "bos_token" if starts and tokenizer.bos_token_id is not None else "''"
    tokenizer.chat_template = FALLBACK_TEMPLATE.replace("KITESTRING_BOS", bos)


def _generation_stops(path: str) -> list[int]:
    """The end tokens of a model's generation_config.json, if it has one."""
    try:
        ids = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:
        return []
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
