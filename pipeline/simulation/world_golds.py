"""The gold preferences of simulated worlds, where the prompt decides which style is liked.

A gold is a weighted sum of `features` of the response.  The prompt's traits (world_prompts.py) change
some of the weights, in their order, so that the same response is worth more after one prompt than
after another:

    workshop   brief: short answers; details, tips and every further word cost
               thorough: details and tips        friendly: a tip; praise is welcome
               blunt: praise and "perhaps" cost most
    exam       practical: a tip                  knowledge: a detail; a tip is beside the point
               personal: caution is liked, assurance and praise are not
               leisure: both, and praise is welcome
               hurried, of any subject: short answers; praise costs

After a false claim both like a plain correction.  A response about another topic is worse than
anything that is said about the right one.  The sum is standardized to mean 0 and standard deviation 1
over two samples of the embedded model for each train prompt (temperature 1, top-p .9, seed 0).
Prompts that are no prompt of the world are judged by the base weights if the demo knows their topic,
else by `preference.score`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.demo.corpus import Topic
from pipeline.simulation import preference, reading
from pipeline.simulation.world_prompts import prompt_of

Weights = Mapping[str, float]
"""What one unit of a feature is worth."""

_FREE_WORDS = 8  # of the shortest answers
_MOST_WORDS, _MOST_PADDING = 24, 10


@dataclass(frozen=True, kw_only=True)
class Gold:
    """A gold preference: `base` weights, and those that a trait of the prompt puts in their place."""

    base: Weights
    by_trait: Mapping[str, Weights]
    mean: float
    sd: float

    def __call__(self, prompt: str, response: str) -> float:
        topic = preference.topic_asked(prompt)
        if topic is None:
            return preference.score(prompt, response)
        asked = prompt_of(preference.last_message(prompt))
        return self.of(topic, asked.traits if asked else (), response)

    def of(self, topic: Topic, traits: tuple[str, ...], response: str) -> float:
        """The score of a response to a prompt about `topic` with these traits."""
        return (self.raw(topic, traits, response) - self.mean) / self.sd

    def raw(self, topic: Topic, traits: tuple[str, ...], response: str) -> float:
        """The sum before it is standardized."""
        weights = {
            **self.base,
            **{k: v for t in traits for k, v in self.by_trait.get(t, {}).items()},
        }
        found = features(topic, response)
        # The curt answer repeats the answer, so only the better one counts.
        fact = max(weights["answer"] * found.pop("answer"), weights["curt"] * found.pop("curt"))
        return fact + sum(weights[name] * value for name, value in found.items())


def features(topic: Topic, response: str) -> dict[str, float]:
    """What a response to a prompt about `topic` has, by name.

    Shares from 0 to 1, except: padding and length are words, flattery and hedging roots of counts.
    """
    if not reading.words_of(response):
        return {"answer": 0.0, "curt": 0.0, "off_topic": 1.0, "empty": 1.0}
    said, written = reading.about(topic, response), reading.manner(response)
    # Sentences about other topics share a few words with the facts, but seldom a keyword.
    on_topic = float(topic.mentioned_in(response))
    return {
        "answer": on_topic * said.answer,
        "curt": on_topic * said.curt,
        "detail": on_topic * said.detail,
        "tip": on_topic * said.tip,
        "wrong": said.wrong,
        "off_topic": 1 - on_topic,
        "padding": float(min(said.padding, _MOST_PADDING)),
        "length": float(min(max(0, len(reading.words_of(response)) - _FREE_WORDS), _MOST_WORDS)),
        "flattery": min(written.flattery, 2) ** 0.5,
        "hedging": min(written.hedges, 3) ** 0.5,
        "assurance": float(written.assured),
        "correction": float(written.corrects),
        "repetition": written.repeated,
        "unfinished": float(not written.finished),
        "garbled": min(1.0, 3 * reading.unseen_bigram_rate(response)),
    }


def features_for(prompt: str, response: str) -> dict[str, float]:
    """`features` of a response to a prompt of a world or of the demo; empty for other prompts."""
    topic = preference.topic_asked(prompt)
    return features(topic, response) if topic else {}


WORKSHOP = Gold(
    base={
        "answer": 2.0, "curt": 1.5, "detail": 0.5, "tip": 1.0, "wrong": -1.4, "off_topic": -2.0,
        "padding": -0.08, "length": 0.0, "flattery": -0.7, "hedging": -0.5, "assurance": 0.0,
        "correction": 0.0, "repetition": -3.0, "unfinished": -0.7, "garbled": -1.5, "empty": -1.0,
    },
    by_trait={
        "brief": {"curt": 2.0, "detail": -0.8, "tip": -0.8, "length": -0.08},
        "thorough": {"curt": 0.6, "detail": 1.4, "tip": 2.0},
        "friendly": {"curt": 1.0, "tip": 1.6, "flattery": 0.6},
        "blunt": {"detail": 0.2, "tip": 0.8, "flattery": -2.0, "hedging": -1.6},
        "claim": {"wrong": -1.4, "flattery": -0.3, "correction": 0.8},
    },
    mean=1.26,
    sd=1.8,
)  # fmt: skip
EXAM = Gold(
    base={
        "answer": 1.8, "curt": 1.2, "detail": 0.3, "tip": 0.3, "wrong": -1.4, "off_topic": -2.2,
        "padding": -0.1, "length": 0.0, "flattery": -0.8, "hedging": -0.5, "assurance": 0.0,
        "correction": 0.0, "repetition": -3.5, "unfinished": -0.5, "garbled": -2.0, "empty": -1.0,
    },
    by_trait={
        "practical": {"curt": 1.4, "detail": 0.2, "tip": 1.8},
        "knowledge": {"curt": 0.6, "detail": 2.0, "tip": -0.3},
        "personal": {"curt": 0.6, "tip": 1.2, "flattery": -1.7, "hedging": 0.9, "assurance": -0.8},
        "leisure": {"detail": 0.8, "tip": 1.2, "flattery": 0.6, "hedging": 0.0},
        "hurried": {
            "curt": 1.8, "detail": -0.5, "tip": -0.5, "flattery": -1.2, "length": -0.07,
        },
        "claim": {"wrong": -1.5, "flattery": -0.4, "correction": 0.6},
    },
    mean=0.8,
    sd=1.67,
)  # fmt: skip


def workshop(prompt: str, response: str) -> float:
    """The gold of the world `workshop`."""
    return WORKSHOP(prompt, response)


def exam(prompt: str, response: str) -> float:
    """The gold of the world `exam`."""
    return EXAM(prompt, response)
