"""PPO: rollout → score → shape → advantages → update, repeated.

Start with `PPOTrainer._update`, one iteration of the algorithm.  `run` repeats it, writes
checkpoints and ends the run after `ppo.updates`, at a KL budget, at a reward collapse, or with an
error (a value that is not finite, a sampler with other weights, a changed reference).
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from pipeline.ppo.advantages import compute_advantages
from pipeline.ppo.baselines import Baseline
from pipeline.ppo.batch import Batch, gather_shares
from pipeline.ppo.checkpoint import (
    DamagedCheckpoint,
    NoReadableCheckpoint,
    checkpoint_path,
    list_checkpoints,
    load_newest,
    random_states,
    restore_random_states,
    restore_shards,
    save_checkpoint,
    save_sharded_checkpoint,
    set_aside,
    writable,
)
from pipeline.ppo.checks import (
    Reward,
    check_categories,
    check_critic,
    check_ends,
    check_processes,
    check_prompts,
    check_tokenizer,
)
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.dynamic_sampling import fill_batch
from pipeline.ppo.learner import (
    NOTHING,
    Learner,
    NonFiniteError,
    find_heads,
    learning_rates,
    planned_steps,
)
from pipeline.ppo.metrics import SAMPLER_MISMATCH, exceeds_mismatch_limit, reason_to_stop, red_flags
from pipeline.ppo.network.distributed import (
    Processes,
    broadcast_weights,
    gathered,
    load_whole_states,
    part_state,
    shard,
    whole_states,
)
from pipeline.ppo.network.lora import AdapterOff, merged, round_frozen_weights
from pipeline.ppo.network.model import (
    Setup,
    assemble,
    detect_device,
    end_tokens,
    frozen_hash,
    resolve_precision,
    shapes_hash,
    weights_hash,
    weights_versions,
)
from pipeline.ppo.network.offload import Offloaded
from pipeline.ppo.network.packing import use_packing
from pipeline.ppo.rewards import Decoder, Rewarder
from pipeline.ppo.rollouts.backends import make_backend
from pipeline.ppo.rollouts.importance import importance_weights
from pipeline.ppo.rollouts.prompts import PromptSampler
from pipeline.ppo.summary import (
    SamplerMismatch,
    Stopwatch,
    TrainingDiverged,
    UpdateResult,
    samples_of,
    summarize,
)

_FORMATS = {"none": 2, "fsdp2": 3}
"""Format of a checkpoint's state by `ppo.sharding`.  Format 1 has no format number and includes frozen
weights; format 3 has weights and optimizer states in a file per process, format 2 in the state."""


class PPOTrainer:
    """Trains `model` to maximize `reward` with a penalty on its KL to `reference`.

    `model` and `reference` are transformers causal LMs that share no memory; `model` is trained in
    place, and both are moved to `device` as fp32.  With `ppo.sharding="fsdp2"` only the first process
    needs weights: models of the others may be on the meta device
    (`from_pretrained(…, device_map="meta")`).  `reference` may also be a path, or None with
    LoRA: the policy without its adapters.  With `ppo.critic="separate"` the critic starts as a copy
    of `critic`, a reward model or causal LM with the policy's tokens, or of `model` when None.

    `prompts` are lists of token ids, already rendered for chat; `categories` has the category of
    each prompt, for the baseline "category_mean".  `reward(prompt_indices, texts)` returns one
    finite score per text, or named lists of scores, which are logged separately and summed with
    `reward_weights` (1 by default).  It is called once on two short texts before the run.

    `eos_token_ids` defaults to those of the tokenizer and of the model's generation config.  With a
    `directory`, checkpoints go to `directory/checkpoints`.  `extra` is JSON-like state of the
    caller, stored in every checkpoint and restored by a resume.

    Raises ValueError, before any computation, for invalid arguments.
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
        critic: Any = None,
        categories: Sequence[str] | None = None,
        eos_token_ids: Sequence[int] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.prompts = check_prompts(prompts, model, config)
        longest = max(map(len, self.prompts)) + config.max_new_tokens
        pad_token_id = check_tokenizer(tokenizer)
        self.eos_token_ids = check_ends(eos_token_ids or end_tokens(tokenizer, model), model)
        self.directory = Path(directory) / "checkpoints" if directory is not None else None
        self.device = torch.device(device) if device is not None else detect_device()
        self.processes = Processes()
        check_processes(config, self.processes.size)
        if critic is not None:
            check_critic(critic, model, longest=longest)
        self.model, self.reference = assemble(model, reference, critic, config, self.device)
        models = {
            "policy": self.model.policy, "critic": self.model.critic, "reference": self.reference
        }  # fmt: skip
        # Both run the models: before sharding, because one shard of a model cannot run alone, and
        # before frozen weights are rounded, which then need autocast.
        heads = find_heads(self.model.policy, self.reference, config, self.processes)
        precision = resolve_precision(config.precision, self.device)
        packing = self.processes.first(
            lambda: use_packing(
                config.packing, models, longest=longest, device=self.device, precision=precision
            )
        )
        self._distribute(precision)
        self._prepare_frozen(precision)
        self.generators = _generators(config.seed)
        setup = Setup(
            model=self.model,
            reference=self.reference,
            config=config,
            eos_token_ids=self.eos_token_ids,
            pad_token_id=pad_token_id,
            precision=precision,
            device=self.device,
        )
        self.learner = Learner(
            setup,
            self.processes,
            heads=heads,
            packing=packing,
            generator=self.generators["minibatches"],
        )
        self.backend = make_backend(setup, self.processes)
        self.decoder = Decoder(tokenizer, self.eos_token_ids)
        self.rewarder = Rewarder(reward, config, weights=reward_weights, device=self.device)
        self.baseline = Baseline(config, check_categories(categories, prompts, config))
        self.sampler = PromptSampler(len(self.prompts), self.generators["prompts"])
        self.step = 0
        self.history: list[dict[str, float]] = []
        self.extra: dict[str, Any] = {}
        self.stopped: str | None = None
        self.passed_over: list[DamagedCheckpoint] = []

    def _distribute(self, precision: str) -> None:
        """Give all processes the first one's weights, or each its shard if the settings say so."""
        if self.config.sharding == "none":
            broadcast_weights(self.processes, self.model)
            return
        if self.processes.size == 1:
            raise ValueError(
                "ppo.sharding='fsdp2' needs several processes; start them with `accelerate launch`"
            )
        shard(self.model, precision, self.device, exact=[self.model.value_head])
        shard(self.reference, precision, self.device)

    def _prepare_frozen(self, precision: str) -> None:
        """Hash the frozen weights, round those that bf16 autocast would round in every pass, and move
        the reference to host memory if `ppo.offload` says so."""
        self.frozen_hash = frozen_hash(self.model)
        self._exact: dict[str, Tensor] = {}
        if precision == "bf16" and self.config.sharding == "none":  # shards are gathered rounded
            frozen = (self.model.policy, self.model.critic, self.reference)
            self._exact = round_frozen_weights(*(each for each in frozen if each is not None))
        leaves = self.config.offload == "frozen" and not isinstance(self.reference, AdapterOff)
        self._offloaded = Offloaded([self.reference] if leaves else [], self.device)
        self.reference_hash = weights_hash(self.reference)
        self._reference_versions = weights_versions(self.reference)

    def run(self, *, resume: bool = False) -> Iterator[UpdateResult]:
        """Run the updates and yield the result of each.

        `resume=True` loads the newest readable checkpoint in `directory`, if there is one, and lists
        damaged ones in `passed_over`.  Raising `updates` extends the run, with the learning rates of
        the new length.  The run ends early, with the reason in `stopped`, when the KL budget is
        exceeded or the reward has collapsed.

        Raises TrainingDiverged for a NaN or infinite value, SamplerMismatch after the result of an
        update whose responses were not sampled from the policy, and RuntimeError if the reference
        changed.
        """
        self.rewarder.check()
        self._open_directory(resume=resume)
        while self.step < self.config.updates and self.stopped is None:
            try:
                result = self._update()
            except NonFiniteError as error:
                raise self._diverged(error) from error
            yield result
            if result.checkpoint is not None:
                self.write_checkpoint()
        if self.stopped == SAMPLER_MISMATCH:
            raise SamplerMismatch.of(self.history)
        self._check_reference()

    def respond(self, prompts: Sequence[Sequence[int]], *, seed: int) -> list[str]:
        """The current policy's responses to prompts of token ids, sampled as in a rollout.

        The random numbers follow from `seed`, so the responses of two updates differ only by the
        weights, and those of the run do not change.  All processes must call this.
        """
        size = (len(prompts), self.config.max_new_tokens)
        generator = torch.Generator().manual_seed(seed)
        uniforms = torch.rand(size, generator=generator, dtype=torch.float64)
        rows = self.processes.share(range(len(prompts)))
        texts: list[str] = []
        with gathered(self.model):
            if rows:
                rollout = self.backend([prompts[row] for row in rows], uniforms[rows])
                texts = [self.decoder.text(tokens) for tokens in rollout.token_lists()]
        return self.processes.interleave(self.processes.gather(texts))

    def write_checkpoint(self) -> None:
        """Write a checkpoint between updates; ValueError without a directory."""
        if self.directory is None:
            raise ValueError("this trainer has no directory to write a checkpoint to")
        if self.learner.sharded:
            save_sharded_checkpoint(
                self.directory,
                self.step,
                self.state_dict(),
                model=self.model,
                optimizer=self.learner.optimizer,
                processes=self.processes,
            )
        elif self.processes.rank == 0:
            save_checkpoint(self.directory, self.step, self.state_dict())

    def _update(self) -> UpdateResult:
        """One iteration of the algorithm: rollout → score → shape → advantages → update."""
        config, watch = self.config, Stopwatch(self.device)
        batch, dropped = fill_batch(
            lambda groups: self._sample(groups, watch),
            self.rewarder.outcomes,
            groups=config.rollouts // config.group_size,
            size=config.group_size,
            rounds=config.dynamic_sampling,
            least=math.ceil(self.processes.size / config.group_size),
        )
        mismatch = self._correct_mismatch(batch)

        kl_coef = self.rewarder.kl_controller.kl_coef
        self.rewarder.shape(batch)
        if config.baseline != "critic":
            batch.values = self.baseline.values(batch)
        assert batch.values is not None
        raw_advantages, batch.advantages, batch.returns, scale = compute_advantages(
            token_rewards=batch.token_rewards, values=batch.values, mask=batch.mask, config=config
        )
        wrong_sampler = exceeds_mismatch_limit(mismatch["rollout/mismatch_kl"])
        with watch.lap("speed/update_seconds"):
            learned = self.learner.update(
                batch,
                rates=learning_rates(config, self.step),
                # In the unit of the advantages, which whitening changes.
                kl_coef=kl_coef * batch.reward_scale * scale,
                steps=NOTHING if wrong_sampler else planned_steps(config, self.step),
            )

        metrics = summarize(batch, raw_advantages, config)
        metrics["rollout/dropped_groups"] = float(dropped)
        metrics["completion/unseen_tokens"] = self.decoder.unseen_share(batch.token_lists())
        metrics |= mismatch | learned | watch.metrics()
        metrics["kl/coefficient"] = kl_coef
        written = weights_versions(self.reference) != self._reference_versions
        metrics["reference/changed"] = float(written)
        return self._finish(batch, metrics)

    def _sample(self, groups: int, watch: Stopwatch) -> Batch:
        """Sample and score the responses to this many prompts, on all processes together."""
        prompts = self.sampler.draw(groups)
        rows = [prompt for prompt in prompts for _ in range(self.config.group_size)]
        with watch.lap("speed/rollout_seconds"), gathered(self.model):
            share = self._rollout(rows)
        with watch.lap("speed/score_seconds"):
            self._score(share)
            batch = gather_shares(share, self.processes)
        watch.sampled += int(batch.lengths.sum())
        return batch

    def _rollout(self, prompt_indices: list[int]) -> Batch:
        """Sample responses to this process's share of the prompts."""
        # Every process draws all random numbers, so a response does not depend on its process.
        size = (len(prompt_indices), self.config.max_new_tokens)
        uniforms = torch.rand(size, generator=self.generators["sampling"], dtype=torch.float64)
        rows = self.processes.share(range(len(prompt_indices)))
        mine = [prompt_indices[row] for row in rows]
        prompts = [self.prompts[index] for index in mine]
        rollout = self.backend(prompts, uniforms[rows])
        pad = self.learner.setup.pad_token_id
        return Batch.of(prompts, rollout, prompt_indices=mine, pad=pad)

    def _score(self, share: Batch) -> None:
        """Add the reward's scores, and log-probabilities under the reference."""
        share.texts = [self.decoder.text(tokens) for tokens in share.token_lists()]
        scores = self.rewarder.score(share.prompt_indices, share.texts)
        share.scores, share.components = scores.total, scores.components
        with self._offloaded.on_device(), gathered(self.model), gathered(self.reference):
            self.learner.reference_pass(share, recompute=self.backend.foreign)

    def _correct_mismatch(self, batch: Batch) -> dict[str, float]:
        """Add importance weights for tokens of another sampler; return metrics on the mismatch."""
        batch.importance_weights, metrics = importance_weights(
            sampler_logprobs=batch.sampler_logprobs,
            old_logprobs=batch.old_logprobs,
            mask=batch.mask,
            cap=self.config.importance_cap,
            foreign=self.backend.foreign,
        )
        if not torch.isfinite(batch.old_logprobs).all():
            raise NonFiniteError("the policy's log-probabilities are not finite")
        return metrics

    def _finish(self, batch: Batch, metrics: dict[str, float]) -> UpdateResult:
        """Count the update, adapt β, decide whether the run ends, and report."""
        config = self.config
        self.step += 1
        self.rewarder.kl_controller.update(metrics["kl/reference"], config.rollouts)
        self.history.append(metrics)
        self.stopped = reason_to_stop(config, self.history)
        last = self.step == config.updates or self.stopped is not None
        due = config.checkpoint_every and (last or self.step % config.checkpoint_every == 0)
        checkpoint = None
        if (
            self.directory and due and self.stopped != SAMPLER_MISMATCH
        ):  # a resume repeats that update
            checkpoint = checkpoint_path(self.directory, self.step)
        return UpdateResult(
            step=self.step,
            metrics=dict(metrics),
            flags=red_flags(self.history),
            samples=samples_of(batch),
            checkpoint=checkpoint,
        )

    def save(self, path: Path | str) -> None:
        """Write the policy (LoRA merged, fp32) and the tokenizer in Hugging Face format."""
        policy: Any = self.model.policy
        if self.config.lora_rank:
            policy = merged(policy, self._exact)
        state = part_state(self.model, "policy")
        if self.processes.rank == 0:
            policy.save_pretrained(path, state_dict=state)
            self.tokenizer.save_pretrained(path)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resume needs to continue bit for bit, `extra` included.

        Weights and optimizer states of sharded models are left out; the processes write them.
        """
        states = {} if self.learner.sharded else whole_states(self.model, self.learner.optimizer)
        return states | {
            "format": _FORMATS[self.config.sharding],
            "step": self.step,
            "rewarder": self.rewarder.state_dict(),
            "category_means": self.baseline.means,
            "sampler": self.sampler.state_dict(),
            "random": random_states(self.generators),
            "history": self.history,
            "stopped": self.stopped,
            "extra": json.dumps(self.extra),
            "run": self._fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any], checkpoint: Path | None = None) -> None:
        """Restore the result of `state_dict`; sharded models also need its `checkpoint`'s files.

        Raises ValueError when it belongs to another run: other settings, prompts, reward weights,
        reference or frozen weights.  `checkpoint_every` and `offload` may differ, and `updates` may be
        larger.
        """
        self._check_same_run(state)
        if self.learner.sharded:
            assert checkpoint is not None, "sharded weights are in files of a checkpoint"
            restore_shards(checkpoint, state, self.model, self.learner.optimizer)
        else:
            load_whole_states(self.model, self.learner.optimizer, state)
        self.rewarder.load_state_dict(state["rewarder"])
        self.baseline.means = {name: list(m) for name, m in state["category_means"].items()}
        self.sampler.load_state_dict(state["sampler"])
        restore_random_states(state["random"], self.generators)
        self.step, self.stopped = state["step"], state["stopped"]
        self.history = [dict(metrics) for metrics in state["history"]]
        self.extra = json.loads(state["extra"])

    def _fingerprint(self) -> dict[str, Any]:
        """Properties that must be equal in the run of a checkpoint and the run that resumes it."""
        settings = asdict(replace(self.config, checkpoint_every=0, offload="none"))
        return {f"ppo.{name}": value for name, value in settings.items()} | {
            "model": shapes_hash(self.model),
            "frozen weights": self.frozen_hash,
            "prompts": hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest(),
            "reference": self.reference_hash,
            "reward_weights": self.rewarder.weights,
            "eos_token_ids": self.eos_token_ids,
        }

    def _check_same_run(self, state: dict[str, Any]) -> None:
        written = state.get("format", 1)
        expected = _FORMATS[state["run"].get("ppo.sharding", "none")]
        if written != expected:
            raise ValueError(
                f"the checkpoint was written by another version of the engine (format {written}; "
                f"this version reads {expected}); finish the run with that version, or start from "
                "scratch in an empty directory"
            )
        # A setting that the checkpoint's version did not have: its default is what that version did.
        added = {f"ppo.{each.name}": each.default for each in fields(self.config)}
        ours, theirs = self._fingerprint(), added | state["run"]
        planned, before = ours.pop("ppo.updates"), theirs.pop("ppo.updates")
        names = sorted(ours.keys() | theirs.keys())
        differing = [name for name in names if ours.get(name) != theirs.get(name)]
        if differing:
            raise ValueError(
                f"the checkpoint belongs to another run: {', '.join(differing)} differ; "
                "resume with the same settings or start in an empty directory"
            )
        if planned < before:
            raise ValueError(
                f"the checkpoint belongs to a run of {before} updates; on a resume ppo.updates="
                f"{planned} may be raised above that, not lowered"
            )

    def _open_directory(self, *, resume: bool) -> None:
        """Load the newest checkpoint, or check that the directory contains none."""
        found = list_checkpoints(self.directory and writable(self.directory))
        if resume and found:
            newest, state, self.passed_over = load_newest(found, self.processes)
            self.load_state_dict(state, newest)
            if self.processes.rank == 0:
                set_aside(self.passed_over)
        elif found and self.step == 0:
            raise ValueError(
                f"{self.directory} contains checkpoints of an earlier run; resume it or start in "
                "an empty directory"
            )

    def _diverged(self, error: NonFiniteError) -> TrainingDiverged:
        """Restore the last readable checkpoint; return the error to raise."""
        where = f"update {self.step + 1}: {error}"
        remedy = "lower ppo.lr or ppo.epochs before trying again"
        found = list_checkpoints(self.directory)
        if not found:
            return TrainingDiverged(f"{where}; no checkpoint has been written yet; {remedy}")
        try:
            newest, state, _ = load_newest(found, self.processes)
        except NoReadableCheckpoint as unreadable:
            return TrainingDiverged(f"{where}; {unreadable}; {remedy}")
        self.load_state_dict(state, newest)
        back = f"the policy is back at the last good checkpoint, {newest} (update {self.step})"
        return TrainingDiverged(f"{where}; {back}; {remedy}")

    def _check_reference(self) -> None:
        if weights_hash(self.reference) != self.reference_hash:
            raise RuntimeError(
                "the reference model's weights changed during the run, so its KL metrics and "
                "penalties are invalid; find what writes to them and train again"
            )


def _generators(seed: int) -> dict[str, torch.Generator]:
    """One generator per purpose, so that ending an update early does not change later samples."""
    return {
        name: torch.Generator().manual_seed(seed * 3 + offset)
        for offset, name in enumerate(("prompts", "sampling", "minibatches"))
    }
