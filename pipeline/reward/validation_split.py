"""The prompts of the validation split, and whether there are enough judgments.  Does not import
torch.

The validation split is a share `reward.held_out_share` (15%) of the judged prompts; it measures the
reward model.  It contains no prompts with the role `held-out`, which are for the evaluation.
The reward stage (`split_by_prompt` in data.py) and the check before training
(`Preparation.require_judgments`) both call `validation_prompts`.  The page shows its ValueError
when it refuses *Train*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage.records import digest

LEARNED = "learned.parquet"
"""The reward stage's output with the ids of the judgments that the model learned from."""


@dataclass(frozen=True, kw_only=True)
class PromptJudgments:
    """The judgments of one prompt: their number, how many prefer a response, and whether at least
    one pair is from the random stream."""

    judgments: int
    decisive: int
    random_stream: bool


def validation_prompts(
    judged: Mapping[str, PromptJudgments], *, share: float, seed: int
) -> set[str]:
    """The prompts that are held out to measure the reward model.

    The choice depends on the ids, so that most stay held out when labels are added.  Only prompts
    with a judgment of the random stream are held out, unless there is none.  Raises ValueError, with
    what is missing, if there is nothing to learn or to measure.
    """
    judgments = sum(each.judgments for each in judged.values())
    if len(judged) < 2:
        raise ValueError(
            "All judgments are on one prompt. Training needs two prompts: one to learn from and one "
            "to measure accuracy on. Label at least 1 more pair with a different prompt."
        )
    if not any(each.decisive for each in judged.values()):
        raise ValueError(
            f"None of the {judgments} judgments prefers a response; ties and both bad do not. Label "
            "at least 1 more pair and prefer a response, so that there is something to learn."
        )
    prompts = sorted(judged, key=lambda id: digest("split", str(seed), id))
    wanted = min(max(1, round(share * len(prompts))), len(prompts) - 1)
    measurable = {id for id in prompts if judged[id].random_stream} or set(prompts)
    held_out = set([id for id in prompts if id in measurable][:wanted])
    if not any(judged[id].decisive for id in prompts if id not in held_out):
        raise ValueError(
            "Every judgment that prefers a response is on a prompt that is held out to measure "
            "accuracy. Label at least 1 more pair with a different prompt and prefer a response."
        )
    return held_out
