"""PPO: rollout → score → shape → advantages → update, again and again."""

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from pipeline.ppo.checkpoint import (
    checkpoint_path,
    list_checkpoints,
    load_checkpoint,
    random_states,
    restore_random_states,
    save_checkpoint,
)
from pipeline.ppo.checks import (
    Reward,
    check_prompts,
    check_reward,
    check_tokenizer,
    check_weights,
    named_scores,
)
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.control import (
    KLController,
    PromptSampler,
    RunningMoments,
    learning_rate,
    scale_scores,
)
from pipeline.ppo.experience import Experience, Texts, join_texts
from pipeline.ppo.functional import gae, kl_per_token, shape_rewards, whiten
from pipeline.ppo.learner import Learner, NonFiniteError, Scored
from pipeline.ppo.metrics import red_flags
from pipeline.ppo.model import (
    ActorCritic,
    autocast,
    detect_device,
    end_tokens,
    load_reference,
    resolve_precision,
    weights_hash,
    weights_versions,
    with_lora,
)
from pipeline.ppo.results import Sample, Scores, TrainingDiverged, UpdateResult
from pipeline.ppo.rollout import Rollout, generate
from pipeline.ppo.summary import Stopwatch, summarize


class PPOTrainer:
    """Trains `model` to please `reward` while staying near `reference`.

    `model` and `reference` are transformers causal LMs with memory of their own (`reference` may
    be a path).  Both are moved to `device` and made fp32, and `model` is trained in place.
    `prompts` are token ids, rendered for chat already.  `reward(prompt_indices, texts)`
    returns one finite score a completion, or named lists of them, which are
    summed with `reward_weights` (1 where not named) and logged each.  It is called once
    on two short texts before the run begins.

    `eos_token_ids` defaults to the tokenizer's and those the model's generation
    config names.  With a `directory`, checkpoints go to `directory/checkpoints`.
    `extra` is the caller's own JSON-like state: stored in every checkpoint, and back
    after a resume.

    Raises ValueError, before any compute is spent, for input that cannot work.
    """

    def __init__(
        self,
        model: Any,
        reference: Any,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[Sequence[int]],
        reward: Reward,
        config: PPOConfig,
        directory: Path | str | None = None,
        *,
        reward_weights: Mapping[str, float] | None = None,
        eos_token_ids: Sequence[int] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        check_prompts(prompts, model, config)
        self.config = config
        self.tokenizer = tokenizer
        self.pad_token_id: int = check_tokenizer(tokenizer)
        self.prompts = [list(prompt) for prompt in prompts]
        self.reward = reward
        self.reward_weights = dict(reward_weights or {})
        self.eos_token_ids = list(eos_token_ids or end_tokens(tokenizer, model))
        self.directory = Path(directory) / "checkpoints" if directory is not None else None
        self.device = torch.device(device) if device is not None else detect_device()
        self.precision = resolve_precision(config.precision, self.device)
        self.reference = load_reference(reference, apart_from=model).to(self.device)
        self.reference_hash = weights_hash(self.reference)
        self._reference_versions = weights_versions(self.reference)
        policy = model.to(self.device).float()
        if config.lora_rank:
            policy = with_lora(policy, rank=config.lora_rank, alpha=config.lora_alpha)
        self.model = ActorCritic(policy)
        # One generator a purpose: an early stop then changes no later sample.
        self.generators = {
            name: torch.Generator().manual_seed(config.seed * 3 + offset)
            for offset, name in enumerate(("prompts", "sampling", "minibatches"))
        }
        self.learner = Learner(
            self.model,
            config,
            precision=self.precision,
            device=self.device,
            generator=self.generators["minibatches"],
        )
        self.kl_controller = KLController(config)
        self.moments = RunningMoments()
        self.sampler = PromptSampler(len(self.prompts), self.generators["prompts"])
        self.step = 0
        self.history: list[dict[str, float]] = []
        self.extra: dict[str, Any] = {}
        self.stopped: str | None = None

    def run(self, *, resume: bool = False) -> Iterator[UpdateResult]:
        """Make the updates, yielding each.

        `resume=True` takes up the newest checkpoint in `directory`, or starts from the
        beginning where none was written yet.  Ends early, with the reason in
        `stopped`, when the KL budget is spent.  Raises TrainingDiverged when a
        number is NaN or infinite, and RuntimeError when the reference was changed.
        """
        check_reward(self.reward)
        self._open_directory(resume=resume)
        while self.step < self.config.updates and self.stopped is None:
            try:
                result = self._update()
            except NonFiniteError as error:
                raise self._diverged(error) from error
            yield result
            if result.checkpoint is not None:
                save_checkpoint(result.checkpoint.parent, self.step, self.state_dict())
        self._check_reference()

    def _update(self) -> UpdateResult:
        """One iteration of the algorithm."""
        watch = Stopwatch(self.device)
        batch = self.sampler.draw(self.config.rollouts)
        with watch.lap("speed/rollout_seconds"):
            rollout = self._rollout(batch)
        with watch.lap("speed/score_seconds"):
            scores = self._score(batch, rollout)
            texts = self._texts(batch, rollout)
            scored = self.learner.score(texts, self.reference)
        rollout = _at_update_precision(rollout, scored)
        rewards, kl, penalty = self._shape(rollout, scored, scores.total)
        experience, raw_advantages = self._advantages(rollout, rewards)
        with watch.lap("speed/update_seconds"):
            lr = learning_rate(self.config, self.step)
            learned = self.learner.learn(texts, experience, lr=lr)
        metrics = summarize(
            rollout=rollout,
            scores=scores.total,
            components=scores.components,
            rewards=rewards,
            kl=kl,
            penalty=penalty,
            raw_advantages=raw_advantages,
            returns=experience.returns,
        )
        metrics |= learned | watch.metrics(sampled=int(rollout.lengths.sum()))
        metrics["kl/coefficient"] = self.kl_controller.weight
        metrics["reference/changed"] = float(self._reference_written())
        return self._finish(batch, rollout, scores, kl, metrics)

    def _rollout(self, batch: list[int]) -> Rollout:
        config = self.config
        with autocast(self.precision, self.device):
            rollout = generate(
                self.model,
                [self.prompts[index] for index in batch],
                eos_token_ids=self.eos_token_ids,
                pad_token_id=self.pad_token_id,
                max_new_tokens=config.max_new_tokens,
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                min_new_tokens=config.min_new_tokens,
                generator=self.generators["sampling"],
                batch_size=config.rollout_batch,
            )
        if not torch.isfinite(rollout.logprobs).all():
            raise NonFiniteError("the policy's log-probabilities are not finite")
        return rollout

    def _score(self, batch: list[int], rollout: Rollout) -> Scores:
        """Ask the reward what each text is worth."""
        texts = [self._decode(tokens) for tokens in rollout.token_lists()]
        components = named_scores(self.reward(list(batch), list(texts)), texts)
        check_weights(self.reward_weights, components)
        weighted = [
            torch.tensor(values, dtype=torch.float64) * self.reward_weights.get(name, 1.0)
            for name, values in components.items()
        ]
        return Scores(
            total=torch.stack(weighted).sum(0).float().to(self.device),
            components={name: sum(v) / len(v) for name, v in components.items()},
            texts=texts,
        )

    def _decode(self, tokens: list[int]) -> str:
        # An id that ends a response need not be special to the tokenizer.
        body = tokens[:-1] if tokens[-1] in self.eos_token_ids else tokens
        return str(self.tokenizer.decode(body, skip_special_tokens=True))

    def _texts(self, batch: list[int], rollout: Rollout) -> Texts:
        prompts = [self.prompts[index] for index in batch]
        return join_texts(prompts, rollout, pad=self.pad_token_id)

    def _shape(
        self, rollout: Rollout, scored: Scored, scores: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rewards (B, T), with the per-token log-ratio and KL penalty they are made from."""
        config, mask = self.config, rollout.mask
        log_ratio = rollout.logprobs - scored.reference_logprobs
        penalty = scored.kl
        if penalty is None:
            penalty = kl_per_token(
                logprobs=rollout.logprobs,
                reference_logprobs=scored.reference_logprobs,
                estimator=config.kl_estimator,
            )
        self.moments.update(scores)
        ended = torch.tensor([reason == "stop" for reason in rollout.finish_reasons])
        paid = scale_scores(
            scores, ended=ended.to(scores.device), moments=self.moments, config=config
        )
        rewards = shape_rewards(
            scores=paid, kl=penalty, mask=mask, kl_weight=self.kl_controller.weight
        )
        if config.whiten_rewards:
            rewards = whiten(rewards, mask, shift_mean=False)
        return rewards, torch.where(mask, log_ratio, 0), torch.where(mask, penalty, 0)

    def _advantages(self, rollout: Rollout, rewards: Tensor) -> tuple[Experience, Tensor]:
        """What to learn from, and the advantages before whitening."""
        assert rollout.values is not None
        config, mask = self.config, rollout.mask
        raw, returns = gae(
            rewards=rewards, values=rollout.values, mask=mask, gamma=config.gamma, lam=config.lam
        )
        experience = Experience(
            logprobs=rollout.logprobs,
            values=rollout.values,
            advantages=whiten(raw, mask) if config.whiten_advantages else raw,
            returns=returns,
        )
        return experience, raw

    def _finish(
        self,
        batch: list[int],
        rollout: Rollout,
        scores: Scores,
        kl: Tensor,
        metrics: dict[str, float],
    ) -> UpdateResult:
        """Count the update, steer β, look for trouble and report."""
        config = self.config
        self.step += 1
        self.kl_controller.update(metrics["kl/reference"], config.rollouts)
        self.history.append(metrics)
        if config.kl_budget and metrics["kl/reference"] > config.kl_budget:
            self.stopped = "kl_budget"
        last = self.step == config.updates or self.stopped is not None
        due = config.checkpoint_every and (last or self.step % config.checkpoint_every == 0)
        columns = zip(
            batch,
            scores.texts,
            scores.total.tolist(),
            kl.sum(1).tolist(),
            rollout.lengths.tolist(),
            rollout.finish_reasons,
            strict=True,
        )
        names = ("prompt_index", "text", "score", "kl", "length", "finish_reason")
        return UpdateResult(
            step=self.step,
            metrics=dict(metrics),
            flags=red_flags(self.history),
            samples=[Sample(**dict(zip(names, row, strict=True))) for row in columns],
            checkpoint=checkpoint_path(self.directory, self.step)
            if due and self.directory
            else None,
        )

    def save(self, path: Path | str) -> None:
        """Write the policy (LoRA merged, fp32) and the tokenizer in Hugging Face format."""
        policy: Any = self.model.policy
        if self.config.lora_rank:
            # A merge changes weights in place, so it is done on a copy.
            policy = copy.deepcopy(policy).merge_and_unload()
        policy.save_pretrained(path)
        self.tokenizer.save_pretrained(path)

    def state_dict(self) -> dict[str, Any]:
        """Everything a bit-for-bit resume needs, `extra` included."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.learner.optimizer.state_dict(),
            "kl_weight": self.kl_controller.weight,
            "moments": vars(self.moments),
            "sampler": self.sampler.state_dict(),
            "random": random_states(self.generators),
            "history": self.history,
            "stopped": self.stopped,
            "extra": json.dumps(self.extra),
            "run": self._fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where `state_dict` was taken.

        Raises ValueError when it belongs to another run: other settings, prompts,
        reward weights or reference.  `checkpoint_every` may differ.
        """
        ours = self._fingerprint()
        differing = sorted(name for name in ours if state["run"].get(name) != ours[name])
        if differing:
            raise ValueError(
                f"the checkpoint belongs to another run: {', '.join(differing)} differ; "
                "resume with the same settings or start in an empty directory"
            )
        self.model.load_state_dict(state["model"])
        self.learner.optimizer.load_state_dict(state["optimizer"])
        self.kl_controller.weight = state["kl_weight"]
        vars(self.moments).update(state["moments"])
        self.sampler.load_state_dict(state["sampler"])
        restore_random_states(state["random"], self.generators)
        self.step, self.stopped = state["step"], state["stopped"]
        self.history = [dict(metrics) for metrics in state["history"]]
        self.extra = json.loads(state["extra"])

    def _fingerprint(self) -> dict[str, Any]:
        """What must be the same for a resume to mean anything."""
        settings = asdict(replace(self.config, checkpoint_every=0))
        prompts = hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()
        return {f"ppo.{name}": value for name, value in settings.items()} | {
            "prompts": prompts,
            "reference": self.reference_hash,
            "reward_weights": self.reward_weights,
            "eos_token_ids": self.eos_token_ids,
        }

    def _open_directory(self, *, resume: bool) -> None:
        """Take up the newest checkpoint, or make sure that there is none to trample on."""
        found = list_checkpoints(self.directory) if self.directory is not None else []
        if resume and found:
            self.load_state_dict(load_checkpoint(found[-1]))
        elif found and self.step == 0:
            raise ValueError(
                f"{self.directory} holds checkpoints of an earlier run; resume it or start in "
                "an empty directory"
            )

    def _diverged(self, error: NonFiniteError) -> TrainingDiverged:
        """Put the policy back to the last good checkpoint and say so."""
        where = f"update {self.step + 1}: {error}"
        remedy = "lower ppo.lr or ppo.epochs before trying again"
        found = list_checkpoints(self.directory) if self.directory is not None else []
        if not found:
            return TrainingDiverged(f"{where}; no checkpoint was written yet; {remedy}")
        self.load_state_dict(load_checkpoint(found[-1]))
        return TrainingDiverged(
            f"{where}; the policy is back at the last good checkpoint, {found[-1]} "
            f"(update {self.step}); {remedy}"
        )

    def _reference_written(self) -> bool:
        return weights_versions(self.reference) != self._reference_versions

    def _check_reference(self) -> None:
        if weights_hash(self.reference) != self.reference_hash:
            raise RuntimeError(
                "the reference model's weights changed during the run, so its KL figures and "
                "penalties are void; find what writes to them and train again"
            )


def _at_update_precision(rollout: Rollout, scored: Scored) -> Rollout:
    """The rollout with log-probabilities and values computed again, where they were."""
    if scored.logprobs is None:
        return rollout
    return replace(rollout, logprobs=scored.logprobs, values=scored.values)
