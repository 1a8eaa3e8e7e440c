"""Responses as the reward reads them, and how much of them it does not see."""

from collections.abc import Collection, Sequence
from typing import Any


class Decoder:
    """Turns response tokens into text; special tokens are left out, as is the one that ends."""

    def __init__(self, tokenizer: Any, eos_token_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._eos = frozenset(eos_token_ids)
        self._unseen: dict[int, bool] = {}

    def text(self, tokens: Sequence[int]) -> str:
        """The text of one response."""
        return self._decode(self._body(tokens))

    def unseen_share(self, responses: Sequence[Sequence[int]]) -> float:
        """Share of sampled tokens that leave nothing in the text.

        An end-of-text that ended its response counts among the sampled tokens, and as seen: the
        response's length and `finish_reason` tell of it.
        """
        unseen = sum(self._leaves_nothing(t) for r in responses for t in self._body(r))
        return unseen / sum(map(len, responses))

    def _body(self, tokens: Sequence[int]) -> list[int]:
        # An id that ends a response need not be special to the tokenizer.
        return list(tokens[:-1] if tokens[-1] in self._eos else tokens)

    def _leaves_nothing(self, token: int) -> bool:
        if token not in self._unseen:
            # Twice, since some tokenizers drop a space at the beginning of a text.
            self._unseen[token] = not self._decode([token, token])
        return self._unseen[token]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
