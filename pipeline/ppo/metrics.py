"""What PPO logs, one definition each, and what is read off it: red flags, reasons to stop.

Loads no torch.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import correlation, fmean

from pipeline.ppo.config import PPOConfig

METRICS: dict[str, str] = {
    "reward/mean": "Mean score of the responses, before scaling, clipping, KL and penalties.",
    "reward/std": "Standard deviation of those scores over the responses.",
    "reward/min": "Lowest score among the responses.",
    "reward/max": "Highest score among the responses.",
    "reward/length_correlation": "Pearson's r of those scores with response lengths; 0 where either is "
    "the same throughout.",
    "reward/<component>": "Mean of a named component of the score, before its weight.",
    "reward/total": "Mean per response of all rewards paid: shaped score less the KL penalty.",
    "kl/reference": "Mean over responses of Σ (log π − log π_ref) over their tokens, nats.",
    "kl/penalty": "Mean per response of the divergence that is charged: the same sum, or with "
    "kl_estimator 'full' the exact KL of each token's distribution; nats.",
    "kl/loss": "Mean of a token's own divergence where the loss charges it, else 0; k2 or exact.",
    "kl/k2": "Mean per response of Σ ρ²/2, ρ = log π − log π_ref of a token; nats.",
    "kl/k3": "Mean per response of Σ e^−ρ − 1 + ρ: estimates the KL with less noise, never below 0.",
    "kl/abs": "Mean per response of Σ |ρ|, nats.",
    "kl/coefficient": "β in force while these responses were rewarded.",
    "reference/changed": "1 when a weight of the frozen reference was written to, else 0.",
    "rollout/mismatch_kl": "Mean of e^−ρ − 1 + ρ over sampled tokens, ρ = log μ − log π at sampling "
    "and in the trainer: their divergence, nats; 0 where one pass serves both.",
    "rollout/importance_weight_clipped": "Share of sampled tokens whose weight π / μ was cut off at "
    "its cap; 0 with our own sampling loop.",
    "policy/entropy": "Mean entropy of the sampling distribution over sampled tokens, nats.",
    "policy/approx_kl": "Mean of ρ − 1 − log ρ over the update's tokens, ρ = π / π_rollout; nats.  "
    "As all policy/ metrics but the entropy: over steps that train the policy, ρ = 1 without any.",
    "policy/clip_fraction": "Share of the update's tokens whose clipped gain was the smaller.",
    "policy/ratio_max": "Largest π / π_rollout of the update.",
    "policy/first_ratio_error": "Largest |π / π_rollout − 1| before the update's first step.",
    "policy/loss": "Clipped surrogate loss, mean over the update's tokens.",
    "value/loss": "Half the (clipped) squared value error, mean over the tokens of steps that train "
    "values; 0 without any.",
    "value/clip_fraction": "Share of those tokens whose clipped value error was the larger.",
    "value/explained_variance": "1 − Var(return − value) / Var(return), values at rollout time.",
    "value/mean": "Mean value over sampled tokens at rollout time.",
    "returns/mean": "Mean return (advantage + value) over sampled tokens.",
    "returns/var": "Variance of returns over sampled tokens.",
    "advantages/std": "Standard deviation of advantages over sampled tokens, before whitening.",
    "optim/grad_norm": "L2 norm of the gradient before clipping, mean over optimizer steps.",
    "optim/lr": "Learning rate of the policy in the update.",
    "optim/critic_lr": "Learning rate of the separate critic, or of the value head, in the update.",
    "optim/steps": "Optimizer steps taken; fewer than planned after a target-KL stop.",
    "optim/epochs": "Passes over the responses that were begun.",
    "completion/length_mean": "Mean response length, tokens, end-of-text included.",
    "completion/length_std": "Standard deviation of response lengths, tokens.",
    "completion/eos_rate": "Share of responses that ended themselves.",
    "completion/unique": "Distinct responses (as token sequences) over all responses.",
    "completion/unseen_tokens": "Share of sampled tokens that leave nothing in the text that the reward "
    "reads (special tokens within a response, ids without a text).",
    "completion/repeated_ngrams": "Share of a response's token trigrams seen earlier in it; mean.",
    "speed/tokens_per_second": "Sampled tokens over the whole update's wall-clock seconds.",
    "speed/rollout_seconds": "Wall-clock seconds spent sampling.",
    "speed/score_seconds": "Wall-clock seconds spent in the reward callable and the reference.",
    "speed/update_seconds": "Wall-clock seconds spent in forward, backward and optimizer steps.",
    "memory/peak_mb": "Peak memory, MB: allocated on the GPU, else resident in the process.",
}
"""Every metric of an update, in one sentence each; `docs/algorithm.md` has the formulas."""

RESERVED_COMPONENTS = frozenset(
    name.removeprefix("reward/") for name in METRICS if name.startswith("reward/")
)
"""Names a reward component may not take, since they are metrics already."""


def repeated_ngrams(tokens: Sequence[Hashable], n: int = 3) -> float:
    """Share of the n-grams of `tokens` that occurred earlier in it; 0 when it has none."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def length_correlation(scores: Sequence[float], lengths: Sequence[float]) -> float | None:
    """Pearson's r of scores and lengths; None where either is the same throughout."""
    if len({*scores}) < 2 or len({*lengths}) < 2:
        return None
    return correlation(scores, lengths)


def unique_share(responses: Sequence[Sequence[int]]) -> float:
    """Distinct responses over all responses."""
    return len({tuple(response) for response in responses}) / len(responses)


@dataclass(frozen=True, kw_only=True)
class Flag:
    """Something in the metrics that a person should look at now."""

    name: str
    level: str
    """"warn", or "stop" where the run should be cancelled."""
    seen: str
    """What was observed, with its figure."""
    why: str
    """Why it matters."""
    remedy: str
    """The first thing to try."""


LARGEST_MISMATCH = 0.05
"""Nats a token; a sampler in bf16 with the policy's weights stays below a hundredth of it."""


def samples_of_another(mismatch_kl: float) -> bool:
    """Whether a `rollout/mismatch_kl` means that a model other than the policy sampled."""
    return not mismatch_kl <= LARGEST_MISMATCH  # NaN too


MISMATCHED = "sampler_mismatch"
"""The reason to stop that is a defect; after the others the policy can be used."""


def reason_to_stop(config: PPOConfig, history: Sequence[Mapping[str, float]]) -> str | None:
    """Why the run ends after the last of these updates, or None where it goes on."""
    metrics = history[-1]
    if samples_of_another(metrics["rollout/mismatch_kl"]):
        return MISMATCHED
    if config.kl_budget and metrics["kl/reference"] > config.kl_budget:
        return "kl_budget"
    if config.reward_collapse and reward_fell(history, config.reward_collapse):
        return "reward_collapse"
    return None


def red_flags(history: Sequence[Mapping[str, float]]) -> list[Flag]:
    """Return what is wrong at the last of these updates, worst first.

    `history` holds the metrics of every update so far, oldest first.  Pure: the
    same history gives the same flags, live or read back from a log.
    """
    if not history:
        return []
    flags = [flag for rule in _RULES if (flag := rule(history)) is not None]
    return sorted(flags, key=lambda flag: flag.level != "stop")


def _run_of(history: Sequence[Mapping[str, float]], name: str, below: float, n: int = 3) -> bool:
    """Whether the metric was below the bound on each of the last n updates."""
    return len(history) >= n and all(update[name] < below for update in history[-n:])


def _reference_changed(history: Sequence[Mapping[str, float]]) -> Flag | None:
    if not history[-1]["reference/changed"]:
        return None
    return Flag(
        name="reference_changed",
        level="stop",
        seen="A weight of the reference model was written to.",
        why="The KL is measured from a moving point and no longer holds the policy back.",
        remedy="Give the reference its own copy of the weights, and find who writes to it.",
    )


def _ratio_not_one(history: Sequence[Mapping[str, float]]) -> Flag | None:
    error = history[-1]["policy/first_ratio_error"]
    if error <= 0.1:  # bf16 passes of different shapes differ by a few hundredths
        return None
    return Flag(
        name="ratio_not_one",
        level="stop",
        seen=f"Before the first step the probability ratio was off 1 by up to {error:.3g}.",
        why="Sampling and training disagree on the policy, so every gradient is wrong.",
        remedy="Look for a temperature applied on one side only, dropout, or padding in the mask.",
    )


def _sampler_mismatch(history: Sequence[Mapping[str, float]]) -> Flag | None:
    mismatch = history[-1]["rollout/mismatch_kl"]
    if not samples_of_another(mismatch):
        return None
    return Flag(
        name="sampler_mismatch",
        level="stop",
        seen=f"Sampler and trainer differ by {mismatch:.2g} nats per token; rounding stays below "
        f"{LARGEST_MISMATCH:g}.",
        why="The responses were sampled with other weights or settings than the policy's, so "
        "nothing was learned from them and the run stopped.",
        remedy="Set ppo.rollout_backend='own', and ppo.precision='fp32' to rule rounding out; if that "
        "runs, the other sampler did not take in the policy's weights.",
    )


def _kl_high(history: Sequence[Mapping[str, float]]) -> Flag | None:
    kl = history[-1]["kl/reference"]
    if kl <= 10:
        return None
    return Flag(
        name="kl_high",
        level="stop" if kl > 15 else "warn",
        seen=f"KL to the reference is {kl:.1f} nats per response.",
        why="Far from the reference the reward model is guessing and text tends to garble.",
        remedy="Raise kl_weight or lower lr; set kl_budget to stop in time.",
    )


def _kl_negative(history: Sequence[Mapping[str, float]]) -> Flag | None:
    if not _run_of(history, "kl/reference", below=-0.05):
        return None
    return Flag(
        name="kl_negative",
        level="warn",
        seen=f"KL to the reference has been negative for 3 updates, now "
        f"{history[-1]['kl/reference']:.2f}.",
        why="A divergence cannot be negative on average: responses are not drawn from the policy "
        "whose log-probabilities are used.",
        remedy="Set top_k=0 and top_p=1, and look for a temperature that sampling alone has.",
    )


def _entropy_collapse(history: Sequence[Mapping[str, float]]) -> Flag | None:
    entropy, first = history[-1]["policy/entropy"], history[0]["policy/entropy"]
    if entropy >= 0.02 and entropy >= 0.2 * first:
        return None
    return Flag(
        name="entropy_collapse",
        level="warn",
        seen=f"Entropy is {entropy:.3f} nats per token; it began at {first:.3f}.",
        why="A policy that always gives the same response no longer explores and cannot improve.",
        remedy="Lower lr or epochs, raise kl_weight, or set a small entropy_weight.",
    )


def _clip_fraction(history: Sequence[Mapping[str, float]]) -> Flag | None:
    share = history[-1]["policy/clip_fraction"]
    if share <= 0.5:
        return None
    return Flag(
        name="clip_fraction_high",
        level="warn",
        seen=f"{share:.0%} of the update's tokens hit the clip.",
        why="Most tokens give no gradient: the update has walked out of its trust region.",
        remedy="Lower lr or epochs, or set target_kl.",
    )


def _explained_variance(history: Sequence[Mapping[str, float]]) -> Flag | None:
    if not _run_of(history, "value/explained_variance", below=0):
        return None
    return Flag(
        name="explained_variance_negative",
        level="warn",
        seen=f"Explained variance has been below 0 for 3 updates, now "
        f"{history[-1]['value/explained_variance']:.2f}.",
        why="The value head guesses worse than a constant and adds noise to the advantages.",
        remedy="Raise value_weight or value_clip, or scale the scores (score_scaling).",
    )


def _reward_flat(history: Sequence[Mapping[str, float]]) -> Flag | None:
    std = history[-1]["reward/std"]
    if std >= 0.01:
        return None
    return Flag(
        name="reward_flat",
        level="warn",
        seen=f"Scores differ by a standard deviation of only {std:.2g}.",
        why="Responses that score alike leave nothing to learn but the KL penalty.",
        remedy="Check that the reward sees the response, or train the reward model on more labels.",
    )


def _reward_low(history: Sequence[Mapping[str, float]]) -> Flag | None:
    mean = history[-1]["reward/mean"]
    if mean >= -10:
        return None
    return Flag(
        name="reward_low",
        level="warn",
        seen=f"Mean score is {mean:.1f}.",
        why="Scores this low mean an uncentred reward model, a wrong sign or broken text.",
        remedy="Read the samples; centre the reward model on SFT responses.",
    )


def reward_fell(history: Sequence[Mapping[str, float]], deviations: float) -> bool:
    """Whether the mean score of the last 5 updates is below that of the first 5.

    By more than `deviations` of the standard deviations that the scores of the first 5 had.
    """
    if len(history) < 10:
        return False
    first, last = _ends(history)
    spread = fmean(update["reward/std"] for update in history[:5])
    return last < first - deviations * max(spread, 0.01)


def _ends(history: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Mean scores of the first and the last 5 updates."""
    first, last = (fmean(u["reward/mean"] for u in part) for part in (history[:5], history[-5:]))
    return first, last


def _falling_reward(history: Sequence[Mapping[str, float]]) -> Flag | None:
    if not reward_fell(history, 1.0):
        return None
    first, last = _ends(history)
    return Flag(
        name="reward_falling",
        level="warn",
        seen=f"Mean score fell from {first:.2f} (first 5 updates) to {last:.2f} (last 5).",
        why="PPO should raise it: the sign may be turned around, or training has collapsed.",
        remedy="Check the sign of the reward, then lower lr.",
    )


def _duplicates(history: Sequence[Mapping[str, float]]) -> Flag | None:
    share = history[-1]["completion/unique"]
    if share >= 0.5:
        return None
    return Flag(
        name="duplicates",
        level="warn",
        seen=f"Only {share:.0%} of the responses are distinct.",
        why="The policy has narrowed to a few texts, or the prompts are too few.",
        remedy="Raise kl_weight, lower lr, or add prompts.",
    )


def _unseen_tokens(history: Sequence[Mapping[str, float]]) -> Flag | None:
    share = history[-1]["completion/unseen_tokens"]
    if share <= 0.1:
        return None
    return Flag(
        name="unseen_tokens",
        level="warn",
        seen=f"{share:.0%} of the sampled tokens decode to nothing.",
        why="The reward reads the text alone: it cannot tell a response with such tokens from one "
        "without them, and they count as length and as KL.",
        remedy="Read the samples; start from an SFT model that does not sample special tokens, and "
        "name those that end a response among the tokenizer's or the model's end-of-text ids.",
    )


def _length_drift(history: Sequence[Mapping[str, float]]) -> Flag | None:
    length, first = (history[i]["completion/length_mean"] for i in (-1, 0))
    if first / 2 <= length <= first * 2:
        return None
    return Flag(
        name="length_drift",
        level="warn",
        seen=f"Mean length went from {first:.0f} to {length:.0f} tokens.",
        why="Reward models often pay for length itself; the text may be padded or cut short.",
        remedy="Read the samples; score length as a component of its own.",
    )


def _many_epochs(history: Sequence[Mapping[str, float]]) -> Flag | None:
    epochs = history[-1]["optim/epochs"]
    if epochs <= 4:
        return None
    return Flag(
        name="many_epochs",
        level="warn",
        seen=f"{epochs:.0f} passes were made over the same responses.",
        why="Beyond four, the responses no longer come from the policy being trained.",
        remedy="Set epochs to 4 or fewer, or set target_kl.",
    )


def _cut_string(history: Sequence[Mapping[str, float]]) -> Flag | None:
    weight = history[-1]["kl/coefficient"]
    if weight > 0:
        return None
    return Flag(
        name="no_kl_penalty",
        level="warn",
        seen=f"The KL coefficient is {weight:g}.",
        why="Nothing holds the policy to the reference; it will exploit the reward model.",
        remedy="Set kl_weight to 0.05.",
    )


_RULES = (
    _reference_changed,
    _ratio_not_one,
    _sampler_mismatch,
    _kl_high,
    _kl_negative,
    _entropy_collapse,
    _clip_fraction,
    _explained_variance,
    _reward_flat,
    _reward_low,
    _falling_reward,
    _duplicates,
    _unseen_tokens,
    _length_drift,
    _many_epochs,
    _cut_string,
)
