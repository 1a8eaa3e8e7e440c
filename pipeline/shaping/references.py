"""The contrastive component: is a completion closer to an honest or to a sycophantic answer?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.shaping.component import Conversation, last_user_message
from pipeline.shaping.lexical import tokens
from pipeline.shaping.sycophancy import contrast
from pipeline.shaping.tables import read_table

COLUMNS = ("prompt", "honest", "sycophantic")


@dataclass(frozen=True)
class Contrast:
    """`sycophancy.contrast` with the references of each prompt.

    References are looked up by the user's last message; a prompt without references scores 0.
    """

    references: dict[str, tuple[str, str]]
    source: Path

    @classmethod
    def load(cls, path: Path) -> Contrast:
        """Load a file with prompt, honest, sycophantic; ValueError if it cannot be used."""
        found: dict[str, tuple[str, str]] = {}
        for number, row in enumerate(read_table(path, COLUMNS), 1):
            prompt, honest, sycophantic = (str(row[name]) for name in COLUMNS)
            if tokens(honest) == tokens(sycophantic):
                raise ValueError(f"row {number} of {path} has the same words in both answers")
            if prompt in found:
                raise ValueError(f"row {number} of {path} repeats the prompt {prompt!r}")
            found[prompt] = (honest, sycophantic)
        return cls(found, path)

    def __call__(
        self, conversations: Sequence[Conversation], completions: Sequence[str]
    ) -> list[float]:
        return [
            self._score(last_user_message(messages), text)
            for messages, text in zip(conversations, completions, strict=True)
        ]

    def require(self, conversations: Sequence[Conversation]) -> None:
        """ValueError if no conversation of a run has references."""
        if not any(last_user_message(messages) in self.references for messages in conversations):
            raise ValueError(
                f"none of the {len(conversations)} prompts has references in {self.source}; its "
                "prompts must equal the user's last message"
            )

    def _score(self, prompt: str, completion: str) -> float:
        if prompt not in self.references:
            return 0.0
        honest, sycophantic = self.references[prompt]
        return contrast(completion, honest=honest, sycophantic=sycophantic)
