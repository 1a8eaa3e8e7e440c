"""Settings of reward shaping.  Does not import torch.

`pipeline/shaping/` has the components; docs/reward.md describes each of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from pipeline.ppo.settings import Section, require, setting

COMPONENTS = (
    "length", "overlong", "format", "relevance", "repetition", "sentiment", "toxicity", "hedging",
    "buzzwords", "sycophancy", "echo", "honesty", "contrast", "sycophancy_classifier",
)  # fmt: skip
"""The built-in components; the last two need a file."""


@dataclass(frozen=True, kw_only=True)
class ShapingConfig(Section):
    """Components added to the reward model's score, and their parameters."""

    section: ClassVar[str] = "shaping"

    weights: dict[str, float] = field(
        default_factory=dict,
        metadata={
            "help": "Components added to the reward model's score, by name or module:function, "
            "and their weights; a negative weight is a penalty."
        },
    )
    reward_weight: float = setting(1.0, "Weight of the reward model's own score.")
    extra_reward_models: tuple[str, ...] = setting(
        (),
        "Reward models in addition to the iteration's own: ids in this workspace (reward-1), or local "
        "directories or Hugging Face ids of decoder-only sequence classifiers with one label. Their "
        "scales should be similar. Researchers may use directories in WORKSPACE/files only.",
    )
    ensemble: Literal["mean", "lower_bound", "min"] = setting(
        "mean",
        "How the scores of several reward models are combined: their mean, their mean minus "
        "ensemble_lambda standard deviations (lower_bound), or their minimum.",
    )
    ensemble_lambda: float = setting(
        0.3,
        "lower_bound: number of standard deviations that are subtracted from the mean.",
        low=0,
    )
    floor: float | None = setting(
        None,
        "Lower limit of the reward model's score; with 0, scores below 0 become 0. none disables it.",
    )
    words: int = setting(100, "overlong: maximum number of words without a penalty.", low=1)
    words_buffer: int = setting(
        25,
        "overlong: number of further words over which the penalty grows to its full weight.",
        low=1,
    )
    format: str = setting(
        r"(?s).+[.!?]\s*", "format: regular expression that the whole completion should match."
    )

    classifier: str | None = setting(
        None,
        "sycophancy_classifier: absolute path of a folder that `launch.py sycophancy-classifier` "
        "wrote. Researchers may use folders in WORKSPACE/files only.",
    )
    references: str | None = setting(
        None,
        "contrast: absolute path of a file with columns prompt, honest and sycophantic (JSONL, CSV or "
        "Parquet). Researchers may use files in WORKSPACE/files only.",
    )

    @property
    def functions(self) -> frozenset[str]:
        """The components that are user functions, ``module:function``."""
        return frozenset(name for name in self.weights if ":" in name)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.weights:
            require(
                name in COMPONENTS or ":" in name,
                f"there is no shaping component {name!r}; there are {', '.join(COMPONENTS)}, "
                "and any module:function",
            )
        needed = (("sycophancy_classifier", "classifier"), ("contrast", "references"))
        for component, name in needed:
            path = getattr(self, name)
            require(
                component not in self.weights or path is not None,
                f"the shaping component {component} needs shaping.{name}, a path",
            )
            require(
                path is None or Path(path).is_absolute(),
                f"shaping.{name}={path!r} must be an absolute path: training runs in another directory",
            )
        try:
            re.compile(self.format)
        except re.error as error:
            message = f"shaping.format={self.format!r} is not a regular expression: {error}"
            require(False, message)
