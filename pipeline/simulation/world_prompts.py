"""The prompts of simulated worlds, in wordings that the embedded model was not trained on.

Each world asks about every topic of the demo's corpus, in wordings of its own (workshop.toml,
exam.toml).  No question is in the train prompts of two worlds: of a topic's six plain questions
(`ask`), the demo's own prompts use three, `workshop` two and `exam` one, and these two divide its
indirect ones (`situations`).  Held-out prompts use wordings that are never trained on, and the
topic's unseen paraphrases: `workshop` the first, `exam` the second.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Literal

from pipeline.demo.corpus import Topic, topics
from pipeline.demo.corpus.phrasings import about, carriers, carry
from pipeline.demo.corpus.shipped import Role, shipped_prompts, shipped_texts

WorldName = Literal["workshop", "exam"]
NAMES: tuple[WorldName, ...] = ("workshop", "exam")

_CLAIM_EVERY = 5  # topics
_PER_TOPIC = 3  # train prompts
_ROLES: tuple[Role, ...] = ("train", "held-out", "audit")

PRACTICAL = frozenset({"cooking", "garden", "home", "pets", "technology"})
KNOWLEDGE = frozenset({"science", "study", "travel"})
PERSONAL = frozenset({"health", "money", "people", "work"})
_HURRIED, _LURED = 0.2, 0.25
"""Shares of the exam's questions that are hurried, or name another topic."""
_REQUESTS = {"brief": 20, "thorough": 27, "friendly": 27, "blunt": 26}
"""The requests of the workshop, with their shares in percent."""


@dataclass(frozen=True)
class WorldPrompt:
    """A prompt with its topic; `traits` say what makes readers want another kind of answer."""

    text: str
    role: Role
    traits: tuple[str, ...]
    topic: Topic

    @property
    def category(self) -> str:
        """The category shown to annotators, as of the demo's prompts."""
        return "false-claim" if "claim" in self.traits else self.topic.category


@cache
def world_prompts(name: WorldName) -> tuple[WorldPrompt, ...]:
    """Every prompt of a world; their texts are different, and none is a prompt of the demo."""
    found: dict[str, WorldPrompt] = {}
    for role in _ROLES:
        for prompt in _asked(name, role):
            if prompt.text not in shipped_texts():
                found.setdefault(prompt.text, prompt)
    return tuple(found.values())


def prompt_of(text: str) -> WorldPrompt | None:
    """The prompt of a world with exactly this text."""
    return _by_text().get(text)


@lru_cache(maxsize=1)
def _by_text() -> dict[str, WorldPrompt]:
    return {prompt.text: prompt for name in NAMES for prompt in world_prompts(name)}


def _asked(name: WorldName, role: Role) -> Iterator[WorldPrompt]:
    """The prompts of a role: three questions about each topic to train on, two held out and one for
    audits; and for a fifth of the topics its false claim."""
    rng = Random(f"{name} {role}")
    worded = _wordings(name)["train" if role == "train" else "held-out"]
    ask = _workshop if name == "workshop" else _exam
    for number, topic in enumerate(topics()):
        for question in _questions(name, role, topic, rng):
            text, traits = ask(worded, topic, question, rng)
            yield WorldPrompt(text, role, traits, topic)
        if number % _CLAIM_EVERY == _ROLES.index(role):
            text = rng.choice(worded["claims"]).format(wrong=topic.wrong)
            yield WorldPrompt(text, role, ("claim",), topic)


def _questions(name: WorldName, role: Role, topic: Topic, rng: Random) -> Sequence[str]:
    if role == "audit":
        return (about(rng.choice(carriers("audit").about), topic),)
    plain, indirect = _own(name, topic)
    named = [about(wording, topic) for wording in _wordings(name)[role]["named"]]
    rng.shuffle(named)
    if role == "train":
        # Of the indirect ones only those that name the topic; the model seldom understands others.
        naming = [question for question in indirect if topic.mentioned_in(question)]
        return [*plain, *naming[:1], *named][:_PER_TOPIC]
    return topic.unseen[NAMES.index(name)], rng.choice([*plain, named[0]])


@cache
def _own(name: WorldName, topic: Topic) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The plain and the indirect questions about a topic that only this world trains on."""
    trained = [text.lower() for text in _shipped_about().get(topic, ())]
    left = [ask for ask in topic.ask if not any(ask.lower() in text for text in trained)]
    if name == "workshop":
        return tuple(left[:2]), topic.situations[:3]
    return tuple(left[2:3]), topic.situations[3:]


@lru_cache(maxsize=1)
def _shipped_about() -> Mapping[Topic, Sequence[str]]:
    """The demo's train prompts, by topic."""
    found: dict[Topic, list[str]] = {}
    for prompt in shipped_prompts():
        if prompt.role == "train":
            found.setdefault(prompt.topic, []).append(prompt.text)
    return found


def _workshop(
    worded: Mapping[str, Sequence[str]], _: Topic, question: str, rng: Random
) -> tuple[str, tuple[str, ...]]:
    """A question with one of the four requests."""
    request = rng.choices(tuple(_REQUESTS), tuple(_REQUESTS.values()))[0]
    return carry(rng.choice(worded[request]), question), (request,)


def _exam(
    worded: Mapping[str, Sequence[str]], topic: Topic, question: str, rng: Random
) -> tuple[str, tuple[str, ...]]:
    """A question, calm or hurried; some name another topic beside it."""
    subject = _subject(topic)
    kind = rng.choices(("hurried", "lured", "calm"), (_HURRIED, _LURED, 1 - _HURRIED - _LURED))[0]
    wording = rng.choice(worded[kind])
    if kind == "hurried":
        plain = question.lower().rstrip("?.!")
        return carry(wording, plain), (*subject, "hurried")
    other = rng.choice([each for each in topics() if each.category != topic.category])
    return carry(wording.replace("{other}", other.name), question), subject


def _subject(topic: Topic) -> tuple[str, ...]:
    for subject, categories in (
        ("practical", PRACTICAL), ("knowledge", KNOWLEDGE), ("personal", PERSONAL)
    ):  # fmt: skip
        if topic.category in categories:
            return (subject,)
    return ("leisure",)


@cache
def _wordings(name: WorldName) -> Mapping[str, Mapping[str, Sequence[str]]]:
    path = Path(__file__).with_name(f"{name}.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))
