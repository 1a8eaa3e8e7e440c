"""PPO: rollout → score → shape → advantages → update, again and again."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from pipeline.ppo.algorithm import compute_advantages
from pipeline.ppo.batch import (
    Batch,
    SamplerMismatch,
    TrainingDiverged,
    UpdateResult,
    gather_shares,
    merge_recomputed,
    samples_of,
)
from pipeline.ppo.checkpoint import (
    DamagedCheckpoint,
    NoReadableCheckpoint,
    checkpoint_path,
    list_checkpoints,
    load_newest,
    restore,
    save_checkpoint,
    set_aside,
    state_of,
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
from pipeline.ppo.distributed import Processes, gathered, part_state, same_weights_everywhere, shard
from pipeline.ppo.learner import NOTHING, Learner, NonFiniteError, learning_rates, planned_steps
from pipeline.ppo.lora import hold_in_bf16, merged
from pipeline.ppo.metrics import MISMATCHED, reason_to_stop, red_flags, samples_of_another
from pipeline.ppo.model import (
    assemble,
    detect_device,
    end_tokens,
    frozen_hash,
    resolve_precision,
    weights_hash,
    weights_versions,
)
from pipeline.ppo.packing import packs
from pipeline.ppo.rewards import Baseline, Decoder, Rewarder
from pipeline.ppo.rollout import PromptSampler
from pipeline.ppo.samplers import Request, importance_weights, make_backend
from pipeline.ppo.summary import Stopwatch, summarize


class PPOTrainer:
    """Trains `model` to please `reward` while staying near `reference`.

    `model` and `reference` are transformers causal LMs with memory of their own (`reference` may
    be a path, or None with LoRA: the policy with its adapters off).  Both are moved to `device`
    and made fp32, and `model` is trained in place.  A separate critic starts as a copy of
    `critic`, a reward model or a causal LM that knows the policy's tokens, or of `model` when it
    is None.  `categories` names each prompt's, for the baseline "category_mean".
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
        critic: Any = None,
        categories: Sequence[str] | None = None,
        eos_token_ids: Sequence[int] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.prompts = check_prompts(prompts, model, config)
        self.config = config
        self.tokenizer = tokenizer
        self.pad_token_id: int = check_tokenizer(tokenizer)
        self.eos_token_ids = check_ends(eos_token_ids or end_tokens(tokenizer, model), model)
        self.decoder = Decoder(tokenizer, self.eos_token_ids)
        self.directory = Path(directory) / "checkpoints" if directory is not None else None
        self.device = torch.device(device) if device is not None else detect_device()
        self.precision = resolve_precision(config.precision, self.device)
        self.processes = Processes()
        check_processes(config, self.processes.size)
        if critic is not None:
            check_critic(critic, model, longest=self._longest)
        self.model, self.reference = assemble(model, reference, critic, config, self.device)
        packing = self._packing()  # sharded, a part of the model cannot be tried alone
        self._distribute()
        self._prepare_frozen()
        # One generator a purpose: an early stop then changes no later sample.
        self.generators = {
            name: torch.Generator().manual_seed(config.seed * 3 + offset)
            for offset, name in enumerate(("prompts", "sampling", "minibatches"))
        }
        self.learner = Learner(
            self.model,
            self.reference,
            config,
            precision=self.precision,
            device=self.device,
            generator=self.generators["minibatches"],
            packing=packing,
            processes=self.processes,
            eos_token_ids=self.eos_token_ids,
        )
        self.backend = make_backend(self._request(), self.processes)
        self.rewarder = Rewarder(reward, config, weights=reward_weights, device=self.device)
        self.baseline = Baseline(config, check_categories(categories, prompts, config))
        self.sampler = PromptSampler(len(self.prompts), self.generators["prompts"])
        self.step = 0
        self.history: list[dict[str, float]] = []
        self.extra: dict[str, Any] = {}
        self.stopped: str | None = None
        self.passed_over: list[DamagedCheckpoint] = []

    def _prepare_frozen(self) -> None:
        """Hash the frozen weights, then hold them at the precision they are used in."""
        self.frozen_hash = frozen_hash(self.model)  # before any of it is rounded
        self._exact: dict[str, Tensor] = {}
        if self.precision == "bf16" and self.config.sharding == "none":  # a shard has one precision
            self._exact = hold_in_bf16(self.model.policy, self.reference)
        self.reference_hash = weights_hash(self.reference)
        self._reference_versions = weights_versions(self.reference)

    def _distribute(self) -> None:
        """Share the weights among the processes, where there are several."""
        same_weights_everywhere(self.processes, self.model)
        if self.config.sharding == "none":
            return
        if self.processes.size == 1:
            raise ValueError(
                "ppo.sharding='fsdp2' needs several processes; start them with `accelerate launch`"
            )
        shard(self.model)
        shard(self.reference)

    def _request(self) -> Request:
        """What a sampler must know."""
        return Request(
            model=self.model,
            config=self.config,
            eos_token_ids=self.eos_token_ids,
            pad_token_id=self.pad_token_id,
            precision=self.precision,
            device=self.device,
        )

    def _packing(self) -> bool:
        """Whether training passes read several texts as one row."""
        read = {
            "policy": self.model.policy, "critic": self.model.critic, "reference": self.reference
        }  # fmt: skip
        return packs(self.config.packing, read, longest=self._longest, device=self.device)

    @property
    def _longest(self) -> int:
        """Tokens of the longest text there can be."""
        return max(map(len, self.prompts)) + self.config.max_new_tokens

    def run(self, *, resume: bool = False) -> Iterator[UpdateResult]:
        """Make the updates, yielding each.

        `resume=True` loads the newest readable checkpoint in `directory` and lists damaged ones in
        `passed_over`; without a checkpoint it starts from the beginning.  More `updates` than before
        make the run longer, at the learning rates of the new length.  The run ends early, with the
        reason in `stopped`, when the KL budget is spent or the reward has collapsed.  Raises TrainingDiverged for a number
        that is NaN or infinite, SamplerMismatch after the result of an update whose responses
        another model sampled, and RuntimeError when the reference was changed.
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
        if self.stopped == MISMATCHED:
            raise SamplerMismatch.of(self.history)
        self._check_reference()

    def write_checkpoint(self) -> None:
        """Write one now, between updates; ValueError without a directory."""
        if self.directory is None:
            raise ValueError("this trainer has no directory to write a checkpoint to")
        state = self.state_dict()  # all processes have a part of it
        if self.processes.rank == 0:
            save_checkpoint(self.directory, self.step, state)

    def _update(self) -> UpdateResult:
        """One iteration of the algorithm: rollout → score → shape → advantages → update."""
        config, watch = self.config, Stopwatch(self.device)
        with watch.lap("speed/rollout_seconds"), gathered(self.model):
            share = self._rollout(self.sampler.draw(config.rollouts))
        with watch.lap("speed/score_seconds"), gathered(self.model), gathered(self.reference):
            self._score(share)
            batch = gather_shares(share, self.processes)
        mismatch = self._correct_mismatch(batch)

        kl_coefficient = self.rewarder.kl_controller.weight
        batch.rewards = self.rewarder.shape(batch)
        batch.values = self.baseline(batch)
        raw_advantages, batch.advantages, batch.returns, scale = compute_advantages(
            token_rewards=batch.rewards.token_rewards,
            values=batch.values,
            mask=batch.mask,
            config=config,
        )
        wrong_sampler = samples_of_another(mismatch["rollout/mismatch_kl"])
        with watch.lap("speed/update_seconds"):
            learned = self.learner.update(
                batch,
                rates=learning_rates(config, self.step),
                # In the unit of the advantages, which whitening changes.
                kl_weight=kl_coefficient * batch.rewards.scale * scale,
                steps=NOTHING if wrong_sampler else planned_steps(config, self.step),
            )

        metrics = summarize(batch, raw_advantages)
        metrics["completion/unseen_tokens"] = self.decoder.unseen_share(batch.token_lists())
        metrics |= mismatch | learned | watch.metrics(sampled=int(batch.lengths.sum()))
        metrics["kl/coefficient"] = kl_coefficient
        written = weights_versions(self.reference) != self._reference_versions
        metrics["reference/changed"] = float(written)
        return self._finish(batch, metrics)

    def _rollout(self, prompt_indices: list[int]) -> Batch:
        """Responses to this process's share of the prompts."""
        # Drawn for all and by all, so that a response does not depend on who samples it.
        size = (len(prompt_indices), self.config.max_new_tokens)
        uniforms = torch.rand(size, generator=self.generators["sampling"], dtype=torch.float64)
        rows = self.processes.share(range(len(prompt_indices)))
        mine = [prompt_indices[row] for row in rows]
        prompts = [self.prompts[index] for index in mine]
        rollout = self.backend(prompts, uniforms[rows])
        return Batch.of(prompts, rollout, prompt_indices=mine, pad=self.pad_token_id)

    def _score(self, share: Batch) -> None:
        """Add the reward's scores, and log-probabilities under the reference."""
        texts = [self.decoder.text(tokens) for tokens in share.token_lists()]
        share.scores = self.rewarder.score(share.prompt_indices, texts)
        found = self.learner.reference_pass(share, recompute=self.backend.foreign)
        merge_recomputed(share, found)

    def _correct_mismatch(self, batch: Batch) -> dict[str, float]:
        """Weigh tokens that a sampler other than the policy drew; return metrics on them."""
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
        """Count the update, adapt β, look for trouble and report."""
        config = self.config
        self.step += 1
        self.rewarder.kl_controller.update(metrics["kl/reference"], config.rollouts)
        self.history.append(metrics)
        self.stopped = reason_to_stop(config, self.history)
        last = self.step == config.updates or self.stopped is not None
        due = config.checkpoint_every and (last or self.step % config.checkpoint_every == 0)
        due = due and self.stopped != MISMATCHED  # a resume samples that update again
        return UpdateResult(
            step=self.step,
            metrics=dict(metrics),
            flags=red_flags(self.history),
            samples=samples_of(batch),
            checkpoint=checkpoint_path(self.directory, self.step)
            if due and self.directory
            else None,
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
        """Everything a bit-for-bit resume needs, `extra` included."""
        return state_of(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where `state_dict` was taken.

        Raises ValueError when it belongs to another run: other settings, prompts,
        reward weights, reference or frozen weights.  `checkpoint_every` may differ, and
        `updates` may be more.
        """
        restore(self, state)

    def _open_directory(self, *, resume: bool) -> None:
        """Load the newest checkpoint, or check that there is none to overwrite."""
        found = list_checkpoints(self.directory and writable(self.directory))
        if resume and found:
            _, state, self.passed_over = load_newest(found)
            self.load_state_dict(state)
            if self.processes.rank == 0:
                set_aside(self.passed_over)
        elif found and self.step == 0:
            raise ValueError(
                f"{self.directory} holds checkpoints of an earlier run; resume it or start in "
                "an empty directory"
            )

    def _diverged(self, error: NonFiniteError) -> TrainingDiverged:
        """Restore the last good checkpoint; return the error that says so."""
        where = f"update {self.step + 1}: {error}"
        remedy = "lower ppo.lr or ppo.epochs before trying again"
        found = list_checkpoints(self.directory)
        if not found:
            return TrainingDiverged(f"{where}; no checkpoint was written yet; {remedy}")
        try:
            newest, state, _ = load_newest(found)
        except NoReadableCheckpoint as unreadable:
            return TrainingDiverged(f"{where}; {unreadable}; {remedy}")
        self.load_state_dict(state)
        back = f"the policy is back at the last good checkpoint, {newest} (update {self.step})"
        return TrainingDiverged(f"{where}; {back}; {remedy}")

    def _check_reference(self) -> None:
        if weights_hash(self.reference) != self.reference_hash:
            raise RuntimeError(
                "the reference model's weights changed during the run, so its KL figures and "
                "penalties are void; find what writes to them and train again"
            )
