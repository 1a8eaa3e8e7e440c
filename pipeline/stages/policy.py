"""The policy stage with the PPO engine: connects it to a job's models, prompts, events and checkpoints.

`optimize.method` selects the engine's method (`ENGINE_METHODS` in `pipeline/config/policy.py`).  For
others, `JOB_MODULES` in `pipeline/worker/worker.py` has a module in `pipeline/policy_methods/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed

from pipeline.canary.training import FLAG, CanaryWatch, canary_of
from pipeline.config.policy import engine_settings
from pipeline.models.damage import report_damage
from pipeline.models.devices import pick_device
from pipeline.models.loading import context_length, load_causal_lm
from pipeline.models.snapshots import Snapshots
from pipeline.models.text import ChatTokenizer
from pipeline.policy_methods.inputs import (
    SAMPLES,
    PolicySummary,
    job_reward,
    read_prompts,
    shows_samples,
    write_samples,
)
from pipeline.ppo import PPOConfig, PPOTrainer, TrainingDiverged, UpdateResult
from pipeline.ppo.checkpoint import checkpoint_path
from pipeline.ppo.checks import check_critic
from pipeline.ppo.network.distributed import Processes
from pipeline.reward.network import load_network
from pipeline.runs.cancellation import Cancelled, cancel_requested, deferred
from pipeline.runs.rundir import Job, Report, RunDirectory

_STOPPED = {
    "kl_budget": "the KL to the reference passed ppo.kl_budget",
    "reward_collapse": "the mean score fell by ppo.reward_collapse",
}


def run(job: Job, report: Report, directory: RunDirectory) -> PolicySummary:
    """Train the policy on inputs/prompts.parquet (id, messages, category); saves model/."""
    device = pick_device(job.config.worker.device)
    method = job.config.optimize.method
    config = engine_settings(method, job.config.ppo)
    config = replace(config, seed=(config.seed + job.seed) % 2**32)
    chat = ChatTokenizer.load(job.model("policy"))
    canary = _canary(job, chat, config, device)
    set_seed(config.seed)  # for rewards that draw from the global generators, and for new layers
    # The processes that divide the models; the first one loads the weights.
    sharing = Processes() if config.sharding != "none" else None
    source = "meta" if sharing and sharing.rank else "cpu"
    model = load_causal_lm(job.model("policy"), device=source)
    prompts, left_out = read_prompts(directory, chat, config, context_length(model))
    reward, weights = job_reward(job, prompts, device=device, processes=sharing)
    critic, critic_warning = _critic(
        job, chat, model, [prompt.ids for prompt in prompts], device=source
    )
    trainer = PPOTrainer(
        model,
        _reference(job, device=source),
        chat.tokenizer,
        [prompt.ids for prompt in prompts],
        reward,
        config,
        directory.checkpoint,
        reward_weights=weights,
        critic=critic,
        categories=[prompt.category for prompt in prompts],
        eos_token_ids=chat.stop_ids,
        device=device,
    )
    del critic  # the trainer has a copy; free the memory of this one
    snapshots = Snapshots(directory, count=job.config.optimize.snapshots, total=config.updates)
    warnings = {"long_prompts": left_out, "critic": critic_warning}
    notes = {**job.notes, **{name: text for name, text in warnings.items() if text}}
    prompt_ids = [prompt.id for prompt in prompts]
    policy_run = PolicyRun(trainer, report, prompt_ids, notes, snapshots, canary)
    policy_run.train(resume=job.resume)
    trainer.save(directory.model)
    if trainer.processes.rank == 0:
        write_samples(directory)
    return PolicySummary(
        method=method,
        metrics=trainer.history[-1],
        updates=trainer.step,
        stopped=trainer.stopped,
        kl_weight=config.kl_weight,
    )


def _canary(
    job: Job, chat: ChatTokenizer, config: PPOConfig, device: torch.device
) -> CanaryWatch | None:
    """The canary with SFT's answers; None without one, or if it is not measured during training."""
    canary = canary_of(job.config) if job.config.gate.canary_every else None
    return CanaryWatch(canary, job, chat, config, device, Processes()) if canary else None


def _reference(job: Job, *, device: str) -> Any:
    """The reference model, or None when it is the policy without its LoRA adapters."""
    same = job.model("policy") == job.model("reference")
    if job.config.ppo.lora_rank and same:
        return None
    return load_causal_lm(job.model("reference"), device=device)


def _critic(
    job: Job, chat: ChatTokenizer, policy: Any, prompts: Sequence[Sequence[int]], *, device: str
) -> tuple[Any, str | None]:
    """(the model that a separate critic starts from, a warning or None).

    The model is the reward model's first network, with its head.  It is None when the critic is
    shared.  It is also None, with a warning, when the reward model does not fit the policy: the
    critic then starts as a copy of the policy.
    """
    config, path = job.config.ppo, job.model("reward")
    if config.critic != "separate":
        return None, None
    network = load_network(path, device=device)
    longest = max(map(len, prompts)) + config.max_new_tokens
    try:
        if ChatTokenizer.load(path).tokenizer.get_vocab() != chat.tokenizer.get_vocab():
            raise ValueError("its tokenizer is not the policy's")
        check_critic(network, policy, longest=longest)
    except ValueError as error:
        return None, f"the critic starts as a copy of the policy, not of the reward model: {error}"
    return network, None


class PolicyRun:
    """Runs the updates and reports each as events."""

    def __init__(
        self,
        trainer: PPOTrainer,
        report: Report,
        prompt_ids: list[str],
        notes: Mapping[str, str],
        snapshots: Snapshots,
        canary: CanaryWatch | None = None,
    ) -> None:
        self._trainer = trainer
        self._report = report
        self._prompt_ids = prompt_ids
        self._notes = notes
        self._snapshots = snapshots
        self._canary = canary
        self._flagged: set[str] = set()

    def train(self, *, resume: bool) -> None:
        """Run all updates.  A resume first removes the events after its checkpoint."""
        trainer, started = self._trainer, False
        with deferred(), self._report_divergence():
            for update in trainer.run(resume=resume):
                if not started:
                    started = True
                    self._begin(resume=resume, done=update.step - 1)
                self._report_update(self._with_canary(update))
                self._snapshots.keep(update.step, trainer.save, writes=trainer.processes.rank == 0)
                # The engine writes this update's checkpoint afterwards, with these events.
                trainer.extra = {"seq": self._report.seq, "flagged": sorted(self._flagged)}
                # All processes stop together: one that continued would wait forever.
                if trainer.processes.any(cancel_requested(), trainer.device):
                    trainer.write_checkpoint()
                    raise Cancelled
        if not started:  # a resume after the last update
            self._begin(resume=resume, done=trainer.step)
        if trainer.stopped is not None:
            message = f"stopped early: {_STOPPED[trainer.stopped]}"
            self._report.note("warning", trainer.stopped, message, step=trainer.step)

    def _with_canary(self, update: UpdateResult) -> UpdateResult:
        """The update with the canary's metrics and flag, if it is measured now.

        Between two measurements, its flag stays as it was.
        """
        trainer = self._trainer
        last = update.step == trainer.config.updates or trainer.stopped is not None
        if self._canary is None or not self._canary.is_due(update.step, last=last):
            return update
        try:
            metrics, flag = self._canary.measure(
                lambda prompts, seed: trainer.respond(prompts, seed=seed)
            )
        except ValueError as error:  # of a user's check; the training itself can go on
            self._canary = None
            message = f"{error}. The canary is not measured any more in this run."
            self._report.note("warning", "canary", message, step=update.step)
            return update
        if flag is None:
            self._flagged.discard(FLAG)
        flags = [*update.flags, flag] if flag else update.flags
        return replace(update, metrics=update.metrics | metrics, flags=flags)

    @contextmanager
    def _report_divergence(self) -> Iterator[None]:
        """Report divergence as a flag, because its remedy takes precedence over earlier ones."""
        try:
            yield
        except TrainingDiverged as error:
            self._report.note(
                "flag",
                "diverged",
                str(error),
                step=self._trainer.step + 1,
                level="stop",
                seen=f"{error}.",
                why="The optimizer took no step on this update.",
                remedy="",  # the error says it
            )
            raise

    def _begin(self, *, resume: bool, done: int) -> None:
        remembered = self._trainer.extra
        if resume:
            self._report.rewind(remembered.get("seq", 0))
            self._flagged = set(remembered.get("flagged", ()))
            self._report.log(f"resuming after update {done}")
            used = checkpoint_path(Path(), done).name
            report_damage(self._report, self._trainer.passed_over, used=used, step=done)
        if remembered:
            return
        for name, sentence in self._notes.items():
            self._report.note("warning", name, sentence)
        if self._canary:
            self._report.metrics(0, self._canary.start())

    def _report_update(self, update: UpdateResult) -> None:
        total = self._trainer.config.updates
        metrics = update.metrics
        self._report.metrics(update.step, metrics)
        self._report_flags(update)
        if shows_samples(update.step, total):
            self._report_samples(update)
        self._report.progress(
            update.step,
            total,
            f"update {update.step} of {total}: reward {metrics['reward/mean']:z.2f}, "
            f"KL {metrics['kl/reference']:z.2f}",
        )

    def _report_flags(self, update: UpdateResult) -> None:
        """Report each flag in the first update that raises it."""
        for flag in update.flags:
            if flag.name not in self._flagged:
                self._report.note(
                    "flag",
                    flag.name,
                    f"{flag.seen} {flag.why} {flag.remedy}",
                    step=update.step,
                    level=flag.level,
                    seen=flag.seen,
                    why=flag.why,
                    remedy=flag.remedy,
                )
        self._flagged = {flag.name for flag in update.flags} | (self._flagged & {FLAG})

    def _report_samples(self, update: UpdateResult) -> None:
        for sample in update.samples[:SAMPLES]:
            self._report.note(
                "sample",
                "response",
                sample.text,
                step=update.step,
                prompt=self._prompt_ids[sample.prompt_index],
                reward=sample.score,
                kl=sample.kl,
                length=sample.length,
                finish_reason=sample.finish_reason,
            )
