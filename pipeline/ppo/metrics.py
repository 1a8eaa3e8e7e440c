"""Definitions of PPO's metrics, red flags and reasons to stop.  Does not import torch."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import correlation, fmean

from pipeline.ppo.config import PPOConfig

METRICS: dict[str, str] = {
    "reward/mean": "Mean score of the responses, before scaling, clipping, KL and penalties.",
    "reward/std": "Standard deviation of those scores over the responses.",
    "reward/min": "Lowest score among the responses.",
    "reward/max": "Highest score among the responses.",
    "reward/group_std": "Mean over prompts of the standard deviation of the scores of their responses; "
    "0 with one response per prompt.",
    "reward/frac_zero_std": "Share of prompts whose responses all have the same score; 0 with one "
    "response per prompt.",
    "reward/length_correlation": "Pearson's r of those scores with response lengths; 0 if either is "
    "constant.",
    "reward/<component>": "Mean of a named component of the score, before its weight.",
    "reward/total": "Mean per response of the total reward: shaped score minus KL penalty.",
    "kl/reference": "Mean over responses of Σ (log π − log π_ref) over their tokens, nats.",
    "kl/penalty": "Mean per response of the divergence that is penalized: the same sum, or with "
    "kl_estimator 'full' the exact KL of each token's distribution; nats.",
    "kl/loss": "Mean of a token's own divergence if it is a term of the loss (k2 or exact), else 0.",
    "kl/k2": "Mean per response of Σ ρ²/2, ρ = log π − log π_ref of a token; nats.",
    "kl/k3": "Mean per response of Σ e^−ρ − 1 + ρ: estimates the KL with less noise, never below 0.",
    "kl/abs": "Mean per response of Σ |ρ|, nats.",
    "kl/coefficient": "β that was applied to these responses.",
    "reference/changed": "1 if a weight of the frozen reference has changed, else 0.",
    "rollout/mismatch_kl": "Mean of e^−ρ − 1 + ρ over sampled tokens, ρ = log μ − log π at sampling "
    "and in the trainer: their divergence, nats; 0 if one pass serves both.",
    "rollout/importance_weight_clipped": "Share of sampled tokens whose weight π / μ was limited to "
    "importance_cap; 0 with the engine's own sampling loop.",
    "rollout/dropped_groups": "Prompts whose responses were sampled and left out, because all had the "
    "same reward; 0 without dynamic_sampling.",
    "policy/entropy": "Mean entropy of the sampling distribution over sampled tokens, nats.",
    "policy/approx_kl": "Mean of ρ − 1 − log ρ over the update's tokens, ρ = π / π_rollout; nats.  "
    "All policy/ metrics but the entropy cover only steps that train the policy; without any, ρ is 1.",
    "policy/clip_fraction": "Share of the update's tokens whose clipped objective is smaller.",
    "policy/ratio_max": "Largest π / π_rollout of a token of the update.",
    "policy/first_ratio_error": "Largest |π / π_rollout − 1| before the update's first step.",
    "policy/loss": "Clipped surrogate loss, mean over the update's tokens, or as loss_mean says.",
    "value/loss": "Half the (clipped) squared value error, mean over the tokens of steps that train "
    "values; 0 without such steps.",
    "value/clip_fraction": "Share of the tokens of steps that train values for which the clipped "
    "value error is larger.",
    "value/explained_variance": "1 − Var(return − value) / Var(return), values at rollout time; 0 with "
    "the group's mean as baseline.",
    "value/mean": "Mean value over sampled tokens at rollout time.",
    "returns/mean": "Mean return (advantage + value) over sampled tokens.",
    "returns/var": "Variance of returns over sampled tokens.",
    "advantages/std": "Standard deviation of advantages over sampled tokens, before scaling and "
    "whitening.",
    "optim/grad_norm": "L2 norm of the gradient before clipping, mean over optimizer steps.",
    "optim/lr": "Learning rate of the policy in the update.",
    "optim/critic_lr": "Learning rate of the separate critic, or of the value head, in the update.",
    "optim/steps": "Optimizer steps taken; fewer than planned after a target-KL stop.",
    "optim/epochs": "Passes over the responses, including one that was ended early.",
    "completion/length_mean": "Mean response length, tokens, including end-of-text.",
    "completion/length_std": "Standard deviation of response lengths, tokens.",
    "completion/eos_rate": "Share of responses that ended with end-of-text.",
    "completion/unique": "Share of distinct responses, as token sequences.",
    "completion/unseen_tokens": "Share of sampled tokens that are missing from the text that the reward "
    "reads (special tokens within a response, ids without a text).",
    "completion/repeated_ngrams": "Share of a response's token trigrams that occurred earlier in it; mean over responses.",
    "speed/tokens_per_second": "Sampled tokens per wall-clock second of the whole update.",
    "speed/rollout_seconds": "Wall-clock seconds spent sampling.",
    "speed/score_seconds": "Wall-clock seconds spent on scores and on the reference's log-probabilities.",
    "speed/update_seconds": "Wall-clock seconds spent in forward, backward and optimizer steps.",
    "memory/peak_mb": "Peak memory, MB: allocated on the GPU, else resident in the process.",
}
"""The definition of every metric of an update; `docs/algorithm.md` has the formulas."""

RESERVED_COMPONENTS = frozenset(
    name.removeprefix("reward/") for name in METRICS if name.startswith("reward/")
)
"""Names that a reward component may not have, because they are metrics."""


def repeated_ngrams(tokens: Sequence[Hashable], n: int = 3) -> float:
    """Share of the n-grams of `tokens` that occurred earlier in it; 0 without n-grams."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def length_correlation(scores: Sequence[float], lengths: Sequence[float]) -> float | None:
    """Pearson's r of scores and lengths; None if either is constant."""
    if len({*scores}) < 2 or len({*lengths}) < 2:
        return None
    return correlation(scores, lengths)


def unique_share(responses: Sequence[Sequence[int]]) -> float:
    """Distinct responses over all responses."""
    return len({tuple(response) for response in responses}) / len(responses)


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A problem in the metrics that a person should look at now."""

    name: str
    level: str
    """"warn", or "stop" if the run should be cancelled."""
    seen: str
    """What was observed, with the metric's value."""
    why: str
    """Why it matters."""
    remedy: str
    """The first thing to try."""


History = Sequence[Mapping[str, float]]
"""The metrics of all updates so far (at least one), oldest first."""

MAX_MISMATCH = 0.05
"""Nats per token; a bf16 sampler with the policy's weights stays below a hundredth of it."""


def exceeds_mismatch_limit(mismatch_kl: float) -> bool:
    """Whether a `rollout/mismatch_kl` means that the sampler's model was not the policy."""
    return not mismatch_kl <= MAX_MISMATCH  # NaN too


SAMPLER_MISMATCH = "sampler_mismatch"
"""The only reason to stop after which the policy cannot be used."""


def reason_to_stop(config: PPOConfig, history: History) -> str | None:
    """Why the run ends after the last of these updates; None if it continues."""
    metrics = history[-1]
    if exceeds_mismatch_limit(metrics["rollout/mismatch_kl"]):
        return SAMPLER_MISMATCH
    if config.kl_budget and metrics["kl/reference"] > config.kl_budget:
        return "kl_budget"
    if config.reward_collapse and reward_fell(history, config.reward_collapse):
        return "reward_collapse"
    return None


def red_flags(history: History) -> list[Flag]:
    """The red flags at the last of these updates, "stop" first; none for an empty history."""
    if not history:
        return []
    flags = [flag for rule in _RULES if (flag := rule.flag(history)) is not None]
    return sorted(flags, key=lambda flag: flag.level != "stop")


def reward_fell(history: History, deviations: float) -> bool:
    """Whether the mean score of the last 5 updates is below that of the first 5.

    The difference must exceed `deviations` times the mean `reward/std` of the first 5.
    """
    if len(history) < 10:
        return False
    last, first = _ends(history)
    spread = fmean(update["reward/std"] for update in history[:5])
    return last < first - deviations * max(spread, 0.01)


def _ends(history: History) -> tuple[float, float]:
    """Mean scores of the last and the first 5 updates."""
    last, first = (fmean(u["reward/mean"] for u in part) for part in (history[-5:], history[:5]))
    return last, first


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """A red flag: raised when `healthy(value, value at the first update)` of a metric is false.

    It must be false in each of the last `updates`.  NaN raises most flags, because comparisons with
    NaN are false.
    """

    name: str
    level: str
    metric: str
    healthy: Callable[[float, float], bool]
    updates: int = 1
    seen: str
    """May contain {now} and {first}."""
    why: str
    remedy: str
    stop_above: float = inf
    """Above this value the level is "stop"."""

    def figures(self, history: History) -> tuple[float, float]:
        """(now, first), the values that `healthy` compares."""
        return history[-1][self.metric], history[0][self.metric]

    def raised(self, history: History) -> bool:
        last = history[-self.updates :]
        first = history[0][self.metric]
        unhealthy = not any(self.healthy(update[self.metric], first) for update in last)
        return len(last) == self.updates and unhealthy

    def flag(self, history: History) -> Flag | None:
        """The flag if the last of these updates raises it."""
        if not self.raised(history):
            return None
        now, first = self.figures(history)
        return Flag(
            name=self.name,
            level="stop" if now > self.stop_above else self.level,
            seen=self.seen.format(now=now, first=first),
            why=self.why,
            remedy=self.remedy,
        )


class _FallingReward(_Rule):
    """Compares the last 5 updates with the first 5."""

    def figures(self, history: History) -> tuple[float, float]:
        return _ends(history)

    def raised(self, history: History) -> bool:
        return reward_fell(history, 1.0)


# The red flag `diverged` is not a rule, because an update that fails has no metrics: `PPOTrainer.run`
# raises TrainingDiverged, and the policy stage reports it (`pipeline/stages/policy.py`).
_RULES = (
    _Rule(
        name="reference_changed",
        level="stop",
        metric="reference/changed",
        healthy=lambda now, _: now == 0,
        seen="A weight of the reference model has changed.",
        why="The KL is measured against a moving target and no longer limits the policy.",
        remedy="Give the reference its own copy of the weights, and find the code that changes it.",
    ),
    _Rule(
        name="ratio_not_one",
        level="stop",
        # bf16 passes of different shapes differ by a few hundredths
        metric="policy/first_ratio_error",
        healthy=lambda now, _: now <= 0.1,
        seen="Before the first step the probability ratio differed from 1 by up to {now:.3g}.",
        why="Sampling and training disagree on the policy, so every gradient is wrong.",
        remedy="Check for a temperature applied on one side only, for dropout, and for padding in the mask.",
    ),
    _Rule(
        name="sampler_mismatch",
        level="stop",
        metric="rollout/mismatch_kl",
        healthy=lambda now, _: not exceeds_mismatch_limit(now),
        seen="Sampler and trainer differ by {now:.2g} nats per token; rounding stays below "
        f"{MAX_MISMATCH:g}.",
        why="The responses were sampled with other weights or settings than the policy's, so "
        "nothing was learned from them and the run stopped.",
        remedy="Set ppo.rollout_backend='own', and ppo.precision='fp32' to rule out rounding. If that "
        "runs, the other sampler did not load the policy's weights.",
    ),
    _Rule(
        name="kl_high",
        level="warn",
        metric="kl/reference",
        healthy=lambda now, _: now <= 10,
        stop_above=15,
        seen="KL to the reference is {now:.1f} nats per response.",
        why="Far from the reference the reward model is unreliable, and texts often degenerate.",
        remedy="Raise kl_weight or lower lr. Set kl_budget to end the run in time.",
    ),
    _Rule(
        name="kl_negative",
        level="warn",
        metric="kl/reference",
        healthy=lambda now, _: not now < -0.05,
        updates=3,
        seen="KL to the reference has been negative for 3 updates, now {now:.2f}.",
        why="A divergence cannot be negative on average: responses are not drawn from the policy "
        "whose log-probabilities are used.",
        remedy="Set top_k=0 and top_p=1, and check for a temperature that only sampling uses.",
    ),
    _Rule(
        name="entropy_collapse",
        level="warn",
        metric="policy/entropy",
        healthy=lambda now, first: now >= 0.02 and now >= 0.2 * first,
        seen="Entropy is {now:.3f} nats per token; it was {first:.3f} at the first update.",
        why="A policy that always gives the same response no longer explores and cannot improve.",
        remedy="Lower lr or epochs, raise kl_weight, or set a small entropy_weight.",
    ),
    _Rule(
        name="clip_fraction_high",
        level="warn",
        metric="policy/clip_fraction",
        healthy=lambda now, _: now <= 0.5,
        seen="{now:.0%} of the update's tokens were clipped.",
        why="Most tokens have no gradient, because the update has left the trust region.",
        remedy="Lower lr or epochs, or set target_kl.",
    ),
    _Rule(
        name="explained_variance_negative",
        level="warn",
        metric="value/explained_variance",
        healthy=lambda now, _: not now < 0,
        updates=3,
        seen="Explained variance has been below 0 for 3 updates, now {now:.2f}.",
        why="The value head predicts worse than a constant would and adds noise to the advantages.",
        remedy="Raise value_weight or value_clip, or scale the scores (score_scaling).",
    ),
    _Rule(
        name="reward_flat",
        level="warn",
        metric="reward/std",
        healthy=lambda now, _: now >= 0.01,
        seen="Scores differ by a standard deviation of only {now:.2g}.",
        why="If all responses have the same score, the policy learns only from the KL penalty.",
        remedy="Check that the reward sees the response, or train the reward model on more labels.",
    ),
    _Rule(
        name="reward_low",
        level="warn",
        metric="reward/mean",
        healthy=lambda now, _: now >= -10,
        seen="Mean score is {now:.1f}.",
        why="Scores this low suggest an uncentered reward model, a wrong sign or broken texts.",
        remedy="Read the samples, and center the reward model on SFT responses.",
    ),
    _FallingReward(
        name="reward_falling",
        level="warn",
        metric="reward/mean",
        healthy=lambda now, first: now >= first,
        seen="Mean score fell from {first:.2f} (first 5 updates) to {now:.2f} (last 5).",
        why="PPO should raise the score. The reward's sign may be wrong, or training has collapsed.",
        remedy="Check the sign of the reward, then lower lr.",
    ),
    _Rule(
        name="duplicates",
        level="warn",
        metric="completion/unique",
        healthy=lambda now, _: now >= 0.5,
        seen="Only {now:.0%} of the responses are distinct.",
        why="The policy has collapsed to a few texts, or there are too few prompts.",
        remedy="Raise kl_weight, lower lr, or add prompts.",
    ),
    _Rule(
        name="unseen_tokens",
        level="warn",
        metric="completion/unseen_tokens",
        healthy=lambda now, _: now <= 0.1,
        seen="{now:.0%} of the sampled tokens decode to nothing.",
        why="The reward sees only the text, so it cannot distinguish responses with and without such "
        "tokens. They still count toward length and KL.",
        remedy="Read the samples. Start from an SFT model that does not sample special tokens, and "
        "add tokens that end a response to the end-of-text ids of the tokenizer or the model.",
    ),
    _Rule(
        name="length_drift",
        level="warn",
        metric="completion/length_mean",
        healthy=lambda now, first: first / 2 <= now <= first * 2,
        seen="Mean length went from {first:.0f} to {now:.0f} tokens.",
        why="Reward models often reward length itself. The texts may be padded or cut short.",
        remedy="Read the samples, and add length as a separate reward component.",
    ),
    _Rule(
        name="many_epochs",
        level="warn",
        metric="optim/epochs",
        healthy=lambda now, _: now <= 4,
        seen="The update made {now:.0f} passes over the same responses.",
        why="After more than four passes, the responses no longer represent the policy that is trained.",
        remedy="Set epochs to 4 or fewer, or set target_kl.",
    ),
    _Rule(
        name="no_kl_penalty",
        level="warn",
        metric="kl/coefficient",
        healthy=lambda now, _: now > 0,
        seen="The KL coefficient is {now:g}.",
        why="Nothing keeps the policy near the reference, so it will exploit the reward model.",
        remedy="Set kl_weight to 0.05.",
    ),
)
