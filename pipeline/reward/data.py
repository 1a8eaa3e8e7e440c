"""Reads judgments, encodes them as token ids, splits them by prompt, and pads batches.

`split_judgments` divides the prompts into three sets: the training set, the audit set
(`reward.audit_share`), and the validation split (`reward.held_out_share`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from pipeline.config.reward import RewardConfig
from pipeline.models.loading import context_of
from pipeline.models.padding import pad_right
from pipeline.models.text import CONTEXT, ChatTokenizer, LengthLimits, read_messages
from pipeline.reward.likelihood import OUTCOME_CODES, TIE, UNSTATED, TieModel
from pipeline.reward.validation_split import PromptJudgments, validation_prompts
from pipeline.runs.rundir import Job, Note, Report, RunDirectory
from storage.records import PROBE, RANDOM_STREAM, Arm, digest

_COLUMNS = (
    "judgment", "prompt", "messages", "first", "second", "first_text", "second_text",
    "outcome", "strength", "annotator", "shown_swapped",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class JudgedPair:
    """One judgment with both texts as token ids; `outcome` is a code of `likelihood`.

    `strength` is 1 slightly, 2 clearly, 3 much, or `likelihood.UNSTATED`.  `side` is +1 if `first`
    was on the left and −1 if it was on the right.  `audit`: the prompt has the role audit.
    `edited`: `first` is an edit of `second`, and nobody saw them as a pair: `side` is 0.
    `judge`: by a model judge, beside judgments by people.
    `arm` is the sampling arm of the comparison.  `milliseconds` is the time from the display of the
    pair to the judgment, if it is known.
    """

    judgment: str
    prompt: str
    first: str
    second: str
    first_ids: list[int]
    second_ids: list[int]
    first_length: int
    second_length: int
    outcome: int
    strength: int
    annotator: str
    side: int
    audit: bool = False
    edited: bool = False
    judge: bool = False
    comparison: str = ""
    arm: Arm = "imported"
    milliseconds: int | None = None

    @property
    def decisive(self) -> bool:
        return self.outcome < TIE

    @property
    def measures(self) -> bool:
        """Whether a figure may use it.  Nobody saw an edit as a pair, a researcher chose a probe, and
        people are the standard for a judge."""
        return not self.edited and not self.judge and self.arm != PROBE

    @property
    def random_stream(self) -> bool:
        """Whether the pair was chosen at random, so that it can measure a reward model."""
        return self.arm in RANDOM_STREAM


def job_pairs(
    job: Job, report: Report, directory: RunDirectory, chat: ChatTokenizer, model: str
) -> list[JudgedPair]:
    """The judgments of a stage's inputs that fit its settings and the context of `model`."""

    def warn(sentence: str) -> None:
        report.log(sentence)
        if not job.resume:  # a resumed run's events begin at its checkpoint
            report.note("warning", "long_rows", sentence)

    limits = LengthLimits(
        limits={"reward.max_tokens": job.config.reward.max_tokens, CONTEXT: context_of(model)},
        skip=job.config.model.long_rows == "skip",
        warn=warn,
    )
    pairs = read_pairs(directory.inputs / "judgments.parquet", chat, limits)
    edits = directory.inputs / "edits.parquet"  # written if reward.learn_from_edits is set
    edited = read_pairs(edits, chat, limits) if edits.exists() else []
    return judges_beside_people([*pairs, *edited])


def read_pairs(path: Path, chat: ChatTokenizer, limits: LengthLimits) -> list[JudgedPair]:
    """The judgments of a parquet file that fit, tokenized; none is truncated.

    Raises `TooLong` if `limits` does, and ValueError if columns are missing.
    """
    frame = pd.read_parquet(path)
    missing = [name for name in _COLUMNS if name not in frame.columns]
    if missing:
        raise ValueError(f"{path.name} lacks the columns {', '.join(missing)}")

    @cache
    def encoded(messages: str, text: str) -> tuple[list[int], int]:
        both = chat.chat(read_messages(messages), text)
        return both.ids, len(both.ids) - both.prompt_tokens

    pairs = []
    for row in frame.to_dict("records"):
        first_ids, first_length = encoded(row["messages"], row["first_text"])
        second_ids, second_length = encoded(row["messages"], row["second_text"])
        pairs.append(
            JudgedPair(
                judgment=row["judgment"],
                prompt=row["prompt"],
                first=row["first"],
                second=row["second"],
                first_ids=first_ids,
                second_ids=second_ids,
                first_length=first_length,
                second_length=second_length,
                outcome=OUTCOME_CODES[row["outcome"]],
                strength=UNSTATED if pd.isna(row["strength"]) else int(row["strength"]),
                annotator=row["annotator"],
                side=0 if row.get("edited") else -1 if row["shown_swapped"] else 1,
                edited=bool(row.get("edited", False)),
                audit=row.get("prompt_role") == "audit",
                judge=row.get("annotator_kind") == "model",
                comparison=row.get("comparison", ""),
                arm=row.get("arm", "imported"),
                milliseconds=_known(row.get("milliseconds")),
            )
        )
    longest = [max(len(pair.first_ids), len(pair.second_ids)) for pair in pairs]
    names = [f"judgment {pair.judgment} of prompt {pair.prompt}" for pair in pairs]
    return [pairs[i] for i in limits.fitting(longest, names, what="judged pairs")]


def judges_beside_people(pairs: Sequence[JudgedPair]) -> list[JudgedPair]:
    """The judgments; without any by people, those by models are not marked as a judge's."""
    if any(pair.measures for pair in pairs):
        return list(pairs)
    return [replace(pair, judge=False) for pair in pairs]


def without_edits(pairs: Iterable[JudgedPair]) -> list[JudgedPair]:
    """The judgments alone, which are what labels are counted by."""
    return [pair for pair in pairs if not pair.edited]


def both_texts(pairs: Iterable[JudgedPair]) -> Iterator[list[int]]:
    """The token ids of each pair's first and second text."""
    for pair in pairs:
        yield pair.first_ids
        yield pair.second_ids


def _known(number: float | None) -> int | None:
    return None if number is None or pd.isna(number) else int(number)


def judged_by(inputs: Path) -> dict[str, dict[str, int]]:
    """How many judgments of each kind of annotator were ``used`` and ``left_out``."""
    path = inputs / "judged_by.json"
    return json.loads(path.read_text()) if path.exists() else {"used": {}, "left_out": {}}


def notes_on_kinds(kinds: Mapping[str, Mapping[str, int]]) -> list[Note]:
    """The run's note on `judged_by`: a warning if kinds were left out or mixed."""
    used, left_out = kinds["used"], kinds["left_out"]
    if not used:
        return []
    message = f"learned from judgments by {_counted(used)}"
    if left_out:
        message += f"; left out: {_counted(left_out)} (reward.learn_from)"
    unusual = left_out or len(used) > 1
    kind = "warning" if unusual else "info"
    payload = {"judged_by": dict(kinds)}
    return [Note(kind=kind, name="judged_by", message=message, payload=payload)]


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))


def split_by_prompt(
    pairs: Sequence[JudgedPair], *, held_out_share: float, seed: int
) -> tuple[list[JudgedPair], list[JudgedPair]]:
    """Training and held-out pairs with no prompt in both.

    Judgments of one prompt resemble each other; splitting by judgment overstates accuracy by ten
    points or more.  `validation_prompts` selects the prompts and raises ValueError if there is
    nothing to learn or measure.  Edits and probes on held-out prompts are in neither list.
    """
    judged = [pair for pair in pairs if pair.measures]
    held_out = validation_prompts(by_prompt(judged), share=held_out_share, seed=seed)
    train = [pair for pair in pairs if pair.prompt not in held_out]
    return train, [pair for pair in judged if pair.prompt in held_out]


def by_prompt(pairs: Sequence[JudgedPair]) -> dict[str, PromptJudgments]:
    """The judgments of each prompt, counted."""
    found: dict[str, list[JudgedPair]] = {}
    for pair in pairs:
        found.setdefault(pair.prompt, []).append(pair)
    return {
        prompt: PromptJudgments(
            judgments=len(its),
            decisive=sum(pair.decisive for pair in its),
            random_stream=any(pair.random_stream for pair in its),
        )
        for prompt, its in found.items()
    }


def split_for_stopping(
    train: Sequence[JudgedPair], *, share: float, least: int, seed: int
) -> tuple[list[JudgedPair], list[JudgedPair]]:
    """Judgments to learn from and judgments set aside, with no prompt in both.

    Prompts with the role audit are set aside, and others, chosen by id, until `share` of the
    prompts is reached.  If that gives fewer than `least` judgments, only the audit prompts are set
    aside.  If the remaining judgments had no preference, nothing is set aside.
    """
    audit = {pair.prompt for pair in train if pair.audit}
    prompts = {pair.prompt for pair in train if pair.measures}
    others = sorted(prompts - audit, key=lambda id: digest("audit", str(seed), id))
    more = max(0, round(share * len(prompts)) - len(audit))
    for outside in (audit | set(others[:more]), audit):
        learned = [pair for pair in train if pair.prompt not in outside]
        audit_set = [pair for pair in train if pair.prompt in outside and pair.measures]
        if (len(audit_set) >= least or outside == audit) and any(pair.decisive for pair in learned):
            return learned, audit_set
    return list(train), []


class Split(NamedTuple):
    """Judgments by use; no prompt is in two of the lists."""

    learned: list[JudgedPair]
    """The reward model learns from these."""
    audit_set: list[JudgedPair]
    """They decide when to stop, and train the audit model."""
    held_out: list[JudgedPair]
    """They measure the reward model, and train the audit model."""

    @property
    def unseen(self) -> list[JudgedPair]:
        """All judgments that the reward model does not learn from."""
        return [*self.audit_set, *self.held_out]

    @property
    def measured(self) -> list[JudgedPair]:
        """Held-out pairs of the random stream; pairs chosen by a reward model are harder."""
        return [pair for pair in self.held_out if pair.random_stream]


def split_judgments(pairs: Sequence[JudgedPair], config: RewardConfig, *, seed: int) -> Split:
    """`split_by_prompt`, then `split_for_stopping`.

    ValueError if there is nothing to learn or measure.
    """
    rest, held_out = split_by_prompt(pairs, held_out_share=config.held_out_share, seed=seed)
    learned, audit_set = split_for_stopping(
        rest, share=config.audit_share, least=config.stopping_judgments, seed=seed
    )
    return Split(learned, audit_set, held_out)


def stopping_pairs(config: RewardConfig, audit_set: Sequence[JudgedPair]) -> Sequence[JudgedPair]:
    """The judgments that decide when to stop training: those set aside, if there are enough."""
    enough = len(audit_set) >= config.stopping_judgments
    return audit_set if config.early_stopping and enough else ()


def resolved(config: RewardConfig, pairs: Sequence[JudgedPair]) -> RewardConfig:
    """The settings with ``tie_model="auto"`` replaced by the model for these judgments.

    It is ordinal if at least half of the preferences state a strength and there is no margin.
    Annotators who rarely state a strength do so in clear cases, which would bias the thresholds;
    model judges beside people, who never state one, do not count.
    """
    if config.tie_model != "auto":
        return config
    people = [pair for pair in pairs if not pair.judge]
    strengths = [pair.strength for pair in people if pair.decisive and not pair.edited]
    stated = sum(strength != UNSTATED for strength in strengths)
    ordinal = strengths and 2 * stated >= len(strengths) and not config.margin
    return replace(config, tie_model="ordinal" if ordinal else "rao_kupper")


def training_rows(
    pairs: Sequence[JudgedPair],
    tie_model: TieModel,
    *,
    heads: int = 1,
    seed: int = 0,
    times: Sequence[float] = (),
    lengths: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Rows for the trainer, without ties under ``drop``.

    `annotator` is an index into `annotator_ids`.  `times` are standardized response times (N,), NaN
    or left out if they are not known.  `lengths` are annotators' preferences for a token more.
    """
    lengths = lengths or {}
    index = {id: n for n, id in enumerate(annotator_ids(pairs))}
    return [
        {
            "first_ids": p.first_ids,
            "second_ids": p.second_ids,
            "outcome": p.outcome,
            "strength": p.strength,
            "annotator": index[p.annotator],
            "side": float(p.side),
            "longer": float(p.first_length - p.second_length),
            "offset": lengths.get(p.annotator, 0.0) * (p.first_length - p.second_length),
            "weights": bootstrap_weights(p.judgment, heads=heads, seed=seed),
            "time": time,
        }
        for p, time in zip(pairs, times or [math.nan] * len(pairs), strict=True)
        if p.decisive or tie_model != "drop"
    ]


def annotator_ids(pairs: Sequence[JudgedPair]) -> list[str]:
    """The ids of the judgments' annotators, sorted."""
    return sorted({pair.annotator for pair in pairs})


def bootstrap_weights(judgment: str, *, heads: int, seed: int) -> list[float]:
    """How often each head's bootstrap sample contains a judgment: Poisson(1), or 1 for one head.

    The Poisson bootstrap draws each row's count separately (Oza and Russell 2001, *Online Bagging
    and Boosting*), so it depends on the judgment's id only and does not change with new labels.
    """
    if heads == 1:
        return [1.0]
    return [float(_poisson(digest("bootstrap", str(seed), judgment, str(k)))) for k in range(heads)]


def _poisson(hexadecimal: str) -> int:
    """A Poisson(1) number by inversion, from 16 hexadecimal digits."""
    left, count, mass = int(hexadecimal, 16) / 2**64, 0, math.exp(-1)
    while left >= mass and count < 30:
        left, count = left - mass, count + 1
        mass /= count
    return count


_BATCHED = {
    "outcomes": "outcome",
    "strength": "strength",
    "annotators": "annotator",
    "side": "side",
    "longer": "longer",
    "offset": "offset",
    "weights": "weights",
    "times": "time",
}


class PairCollator:
    """Collates rows of `training_rows` into a batch: all first responses, then all second ones."""

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` (2N, L); the columns of the rows (N,), `weights` (N, K)."""
        texts = [row["first_ids"] for row in rows] + [row["second_ids"] for row in rows]
        columns = {
            name: torch.tensor([row[column] for row in rows]) for name, column in _BATCHED.items()
        }
        return pad_right(texts, self._pad_id) | columns
