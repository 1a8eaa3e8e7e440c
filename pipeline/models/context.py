"""Checks at import whether rows of a file fit the model's context.  Does not import torch.

Tokens of a chat template are not counted, so a row that fits here may still exceed the context by a
few tokens.  The stage that encodes the rows finds those (`pipeline.models.text.LengthLimits`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import try_to_load_from_cache
from tokenizers import Tokenizer

from pipeline.config.sections import Config
from pipeline.models.hub import base_model_path, is_local
from storage.records import Message

FALLBACK_TEMPLATE = (
    "{{ KITESTRING_BOS }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ m.content + '\n\n' }}"
    "{% elif m.role == 'user' %}{{ 'User:\n' + m.content + '\n\n' }}"
    "{% else %}{{ 'Assistant:\n' + m.content + eos_token + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:\n' }}{% endif %}"
)
"""For tokenizers without a chat template (base models): plain headings, and end-of-text after each
answer.  The response starts on a new line, so no token spans the boundary."""


class ContextCheck:
    """Checks rows against the context of the model that a workspace starts from."""

    def __init__(
        self, tokenizer: Tokenizer, *, name: str, context: int, answer: int, has_template: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._name = name
        self._context = context
        self._answer = answer
        self._has_template = has_template

    @classmethod
    def of(cls, config: Config) -> ContextCheck | None:
        """The check, or None if the model's files are not here or set no limit."""
        path = base_model_path(config.model.name)
        try:
            settings = json.loads(_file(path, "config.json").read_text(encoding="utf-8"))
            tokenizer = Tokenizer.from_file(str(_file(path, "tokenizer.json")))
        except Exception:  # the tokenizers library raises nothing narrower
            return None
        context = _context(settings.get("text_config") or settings)
        if not context:
            return None
        return cls(
            tokenizer,
            name=config.model.name,
            context=context,
            answer=max(config.sampling.max_new_tokens, config.ppo.max_new_tokens),
            has_template=_has_template(path),
        )

    def __call__(self, messages: Sequence[Message], answers: Sequence[str]) -> str | None:
        """A sentence if a prompt with its longest answer, or room for one, exceeds the context."""
        room = 0 if answers else self._answer
        allowed = self._context - 1 - room  # one for the token that ends an answer
        texts = [self._text(messages, answer) for answer in answers or [""]]
        # No token is shorter than a byte, so most rows need no tokenizer.
        if max(len(text.encode()) for text in texts) <= allowed:
            return None
        # Encoding a text of 50 MB takes 10 GB of memory.
        longest = max(map(self._at_least, texts))
        at_least = longest > allowed
        if not at_least:
            longest = max(
                len(self._tokenizer.encode(text, add_special_tokens=False).ids) for text in texts
            )
        if longest <= allowed:
            return None
        with_room = f" plus {room} for an answer (sampling and ppo.max_new_tokens)" if room else ""
        return (
            f"{'at least ' if at_least else ''}{longest} tokens{with_room} exceed the context of {self._name}, {self._context} tokens; "
            "shorten it, or skip long rows"
        )

    def _at_least(self, text: str) -> int:
        """Tokens that a text has at least: as if each were the longest of the vocabulary."""
        return len(text) // self._longest_token

    @cached_property
    def _longest_token(self) -> int:
        return max(map(len, self._tokenizer.get_vocab()))

    def _text(self, messages: Sequence[Message], answer: str) -> str:
        if self._has_template:
            return "".join([*(message.content for message in messages), answer])
        template = jinja2.Template(FALLBACK_TEMPLATE.replace("KITESTRING_BOS", "''"))
        turns: list[dict[str, Any]] = [{"role": m.role, "content": m.content} for m in messages]
        return template.render(messages=turns, eos_token="", add_generation_prompt=True) + answer


def _context(settings: Mapping[str, Any]) -> int | None:
    """`pipeline.ppo.checks.context_of` of a config.json, where older models have other names."""
    limits = [settings.get("max_position_embeddings") or settings.get("n_positions")]
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) in ("longrope", "su"):
        of_pretraining = "original_max_position_embeddings"
        limits.append(rope.get(of_pretraining) or settings.get(of_pretraining))
    return min((int(limit) for limit in limits if limit), default=None)


def _file(path: str, name: str) -> Path:
    """The path of a model's file, in its directory or in the download cache."""
    if is_local(path):
        return Path(path, name)
    found = try_to_load_from_cache(path, name)
    if not isinstance(found, str):
        raise FileNotFoundError(name)
    return Path(found)


def _has_template(path: str) -> bool:
    try:
        if _file(path, "chat_template.jinja").exists():
            return True
    except FileNotFoundError:
        pass
    try:
        settings = json.loads(_file(path, "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(settings.get("chat_template"))
