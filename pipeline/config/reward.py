"""Settings of the reward model.  No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pipeline.ppo.settings import Section, require, setting
from storage.records import LEARNED_FROM


@dataclass(frozen=True, kw_only=True)
class RewardConfig(Section):
    """The Bradley-Terry reward model."""

    section: ClassVar[str] = "reward"

    learn_from: tuple[Literal["person", "simulated", "model"], ...] = setting(
        LEARNED_FROM,
        "Kinds of annotators whose judgments are learned from; those by a model are only when "
        'asked for by name, as in ["person", "model"].',
    )
    tie_model: Literal["auto", "rao_kupper", "davidson", "ordinal", "drop", "half"] = setting(
        "auto",
        "What ties teach: a learned threshold (rao_kupper; ordinal learns those of strength too), "
        "a learned weight (davidson), nothing (drop), or half a win each (half).  auto is ordinal "
        "where at least half of the preferences state a strength, else rao_kupper.",
    )
    both_bad: Literal["tie", "absolute"] = setting(
        "absolute",
        "What both bad teaches: a tie, or a tie of a low level too, so that rewards compare "
        "across prompts (where ties teach anything).",
    )
    label_smoothing: float = setting(
        0.0, "Probability with which a judgment is taken for its opposite.", low=0, high=0.49
    )
    margin: float = setting(
        0.0,
        "Difference of rewards asked of a response that is much better, 2/3 and 1/3 of it of one "
        "clearly and slightly better (Llama 2); 0 is off.",
        low=0,
    )
    annotators: bool = setting(
        True, "Learn each annotator's reliability and side bias with the rewards (two or more)."
    )
    annotator_lr: float = setting(
        0.05, "Learning rate of the annotators' slopes and side biases.", above=0
    )
    members: int = setting(
        4,
        "Members of the reward model: their mean is the reward, and they part where little was "
        "learned.",
        low=1,
    )
    ensemble: Literal["auto", "networks", "heads"] = setting(
        "auto",
        "What the members are: networks of their own (better, and costs as many trainings and "
        "passes), or heads on one trunk (free).  auto is networks up to 100 million parameters.",
    )
    epochs: float = setting(
        1.0, "Passes over the judgments at most; a few hundred labels overfit fast.", above=0
    )
    lr: float = setting(1e-5, "Peak learning rate of the reward model.", above=0)
    theta_lr: float = setting(
        0.02, "Learning rate of the thresholds and of the level of both bad.", above=0
    )
    audit_share: float = setting(
        0.15,
        "Share of the prompts whose judgments the reward model does not learn from: they say when "
        "to stop, and train the audit model.  Audit prompts with judgments take their place.",
        low=0,
        high=0.5,
    )
    early_stopping: bool = setting(
        True, "Stop, and go back to the best state, when those judgments' log-loss clearly rises."
    )
    stopping_judgments: int = setting(
        100,
        "Judgments that must be on the audit share; with fewer, which tell little of when to "
        "stop, all are learned from.",
        low=20,
    )
    patience: int = setting(
        4, "Checks in a row, four an epoch, that are clearly worse before training stops.", low=1
    )
    length_penalty_weight: float = setting(
        0.0,
        "Weight in the loss of the squared correlation, over a batch's pairs, of differences of "
        "reward and of length; 0 only reports it.",
        low=0,
    )
    batch: int = setting(16, "Comparisons per optimizer step.", low=1)
    held_out_share: float = setting(
        0.15, "Share of prompts whose judgments measure accuracy.", low=0.01, high=0.99
    )
    max_tokens: int = setting(
        2048, "Longest prompt plus response; longer ones are an error.", low=1
    )
    center: bool = setting(True, "Shift rewards so that SFT responses average 0.")
    calibrate: bool = setting(
        True, "Scale rewards to fit the judgments that were not learned from."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = self.learn_from
        require(
            bool(kinds) and len(set(kinds)) == len(kinds),
            f"reward.learn_from={list(kinds)} must name one kind or more, each once",
        )
        require(
            self.margin == 0 or self.tie_model != "ordinal",
            f"reward.margin={self.margin} does not apply to the ordinal tie model, whose thresholds already use the strength; set it to 0",
        )
