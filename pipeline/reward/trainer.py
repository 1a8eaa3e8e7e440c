"""Bradley-Terry training with ties, on TRL's trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import TrainerCallback

from pipeline.config import RewardConfig
from pipeline.reward.data import JudgedPair, PairCollator, training_rows
from pipeline.reward.likelihood import TIE, negative_log_likelihood
from pipeline.rundir import Report
from pipeline.text import ChatTokenizer
from pipeline.training import ReportCallback, train, trainer_arguments

SHARE = 0.8
"""Of the stage's progress that is training; measuring and centring follow."""


class RewardTrainer(trl.RewardTrainer):
    """TRL's trainer with our rows, our likelihood and a learned tie threshold.

    The stock one drops pairs over 1,024 tokens and every column but three without a word; rows
    come here tokenized and reach the loss as they are.
    """

    def __init__(self, *, tie_model: Any, theta_lr: float, **arguments: Any) -> None:
        self.tie_model = tie_model
        self.theta_lr = theta_lr
        super().__init__(**arguments)

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = ["first_ids", "second_ids", "outcome"]

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> Any:
        """Mean negative log-likelihood of a batch's judgments, both sides in one pass."""
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        first, second = outputs.logits.squeeze(-1).chunk(2)
        loss = negative_log_likelihood(
            first - second, inputs["outcomes"], theta=outputs.theta, tie_model=self.tie_model
        ).mean()
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs θ beside the loss."""
        super().log(logs | {"theta": self.model.ties().item()}, start_time)  # type: ignore[union-attr]

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW without weight decay; θ, one number with a unit of its own, has its own rate."""
        if self.optimizer is None:
            trained: Any = self.model if model is None else model
            named = [(n, p) for n, p in trained.named_parameters() if p.requires_grad]
            groups = [
                {
                    "params": [p for n, p in named if "ties." not in n],
                    "lr": self.args.learning_rate,
                },
                {"params": [p for n, p in named if "ties." in n], "lr": self.theta_lr},
            ]
            self.optimizer = torch.optim.AdamW(
                [group for group in groups if group["params"]],
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
                weight_decay=0.0,
            )
        return self.optimizer


class _MeasureEachEpoch(TrainerCallback):
    """Reports held-out figures whenever an epoch ends, so that overfitting shows."""

    def __init__(self, measure: Any) -> None:
        self._measure = measure

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._measure(state.global_step)


def train_reward_model(
    network: Any,
    chat: ChatTokenizer,
    pairs: Sequence[JudgedPair],
    config: RewardConfig,
    checkpoints: Path,
    report: Report,
    *,
    device: torch.device,
    seed: int = 0,
    resume: bool = False,
    measure: Any = None,
    notes: Sequence[dict[str, Any]] = (),
) -> None:
    """Train `network` in place on `pairs`; `measure(step)` is called after each epoch."""
    rows = training_rows(pairs, config.tie_model)
    ties = sum(row["outcome"] == TIE for row in rows)
    network.ties.start_at(ties / len(rows))
    # Under the other tie models θ gets no gradient, which distributed training does not accept.
    network.ties.requires_grad_(config.tie_model == "rao_kupper")
    longest = max(max(len(row["first_ids"]), len(row["second_ids"])) for row in rows)
    arguments = trainer_arguments(
        network,
        checkpoints=checkpoints,
        examples=len(rows),
        batch=config.batch,
        longest=2 * longest,
        epochs=config.epochs,
        lr=config.lr,
        seed=seed,
        device=device,
    )
    callbacks: list[TrainerCallback] = [
        ReportCallback(report, "training the reward model", notes, share=SHARE)
    ]
    trainer = RewardTrainer(
        tie_model=config.tie_model,
        theta_lr=config.theta_lr,
        model=network,
        args=trl.RewardConfig(**arguments, warmup_steps=0.05, lr_scheduler_type="linear"),
        data_collator=PairCollator(chat.pad_id),
        train_dataset=Dataset.from_list(rows),
        processing_class=chat.tokenizer,
        callbacks=callbacks + ([_MeasureEachEpoch(measure)] if measure else []),
    )
    train(trainer, checkpoints, report, resume=resume)
