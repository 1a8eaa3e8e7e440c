"""Training of one reward network on judgments, with TRL's trainer.

`RewardTrainer.compute_loss` is the loss: the negative log-likelihood of the judgments
(likelihood.py), weighted by annotators, plus `reward.length_penalty_weight` (default 0) times the
squared correlation of reward and length.  members.py calls `train_network` for each member.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback

from pipeline.config.reward import RewardConfig
from pipeline.models.devices import pick_device
from pipeline.models.hf_trainer import ReportCallback, is_large, train, trainer_arguments
from pipeline.models.text import ChatTokenizer
from pipeline.reward.annotators import AnnotatorEffects, GroundedJudge, effective
from pipeline.reward.data import (
    JudgedPair,
    PairCollator,
    annotator_ids,
    resolved,
    training_rows,
)
from pipeline.reward.gold import GoldJudgment, gold_prior
from pipeline.reward.likelihood import Likelihood, TieValues
from pipeline.reward.network import reads_packed
from pipeline.reward.quality.reliability import losses_to_annotators
from pipeline.reward.response_times import MIN_TIMES, ResponseTimes, standardized, time_loss
from pipeline.reward.scoring import RewardModel
from pipeline.reward.stopping import EarlyStop, EarlyStopping
from pipeline.runs.rundir import Job, Note, Report

SHARE, AUDITED = 0.6, 0.8
"""The stage's progress after training the reward model, and after training the audit model."""


class RewardTrainer(trl.RewardTrainer):
    """TRL's trainer with Kitestring's likelihood, learned ties, annotators and several heads.

    TRL's trainer silently drops pairs over 1,024 tokens and all columns but three.  Here rows are
    already tokenized and reach the loss unchanged.
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
            "first_ids", "second_ids", "outcome", "strength", "annotator", "side", "longer", "offset",
            "weights", "time",
        ]  # fmt: skip

    def get_batch_samples(self, *arguments: Any, **named: Any) -> Any:
        """The micro-batches of a step, among which the batch's length penalty is divided."""
        batches, items = super().get_batch_samples(*arguments, **named)
        if self.settings.length_penalty_weight and len(batches) > 1:
            self._share_length_penalty(batches)
        return batches, items

    @torch.no_grad()
    def _share_length_penalty(self, batches: Sequence[Any]) -> None:
        """Add to each micro-batch the batch's `correlated` and its gradient `length_gradient` (N,).

        The gradient is with respect to the N reward differences.  A mean of the micro-batches'
        correlations would depend on their size.  This costs one additional forward pass.
        """
        model: Any = self.model_wrapped
        model.train()  # in evaluation mode the logits are those of the heads
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

        The heads' losses are added.  Their gradients reach only the heads.
        """
        outputs = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            annotators=inputs["annotators"],
        )
        ties, people = outputs.ties, (outputs.slope, outputs.bias)
        loss = judgment_losses(self.likelihood, outputs.logits, inputs, ties, *people).mean()
        if outputs.penalty is not None:
            loss = loss + outputs.penalty / self.judgments
        if outputs.times is not None:
            z = _effective(_differences(outputs.logits), inputs, *people)
            loss = loss + time_loss(z, inputs["times"], outputs.times)
        if self.settings.length_penalty_weight:
            d = _differences(outputs.logits)
            correlated = (
                inputs["correlated"] + (inputs["length_gradient"] * (d - d.detach())).sum()
                if "correlated" in inputs
                else squared_correlation(d, inputs["longer"])
            )
            loss = loss + self.settings.length_penalty_weight * correlated
        if outputs.heads is not None:
            detached = (None if each is None else each.detach() for each in people)
            sampled = judgment_losses(
                self.likelihood, outputs.heads, inputs, ties.detach(), *detached
            )
            sampled = inputs["weights"] * sampled
            # The value is 0, so that the reported loss is that of the reward.
            loss = loss + (sampled - sampled.detach()).mean()
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log θ with the loss."""
        super().log(logs | {"theta": self.model.ties().item()}, start_time)  # type: ignore[union-attr]

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW without weight decay; ties and annotators have their own learning rates."""
        if self.optimizer is None:
            trained: Any = self.model if model is None else model
            rates = {
                "ties.": self.settings.theta_lr,
                "times.": self.settings.theta_lr,
                "annotators.": self.settings.annotator_lr,
            }
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


def judgment_losses(
    likelihood: Likelihood,
    rewards: Tensor,
    inputs: Mapping[str, Tensor],
    ties: Tensor,
    slope: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """(N, K) losses of N judgments from (2N, K) rewards: first responses, then second ones.

    `inputs` is a batch of `PairCollator`; `slope` and `bias` (N,) are those of the annotators.
    """
    first, second = rewards.chunk(2)
    z = _effective((first - second).T, inputs, slope, bias).T
    return likelihood.loss(
        z,
        inputs["outcomes"][:, None],
        ties=TieValues(*ties),
        strength=inputs["strength"][:, None],
        level=(first + second) / 2,
    )


def likelihood_of(settings: RewardConfig) -> Likelihood:
    """The likelihood that the settings select.

    Raises ValueError for ``tie_model="auto"``; call `resolved` first.
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


def _effective(d: Tensor, inputs: Any, slope: Tensor | None, bias: Tensor | None) -> Tensor:
    """The argument of the tie model for reward differences d (…, N)."""
    if slope is None or bias is None:
        return d
    return effective(d, slope, bias, inputs["side"]) + inputs["offset"]


def _differences(rewards: Tensor) -> Tensor:
    """(N,) first minus second of (2N, 1) rewards."""
    first, second = rewards.squeeze(1).chunk(2)
    return first - second


class _MeasureEachEpoch(TrainerCallback):
    """Reports held-out figures at the end of every epoch, which shows overfitting."""

    def __init__(self, measure: Callable[[int], None]) -> None:
        self._measure = measure

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._measure(state.global_step)


@dataclass(frozen=True, kw_only=True)
class Training:
    """The parameters of a reward model's training that all its networks share."""

    base: str
    """Directory or id of the language model that it starts from."""
    chat: ChatTokenizer
    config: RewardConfig
    checkpoints: Path
    report: Report
    device: torch.device
    seed: int = 0
    """Seed of the order of the judgments."""
    bootstrap_seed: int = 0
    resume: bool = False
    doing: str = "training the reward model"
    """The start of the progress messages."""
    share: tuple[float, float] = (0.0, SHARE)
    """(start, end) of the training in the stage's progress."""
    quiet: bool = False
    """Report progress only, no metrics."""
    gold: Sequence[GoldJudgment] = ()
    """Answers to gold pairs, which inform the slopes of annotators."""
    judges: Mapping[str, GroundedJudge] = field(default_factory=dict)
    """Fixed slopes and biases of model judges."""

    @classmethod
    def of_job(cls, job: Job, chat: ChatTokenizer, checkpoints: Path, report: Report) -> Training:
        """Training from a job's reference model, with the job's settings and seeds."""
        return cls(
            base=job.model("reference"),
            chat=chat,
            config=job.config.reward,
            checkpoints=checkpoints,
            report=report,
            device=pick_device(job.config.worker.device),
            seed=job.seed,
            bootstrap_seed=job.config.seed,
            resume=job.resume,
        )


def train_network(
    network: Any,
    training: Training,
    pairs: Sequence[JudgedPair],
    *,
    stopping: Sequence[JudgedPair] = (),
    measure: Callable[[int], None] | None = None,
    notes: Sequence[Note] = (),
) -> EarlyStop | None:
    """Train `network` in place on `pairs`; return the state that early stopping kept, if any.

    `stopping` are judgments that decide when to stop; the network does not learn from them.
    `measure(step)` is called after each epoch.  `notes` are reported before the first step.  If
    annotators are learned, `network.annotators` contains them afterwards.
    """
    config = resolved(training.config, pairs)
    rows = _prepare(network, config, pairs, training)
    early = _early_stopping(network, training, stopping) if stopping else None
    report = ReportCallback(
        training.report, training.doing, notes, share=training.share, metrics=not training.quiet
    )
    # Early stopping adds its file to a checkpoint, so it comes before what completes the checkpoint.
    callbacks: list[TrainerCallback] = [*filter(None, [early]), report]
    if measure:
        callbacks.append(_MeasureEachEpoch(measure))
    arguments = trainer_arguments(
        network,
        checkpoints=training.checkpoints,
        examples=len(rows),
        batch=config.batch,
        longest=2 * max(max(len(row["first_ids"]), len(row["second_ids"])) for row in rows),
        epochs=config.epochs,
        lr=config.lr,
        seed=training.seed,
        device=training.device,
    )
    trainer = RewardTrainer(
        settings=config,
        judgments=len(rows),
        model=network,
        args=trl.RewardConfig(**arguments, warmup_steps=0.05, lr_scheduler_type="linear"),
        data_collator=PairCollator(training.chat.pad_id),
        train_dataset=Dataset.from_list(rows),
        processing_class=training.chat.tokenizer,
        callbacks=callbacks,
    )
    train(trainer, training.checkpoints, training.report, resume=training.resume)
    kept = early.keep() if early else None
    _report_times(network, training)
    network.times = None  # not part of the rewards
    return kept


def _report_times(network: Any, training: Training) -> None:
    """Say how much response times told, or why nothing."""
    if not training.config.response_times or training.quiet:
        return
    message = f"too few response times are known: at least {MIN_TIMES} are needed"
    if network.times is not None:
        share = network.times()[0].item()
        message = f"response times follow the difference of rewards with a share of {share:.2f}"
    training.report.note("info", "response_times", message)


def _prepare(
    network: Any, config: RewardConfig, pairs: Sequence[JudgedPair], training: Training
) -> list[dict[str, Any]]:
    """Set up the network's passes, likelihood, initial ties and annotators; return the rows to
    train on."""
    # Gradient checkpointing repeats a pass outside of its packing.
    network.packs = not is_large(network) and reads_packed(network, training.device)
    likelihood = network.likelihood = likelihood_of(config)
    times = standardized(pairs) if config.response_times else []
    rows = training_rows(
        pairs,
        likelihood.tie_model,
        heads=network.members,
        seed=training.bootstrap_seed,
        times=times,
        lengths={id: judge.length for id, judge in training.judges.items()},
    )
    if not all(map(math.isnan, times)):
        network.times = ResponseTimes().to(training.device)
    outcomes = torch.tensor([row["outcome"] for row in rows])
    strengths = torch.tensor([row["strength"] for row in rows])
    network.ties.start(likelihood, outcomes, strengths)
    network.ties.learn(likelihood)
    people = annotator_ids(pairs)
    if config.annotators and len(people) > 1:
        prior = gold_prior(training.gold, people, likelihood=likelihood, ties=network.ties.values())
        network.annotators = AnnotatorEffects(people, prior, fixed=training.judges).to(
            training.device
        )
    return rows


def _early_stopping(network: Any, training: Training, pairs: Sequence[JudgedPair]) -> EarlyStopping:
    def losses(step: int) -> Tensor:
        model = RewardModel(network, training.chat, training.device)
        found = losses_to_annotators(pairs, *model.both_sides(pairs), network)
        if not training.quiet:
            training.report.metrics(step, {"out_of_bag/log_loss": found.mean().item()})
        network.train()
        return found

    prompts = [pair.prompt for pair in pairs]
    return EarlyStopping(network, losses, prompts, patience=training.config.patience)
