"""The prompts that ship with the demo: for PPO, for evaluation and for audits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Literal

from pipeline.demo.corpus.phrasings import Split, about, carriers, carry
from pipeline.demo.corpus.topic import Topic, topics

Role = Literal["train", "held-out", "audit"]
Kind = Literal["template", "free-form", "false-claim"]

_PER_TOPIC = 3  # train prompts
_CLAIM_EVERY = 5  # topics


@dataclass(frozen=True)
class ShippedPrompt:
    """A prompt with its topic.

    `kind` says how it was phrased: from a template, as a free-form paraphrase, or as an
    assertion of the topic's wrong claim.
    """

    text: str
    role: Role
    kind: Kind
    topic: Topic

    @property
    def category(self) -> str:
        """The category shown to annotators; claims have their own, to study sycophancy."""
        return "false-claim" if self.kind == "false-claim" else self.topic.category


def prompts() -> Iterator[tuple[Role, list[dict[str, str]], str]]:
    """Yield (role, messages, category) for every shipped prompt."""
    for prompt in shipped_prompts():
        yield prompt.role, [{"role": "user", "content": prompt.text}], prompt.category


def topic_of(prompt_text: str) -> Topic | None:
    """The topic of a shipped prompt, by its exact text; None for any other text."""
    prompt = _by_text().get(prompt_text)
    return prompt.topic if prompt else None


def shipped_texts() -> frozenset[str]:
    """The texts of all shipped prompts."""
    return frozenset(_by_text())


@lru_cache(maxsize=1)
def _by_text() -> dict[str, ShippedPrompt]:
    return {prompt.text: prompt for prompt in shipped_prompts()}


@lru_cache(maxsize=1)
def shipped_prompts() -> tuple[ShippedPrompt, ...]:
    """Every shipped prompt; their texts are all different."""
    found: dict[str, ShippedPrompt] = {}
    for prompt in (*_train(), *_unseen("held-out"), *_unseen("audit")):
        found.setdefault(prompt.text, prompt)
    return tuple(found.values())


def _train() -> Iterator[ShippedPrompt]:
    """Trained questions in trained carriers, in combinations that no training row has."""
    rng = Random("train")
    trained = carriers("trained")
    for number, topic in enumerate(topics()):
        for question in rng.sample(topic.ask, _PER_TOPIC):
            text = carry(rng.choice(trained.around), question)
            yield ShippedPrompt(text, "train", "template", topic)
        if number % _CLAIM_EVERY == 0:
            text = rng.choice(trained.claims).format(wrong=topic.wrong)
            yield ShippedPrompt(text, "train", "false-claim", topic)


def _unseen(split: Split) -> Iterator[ShippedPrompt]:
    """For every topic, a paraphrase and a question in a carrier that are not in training rows."""
    assert split != "trained"
    rng = Random(split)
    mine = carriers(split)
    for number, topic in enumerate(topics()):
        paraphrase = topic.unseen[0 if split == "held-out" else 1]
        yield ShippedPrompt(paraphrase, split, "free-form", topic)
        if rng.random() < 0.5:
            text = carry(rng.choice(mine.around), rng.choice(topic.ask))
        else:
            text = about(rng.choice(mine.about), topic)
        yield ShippedPrompt(text, split, "template", topic)
        if number % _CLAIM_EVERY == (1 if split == "held-out" else 2):
            text = rng.choice(mine.claims).format(wrong=topic.wrong)
            yield ShippedPrompt(text, split, "false-claim", topic)
