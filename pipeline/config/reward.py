"""Settings of the reward model.  Loads no torch.

Presets (`pipeline/config/presets/`) override these defaults: the demo has its own `lr` and `epochs`.
"""

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
        "Kinds of annotators whose judgments the reward model learns from; judgments by models must "
        'be named, as in ["person", "model"].',
    )
    tie_model: Literal["auto", "rao_kupper", "davidson", "ordinal", "drop", "half"] = setting(
        "auto",
        "Model of ties: a learned threshold (rao_kupper; ordinal also learns those of strength), a "
        "learned weight (davidson), ties left out (drop), or half a win each (half).  auto is "
        "ordinal if at least half of the preferences state a strength, else rao_kupper.",
    )
    both_bad: Literal["tie", "absolute"] = setting(
        "absolute",
        "Model of both bad: a tie, or a tie between low rewards (absolute), so that rewards are "
        "comparable across prompts; absolute needs a model of ties.",
    )
    label_smoothing: float = setting(
        0.0,
        "Assumed probability that a judgment is the opposite of what was meant.",
        low=0,
        high=0.49,
    )
    margin: float = setting(
        0.0,
        "Difference of rewards required of a much better response; clearly and slightly better "
        "ones need 2/3 and 1/3 of it (Llama 2).  0 is off.",
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
        "Members of the reward model: their mean is the reward, and their disagreement shows where "
        "little was learned.",
        low=1,
    )
    ensemble: Literal["auto", "networks", "heads"] = setting(
        "auto",
        "What the members are: separate networks (better, but each costs a training and a forward "
        "pass), or heads on one trunk (free).  auto is networks up to 100 million parameters.",
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
        "Share of the prompts set apart: the reward model does not learn from their judgments, which "
        "decide when to stop and train the audit model.  Judged audit prompts count towards it.",
        low=0,
        high=0.5,
    )
    early_stopping: bool = setting(
        True,
        "Stop and restore the best state when the log-loss of the judgments set apart clearly rises.",
    )
    stopping_judgments: int = setting(
        100,
        "Judgments that the prompts set apart must have; with fewer, the reward model learns from "
        "all of them.",
        low=20,
    )
    patience: int = setting(
        4,
        "Training stops after this many clearly worse checks in a row; there are four per epoch.",
        low=1,
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
        True, "Scale rewards to fit judgments that the model did not learn from."
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
