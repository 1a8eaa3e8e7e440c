"""What the pages and the generation service exchange.  Imports only the standard library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from storage.records import FinishReason, Message


class GenerationRefused(RuntimeError):
    """No reply can be generated now; the message says why and what to do."""


class GenerationBusy(GenerationRefused):
    """Too many replies are being generated; the same request may succeed later."""


@dataclass(frozen=True, kw_only=True)
class ReplyRequest:
    """A reply to a conversation, to be sampled from one model of the workspace."""

    model: str
    """The id of the model, e.g. policy-2."""
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    token_ids: bool = False
    """Whether the end has the ids of the tokens; only the service of Kitestring gives them."""


@dataclass(frozen=True, kw_only=True)
class ReplyEnd:
    """The end of a reply: `tokens` sampled tokens, end-of-text included; None if unknown."""

    finish_reason: FinishReason
    tokens: int | None = None
    ids: tuple[int, ...] = ()
    """The sampled tokens, if the request asked for them."""


@dataclass(frozen=True, kw_only=True)
class MeasureRequest:
    """A finished reply of `model` to be scored, and compared with a reference token by token.

    `ids` are its tokens, end-of-text included.  Without a `reward` model there are no rewards, and
    without a `reference` no tokens.
    """

    model: str
    messages: tuple[Message, ...]
    ids: tuple[int, ...]
    temperature: float = 1.0
    """Of the distributions that are compared; 0 counts as 1."""
    reference: str | None = None
    reward: str | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredToken:
    """A token of a reply, with log-probabilities in nats.

    `text` is "" for an end-of-text and for a token that ends inside a character.  `kl` is the KL of
    the model's distribution of this token to the reference's, over the whole vocabulary.
    """

    text: str
    logprob: float
    reference_logprob: float
    kl: float


@dataclass(frozen=True, kw_only=True)
class ReplyMeasures:
    """The rewards of a reply by a reward model and its audit model, and its tokens.

    A reward is None without the model.  `no_tokens` says why there are no tokens.
    """

    reward: float | None = None
    audit: float | None = None
    tokens: tuple[MeasuredToken, ...] = ()
    no_tokens: str = ""


@dataclass(frozen=True, kw_only=True)
class LiveSettings:
    """Live conversations: which models reply, for how many turns, and how replies are sampled.

    `temperatures` are those of two replies by one policy; replies of two models use the first.
    """

    replies: Literal["off", "policy", "reference"] = "off"
    turns: int = 5
    max_tokens: int = 256
    temperatures: tuple[float, float] = (1.0, 1.0)
    top_p: float = 1.0


@dataclass(frozen=True, kw_only=True)
class CurrentModels:
    """The ids of the models that annotators and researchers try; None where there is none yet.

    `policy` is the model whose responses the newest iteration compares, the SFT model at first.
    """

    policy: str | None = None
    reference: str | None = None
    previous: str | None = None
    reward: str | None = None
