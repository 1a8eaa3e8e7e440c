"""Settings of the reward model.  Does not import torch.

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
    learn_from_edits: bool = setting(
        False,
        "Learn also that an edited response is better than its original. Edits never measure a "
        "model.",
    )
    tie_model: Literal["auto", "rao_kupper", "davidson", "ordinal", "drop", "half"] = setting(
        "auto",
        "How ties are modeled: with a learned threshold (rao_kupper), learned thresholds for ties "
        "and strengths (ordinal), or a learned weight (davidson). drop leaves ties out; half "
        "counts each as half a win. auto is ordinal if at least half of the preferences state a "
        "strength, else rao_kupper.",
    )
    both_bad: Literal["tie", "absolute"] = setting(
        "absolute",
        "How both bad is modeled: as a tie, or as a tie between low rewards (absolute), which makes "
        "rewards comparable across prompts. absolute needs a tie model other than drop and half.",
    )
    label_smoothing: float = setting(
        0.0,
        "Assumed probability that a judgment is the opposite of what the annotator meant.",
        low=0,
        high=0.49,
    )
    margin: float = setting(
        0.0,
        "Required difference of rewards if a response is much better; clearly and slightly better "
        "responses need 2/3 and 1/3 of it (Llama 2). 0 disables it.",
        low=0,
    )
    annotators: bool = setting(
        True,
        "Learn each annotator's reliability and side bias together with the rewards, if there are two "
        "annotators or more.",
    )
    annotator_lr: float = setting(
        0.05, "Learning rate of the annotators' slopes and side biases.", above=0
    )
    response_times: bool = setting(
        False,
        "Learn also from response times: quick judgments hint at large differences. Each annotator's "
        "own speed and the length of the texts are allowed for.",
    )
    members: int = setting(
        4,
        "Ensemble members of the reward model. The reward is their mean; they disagree where there "
        "are few judgments.",
        low=1,
    )
    ensemble: Literal["auto", "networks", "heads"] = setting(
        "auto",
        "What the members are: separate networks (better, but each is trained and run separately), "
        "or heads on one trunk (no extra cost). auto selects networks for models of up to 100 "
        "million parameters.",
    )
    epochs: float = setting(
        1.0,
        "Maximum passes over the judgments; with a few hundred labels the model overfits quickly.",
        above=0,
    )
    lr: float = setting(1e-5, "Peak learning rate of the reward model.", above=0)
    theta_lr: float = setting(
        0.02, "Learning rate of the tie thresholds and of the reward level of both bad.", above=0
    )
    audit_share: float = setting(
        0.15,
        "Share of the prompts that are set aside, including judged audit prompts. Their judgments "
        "decide when training stops and train the audit model. The reward model does not learn "
        "from them if there are at least stopping_judgments.",
        low=0,
        high=0.5,
    )
    early_stopping: bool = setting(
        True,
        "Stop training when the log-loss on the prompts set aside stays clearly worse than its best. The "
        "last state is kept, or the best one if the last check was clearly worse.",
    )
    stopping_judgments: int = setting(
        100,
        "Minimum number of judgments on the prompts set aside; with fewer, the reward model also "
        "learns from them, except on prompts with the role audit.",
        low=20,
    )
    patience: int = setting(
        4,
        "Consecutive checks with a clearly worse log-loss after which training stops. Each epoch has four.",
        low=1,
    )
    length_penalty_weight: float = setting(
        0.0,
        "Weight of a penalty in the loss: the squared correlation between differences of reward and "
        "of length over the pairs of a batch. 0 only reports the correlation.",
        low=0,
    )
    batch: int = setting(16, "Comparisons per optimizer step.", low=1)
    held_out_share: float = setting(
        0.15, "Share of the prompts whose judgments measure accuracy.", low=0.01, high=0.99
    )
    max_tokens: int = setting(
        2048, "Maximum tokens of prompt and response together; longer rows are an error.", low=1
    )
    center: bool = setting(True, "Shift rewards so that their mean over SFT responses is 0.")
    calibrate: bool = setting(
        True, "Scale rewards so that probabilities fit judgments that the model did not learn from."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = self.learn_from
        require(
            bool(kinds) and len(set(kinds)) == len(kinds),
            f"reward.learn_from={list(kinds)} must name at least one kind, each once",
        )
        require(
            self.margin == 0 or self.tie_model != "ordinal",
            f"reward.margin={self.margin} does not apply to the ordinal tie model, whose thresholds already use the strength; set it to 0",
        )
