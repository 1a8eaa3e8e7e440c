"""Samples before and after training, side by side. All texts are untrusted. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from labeler.html import components
from labeler.html.components import Markup
from labeler.research.caveats import warnings
from storage.records import EvaluatedCompletion, Message, ModelVersion
from storage.wording import plural

Order = Literal["gain", "loss", "reward", "prompt"]
ORDERS: Sequence[tuple[str, Order]] = (
    ("Largest gain over SFT", "gain"),
    ("Largest loss against SFT", "loss"),
    ("Highest reward of the new policy", "reward"),
    ("Prompt, A to Z", "prompt"),
)
SIDES: Mapping[str, str] = {
    "reference": "SFT reference",
    "previous": "Previous policy",
    "policy": "New policy",
}
PAGE = 12


@dataclass(frozen=True)
class Answer:
    """A policy's response to a held-out prompt, and its reward."""

    policy: str
    text: str
    reward: float | None


@dataclass(frozen=True)
class Sample:
    """A held-out prompt with the responses of up to three policies, keyed as in `SIDES`."""

    messages: tuple[Message, ...]
    answers: Mapping[str, Answer] = field(default_factory=dict)

    @property
    def gain(self) -> float | None:
        """The reward of the new policy's response minus that of the reference's."""
        new, old = self.reward("policy"), self.reward("reference")
        return None if new is None or old is None else new - old

    def reward(self, side: str) -> float | None:
        answer = self.answers.get(side)
        return answer.reward if answer else None

    def says(self, needle: str) -> bool:
        """Whether the prompt or a response contains the text, ignoring case."""
        texts = [m.content for m in self.messages] + [a.text for a in self.answers.values()]
        return any(needle.casefold() in text.casefold() for text in texts)


def collect(rows: Iterable[EvaluatedCompletion]) -> list[Sample]:
    """Group rows of `worker_files.evaluated` by prompt; keeps each policy's first response."""
    messages: dict[str, tuple[Message, ...]] = {}
    answers: dict[str, dict[str, Answer]] = {}
    for row in rows:
        messages.setdefault(row.prompt, row.messages)
        sides = answers.setdefault(row.prompt, {})
        sides.setdefault(row.policy_role, Answer(row.policy, row.text, row.reward))
    return [Sample(messages[prompt], sides) for prompt, sides in answers.items()]


def select(samples: Iterable[Sample], *, needle: str, order: Order) -> list[Sample]:
    """The samples that contain `needle`, in order; samples without rewards last."""
    found = [s for s in samples if s.says(needle.strip())]
    if order == "prompt":
        return sorted(found, key=lambda s: s.messages[-1].content.casefold())

    def key(sample: Sample) -> tuple[bool, float]:
        value = sample.reward("policy") if order == "reward" else sample.gain
        return value is None, (value or 0.0) * (1 if order == "loss" else -1)

    return sorted(found, key=key)


def summary(samples: Sequence[Sample], reward_model: ModelVersion | None = None) -> Markup:
    """Mean rewards and the new policy's win rate, with a warning about a weak reward model."""
    tiles = []
    for side, title in SIDES.items():
        rewards = [r for s in samples if (r := s.reward(side)) is not None]
        if rewards:
            tiles.append(components.tile(title, components.signed(fmean(rewards)), "mean reward"))
    gains = [s.gain for s in samples if s.gain is not None]
    if gains:
        wins = fmean(1.0 if g > 0 else 0.5 if g == 0 else 0.0 for g in gains)
        help = (
            "Share of prompts on which the reward model prefers the new response; ties count half."
        )
        detail = f"by the reward model, on {plural(len(gains), 'held-out prompt')}"
        tiles.append(
            components.tile("Wins against SFT", components.percent(wins, 1), detail, help=help)
        )
    return components.stack(components.tiles(tiles), warnings(reward_model) if gains else "")


_TITLE = Markup('<h2 class="ks-hidden">Responses</h2>')


def page(samples: Sequence[Sample], number: int) -> Markup:
    """One page of samples; `number` counts from 1."""
    if not samples:
        return components.empty("No samples match", "Change the text under “Contains”.")
    shown = samples[(number - 1) * PAGE : number * PAGE]
    return components.lines([_TITLE, *(_card(sample) for sample in shown)])


def pages(count: int) -> int:
    """The number of pages for `count` samples; at least one."""
    return max(1, -(-count // PAGE))


def _card(sample: Sample) -> Markup:
    gain = sample.gain
    badge = Markup("")
    if gain is not None:
        tone: components.Tone = "good" if gain > 0 else "bad" if gain < 0 else "neutral"
        badge = components.badge(f"{components.signed(gain)} against SFT", tone)
    sides = [
        Markup('<div class="ks-side{}"><h3>{}<span class="ks-score">{}</span></h3>{}</div>').format(
            " ks-new" if side == "policy" else "",
            title,
            components.signed(answer.reward),
            components.prose(answer.text) if answer.text else Markup("<em>(empty)</em>"),
        )
        for side, title in SIDES.items()
        if (answer := sample.answers.get(side))
    ]
    return Markup(
        '<article class="ks-sample"><header><div>{}</div>{}</header>'
        '<div class="ks-sides">{}</div></article>'
    ).format(components.conversation(sample.messages), badge, Markup("").join(sides))
