"""RLOO: REINFORCE whose baseline is the mean reward of the other responses to the prompt.

Ahmadian et al. 2024 (arXiv:2402.14740), with TRL's trainer.  Prompts, sampling, reward and shaping
are those of PPO.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

import torch
import trl
from datasets import Dataset

from pipeline.models.devices import pick_device
from pipeline.models.hf_trainer import (
    ReportCallback,
    SnapshotCallback,
    save_policy,
    tokens_at_once,
    train,
    trainer_arguments,
)
from pipeline.models.loading import context_length, load_causal_lm
from pipeline.models.text import ChatTokenizer
from pipeline.policy_methods.inputs import (
    SAMPLES,
    PolicyPrompt,
    PolicySummary,
    job_reward,
    read_prompts,
    shows_samples,
    write_samples,
)
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.metrics import length_correlation, repeated_ngrams, unique_share
from pipeline.ppo.rewards import Rewarder
from pipeline.ppo.rollouts.prompts import PromptSampler
from pipeline.ppo.rollouts.rollout import Rollout, generate
from pipeline.runs.rundir import Job, Note, Report, RunDirectory
from storage.records import derive_seed


def run(job: Job, report: Report, directory: RunDirectory) -> PolicySummary:
    """Train the policy on inputs/prompts.parquet (id, messages); saves model/."""
    device = pick_device(job.config.worker.device)
    chat = ChatTokenizer.load(job.model("policy"))
    model = load_causal_lm(job.model("policy"), device=device)
    prompts, left_out = read_prompts(directory, chat, job.config.ppo, context_length(model))
    reward, weights = job_reward(job, prompts, device=device)
    rewarder = Rewarder(reward, job.config.ppo, weights=weights, device=device)
    rewarder.check()
    notes = [Note(kind="warning", name="long_prompts", message=left_out)] if left_out else []
    trainer = make_trainer(
        model,
        chat,
        prompts,
        rewarder,
        job,
        directory,
        callbacks=[SnapshotCallback(directory, job.config.optimize.snapshots, chat.tokenizer)],
    )
    trainer.add_callback(_Reporter(report, trainer, notes))
    train(trainer, directory.checkpoint, report, resume=job.resume)
    save_policy(model, chat.tokenizer, directory.model)
    write_samples(directory)
    return PolicySummary(
        method="rloo", metrics=trainer.update_metrics, updates=trainer.state.global_step
    )


def make_trainer(
    model: Any,
    chat: ChatTokenizer,
    prompts: Sequence[PolicyPrompt],
    rewarder: Rewarder,
    job: Job,
    directory: RunDirectory,
    *,
    callbacks: Sequence[Any] = (),
) -> RLOOTrainer:
    """A trainer for `model`, with exactly as many prompts as the updates need."""
    settings, sampling = job.config.optimize, job.config.ppo
    # TRL loads the reference from the policy's `name_or_path`.
    model.config.name_or_path = job.model("reference")
    device = rewarder.device
    arguments = trainer_arguments(
        model,
        checkpoints=directory.checkpoint,
        examples=settings.rloo_updates,
        batch=settings.rloo_batch,
        longest=max(len(prompt.ids) for prompt in prompts) + sampling.max_new_tokens,
        tokens=tokens_at_once(device),
        epochs=1.0,
        lr=settings.rloo_lr,
        seed=job.seed,
        device=device,
    )
    del arguments["max_length"]  # RLOOConfig has none
    arguments |= {
        "max_steps": settings.rloo_updates,
        "logging_steps": 1,
        "save_steps": sampling.checkpoint_every or settings.rloo_updates,
        "beta": settings.rloo_beta,
        "num_generations": settings.rloo_generations,
        "temperature": sampling.temperature,
        "max_completion_length": sampling.max_new_tokens,
        "lr_scheduler_type": "linear",
        "disable_dropout": True,
        "shuffle_dataset": False,  # the rows are already shuffled rounds
    }
    return RLOOTrainer(
        chat=chat,
        prompts=prompts,
        rewarder=rewarder,
        sampling=sampling,
        model=model,
        args=trl.RLOOConfig(**arguments),
        train_dataset=_draws(len(prompts), job),
        processing_class=chat.tokenizer,
        callbacks=[*callbacks],
    )


class RLOOTrainer(trl.RLOOTrainer):
    """TRL's trainer with PPO's sampling loop and reward instead of TRL's own.

    Each update has its own random generator, so a resumed run samples the same responses.  A
    response cut off at the length limit costs `ppo.missing_eos_penalty`, as in PPO.  Rows of the
    data set contain prompt numbers.
    """

    update_metrics: dict[str, float]
    """Metrics of the last update."""
    update_samples: list[Note]
    """The last update's first responses."""

    def __init__(
        self,
        *,
        chat: ChatTokenizer,
        prompts: Sequence[PolicyPrompt],
        rewarder: Rewarder,
        sampling: PPOConfig,
        **arguments: Any,
    ) -> None:
        self._chat = chat
        self._prompts = prompts
        self._rewarder = rewarder
        self._sampling = sampling
        self.update_metrics, self.update_samples = {}, []
        super().__init__(reward_funcs=self._reward, **arguments)

    def _generate(self, prompts: list[str]) -> tuple[list[list[int]], list[list[int]], list[str]]:
        """Prompt ids, response ids and texts for the prompts of these numbers."""
        asked = [self._prompts[int(number)].ids for number in prompts]
        self._rollout = self._sample(asked)
        responses = self._rollout.token_lists()
        return asked, responses, [self._chat.decode(ids) for ids in responses]

    def _sample(self, asked: list[list[int]]) -> Rollout:
        sampling = self._sampling
        update = (self.state.global_step, self.accelerator.process_index)
        seed = derive_seed("rloo", str(self.args.seed), *map(str, update))
        with self.accelerator.autocast():
            return generate(
                self.accelerator.unwrap_model(self.model),
                asked,
                eos_token_ids=self._chat.stop_ids,
                pad_token_id=self._chat.pad_id,
                max_new_tokens=sampling.max_new_tokens,
                min_new_tokens=sampling.min_new_tokens,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                generator=torch.Generator().manual_seed(seed),
                batch_size=sampling.rollout_batch,
            )

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **inputs: Any) -> Any:
        """TRL's method with explicit positions: TRL pads on the left, and GPT-2 would count padding."""
        reader = self.accelerator.unwrap_model(model)
        hook = reader.register_forward_pre_hook(_with_positions, with_kwargs=True)
        try:
            return super()._get_per_token_logps_and_entropies(model, *args, **inputs)
        finally:
            hook.remove()

    def _reward(self, prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
        """The score of each response, minus the penalty if it was cut off."""
        numbers = [int(number) for number in prompts]
        scores = self._rewarder.score(numbers, completions)
        total, reasons = scores.total.tolist(), self._rollout.finish_reasons
        responses = self._rollout.token_lists()
        self.update_metrics = {
            "reward/mean": fmean(total),
            "reward/std": pstdev(total),
            "reward/min": min(total),
            "reward/max": max(total),
            "reward/length_correlation": length_correlation(total, [*map(len, responses)]) or 0.0,
            "completion/length_mean": fmean(map(len, responses)),
            "completion/length_std": pstdev(map(len, responses)),
            "completion/eos_rate": fmean(reason == "stop" for reason in reasons),
            "completion/unique": unique_share(responses),
            "completion/repeated_ngrams": fmean(map(repeated_ngrams, responses)),
        } | {f"reward/{name}": fmean(values) for name, values in scores.components.items()}
        self.update_samples = [
            Note(
                kind="sample",
                name="response",
                message=completions[i],
                payload={
                    "prompt": self._prompts[numbers[i]].id,
                    "reward": total[i],
                    "length": len(responses[i]),
                    "finish_reason": reasons[i],
                },
            )
            # One response per prompt; responses to the same prompt are adjacent.
            for i in range(0, len(total), self.num_generations or 1)
        ][:SAMPLES]
        penalty = self._sampling.missing_eos_penalty
        return [
            score - penalty * (reason != "stop")
            for score, reason in zip(total, reasons, strict=True)
        ]


def _with_positions(
    _: Any, args: tuple[Any, ...], inputs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Add the positions of real tokens to a forward's arguments, as `decoding.forward_with_cache` expects."""
    return args, inputs | {"position_ids": (inputs["attention_mask"].cumsum(1) - 1).clamp_min(0)}


class _Reporter(ReportCallback):
    """Reports an update under the names of PPO's metrics."""

    def __init__(self, report: Report, trainer: RLOOTrainer, notes: Sequence[Note]) -> None:
        super().__init__(report, "RLOO", notes)
        self._trainer = trainer

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        if "loss" not in (logs or {}):  # the last log is a summary of the whole run
            return
        metrics, step, total = self._trainer.update_metrics, state.global_step, state.max_steps
        # TRL reports the KL per token, PPO per response.
        metrics["kl/reference"] = logs["kl"] * metrics["completion/length_mean"]
        metrics["kl/coefficient"] = args.beta
        metrics["policy/entropy"] = logs["entropy"]
        metrics["optim/lr"] = logs["learning_rate"]
        metrics["optim/grad_norm"] = float(logs["grad_norm"])
        metrics["train/loss"] = logs["loss"]
        self._report.metrics(step, metrics)
        if shows_samples(step, total):
            for sample in self._trainer.update_samples:
                self._report.add(sample, step=step)
        message = f"update {step} of {total}: reward {metrics['reward/mean']:z.2f}"
        self._report.progress(step, total, f"{message}, KL {metrics['kl/reference']:z.2f}")


def _draws(prompts: int, job: Job) -> Dataset:
    """A row for each prompt that the updates need, in shuffled rounds.

    TRL drops an incomplete batch, and loops forever with fewer prompts than one batch.
    """
    settings = job.config.optimize
    count = settings.rloo_updates * settings.rloo_batch // settings.rloo_generations
    sampler = PromptSampler(prompts, torch.Generator().manual_seed(job.seed))
    return Dataset.from_dict({"prompt": [str(number) for number in sampler.draw(count)]})
