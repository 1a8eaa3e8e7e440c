"""Forward passes over whole texts, and the optimizer steps that an update makes of them."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipeline.ppo.algorithm import (
    Part,
    PPOLoss,
    full_kl,
    joined,
    kl_estimate,
    policy_loss,
    value_loss,
)
from pipeline.ppo.batch import Batch, ReferencePass, micro_batches, to_tokens
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.distributed import Processes, is_sharded, whole
from pipeline.ppo.model import ActorCritic, autocast, entropy, not_ending, run_model, token_logprobs
from pipeline.ppo.packing import pack, packed

_SEPARATE_CRITIC_RATE = 10
"""How many times the policy's learning rate a separate critic takes unless told otherwise."""

# Padded tokens that cost about as much as starting one more forward and backward pass.
_SLACK = {"cpu": 64, "cuda": 4096, "mps": 1024}


Steps = tuple[Part, ...]
"""What each minibatch trains, one optimizer step each."""

NOTHING: Steps = ()
JOINT: Steps = ("both",)
ALTERNATING: Steps = ("value", "policy")
VALUE_ONLY: Steps = ("value",)
POLICY_ONLY: Steps = ("policy",)


def planned_steps(config: PPOConfig, update: int) -> Steps:
    """What the minibatches of an update train; updates count from 0."""
    if config.baseline != "critic":
        return POLICY_ONLY
    if update < config.value_warmup:
        return VALUE_ONLY
    return JOINT if config.update_order == "joint" else ALTERNATING


class Rates(NamedTuple):
    """Learning rates of one update: of the policy, and of a separate critic or the value head."""

    policy: float
    critic: float


def learning_rates(config: PPOConfig, step: int) -> Rates:
    """Rates of update `step`, counted from 0: a pure function, so a resume needs no state."""
    times = _SEPARATE_CRITIC_RATE if config.critic == "separate" else 1
    peak = config.critic_lr or times * config.lr
    share = 1.0 if config.schedule == "constant" else 1 - step / config.updates
    return Rates(config.lr * share, peak * share)


class NonFiniteError(RuntimeError):
    """A loss, gradient or log-probability is NaN or infinite; no step was taken on it."""


class Learner:
    """Owns the optimizer; turns a batch and its advantages into a better policy."""

    def __init__(
        self,
        model: ActorCritic,
        reference: nn.Module,
        config: PPOConfig,
        *,
        precision: str,
        device: torch.device,
        generator: torch.Generator,
        packing: bool,
        processes: Processes,
        eos_token_ids: Sequence[int],
    ) -> None:
        self.processes = processes
        self._ends = torch.tensor(sorted(set(eos_token_ids)), device=device)
        self.packing = packing
        self.model = model
        self.reference = reference
        self.config = config
        self.precision = precision
        self.device = device
        self.generator = generator
        self.sharded = is_sharded(model)
        # Sharded gradients are averaged over processes; a minibatch's is a sum over its tokens.
        self._loss_scale = processes.size if self.sharded else 1
        self._models = [m for m in (model.policy, model.critic, reference) if m is not None]
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(model, config)

    def logits(
        self, model: nn.Module, batch: Batch, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (N, V) of the sampling distribution, and values (N,), of all sampled tokens.

        That is the full one at the temperature, without end-of-text in the first `min_new_tokens`.
        """
        with autocast(self.precision, self.device):
            output = run_model(model, **self._inputs(batch), use_cache=False, **options)
        logits = output.logits
        if self.config.temperature != 1:  # dividing costs as much memory again
            logits = logits / self.config.temperature
        if self.config.min_new_tokens:
            early = batch.mask.nonzero()[:, 1] < self.config.min_new_tokens
            logits = not_ending(logits, self._ends, early)
        return logits, output.values

    def _values(self, batch: Batch) -> Tensor:
        """(N,) values of all sampled tokens, in a pass that makes no logits."""
        with autocast(self.precision, self.device):
            return self.model.values(**self._inputs(batch))

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        """What a model reads, padded or packed."""
        if not self.packing:
            return {"input_ids": batch.input_ids, "positions": batch.positions}
        ids, places, (positions,) = pack(batch.input_ids, batch.read_lengths, batch.positions)
        return {"input_ids": ids, "positions": positions, "position_ids": places}

    def _reading(self, batch: Batch) -> AbstractContextManager[None]:
        """Packed, models must know where texts end for as long as gradients are computed."""
        if not self.packing:
            return nullcontext()
        return packed(self._models, batch.read_lengths.tolist())

    def split(self, batch: Batch, rows: list[int]) -> list[list[int]]:
        """Micro-batches of these rows."""
        return micro_batches(
            rows,
            batch.read_lengths.tolist(),
            token_budget=self.config.micro_batch_tokens,
            slack=None if self.packing else _SLACK[self.device.type],
        )

    @torch.no_grad()
    def reference_pass(self, batch: Batch, *, recompute: bool = False) -> ReferencePass:
        """Log-probabilities of the responses under the reference, in one pass without gradients.

        The policy passes too where bf16 made its sampled log-probabilities too coarse (off by up to
        3e-2), where the exact KL needs its whole distribution, and with `recompute`, where another
        sampled; then entropies are computed too.  A separate critic passes, since it did not sample.
        """
        found: dict[str, Tensor] = {}
        for rows in self.split(batch, list(range(batch.tokens.shape[0]))):
            part = batch.take(rows)
            with self._reading(part):
                results = self._frozen_pass(part, recompute=recompute)
            for name, flat in results.items():
                if name not in found:
                    found[name] = torch.zeros(batch.tokens.shape, device=flat.device)
                found[name][rows, : part.tokens.shape[1]] = to_tokens(flat, part.mask)
        return ReferencePass(
            ref_logprobs=found["ref_logprobs"],
            logprobs=found.get("logprobs"),
            values=found.get("values"),
            kl=found.get("kl"),
            entropies=found.get("entropies"),
        )

    def _frozen_pass(self, batch: Batch, *, recompute: bool) -> dict[str, Tensor]:
        """(N,) results of one micro-batch by name."""
        sampled = batch.tokens[batch.mask]
        ref_logits, _ = self.logits(self.reference, batch)
        results = {"ref_logprobs": token_logprobs(ref_logits, sampled)}
        exact = self.config.kl_estimator == "full"
        if recompute or exact or self.precision != "fp32":
            logits, values = self.logits(self.model, batch)
            assert values is not None
            results |= {"logprobs": token_logprobs(logits, sampled), "values": values}
            if recompute:
                results["entropies"] = entropy(logits)
            if exact:
                results["kl"] = full_kl(logits, ref_logits)
        elif batch.values is None:
            results["values"] = self._values(batch)
        return results

    def update(
        self, batch: Batch, *, rates: Rates, kl_weight: float, steps: Steps
    ) -> dict[str, float]:
        """Make the optimizer steps of one update; return its metrics.

        `steps` says what each minibatch trains, in turn; with none nothing is read or learned.
        Stops early, before the step, once a minibatch shows the policy further than `target_kl`
        from where it sampled.  Raises NonFiniteError before a bad step.
        """
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = lr
        # Dropout would make two passes over one text disagree; checkpointing (its rates are 0
        # then) works in training mode alone.
        self.model.train(self.config.gradient_checkpointing)
        self.model.trunk_learns_values = steps != VALUE_ONLY
        tally = _Tally()
        for epoch, rows in self._minibatches(batch.tokens.shape[0]) if steps else ():
            tally.epochs = epoch + 1
            tokens = int(batch.lengths[rows].sum())
            for part in steps:
                mine = self.processes.share(rows)
                losses = self._gradients(batch, mine, tokens, part, kl_weight)
                tally.add(self._summed(losses), tokens, part)
                if self.config.target_kl and tally.last_kl > self.config.target_kl:
                    break
                self._step(tally)
            else:
                continue
            break
        self.optimizer.zero_grad(set_to_none=True)
        return tally.metrics() | {"optim/lr": rates.policy, "optim/critic_lr": rates.critic}

    def _step(self, tally: "_Tally") -> None:
        if not self.sharded:
            self.processes.sum_gradients(self.parameters)
        norm = whole(nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)).item()
        # A loss that is not finite comes to light here, on every process alike.
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
        found = zip(PPOLoss._fields, sums, maxima, strict=True)
        return {n: largest if n.startswith("ratio_") else sum for n, sum, largest in found}

    def _minibatches(self, count: int) -> Iterator[tuple[int, list[int]]]:
        """(epoch, rows) of every planned step, shuffled anew in each epoch."""
        for epoch in range(self.config.epochs):
            order = torch.randperm(count, generator=self.generator).tolist()
            for start in range(0, count, self.config.minibatch):
                yield epoch, order[start : start + self.config.minibatch]

    def _gradients(
        self,
        batch: Batch,
        rows: list[int],
        tokens: int,
        part: Part,
        kl_weight: float,
    ) -> list[PPOLoss]:
        """Accumulate the gradient of the mean loss over the minibatch's tokens."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        groups = self.split(batch, rows)
        for number in range(self._passes(len(groups))):
            counts = number < len(groups)
            micro = batch.take(groups[number if counts else 0])
            # Around the backward pass too: checkpointing reads the texts once more there.
            with self._reading(micro):
                for loss in self._losses(micro, tokens, part, kl_weight):
                    (loss.total * (self._loss_scale * counts)).backward()
                    if counts:
                        losses.append(loss._replace(total=loss.total.detach()))
        return losses

    def _passes(self, mine: int) -> int:
        """Passes to make: sharded, as many as the process that has most."""
        if not self.sharded:
            return mine
        return int(self.processes.largest(torch.tensor(mine, device=self.device)))

    def _losses(self, batch: Batch, tokens: int, part: Part, kl_weight: float) -> Iterator[PPOLoss]:
        """The losses of a micro-batch, whose gradients add up; what is not trained is not run.

        Policy and separate critic come one after the other: only one's activations are held.
        """
        apart = part != "both" or self.model.critic is not None
        if part != "value":
            policy, values = self._policy_loss(batch, tokens, kl_weight, apart=apart)
            if values is None:
                yield policy
            else:
                yield joined(policy, self._value_loss(values, batch, tokens))
        if apart and part != "policy":
            yield self._value_loss(self._values(batch), batch, tokens)

    def _policy_loss(
        self, batch: Batch, tokens: int, kl_weight: float, *, apart: bool
    ) -> tuple[PPOLoss, Tensor | None]:
        """Loss of the policy, and (N,) values that the same pass gave unless they come `apart`."""
        config, mask = self.config, batch.mask
        logits, values = self.logits(self.model, batch, apart=apart)
        logprobs = to_tokens(token_logprobs(logits, batch.tokens[mask]), mask)
        loss = policy_loss(
            logprobs=logprobs,
            old_logprobs=batch.old_logprobs,
            importance_weights=batch.importance_weights,
            advantages=batch.advantages,
            mask=mask,
            tokens=tokens,
            config=config,
            entropy=to_tokens(entropy(logits), mask) if config.entropy_weight else None,
            kl=self._kl_loss(batch, logits, logprobs),
            kl_weight=kl_weight,
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

    def _kl_loss(self, batch: Batch, logits: Tensor, logprobs: Tensor) -> Tensor | None:
        """Each token's own divergence, with its gradient, where the loss charges it."""
        if not self.config.charges_kl_in_loss:
            return None
        if self.config.kl_estimator == "full":
            with torch.no_grad():
                ref_logits, _ = self.logits(self.reference, batch)
            return to_tokens(full_kl(logits, ref_logits), batch.mask)
        k2 = kl_estimate(logprobs - batch.ref_logprobs, self.config.kl_estimator)
        # Its gradient is that of KL(π‖π_ref) on tokens that π sampled; these are π_old's.
        weight = (logprobs.detach() - batch.old_logprobs).exp()
        return k2 * (
            weight if batch.importance_weights is None else weight * batch.importance_weights
        )


class _Tally:
    """Sums over the minibatches of an update, weighted by their tokens."""

    def __init__(self) -> None:
        self.policy_tokens = 0
        self.value_tokens = 0
        self.sums = dict.fromkeys(("policy", "value", "kl", "approx_kl"), 0.0)
        self.counts = dict.fromkeys(("clipped", "value_clipped"), 0.0)
        self.norms: list[float] = []
        self.ratio_max = 1.0  # as before the first step on the policy
        self.first_ratio_error: float | None = None
        self.last_kl = 0.0
        self.epochs = 0

    def add(self, losses: dict[str, float], tokens: int, part: Part) -> None:
        """Take in a step on one minibatch, which trained and so read this part only."""
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
        """Those of the update: means over the tokens of the steps on that part, 0 without any."""
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
    return torch.optim.AdamW(
        [
            {"params": group, "lr": lr}
            for group, lr in zip(groups, learning_rates(config, 0), strict=True)
        ],
        eps=config.adam_eps,
        weight_decay=0.0,
        fused=True,
    )
