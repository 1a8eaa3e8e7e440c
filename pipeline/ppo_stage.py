"""The PPO stage: joins the engine to a job's models, prompts, events and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from pipeline.cancelling import Cancelled, asked, deferred
from pipeline.devices import context_length, load_causal_lm, pick_device
from pipeline.ppo import PPOConfig, PPOTrainer, UpdateResult
from pipeline.ppo.checks import Reward
from pipeline.reward.scoring import RewardModel
from pipeline.rundir import Job, Report, RunDirectory
from pipeline.sampling import write_rows
from pipeline.shaping import load, require_prompts
from pipeline.shaping.config import ShapingConfig
from pipeline.text import ChatTokenizer, read_messages
from storage.records import Message

_SAMPLED_UPDATES = 20
_SAMPLES = 4
_SAMPLE_COLUMNS = ("step", "prompt", "text", "reward", "kl", "length", "finish_reason")


def run(job: Job, report: Report, directory: RunDirectory) -> dict[str, Any]:
    """Train the policy on inputs/prompts.parquet (id, messages); saves model/."""
    device = pick_device(job.config.worker.device)
    config = replace(job.config.ppo, seed=job.config.ppo.seed + job.seed)
    chat = ChatTokenizer.load(job.model("policy"))
    model = load_causal_lm(job.model("policy"))
    prompts, left_out = _read_prompts(directory, chat, config, context_length(model))
    conversations = [messages for _, messages, _ in prompts]
    reward_model = RewardModel.load(job.model("reward"), device=device)

    shaping = job.config.shaping

    trainer = PPOTrainer(
        model,
        load_causal_lm(job.model("reference")),
        chat.tokenizer,
        [ids for _, _, ids in prompts],
        shaped_reward(reward_model, shaping, conversations, device=device),
        config,
        directory.checkpoint,
        reward_weights=reward_weights(shaping),
        eos_token_ids=chat.stop_ids,
        device=device,
    )
    _Narrator(trainer, report, [id for id, _, _ in prompts], left_out).follow(resume=job.resume)
    trainer.save(directory.model)
    write_rows(directory.outputs / "samples.parquet", _samples(directory), _SAMPLE_COLUMNS)
    return trainer.history[-1] | {"updates": trainer.step, "stopped": trainer.stopped}


def shaped_reward(
    reward_model: RewardModel,
    shaping: ShapingConfig,
    conversations: Sequence[Sequence[Message]],
    *,
    device: torch.device | str,
) -> Reward:
    """The reward model's score and every component's, by name, for the engine to weigh.

    ValueError for components that cannot be had or have nothing to say about these prompts.
    """
    components = load(shaping.weights, shaping, device=device)
    require_prompts(components, conversations)

    def reward(indices: list[int], texts: list[str]) -> dict[str, list[float]]:
        asked = [conversations[i] for i in indices]
        scores = reward_model(asked, texts)
        if shaping.floor is not None:
            scores = [max(score, shaping.floor) for score in scores]
        return {"score": scores} | {n: score(asked, texts) for n, score in components.items()}

    return reward


def reward_weights(shaping: ShapingConfig) -> dict[str, float]:
    """What each of them weighs."""
    return {"score": shaping.reward_weight} | shaping.weights


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
                    self._begin(resume=resume)
                self._tell(update)
                # The engine writes an update's checkpoint after this: it remembers these events.
                self._trainer.extra = {"seq": self._report.seq, "flagged": sorted(self._flagged)}
                if asked():
                    self._trainer.write_checkpoint()
                    raise Cancelled
        if self._trainer.stopped == "kl_budget":
            message = "stopped early: the KL to the reference passed ppo.kl_budget"
            self._report.note("warning", "kl_budget", message, step=self._trainer.step)

    def _begin(self, *, resume: bool) -> None:
        remembered = self._trainer.extra
        if resume:
            self._report.rewind(remembered.get("seq", 0))
            self._flagged = set(remembered.get("flagged", ()))
            self._report.log(f"resuming after update {self._trainer.step - 1}")
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
