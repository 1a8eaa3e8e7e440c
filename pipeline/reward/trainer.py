"""Training on judgments, on TRL's trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback

from pipeline.config.reward import RewardConfig
from pipeline.models.hf_trainer import ReportCallback, train, trainer_arguments
from pipeline.models.text import ChatTokenizer
from pipeline.reward.annotators import AnnotatorEffects, effective
from pipeline.reward.data import (
    JudgedPair,
    PairCollator,
    annotator_ids,
    resolved,
    training_rows,
)
from pipeline.reward.likelihood import Likelihood, TieValues
from pipeline.reward.quality.reliability import losses_to_annotators
from pipeline.reward.scoring import RewardModel
from pipeline.reward.stopping import EarlyStop, EarlyStopping
from pipeline.runs.rundir import Report

SHARE, AUDITED = 0.6, 0.8
"""How far the stage is when the model is trained, and when the audit model is."""


class RewardTrainer(trl.RewardTrainer):
    """TRL's trainer with our rows, our likelihood, learned ties, annotators and several heads.

    The stock one drops pairs over 1,024 tokens and every column but three without a word; rows
    come here tokenized and reach the loss as they are.
    """

    def __init__(self, *, settings: RewardConfig, judgments: int, **arguments: Any) -> None:
        self.settings = settings
        self.likelihood = likelihood_of(settings)
        self.judgments = judgments
        super().__init__(**arguments)

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = [
            "first_ids", "second_ids", "outcome", "strength", "annotator", "side", "longer", "weights",
        ]  # fmt: skip

    def get_batch_samples(self, *arguments: Any, **named: Any) -> Any:
        """The micro-batches of a step; each knows its pairs' part in the whole batch's length penalty."""
        batches, items = super().get_batch_samples(*arguments, **named)
        if self.settings.length_penalty_weight and len(batches) > 1:
            self._share_length_penalty(batches)
        return batches, items

    @torch.no_grad()
    def _share_length_penalty(self, batches: Sequence[Any]) -> None:
        """Put in each the whole batch's `correlated` and its `length_gradient` (N,) by N differences.

        A correlation of a few pairs is none of their batch, so that a mean over micro-batches would
        hang on how the batch is cut.  Costs a forward pass more.
        """
        model: Any = self.model_wrapped
        model.train()  # an evaluated network's rewards are its heads'
        read = [self._prepare_inputs(batch) for batch in batches]
        outputs = [
            model(input_ids=each["input_ids"], attention_mask=each["attention_mask"])
            for each in read
        ]
        d = torch.cat([_differences(each.logits) for each in outputs])
        with torch.enable_grad():
            correlated = squared_correlation(
                d.requires_grad_(), torch.cat([each["longer"] for each in read])
            )
        parts = torch.autograd.grad(correlated, d)[0].split([len(each["longer"]) for each in read])
        for batch, part in zip(batches, parts, strict=True):
            batch["correlated"] = correlated.detach()
            batch["length_gradient"] = part * len(batches)  # losses are averaged over micro-batches

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> Any:
        """Mean loss of a batch's judgments, both sides in one pass.

        The heads' losses are added: they reach the heads alone, and nothing that is shared.
        """
        outputs = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            annotators=inputs["annotators"],
        )
        ties, people = outputs.ties, (outputs.slope, outputs.bias)
        loss = self._losses(outputs.logits, inputs, ties, *people).mean()
        if outputs.penalty is not None:
            loss = loss + outputs.penalty / self.judgments
        if self.settings.length_penalty_weight:
            d = _differences(outputs.logits)
            correlated = (
                inputs["correlated"] + (inputs["length_gradient"] * (d - d.detach())).sum()
                if "correlated" in inputs
                else squared_correlation(d, inputs["longer"])
            )
            loss = loss + self.settings.length_penalty_weight * correlated
        if outputs.heads is not None:
            apart = (None if each is None else each.detach() for each in people)
            sampled = self._losses(outputs.heads, inputs, ties.detach(), *apart)
            sampled = inputs["weights"] * sampled
            # A value of 0, so that the loss that is told is the reward's.
            loss = loss + (sampled - sampled.detach()).mean()
        return (loss, outputs) if return_outputs else loss

    def _losses(
        self,
        rewards: Tensor,
        inputs: Any,
        ties: Tensor,
        slope: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """(N, K) losses of N judgments by (2N, K) rewards of their firsts, then their seconds."""
        first, second = rewards.chunk(2)
        z = first - second
        if slope is not None and bias is not None:
            z = effective(z, slope[:, None], bias[:, None], inputs["side"][:, None])
        return self.likelihood.loss(
            z,
            inputs["outcomes"][:, None],
            ties=TieValues(*ties),
            strength=inputs["strength"][:, None],
            level=(first + second) / 2,
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs θ beside the loss."""
        super().log(logs | {"theta": self.model.ties().item()}, start_time)  # type: ignore[union-attr]

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW without weight decay; numbers with a unit of their own have their own rates."""
        if self.optimizer is None:
            trained: Any = self.model if model is None else model
            rates = {"ties.": self.settings.theta_lr, "annotators.": self.settings.annotator_lr}
            groups: dict[float | None, list[Any]] = {}
            for name, parameter in trained.named_parameters():
                if parameter.requires_grad:
                    own = next((rate for part, rate in rates.items() if part in name), None)
                    groups.setdefault(own, []).append(parameter)
            self.optimizer = torch.optim.AdamW(
                [
                    {"params": params, "lr": self.args.learning_rate if own is None else own}
                    for own, params in groups.items()
                ],
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
                weight_decay=0.0,
            )
        return self.optimizer


def likelihood_of(settings: RewardConfig) -> Likelihood:
    """The likelihood that the settings ask for; ties that are dropped have no level either.

    ValueError for ``auto``, which stands for one of the others (`resolved`).
    """
    if settings.tie_model == "auto":
        raise ValueError("reward.tie_model=auto must be resolved on the judgments first")
    return Likelihood(
        tie_model=settings.tie_model,
        both_bad="tie" if settings.tie_model == "drop" else settings.both_bad,
        label_smoothing=settings.label_smoothing,
        margin=settings.margin,
    )


def squared_correlation(d: Tensor, longer: Tensor) -> Tensor:
    """(Σ d·Δ)² / (Σ d² · Σ Δ²) of (N,) differences of rewards and lengths; 0 where either is 0."""
    norm = d.square().sum() * longer.square().sum()
    return (d * longer).sum().square() / norm.clamp(min=1e-12)


def _differences(rewards: Tensor) -> Tensor:
    """(N,) first less second of (2N, 1) rewards."""
    first, second = rewards.squeeze(1).chunk(2)
    return first - second


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
    bootstrap_seed: int = 0,
    resume: bool = False,
    measure: Any = None,
    outside: Sequence[JudgedPair] = (),
    notes: Sequence[dict[str, Any]] = (),
    doing: str = "training the reward model",
    share: tuple[float, float] = (0.0, SHARE),
    quiet: bool = False,
) -> EarlyStop | None:
    """Train `network` in place on `pairs`; `measure(step)` is called after each epoch.

    Where annotators are learned, `network.annotators` holds them meanwhile and afterwards.
    Judgments `outside` of `pairs` say when to stop (`EarlyStopping`): returns what was kept.
    `share` is the part of the stage's progress that the training is; a `quiet` one reports its
    progress alone.
    """
    config = resolved(config, pairs)
    likelihood = network.likelihood = likelihood_of(config)
    rows = training_rows(pairs, likelihood.tie_model, heads=network.members, seed=bootstrap_seed)
    outcomes, strengths = (
        torch.tensor([row[key] for row in rows]) for key in ("outcome", "strength")
    )
    network.ties.start(likelihood, outcomes, strengths)
    network.ties.learn(likelihood)
    people = annotator_ids(pairs)
    if config.annotators and len(people) > 1:
        network.annotators = AnnotatorEffects(people).to(device)
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
        ReportCallback(report, doing, notes, share=share, metrics=not quiet)
    ]
    if measure:
        callbacks.append(_MeasureEachEpoch(measure))
    stopping = None
    if outside:

        def check(step: int) -> Tensor:
            losses = outside_losses(network, chat, outside, device)
            if not quiet:
                report.metrics(step, {"out_of_bag/log_loss": losses.mean().item()})
            network.train()
            return losses

        prompts = [pair.prompt for pair in outside]
        stopping = EarlyStopping(network, check, prompts, patience=config.patience)
        callbacks.insert(0, stopping)
    trainer = RewardTrainer(
        settings=config,
        judgments=len(rows),
        model=network,
        args=trl.RewardConfig(**arguments, warmup_steps=0.05, lr_scheduler_type="linear"),
        data_collator=PairCollator(chat.pad_id),
        train_dataset=Dataset.from_list(rows),
        processing_class=chat.tokenizer,
        callbacks=callbacks,
    )
    train(trainer, checkpoints, report, resume=resume)
    return stopping.keep() if stopping else None


def outside_losses(
    network: Any, chat: ChatTokenizer, pairs: Sequence[JudgedPair], device: torch.device
) -> Tensor:
    """Losses of judgments, by what the network knows of the rewards and of the annotators."""
    sides = RewardModel(network, chat, device).both_sides(pairs)
    return losses_to_annotators(pairs, *sides, network)
