"""Forward passes over prompts with their responses, and the optimizer steps of an update.

`Learner.update` runs `ppo.epochs` passes over the minibatches and ends early at `ppo.target_kl` (off).
`learning_rates` gives the rates of an update; `planned_steps` says whether it trains the policy,
values or both.  A gradient that is not finite raises `NonFiniteError` before a step; the trainer
then returns to the newest checkpoint and ends the run.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipeline.ppo.algorithm import (
    MinibatchSize,
    Part,
    PPOLoss,
    full_kl,
    joint_loss,
    kl_estimate,
    policy_loss,
    value_loss,
)
from pipeline.ppo.batch import Batch, micro_batches, to_tokens
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.network.distributed import (
    Processes,
    full_tensor,
    gathered,
    is_sharded,
)
from pipeline.ppo.network.model import (
    ActorCritic,
    Setup,
    autocast,
    forward_at,
    run_model,
)
from pipeline.ppo.network.packing import pack, packed
from pipeline.ppo.network.quantized import bitsandbytes
from pipeline.ppo.network.token_stats import (
    OutputHead,
    Reference,
    Tokens,
    TokenStats,
    chunked_stats,
    entropy,
    forbid_ends,
    head_for,
    is_small,
    token_logprobs,
)

_SEPARATE_CRITIC_RATE = 10
"""Default learning rate of a separate critic, as a multiple of the policy's."""

# Padded tokens that cost about as much as an additional forward and backward pass.
_SLACK = {"cpu": 64, "cuda": 4096, "mps": 1024}


Steps = tuple[Part, ...]
"""The part of the loss that each optimizer step on a minibatch trains."""

NOTHING: Steps = ()
JOINT: Steps = ("both",)
ALTERNATING: Steps = ("value", "policy")
VALUE_ONLY: Steps = ("value",)
POLICY_ONLY: Steps = ("policy",)


def planned_steps(config: PPOConfig, update: int) -> Steps:
    """The steps on each minibatch of an update; updates count from 0."""
    if config.baseline != "critic":
        return POLICY_ONLY
    if update < config.value_warmup:
        return VALUE_ONLY
    return JOINT if config.update_order == "joint" else ALTERNATING


class Rates(NamedTuple):
    """Learning rates of one update; `critic` is that of a separate critic or of the value head."""

    policy: float
    critic: float


def learning_rates(config: PPOConfig, step: int) -> Rates:
    """Learning rates of update `step`, counted from 0; a resume needs no scheduler state."""
    times = _SEPARATE_CRITIC_RATE if config.critic == "separate" else 1
    critic_lr = config.critic_lr or times * config.lr
    decay = 1.0 if config.schedule == "constant" else 1 - step / config.updates
    return Rates(config.lr * decay, critic_lr * decay)


class Heads(NamedTuple):
    """Output heads for large micro-batches; None if their logits are small, or it is not known."""

    policy: OutputHead | None
    reference: OutputHead | None


def find_heads(
    policy: nn.Module, reference: nn.Module, config: PPOConfig, processes: Processes
) -> Heads:
    """The heads of models that are neither sharded nor rounded yet."""
    tokens = config.micro_batch_tokens
    return Heads(*(head_for(model, processes, tokens=tokens) for model in (policy, reference)))


class NonFiniteError(RuntimeError):
    """A loss, gradient or log-probability is NaN or infinite; the optimizer took no step."""


class Learner:
    """Owns the optimizer; improves the policy from a batch with advantages."""

    def __init__(
        self,
        setup: Setup,
        processes: Processes,
        *,
        heads: Heads,
        packing: bool,
        generator: torch.Generator,
    ) -> None:
        self.setup = setup
        self.config = setup.config
        self.model = setup.model
        self.device = setup.device
        self.processes = processes
        self.packing = packing
        self.generator = generator
        self.sharded = is_sharded(setup.model)
        # FSDP2 averages gradients over processes; a minibatch's gradient is a sum over its tokens.
        self._loss_scale = processes.size if self.sharded else 1
        self._eos = torch.tensor(sorted(set(setup.eos_token_ids)), device=setup.device)
        self.parameters = [p for p in setup.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(setup.model, setup.config)
        self._heads = {id(setup.model): heads.policy, id(setup.reference): heads.reference}

    def token_stats(
        self,
        model: nn.Module,
        batch: Batch,
        *,
        wants_entropy: bool = False,
        exact_kl: bool = False,
        **options: Any,
    ) -> tuple[TokenStats, Tensor | None]:
        """Statistics of all sampled tokens under the sampling distribution, and values (N,).

        For `exact_kl` the reference runs too, without gradient.  The logits of a micro-batch are made at
        once if they are small, else in chunks.
        """
        head, ref_head = self._heads[id(model)], self._heads[id(self.setup.reference)]
        sampled = batch.tokens[batch.mask]
        unknown = ref_head is None and exact_kl
        if head is None or unknown or is_small(len(sampled), head.layer.out_features):
            return self._stats_at_once(
                model, batch, wants_entropy=wants_entropy, exact_kl=exact_kl, **options
            )
        with autocast(self.setup.precision, self.device):
            reference = None
            if exact_kl and ref_head is not None:
                reference = Reference(head=ref_head, hidden=self._reference_states(batch))
            read = partial(
                chunked_stats,
                head,
                tokens=Tokens(ids=sampled, ends=self._eos, early=self._early(batch)),
                temperature=self.config.temperature,
                wants_entropy=wants_entropy,
                reference=reference,
            )
            output = run_model(model, **self._inputs(batch), use_cache=False, read=read, **options)
        return output.stats, output.values

    def _stats_at_once(
        self, model: nn.Module, batch: Batch, *, wants_entropy: bool, exact_kl: bool, **options: Any
    ) -> tuple[TokenStats, Tensor | None]:
        """`token_stats` from all logits of the micro-batch."""
        sampled, ref_logits = batch.tokens[batch.mask], None
        if exact_kl:  # first, as in chunks: all processes must run sharded models in the same order
            with torch.no_grad():
                ref_logits, _ = self.logits(self.setup.reference, batch)
        logits, values = self.logits(model, batch, **options)
        stats = TokenStats(
            logprobs=token_logprobs(logits, sampled),
            entropies=entropy(logits) if wants_entropy else None,
            kl=None if ref_logits is None else full_kl(logits, ref_logits),
            ref_logprobs=None if ref_logits is None else token_logprobs(ref_logits, sampled),
        )
        return stats, values

    @torch.no_grad()
    def _reference_states(self, batch: Batch) -> Tensor:
        """(N, hidden) the reference's last hidden states at all sampled tokens."""
        inputs = self._inputs(batch)
        return forward_at(self.setup.reference, **inputs, makes_logits=False, use_cache=False)[1]

    def _early(self, batch: Batch) -> Tensor | None:
        """(N,) whether a sampled token could not be end-of-text; None if all could."""
        if not self.config.min_new_tokens:
            return None
        return batch.mask.nonzero()[:, 1] < self.config.min_new_tokens

    def logits(
        self, model: nn.Module, batch: Batch, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (N, V) of the sampling distribution, and values (N,), of all sampled tokens.

        The distribution is at the sampling temperature, and has no end-of-text in the first
        `min_new_tokens`; top-k and top-p do not apply.
        """
        with autocast(self.setup.precision, self.device):
            output = run_model(model, **self._inputs(batch), use_cache=False, **options)
        logits = output.logits
        if self.config.temperature != 1:  # a division allocates the logits again
            logits = logits / self.config.temperature
        if (early := self._early(batch)) is not None:
            logits = forbid_ends(logits, self._eos, early)
        return logits, output.values

    def _values(self, batch: Batch) -> Tensor:
        """(N,) values of all sampled tokens, from a pass without logits."""
        with autocast(self.setup.precision, self.device):
            return self.model.values(**self._inputs(batch))

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        """A model's inputs, padded or packed."""
        if not self.packing:
            return {"input_ids": batch.input_ids, "positions": batch.positions}
        ids, places, (positions,) = pack(batch.input_ids, batch.read_lengths, batch.positions)
        return {"input_ids": ids, "positions": positions, "position_ids": places}

    def _text_bounds(self, batch: Batch) -> AbstractContextManager[None]:
        """Tell the models where packed texts end."""
        if not self.packing:
            return nullcontext()
        models = (self.model.policy, self.model.critic, self.setup.reference)
        return packed([m for m in models if m is not None], batch.read_lengths.tolist())

    def split(self, batch: Batch, rows: list[int]) -> list[list[int]]:
        """These rows as micro-batches."""
        return micro_batches(
            rows,
            batch.read_lengths.tolist(),
            token_budget=self.config.micro_batch_tokens,
            slack=None if self.packing else _SLACK[self.device.type],
        )

    @torch.no_grad()
    def reference_pass(self, batch: Batch, *, recompute: bool = False) -> None:
        """Add the reference's log-probabilities to the batch, in a pass without gradients.

        The policy also runs when its rollout figures are missing or too coarse: in bf16 (sampled
        log-probabilities are off by up to 3e-2), for the exact KL, and with `recompute`, when
        another sampler drew the tokens.  A separate critic computes its values here.
        """
        found: dict[str, Tensor] = {}
        for rows in self.split(batch, list(range(batch.tokens.shape[0]))):
            part = batch.take(rows)
            with self._text_bounds(part):
                results = self._frozen_pass(part, recompute=recompute)
            for name, flat in results.items():
                if name not in found:
                    found[name] = torch.zeros(batch.tokens.shape, device=flat.device)
                found[name][rows, : part.tokens.shape[1]] = to_tokens(flat, part.mask)
        batch.ref_logprobs = found["ref_logprobs"]
        batch.exact_kl = found.get("exact_kl")
        batch.old_logprobs = found.get("logprobs", batch.old_logprobs)
        batch.values = found.get("values", batch.values)
        batch.entropies = found.get("entropies", batch.entropies)

    def _frozen_pass(self, batch: Batch, *, recompute: bool) -> dict[str, Tensor]:
        """(N,) results of one micro-batch by name."""
        exact = self.config.kl_estimator == "full"
        results: dict[str, Tensor | None] = {}
        if not exact:
            of_reference, _ = self.token_stats(self.setup.reference, batch)
            results["ref_logprobs"] = of_reference.logprobs
        if exact or recompute or self.setup.precision != "fp32":
            stats, values = self.token_stats(
                self.model, batch, wants_entropy=recompute, exact_kl=exact
            )
            results |= {"logprobs": stats.logprobs, "values": values}
            results |= {"entropies": stats.entropies, "exact_kl": stats.kl}
            if exact:
                results["ref_logprobs"] = stats.ref_logprobs
        elif batch.values is None:
            results["values"] = self._values(batch)
        return {name: found for name, found in results.items() if found is not None}

    def update(
        self, batch: Batch, *, rates: Rates, kl_coef: float, steps: Steps
    ) -> dict[str, float]:
        """Take the optimizer steps of one update; return its metrics.

        Each minibatch gets one optimizer step for each of `steps`; with none, nothing is computed.
        Stops early, before the step, when a minibatch's `approx_kl` exceeds `target_kl`.
        Raises NonFiniteError before a step with a gradient that is not finite.
        """
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = lr
        # Gradient checkpointing works only in training mode; dropout rates are 0 in both modes.
        self.model.train(self.config.gradient_checkpointing)
        self.model.trunk_learns_values = steps != VALUE_ONLY
        tally, lengths = _Tally(), batch.read_lengths.tolist()
        for epoch, rows in self._minibatches(batch.tokens.shape[0]) if steps else ():
            tally.epochs = epoch + 1
            size = MinibatchSize(int(batch.lengths[rows].sum()), len(rows))
            for part in steps:
                mine = self.processes.balanced_share(rows, lengths)
                losses = self._gradients(batch, mine, size, part, kl_coef)
                tally.add(self._summed(losses), size.tokens, part)
                if self.config.target_kl and tally.last_kl > self.config.target_kl:
                    break
                self._step(tally)
            else:
                continue
            break
        self.optimizer.zero_grad()
        return tally.metrics() | {"optim/lr": rates.policy, "optim/critic_lr": rates.critic}

    def _step(self, tally: "_Tally") -> None:
        if not self.sharded:
            self.processes.sum_gradients(self.parameters)
        norm = full_tensor(nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm))
        norm = norm.item()
        # Also catches a loss that is not finite, on every process at the same step.
        if not math.isfinite(norm):
            raise NonFiniteError(f"the gradient norm is {norm}")
        self.optimizer.step()
        tally.norms.append(norm)

    def _summed(self, losses: list[PPOLoss]) -> dict[str, float]:
        """A minibatch's losses over its micro-batches and all processes."""
        rows = torch.zeros(1, len(PPOLoss._fields), device=self.device)
        if losses:
            rows = torch.stack([torch.stack([x.float() for x in loss]) for loss in losses])
        sums = self.processes.total(rows.sum(0)).tolist()  # one transfer from the device
        maxima = self.processes.largest(rows.amax(0)).tolist()
        totals = dict(zip(PPOLoss._fields, sums, strict=True))
        largest = dict(zip(PPOLoss._fields, maxima, strict=True))
        return totals | {name: largest[name] for name in ("ratio_max", "ratio_error")}

    def _minibatches(self, count: int) -> Iterator[tuple[int, list[int]]]:
        """(epoch, rows) of every minibatch; each epoch shuffles the rows again."""
        for epoch in range(self.config.epochs):
            order = torch.randperm(count, generator=self.generator).tolist()
            for start in range(0, count, self.config.minibatch):
                yield epoch, order[start : start + self.config.minibatch]

    def _gradients(
        self, batch: Batch, rows: list[int], size: MinibatchSize, part: Part, kl_coef: float
    ) -> list[PPOLoss]:
        """Accumulate the gradient of the mean loss over the minibatch."""
        self.optimizer.zero_grad()
        losses = []
        groups = self.split(batch, rows)
        for number in range(self._passes(len(groups))):
            counts = number < len(groups)
            micro = batch.take(groups[number if counts else 0])
            # Include the backward pass: gradient checkpointing runs the forward pass again, and an
            # exact KL needs the reference's output layer again.
            with self._text_bounds(micro), self._reference_head(part):
                for loss in self._losses(micro, size, part, kl_coef):
                    (loss.total * (self._loss_scale * counts)).backward()
                    if counts:
                        losses.append(loss._replace(total=loss.total.detach()))
        return losses

    def _reference_head(self, part: Part) -> AbstractContextManager[None]:
        """Hold a sharded reference's output layer, if the loss needs it."""
        if part == "value" or not self._exact_kl_in_loss:
            return nullcontext()
        return gathered(self.setup.reference, layers=False)

    def _passes(self, mine: int) -> int:
        """Number of passes; with sharding, the maximum over processes."""
        if not self.sharded:
            return mine
        return int(self.processes.largest(torch.tensor(mine, device=self.device)))

    def _losses(
        self, batch: Batch, size: MinibatchSize, part: Part, kl_coef: float
    ) -> Iterator[PPOLoss]:
        """The losses of a micro-batch, whose gradients add up; runs only the trained parts.

        Policy and separate critic run one after the other, to hold the activations of only one.
        """
        separate_values = part != "both" or self.model.critic is not None
        if part != "value":
            policy, values = self._policy_loss(
                batch, size, kl_coef, separate_values=separate_values
            )
            if values is None:
                yield policy
            else:
                yield joint_loss(policy, self._value_loss(values, batch, size.tokens))
        if separate_values and part != "policy":
            yield self._value_loss(self._values(batch), batch, size.tokens)

    def _policy_loss(
        self, batch: Batch, size: MinibatchSize, kl_coef: float, *, separate_values: bool
    ) -> tuple[PPOLoss, Tensor | None]:
        """Loss of the policy, and the (N,) values of the same pass; None with `separate_values`."""
        config, mask = self.config, batch.mask
        stats, values = self.token_stats(
            self.model,
            batch,
            wants_entropy=bool(config.entropy_weight),
            exact_kl=self._exact_kl_in_loss,
            separate_values=separate_values,
        )
        logprobs, entropies = to_tokens(stats.logprobs, mask), stats.entropies
        kl = self._kl_loss(batch, stats.kl, logprobs) if config.charges_kl_in_loss else None
        loss = policy_loss(
            logprobs=logprobs,
            old_logprobs=batch.old_logprobs,
            importance_weights=batch.importance_weights,
            advantages=batch.advantages,
            mask=mask,
            size=size,
            config=config,
            entropy=None if entropies is None else to_tokens(entropies, mask),
            kl=kl,
            kl_coef=kl_coef,
        )
        return loss, values

    def _value_loss(self, values: Tensor, batch: Batch, tokens: int) -> PPOLoss:
        assert batch.values is not None
        return value_loss(
            values=to_tokens(values, batch.mask),
            old_values=batch.values,
            returns=batch.returns,
            mask=batch.mask,
            tokens=tokens,
            config=self.config,
        )

    @property
    def _exact_kl_in_loss(self) -> bool:
        return self.config.charges_kl_in_loss and self.config.kl_estimator == "full"

    def _kl_loss(self, batch: Batch, exact: Tensor | None, logprobs: Tensor) -> Tensor:
        """Each token's divergence (B, T) with its gradient: the exact one (N,), or k2."""
        if exact is not None:
            return to_tokens(exact, batch.mask)
        k2 = kl_estimate(logprobs - batch.ref_logprobs, self.config.kl_estimator)
        # k2's gradient is that of KL(π‖π_ref) on tokens that π sampled; π_old sampled these.
        weight = (logprobs.detach() - batch.old_logprobs).exp()
        if batch.importance_weights is not None:
            weight = weight * batch.importance_weights
        return k2 * weight


class _Tally:
    """Sums over the minibatches of an update, weighted by their tokens."""

    def __init__(self) -> None:
        self.policy_tokens = 0
        self.value_tokens = 0
        self.sums = dict.fromkeys(("policy", "value", "kl", "approx_kl"), 0.0)
        self.counts = dict.fromkeys(("clipped", "value_clipped"), 0.0)
        self.norms: list[float] = []
        self.ratio_max = 1.0  # its value before the first step
        self.first_ratio_error: float | None = None
        self.last_kl = 0.0
        self.epochs = 0

    def add(self, losses: dict[str, float], tokens: int, part: Part) -> None:
        """Add the losses of a step that trained, and so computed, only this part."""
        self.value_tokens += tokens * (part != "policy")
        for name in self.sums:
            self.sums[name] += losses[name] * tokens
        for name in self.counts:
            self.counts[name] += losses[name]
        if part == "value":
            return
        self.last_kl = losses["approx_kl"]
        self.ratio_max = max(self.ratio_max, losses["ratio_max"])
        self.policy_tokens += tokens
        if self.first_ratio_error is None:
            self.first_ratio_error = losses["ratio_error"]

    def metrics(self) -> dict[str, float]:
        """The update's metrics: means over the tokens of the steps on each part, 0 without steps."""
        of_policy, of_values = max(self.policy_tokens, 1), max(self.value_tokens, 1)
        return {
            "policy/loss": self.sums["policy"] / of_policy,
            "kl/loss": self.sums["kl"] / of_policy,
            "policy/approx_kl": self.sums["approx_kl"] / of_policy,
            "policy/clip_fraction": self.counts["clipped"] / of_policy,
            "policy/ratio_max": self.ratio_max,
            "policy/first_ratio_error": self.first_ratio_error or 0.0,
            "value/loss": self.sums["value"] / of_values,
            "value/clip_fraction": self.counts["value_clipped"] / of_values,
            "optim/grad_norm": sum(self.norms) / max(len(self.norms), 1),
            "optim/steps": float(len(self.norms)),
            "optim/epochs": float(self.epochs),
        }


def make_optimizer(model: ActorCritic, config: PPOConfig) -> torch.optim.Optimizer:
    """AdamW over two groups in the order of `Rates`: the policy, and the value head or critic."""
    policy = set(model.policy.parameters())
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [[p for p in trained if p in policy], [p for p in trained if p not in policy]]
    options: dict[str, Any] = {"eps": config.adam_eps, "weight_decay": 0.0}
    rates = zip(groups, learning_rates(config, 0), strict=True)
    parameters = [{"params": group, "lr": lr} for group, lr in rates]
    if config.optimizer == "adamw_8bit":
        return bitsandbytes("ppo.optimizer='adamw_8bit'").optim.AdamW8bit(parameters, **options)
    return torch.optim.AdamW(parameters, fused=True, **options)
