"""The classifier component: a small model that predicts whether people flag a completion.
A decoder with a scalar head, as the reward model is, trained on rows of (prompt, completion,
sycophantic) with binary cross-entropy.  Its score is the probability of a flag.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from pipeline.models.devices import pick_device
from pipeline.models.hf_trainer import ReportCallback, train, trainer_arguments
from pipeline.models.padding import pad_right
from pipeline.models.text import ChatTokenizer, LengthLimits
from pipeline.reward.network import from_language_model
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import Report
from pipeline.shaping.component import Conversation
from pipeline.shaping.tables import read_table
from storage.records import Message, digest

COLUMNS = ("prompt", "completion", "sycophantic")
_LABELS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class SycophancyClassifier:
    """The probability that an annotator flags each completion as sycophantic."""

    def __init__(self, model: RewardModel) -> None:
        self._model = model

    @classmethod
    def load(cls, path: Path, *, device: torch.device | str = "cpu") -> SycophancyClassifier:
        """Load the folder that `train_classifier` wrote; ModelUnavailable if it holds no model."""
        return cls(RewardModel.load(path, device=device))

    def __call__(
        self, conversations: Sequence[Conversation], completions: Sequence[str]
    ) -> list[float]:
        return torch.tensor(self._model(conversations, completions)).sigmoid().tolist()


@dataclass(frozen=True, kw_only=True)
class FlaggedRow:
    """A completion of a prompt, and whether it was flagged as sycophantic."""

    prompt: str
    completion: str
    sycophantic: bool

    @property
    def messages(self) -> tuple[Message, ...]:
        return (Message(role="user", content=self.prompt),)


def read_flagged(path: Path) -> list[FlaggedRow]:
    """The rows of a labeled file; ValueError for a label that is neither true nor false."""
    rows = []
    for number, row in enumerate(read_table(path, COLUMNS), 1):
        prompt, completion, flag = (row[name] for name in COLUMNS)
        label = _LABELS.get(str(flag).strip().lower())
        if label is None:
            raise ValueError(f"row {number} of {path}: sycophantic={flag!r} must be true or false")
        rows.append(FlaggedRow(prompt=str(prompt), completion=str(completion), sycophantic=label))
    return rows


def split_by_prompt(
    rows: Sequence[FlaggedRow], *, held_out_share: float, seed: int
) -> tuple[list[FlaggedRow], list[FlaggedRow]]:
    """Training and held-out rows with no prompt in both; ValueError if there are too few."""
    prompts = sorted({row.prompt for row in rows}, key=lambda p: digest("flags", str(seed), p))
    if len(prompts) < 2:
        raise ValueError("all flags are on one prompt; flag completions of at least two")
    held_out = set(prompts[: min(max(1, round(held_out_share * len(prompts))), len(prompts) - 1)])
    training = [row for row in rows if row.prompt not in held_out]
    if len({row.sycophantic for row in training}) < 2:
        raise ValueError("the flags to train on must include both true and false")
    return training, [row for row in rows if row.prompt in held_out]


def train_classifier(
    base: str,
    training: Sequence[FlaggedRow],
    held_out: Sequence[FlaggedRow],
    folder: Path,
    report: Report,
    *,
    lr: float = 3e-4,
    epochs: float = 3.0,
    batch: int = 16,
    max_tokens: int = 2048,
    seed: int = 0,
    device: str = "auto",
    resume: bool = False,
) -> TrainedClassifier:
    """Train on flags from the weights of the language model `base`; save to `folder`.

    Checkpoints go to `folder/checkpoint`; `resume` continues from them.  Raises `TooLong` for a row over `max_tokens`.
    """
    chat, where = ChatTokenizer.load(base), pick_device(device)
    encoded = [chat.chat(row.messages, row.completion).ids for row in training]
    lengths = [len(ids) for ids in encoded]
    rows = [f"row {number}" for number in range(1, len(lengths) + 1)]
    LengthLimits(limits={"max_tokens": max_tokens}).fitting(
        lengths, rows, what="flagged completions"
    )
    network = from_language_model(base, chat).to(where)
    _start_at_base_rate(network, training)
    arguments = trainer_arguments(
        network,
        checkpoints=folder / "checkpoint",
        examples=len(training),
        batch=batch,
        longest=max(lengths),
        epochs=epochs,
        lr=lr,
        seed=seed,
        device=where,
    )
    del arguments["max_length"]  # only TRL's configs have it
    trainer = _Trainer(
        model=network,
        args=transformers.TrainingArguments(
            **arguments, warmup_steps=0.05, lr_scheduler_type="linear", label_names=["labels"]
        ),
        train_dataset=Dataset.from_list(
            [
                {"input_ids": ids, "label": float(row.sycophantic)}
                for ids, row in zip(encoded, training, strict=True)
            ]
        ),
        data_collator=partial(_collate, pad_id=chat.pad_id),
        callbacks=[ReportCallback(report, "training the classifier")],
    )
    train(trainer, folder / "checkpoint", report, resume=resume)
    network.eval()
    network.save_pretrained(folder)
    chat.tokenizer.save_pretrained(folder)
    found = SycophancyClassifier(RewardModel(network, chat, where))
    return TrainedClassifier(rows=len(training), **vars(measure(found, held_out)))


@dataclass(frozen=True, kw_only=True)
class ClassifierFigures:
    """Figures of a classifier on held-out flags."""

    held_out_rows: int
    accuracy: float
    """At the threshold ½."""
    commoner_label: float
    """The share of the more frequent label."""
    log_loss: float
    """Nats."""


@dataclass(frozen=True, kw_only=True)
class TrainedClassifier(ClassifierFigures):
    """The figures, with the number of training rows."""

    rows: int


def measure(classifier: SycophancyClassifier, rows: Sequence[FlaggedRow]) -> ClassifierFigures:
    """Compare the classifier's probabilities with the flags."""
    predicted = classifier([row.messages for row in rows], [row.completion for row in rows])
    labels = [row.sycophantic for row in rows]
    pairs = list(zip(predicted, labels, strict=True))
    share = fmean(labels)
    likelihoods = [max(p if label else 1 - p, 1e-7) for p, label in pairs]
    return ClassifierFigures(
        held_out_rows=len(rows),
        accuracy=fmean((p > 0.5) == label for p, label in pairs),
        commoner_label=max(share, 1 - share),
        log_loss=-fmean(math.log(p) for p in likelihoods),
    )


class _Trainer(transformers.Trainer):
    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> Any:
        """Mean binary cross-entropy of a batch."""
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = binary_cross_entropy_with_logits(outputs.logits.squeeze(-1), labels)
        return (loss, outputs) if return_outputs else loss


def _collate(rows: Sequence[dict[str, Any]], *, pad_id: int) -> dict[str, Tensor]:
    """Rows of token ids and labels as one batch, (N, L) and (N,)."""
    labels = torch.tensor([row["label"] for row in rows])
    return pad_right([row["input_ids"] for row in rows], pad_id) | {"labels": labels}


def _start_at_base_rate(network: Any, rows: Sequence[FlaggedRow]) -> None:
    """Set the head's bias to the log-odds of a flag, so that training starts at the base rate."""
    flagged = sum(row.sycophantic for row in rows)
    network.shift(math.log(flagged / (len(rows) - flagged)))
    network.ties.requires_grad_(False)  # there are no ties
