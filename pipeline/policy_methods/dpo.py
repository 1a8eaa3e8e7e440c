"""Direct preference optimization: the policy learns from judgments, without a reward model.

Rafailov et al. 2023 (arXiv:2305.18290), with TRL's trainer.  The policy learns from the same
judgments as the reward model, except ties; those on held-out prompts measure it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import torch
import trl
from datasets import Dataset

from pipeline.config.policy import OptimizeConfig
from pipeline.models.devices import pick_device
from pipeline.models.generate import Sampler
from pipeline.models.hf_trainer import (
    ReportCallback,
    SnapshotCallback,
    save_policy,
    tokens_at_once,
    train,
    trainer_arguments,
)
from pipeline.models.likelihoods import response_logprobs, sequence_kl
from pipeline.models.loading import context_length, load_causal_lm
from pipeline.models.text import CONTEXT, ChatTokenizer, Encoded, LengthLimits
from pipeline.policy_methods.inputs import SAMPLES, job_reward, read_prompts, write_samples
from pipeline.reward.data import (
    JudgedPair,
    job_pairs,
    judged_by,
    notes_on_kinds,
    split_judgments,
)
from pipeline.reward.likelihood import FIRST
from pipeline.runs.rundir import Job, Note, Report, RunDirectory
from pipeline.statistics.winrate import outcome
from storage.records import derive_seed


@dataclass(frozen=True)
class Preference:
    """A preferred response and the other one, after the same prompt."""

    chosen: Encoded
    rejected: Encoded


@dataclass(frozen=True, kw_only=True)
class DPOSummary:
    """The summary of a policy stage with DPO; margins are those of `margins`, nats."""

    method: Literal["dpo"] = "dpo"
    pairs: int
    """Preferences that the policy learned from."""
    ties_left_out: int
    judged_by: Mapping[str, Mapping[str, int]]
    """Numbers of judgments by kind of annotator, ``used`` and ``left_out``."""
    loss: float
    """Mean over the run, nats per preference."""
    margin: float
    """Mean over the preferences learned from."""
    held_out_pairs: int
    """Held-out preferences of the random stream."""
    apart_preferences: int
    """Preferences on the prompts set aside."""
    held_out_margin: float | None
    """Mean over the held-out preferences; None without any."""
    accuracy: float | None
    """Share of the held-out preferences with a margin above 0."""


def run(job: Job, report: Report, directory: RunDirectory) -> DPOSummary:
    """Train the policy on inputs/judgments.parquet; saves model/.

    inputs/prompts.parquet is for the samples that are reported at the end.
    """
    settings, device = job.config.optimize, pick_device(job.config.worker.device)
    chat = ChatTokenizer.load(job.model("policy"))
    pairs = job_pairs(job, report, directory, chat, job.model("policy"))
    learned, audit_set, held_out_pairs = split_judgments(
        pairs, job.config.reward, seed=job.config.seed
    )
    # Like the reward model, measured only on pairs that no reward model chose.
    measured = [pair for pair in held_out_pairs if pair.random_stream]
    training, held_out = preferences(learned), preferences(measured)
    ties = sum(not pair.decisive for pair in pairs)
    model = load_causal_lm(job.model("policy"), device=device)
    reference = load_causal_lm(job.model("reference"), device=device)
    kinds = judged_by(directory.inputs)
    notes = [*notes_on_kinds(kinds), *_left_out(ties, len(pairs))]
    loss, steps = train_dpo(
        model,
        reference,
        chat,
        training,
        settings,
        directory,
        report,
        seed=job.seed,
        resume=job.resume,
        device=device,
        notes=notes,
    )
    save_policy(model, chat.tokenizer, directory.model)
    margin = fmean(margins(model, reference, training, pad_id=chat.pad_id))
    found = margins(model, reference, held_out, pad_id=chat.pad_id) if held_out else []
    accuracy = fmean(outcome(each, 0.0) for each in found) if found else None
    if accuracy is not None:
        report.metrics(steps, {"held_out/accuracy": accuracy})
    _show_samples(job, report, directory, Sampler(model, chat), reference, step=steps)
    write_samples(directory)
    return DPOSummary(
        pairs=len(training),
        ties_left_out=ties,
        judged_by=kinds,
        loss=loss,
        margin=margin,
        held_out_pairs=len(held_out),
        apart_preferences=len(preferences(audit_set)),
        held_out_margin=fmean(found) if found else None,
        accuracy=accuracy,
    )


def preferences(pairs: Sequence[JudgedPair]) -> list[Preference]:
    """The decisive judgments; DPO cannot learn from ties."""
    found = []
    for pair in pairs:
        if pair.decisive:
            first = Encoded(pair.first_ids, len(pair.first_ids) - pair.first_length)
            second = Encoded(pair.second_ids, len(pair.second_ids) - pair.second_length)
            won = pair.outcome == FIRST
            found.append(Preference(*((first, second) if won else (second, first))))
    return found


def train_dpo(
    model: Any,
    reference: Any,
    chat: ChatTokenizer,
    training: Sequence[Preference],
    settings: OptimizeConfig,
    directory: RunDirectory,
    report: Report,
    *,
    seed: int = 0,
    resume: bool = False,
    device: torch.device | str = "cpu",
    notes: Sequence[Note] = (),
) -> tuple[float, int]:
    """Train `model` in place to prefer the chosen responses; return the mean loss and the steps.

    Raises `TooLong` for a text that exceeds the model's context.
    """
    lengths = [len(side.ids) for pair in training for side in (pair.chosen, pair.rejected)]
    texts = [f"text {number}" for number in range(1, len(lengths) + 1)]
    LengthLimits(limits={CONTEXT: context_length(model)}).fitting(
        lengths, texts, what="judged texts"
    )
    arguments = trainer_arguments(
        model,
        checkpoints=directory.checkpoint,
        examples=len(training),
        batch=settings.dpo_batch,
        longest=2 * max(lengths),
        tokens=tokens_at_once(device),
        epochs=settings.dpo_epochs,
        lr=settings.dpo_lr,
        seed=seed,
        device=torch.device(device),
    )
    trainer = _Trainer(
        model=model,
        ref_model=reference,
        args=trl.DPOConfig(
            **arguments, beta=settings.dpo_beta, warmup_steps=0.1, lr_scheduler_type="linear"
        ),
        train_dataset=Dataset.from_list([_row(pair) for pair in training]),
        processing_class=chat.tokenizer,
        callbacks=[
            ReportCallback(report, "learning from preferences", notes),
            SnapshotCallback(directory, settings.snapshots, chat.tokenizer),
        ],
    )
    loss = train(trainer, directory.checkpoint, report, resume=resume)
    model.eval()
    return loss, trainer.state.global_step


class _Trainer(trl.DPOTrainer):
    """TRL's trainer on rows that `ChatTokenizer` has already tokenized."""

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset


def margins(model: Any, reference: Any, pairs: Sequence[Preference], *, pad_id: int) -> list[float]:
    """log π/π_ref of each chosen response minus that of the rejected one, nats."""
    texts = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    ours, theirs = (
        [sum(logprobs) for logprobs in response_logprobs(each, texts, pad_id=pad_id)]
        for each in (model, reference)
    )
    ratios = [a - b for a, b in zip(ours, theirs, strict=True)]
    return [a - b for a, b in zip(ratios[: len(pairs)], ratios[len(pairs) :], strict=True)]


def _row(pair: Preference) -> dict[str, list[int]]:
    start = pair.chosen.prompt_tokens
    return {
        "prompt_ids": pair.chosen.ids[:start],
        "chosen_ids": pair.chosen.ids[start:],
        "rejected_ids": pair.rejected.ids[start:],
    }


def _left_out(ties: int, judged: int) -> list[Note]:
    if not ties:
        return []
    message = f"{ties} of {judged} judgments are ties, which DPO cannot learn from: left out"
    return [Note(kind="warning", name="ties", message=message, payload={"count": ties})]


def _show_samples(
    job: Job,
    report: Report,
    directory: RunDirectory,
    sampler: Sampler,
    reference: Any,
    *,
    step: int,
) -> None:
    """Report a few responses of the trained policy, as the other methods do."""
    sampling = job.config.ppo
    context = context_length(sampler.model)
    asked = read_prompts(directory, sampler.chat, sampling, context)[0][:SAMPLES]
    responses = sampler.sample(
        [prompt.messages for prompt in asked],
        temperature=sampling.temperature,
        max_new_tokens=sampling.max_new_tokens,
        seed=derive_seed("dpo samples", str(job.seed)),
    )
    divergences = sequence_kl(
        sampler.model, reference, responses,
        temperature=sampling.temperature, pad_id=sampler.chat.pad_id,
    )  # fmt: skip
    reward, weights = job_reward(job, asked, device=next(reference.parameters()).device)
    named = reward(list(range(len(asked))), [response.text for response in responses])
    for i, (prompt, response) in enumerate(zip(asked, responses, strict=True)):
        report.note(
            "sample",
            "response",
            response.text,
            step=step,
            prompt=prompt.id,
            reward=sum(weights[name] * scores[i] for name, scores in named.items()),
            kl=divergences[i],
            length=len(response.ids),
            finish_reason=response.finish_reason,
        )
