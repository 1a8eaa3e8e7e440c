"""The policy stage with PPO: joins the engine to a job's models, prompts, events and checkpoints.

`optimize.method` can select DPO or RLOO instead: `pipeline/policy/dpo.py`, `rloo.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from transformers import set_seed

from pipeline.models.devices import context_length, load_causal_lm, pick_device
from pipeline.models.hf_trainer import tell_of_damage
from pipeline.models.snapshots import Snapshots
from pipeline.models.text import ChatTokenizer
from pipeline.policy.inputs import SAMPLES, job_reward, read_prompts, write_samples
from pipeline.ppo import PPOTrainer, TrainingDiverged, UpdateResult
from pipeline.ppo.checkpoint import checkpoint_path
from pipeline.ppo.checks import check_critic
from pipeline.reward.network import load_network
from pipeline.runs.cancellation import Cancelled, asked, deferred
from pipeline.runs.rundir import Job, Report, RunDirectory

_SAMPLED_UPDATES = 20
_STOPPED = {
    "kl_budget": "the KL to the reference passed ppo.kl_budget",
    "reward_collapse": "the mean score fell by ppo.reward_collapse",
}


def run(job: Job, report: Report, directory: RunDirectory) -> dict[str, Any]:
    """Train the policy on inputs/prompts.parquet (id, messages, category); saves model/."""
    device = pick_device(job.config.worker.device)
    config = replace(job.config.ppo, seed=(job.config.ppo.seed + job.seed) % 2**32)
    set_seed(config.seed)  # for rewards that draw from the global generators, and for new layers
    chat = ChatTokenizer.load(job.model("policy"))
    model = load_causal_lm(job.model("policy"))
    prompts, left_out = read_prompts(directory, chat, config, context_length(model))
    reward, weights = job_reward(job, prompts, device=device)
    critic, stands_in = _critic(job, chat, model, [prompt.ids for prompt in prompts])
    trainer = PPOTrainer(
        model,
        _reference(job),
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
    del critic  # a copy is trained, and this one would take its memory until the end
    snapshots = Snapshots(directory, count=job.config.optimize.snapshots, total=config.updates)
    told = {"long_prompts": left_out, "critic": stands_in}
    notes = {**job.notes, **{name: sentence for name, sentence in told.items() if sentence}}
    narrator = EventReporter(trainer, report, [prompt.id for prompt in prompts], notes, snapshots)
    narrator.follow(resume=job.resume)
    trainer.save(directory.model)
    if trainer.processes.rank == 0:
        write_samples(directory)
    return (
        {"method": "ppo"}
        | trainer.history[-1]
        | {
            "updates": trainer.step,
            "stopped": trainer.stopped,
            "kl_weight": config.kl_weight,
        }
    )


def _reference(job: Job) -> Any:
    """The reference, or None where it is the policy with its adapters off: no second model then."""
    same = job.model("policy") == job.model("reference")
    return None if job.config.ppo.lora_rank and same else load_causal_lm(job.model("reference"))


def _critic(
    job: Job, chat: ChatTokenizer, policy: Any, prompts: Sequence[Sequence[int]]
) -> tuple[Any, str | None]:
    """What a separate critic starts from: the reward model, trunk and head.

    Of a reward model of several networks it is the first: a mean of weights is no model.  None, a
    copy of the policy, and a sentence on it where the reward model cannot read the policy's tokens.
    """
    config, path = job.config.ppo, job.model("reward")
    if config.critic != "separate":
        return None, None
    network = load_network(path)
    longest = max(map(len, prompts)) + config.max_new_tokens
    try:
        if ChatTokenizer.load(path).tokenizer.get_vocab() != chat.tokenizer.get_vocab():
            raise ValueError("its tokenizer is not the policy's")
        check_critic(network, policy, longest=longest)
    except ValueError as error:
        return None, f"the critic starts as a copy of the policy, not of the reward model: {error}"
    return network, None


class EventReporter:
    """Runs the updates and turns each into events."""

    def __init__(
        self,
        trainer: PPOTrainer,
        report: Report,
        prompt_ids: list[str],
        notes: Mapping[str, str],
        snapshots: Snapshots,
    ) -> None:
        self._trainer = trainer
        self._report = report
        self._prompt_ids = prompt_ids
        self._notes = notes
        self._snapshots = snapshots
        self._flagged: set[str] = set()

    def follow(self, *, resume: bool) -> None:
        """Make all updates.  A resume first takes back the events after its checkpoint."""
        started = False
        with deferred(), self._flag_of_divergence():
            for update in self._trainer.run(resume=resume):
                if not started:
                    started = True
                    self._begin(resume=resume, done=update.step - 1)
                self._tell(update)
                self._snapshots.keep(
                    update.step, self._trainer.save, writes=self._trainer.processes.rank == 0
                )
                # The engine writes an update's checkpoint after this: it remembers these events.
                self._trainer.extra = {"seq": self._report.seq, "flagged": sorted(self._flagged)}
                # Agreed on, since a process that went on alone would wait for the others for ever.
                if self._trainer.processes.any(asked(), self._trainer.device):
                    self._trainer.write_checkpoint()
                    raise Cancelled
        if not started:  # Killed after its last update, it has only what follows left to do.
            self._begin(resume=resume, done=self._trainer.step)
        if self._trainer.stopped is not None:
            message = f"stopped early: {_STOPPED[self._trainer.stopped]}"
            self._report.note("warning", self._trainer.stopped, message, step=self._trainer.step)

    @contextmanager
    def _flag_of_divergence(self) -> Iterator[None]:
        """What ends the run outweighs the flags before it: its remedy is the one to try."""
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
                why="No step was taken on it.",
                remedy="",  # the error says it
            )
            raise

    def _begin(self, *, resume: bool, done: int) -> None:
        remembered = self._trainer.extra
        if resume:
            self._report.rewind(remembered.get("seq", 0))
            self._flagged = set(remembered.get("flagged", ()))
            self._report.log(f"resuming after update {done}")
            self._tell_of_damage(done)
        for name, sentence in self._notes.items():
            if not remembered:
                self._report.note("warning", name, sentence)

    def _tell_of_damage(self, done: int) -> None:
        for damaged in self._trainer.passed_over:
            tell_of_damage(
                self._report,
                damaged=damaged.path.name,
                reason=damaged.reason,
                used=checkpoint_path(damaged.path.parent, done).name,
                step=done,
            )

    def _tell(self, update: UpdateResult) -> None:
        total = self._trainer.config.updates
        metrics = update.metrics
        self._report.metrics(update.step, metrics)
        self._raise_flags(update)
        if update.step % max(1, total // _SAMPLED_UPDATES) == 0 or update.step in (1, total):
            self._show_samples(update)
        self._report.progress(
            update.step,
            total,
            f"update {update.step} of {total}: reward {metrics['reward/mean']:z.2f}, "
            f"KL {metrics['kl/reference']:z.2f}",
        )

    def _raise_flags(self, update: UpdateResult) -> None:
        """A flag is news when it appears, not on every update that it stays up."""
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
        self._flagged = {flag.name for flag in update.flags}

    def _show_samples(self, update: UpdateResult) -> None:
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
