"""The PPO stage: joins the engine to a job's models, prompts, events and checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pandas as pd
from transformers import set_seed

from pipeline.cancelling import Cancelled, asked, deferred
from pipeline.devices import context_length, load_causal_lm, pick_device
from pipeline.ppo import PPOConfig, PPOTrainer, UpdateResult
from pipeline.reward.ensemble import Ensemble
from pipeline.rundir import Job, Report, RunDirectory
from pipeline.sampling import write_rows
from pipeline.shaping import load
from pipeline.text import ChatTokenizer, read_messages
from storage.records import Message

_SAMPLED_UPDATES = 20
_SAMPLES = 4
_STOPPED = {
    "kl_budget": "the KL to the reference passed ppo.kl_budget",
    "reward_collapse": "the mean score fell by ppo.reward_collapse",
}
_SAMPLE_COLUMNS = ("step", "prompt", "text", "reward", "kl", "length", "finish_reason")


def run(job: Job, report: Report, directory: RunDirectory) -> dict[str, Any]:
    """Train the policy on inputs/prompts.parquet (id, messages); saves model/."""
    device = pick_device(job.config.worker.device)
    config = replace(job.config.ppo, seed=job.config.ppo.seed + job.seed)
    set_seed(config.seed)  # for rewards that draw from the global generators, and for new layers
    chat = ChatTokenizer.load(job.model("policy"))
    model = load_causal_lm(job.model("policy"))
    prompts, left_out = _read_prompts(directory, chat, config, context_length(model))
    conversations = [messages for _, messages, _ in prompts]
    judges = Ensemble.load(job, device=device)

    shaping = job.config.shaping
    components = load(shaping.weights, shaping)

    def reward(indices: list[int], texts: list[str]) -> dict[str, list[float]]:
        asked = [conversations[i] for i in indices]
        verdict = judges(asked, texts)
        scores = verdict.scores
        if shaping.floor is not None:
            scores = [max(score, shaping.floor) for score in scores]
        shaped = {name: score(asked, texts) for name, score in components.items()}
        return {"score": scores} | verdict.figures | shaped

    trainer = PPOTrainer(
        model,
        load_causal_lm(job.model("reference")),
        chat.tokenizer,
        [ids for _, _, ids in prompts],
        reward,
        config,
        directory.checkpoint,
        # What is only watched is a component of weight 0.
        reward_weights={"score": shaping.reward_weight}
        | dict.fromkeys(judges.figures, 0.0)
        | shaping.weights,
        eos_token_ids=chat.stop_ids,
        device=device,
    )
    _Narrator(trainer, report, [id for id, _, _ in prompts], left_out).follow(resume=job.resume)
    trainer.save(directory.model)
    if trainer.processes.rank == 0:
        write_rows(directory.outputs / "samples.parquet", _samples(directory), _SAMPLE_COLUMNS)
    return trainer.history[-1] | {"updates": trainer.step, "stopped": trainer.stopped}


class _Narrator:
    """Runs the updates and turns each into events."""

    def __init__(
        self, trainer: PPOTrainer, report: Report, prompt_ids: list[str], left_out: str | None
    ) -> None:
        self._trainer = trainer
        self._report = report
        self._prompt_ids = prompt_ids
        self._left_out = left_out
        self._flagged: set[str] = set()

    def follow(self, *, resume: bool) -> None:
        """Make all updates.  A resume first takes back the events after its checkpoint."""
        started = False
        with deferred():
            for update in self._trainer.run(resume=resume):
                if not started:
                    started = True
                    self._begin(resume=resume, done=update.step - 1)
                self._tell(update)
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

    def _begin(self, *, resume: bool, done: int) -> None:
        remembered = self._trainer.extra
        if resume:
            self._report.rewind(remembered.get("seq", 0))
            self._flagged = set(remembered.get("flagged", ()))
            self._report.log(f"resuming after update {done}")
        if self._left_out and not remembered:
            self._report.note("warning", "long_prompts", self._left_out)

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
            f"update {update.step} of {total}: reward {metrics['reward/mean']:.2f}, "
            f"KL {metrics['kl/reference']:.2f}",
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
        for sample in update.samples[:_SAMPLES]:
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


def _read_prompts(
    directory: RunDirectory, chat: ChatTokenizer, config: PPOConfig, context: int | None
) -> tuple[list[tuple[str, tuple[Message, ...], list[int]]], str | None]:
    """(id, messages, token ids) of the prompts that fit, and a sentence on those that do not."""
    frame = pd.read_parquet(directory.inputs / "prompts.parquet")
    limit = config.max_prompt_tokens
    if context is not None:
        limit = min(limit, context - config.max_new_tokens)
    prompts = []
    for id, text in zip(frame["id"], frame["messages"], strict=True):
        messages = read_messages(text)
        ids = chat.prompt(messages)
        if len(ids) <= limit:
            prompts.append((id, messages, ids))
    long = len(frame) - len(prompts)
    sentence = (
        f"{long} of {len(frame)} prompts are longer than {limit} tokens "
        "(ppo.max_prompt_tokens, or the context less ppo.max_new_tokens)"
    )
    if not prompts:
        raise ValueError(f"{sentence}; raise ppo.max_prompt_tokens or add shorter prompts")
    return prompts, f"{sentence} and are left out" if long else None


def _samples(directory: RunDirectory) -> list[dict[str, Any]]:
    """The samples reported over all attempts; the event log is where a resume keeps them."""
    rows = []
    with directory.events.open(encoding="utf-8") as events:
        for line in events:
            event = json.loads(line)
            if event["kind"] == "note" and event["note"] == "sample":
                rows.append(event["payload"] | {"step": event["step"], "text": event["message"]})
    return rows
