"""The rewards and the tokens of a finished reply, for the playground."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.models.best_of_n import no_weights
from pipeline.models.likelihoods import token_likelihoods
from pipeline.models.text import ChatTokenizer, Encoded
from pipeline.sampling.best_of_n import BestOfN
from pipeline.serving.models import Models
from storage.generation_records import MeasuredToken, MeasureRequest, ReplyMeasures


def measured(models: Models, asked: MeasureRequest) -> ReplyMeasures:
    """The measures of a reply; raises as `Models.sampler` does.

    ValueError if the reply does not fit the reward model or the models cannot be compared.
    """
    sampler = models.sampler(asked.model)
    text = sampler.chat.decode(asked.ids)
    reward = audit = None
    if asked.reward is not None:
        (reward,) = models.reward(asked.reward)([asked.messages], [text])
        if auditor := models.audit(asked.reward):
            (audit,) = auditor([asked.messages], [text])
    tokens: tuple[MeasuredToken, ...] = ()
    no_tokens = ""
    if isinstance(sampler, BestOfN):
        no_tokens = f"{no_weights(asked.model, sampler.manifest)}."
    elif asked.reference is not None:
        reference = models.sampler(asked.reference)
        prompt = sampler.chat.prompt(asked.messages)
        likelihoods = token_likelihoods(
            sampler.model,
            reference.model,
            Encoded([*prompt, *asked.ids], len(prompt)),
            temperature=asked.temperature or 1.0,
        )
        pieces = token_texts(sampler.chat, asked.ids)
        tokens = tuple(
            MeasuredToken(text=piece, **each._asdict())
            for piece, each in zip(pieces, likelihoods, strict=True)
        )
    return ReplyMeasures(reward=reward, audit=audit, tokens=tokens, no_tokens=no_tokens)


def token_texts(chat: ChatTokenizer, ids: Sequence[int]) -> list[str]:
    """The part of the text that each token completes; together they are the text.

    A token that ends inside a character has "", and the character belongs to its last token.
    """
    pieces: list[str] = []
    said = ""
    for end in range(1, len(ids) + 1):
        text = chat.decode(ids[:end])
        text = text if end == len(ids) else text.rstrip("\ufffd")
        grows = len(text) > len(said) and text.startswith(said)
        pieces.append(text[len(said) :] if grows else "")
        said = text if grows else said
    return pieces
