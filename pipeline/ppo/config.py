"""Settings of the PPO engine.  Loads no torch.

Each field carries its documentation as data (`field.metadata`: `help`, `source`
and, where they apply, `low`, `high`, `above`, `choices`), so that a form, a
`--help` text and the check in `__post_init__` all read the same words.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any


def _setting(
    default: Any,
    help: str,
    *,
    source: str = "",
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field that documents itself: `low <= value <= high`, `value > above`."""
    bounds = {"low": low, "high": high, "above": above}
    metadata: dict[str, Any] = {"help": help, "source": source}
    metadata |= {name: bound for name, bound in bounds.items() if bound is not None}
    if choices:
        metadata["choices"] = choices
    return field(default=default, metadata=metadata)


LARGEST_KL_WEIGHT = 1e4


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Everything that decides a PPO run, checked when it is made.

    Raises `ValueError` with one sentence that names the field, its value and
    what would be accepted.  A limit of 0 means "off" wherever the help says so.
    """

    # How much is sampled, and how it is cut up.
    updates: int = _setting(
        100, "Policy updates in the run; each samples, scores and trains once.", low=1
    )
    rollouts: int = _setting(
        64, "Responses sampled for each update.", source="InstructGPT 512, TRL 64", low=1
    )
    minibatch: int = _setting(
        16, "Responses in one optimizer step; divides `rollouts`.", source="4 minibatches", low=1
    )
    micro_batch_tokens: int = _setting(
        16384,
        "Padded tokens in one forward and backward pass.  Bounds memory, never the result.",
        low=1,
    )
    packing: str = _setting(
        "auto",
        "Read several texts as one row in training passes instead of padding them; auto does on "
        "a CPU, where all models agree with themselves read so, and on is refused where they do not.",
        choices=("auto", "on", "off"),
    )
    rollout_batch: int = _setting(
        0, "Responses decoded side by side; 0 decodes all `rollouts` together.", low=0
    )
    epochs: int = _setting(
        4, "Passes over the sampled responses in one update.", source="PPO, InstructGPT", low=1
    )

    # The optimizer.
    lr: float = _setting(
        3e-6,
        "Peak learning rate of AdamW.  Small models want more: 5e-5 at two million parameters.",
        source="Llama 2: 1e-6; N+ implementation details: 3e-6",
        above=0,
    )
    schedule: str = _setting(
        "linear",
        "Learning rate over the run: linear to 0, or constant (hovers off the optimum).",
        source="N+ implementation details",
        choices=("linear", "constant"),
    )
    adam_eps: float = _setting(
        1e-5,
        "Adam's epsilon, added to the root of its second moment.",
        source="PPO implementation details",
        above=0,
    )
    max_grad_norm: float = _setting(
        1.0, "Gradients longer than this L2 norm are scaled down to it.", source="TRL", above=0
    )

    # The objective.
    clip: float = _setting(
        0.2,
        "How far the probability ratio may leave 1 before its gain stops counting.",
        source="PPO (Schulman 2017)",
        above=0,
        high=1,
    )
    clip_high: float = _setting(
        0.0,
        "How far the ratio may rise above 1, where that differs from `clip`; 0 takes `clip`.",
        source="DAPO .28",
        low=0,
    )
    dual_clip: float = _setting(
        0.0,
        "A token with negative advantage loses at most this many times it, however large its "
        "ratio; 0 is off, else above 1.",
        source="Ye et al. (2020): 3",
        low=0,
    )
    negative_clip: str = _setting(
        "pessimistic",
        "Clip for negative advantages.  symmetric is for study: it lets a ratio fall to 0 "
        "unchecked.",
        choices=("pessimistic", "symmetric"),
    )
    value_clip: float = _setting(
        0.2,
        "How far a value may move from its rollout value before its gain stops counting, "
        "in reward units; 0 is off.",
        source="OpenAI baselines, TRL",
        low=0,
    )
    value_huber: float = _setting(
        0.0,
        "Value errors beyond this count linearly (Huber), reward units; 0 squares them all.",
        low=0,
    )
    value_weight: float = _setting(
        0.1, "Weight of the value error in the loss.", source="InstructGPT, TRL", low=0
    )
    entropy_weight: float = _setting(
        0.0, "Weight of the entropy bonus, reward units per nat; 0 is off.", source="TRL", low=0
    )
    gamma: float = _setting(1.0, "Discount per token.", source="InstructGPT", above=0, high=1)
    lam: float = _setting(
        0.95, "GAE's λ: 0 trusts the values, 1 the sampled return.", source="GAE", low=0, high=1
    )
    whiten_advantages: bool = _setting(
        True, "Shift and scale advantages to mean 0, variance 1 over all sampled tokens."
    )

    advantage_clip: float = _setting(
        0.0, "Advantages are clipped to ± this after whitening; 0 is off.", low=0
    )

    # The value function.
    critic: str = _setting(
        "shared",
        "Values from a head on the policy's own trunk, or from a separate model of their own.",
        choices=("shared", "separate"),
    )
    value_head: str = _setting(
        "linear",
        "The head on the trunk; mlp adds a tanh layer.  Both say 0 at first.",
        choices=("linear", "mlp"),
    )
    value_warmup: int = _setting(
        0, "Updates at the start that train the values alone and leave the policy.", low=0
    )
    update_order: str = _setting(
        "joint",
        "One step on policy and value loss together, or a value step and then a policy step.",
        choices=("joint", "alternating"),
    )
    baseline: str = _setting(
        "critic",
        "What returns are compared with: the critic, nothing (return_to_go), or the mean return so "
        "far of the prompt's category (or of all without one).  The last two, for study, train no values.",
        choices=("critic", "return_to_go", "category_mean"),
    )

    # The KL penalty.
    kl_weight: float = _setting(
        0.05,
        "β: reward paid per nat of divergence from the reference; the start value when adaptive.",
        source="InstructGPT .02, Llama 2 .01, TRL .05",
        low=0,
        high=LARGEST_KL_WEIGHT,
    )
    kl_estimator: str = _setting(
        "k1",
        "Per-token divergence in the reward: k1 log-ratio (unbiased), k2 half its square, k3 "
        "(unbiased, ≥ 0), abs, or full (exact, sums over the vocabulary).",
        source="Schulman, Approximating KL divergence (2020)",
        choices=("k1", "k2", "k3", "abs", "full"),
    )
    kl_in: str = _setting(
        "reward",
        "Charge the divergence in the reward, or add β times its mean per token to the loss "
        "(k2 or full only: the gradient of k3 is that of another divergence).",
        source="InstructGPT: reward; GRPO: loss",
        choices=("reward", "loss"),
    )
    kl_control: str = _setting(
        "fixed",
        "Keep β fixed, or let it follow `kl_target`.",
        source="Ziegler et al. (2019)",
        choices=("fixed", "adaptive"),
    )
    kl_target: float = _setting(
        6.0,
        "Nats per response that an adaptive β steers to.",
        source="Ziegler et al. (2019)",
        above=0,
    )
    kl_horizon: int = _setting(
        10_000,
        "Responses over which an adaptive β reacts; more is slower.",
        source="Ziegler et al. (2019)",
        low=1,
    )
    kl_weight_min: float = _setting(0.001, "An adaptive β never falls below this.", above=0)
    kl_weight_max: float = _setting(10.0, "An adaptive β never rises above this.", above=0)
    target_kl: float = _setting(
        0.0,
        "Ends an update early once a minibatch's policy has moved this far from the rollout "
        "policy, nats per token; 0 is off.",
        source="Spinning Up; .04 in the demo",
        low=0,
    )
    kl_budget: float = _setting(
        0.0,
        "Ends the run once the KL to the reference exceeds this, nats per response; 0 is off.",
        low=0,
    )

    reward_collapse: float = _setting(
        0.0,
        "Ends the run once the mean score of 5 updates is this many standard deviations of the "
        "first 5 below theirs; 0 is off.",
        low=0,
    )

    # The score.
    missing_eos_penalty: float = _setting(
        1.0,
        "Subtracted from the score of a response cut off at `max_new_tokens`.",
        source="TRL, N+ implementation details",
        low=0,
    )
    score_scaling: str = _setting(
        "none",
        "Standardise scores by this batch's moments, by running ones, or not at all.",
        source="OpenRLHF, trlX",
        choices=("none", "batch", "running"),
    )
    score_clip: float = _setting(
        0.0, "Scores are clipped to ± this after scaling; 0 is off.", source="trlX: 10", low=0
    )
    whiten_rewards: bool = _setting(
        False,
        "Divide per-token rewards by their standard deviation; the mean stays.",
        source="N+ implementation details",
    )

    # Sampling.
    temperature: float = _setting(
        1.0,
        "Sampling temperature; log-probabilities of policy and reference are taken at it.",
        above=0,
    )
    top_k: int = _setting(
        0, "Sample among this many likeliest tokens; 0 is off.  Log-probabilities ignore it.", low=0
    )
    top_p: float = _setting(
        1.0,
        "Sample among the likeliest tokens holding this mass; 1 is off.  Log-probabilities "
        "ignore it, so PPO is exact only at 1.",
        above=0,
        high=1,
    )
    rollout_backend: str = _setting(
        "own",
        "Who samples: our loop; transformers' generate, for models whose cache our loop cannot "
        "drive; or vLLM (pip install vllm, one GPU).  With the last two log-probabilities are "
        "computed again and gains weighed by them.",
        choices=("own", "transformers", "vllm"),
    )
    importance_cap: float = _setting(
        2.0,
        "Largest weight (trainer's over sampler's probability) of a token that another backend "
        "sampled.",
        source="Yao et al. (2025): 2",
        low=1,
    )
    vllm_memory: float = _setting(
        0.3, "Share of the GPU's memory that vLLM takes while it samples.", above=0, high=1
    )
    max_new_tokens: int = _setting(64, "Longest response, tokens, end-of-text included.", low=1)
    min_new_tokens: int = _setting(0, "End-of-text is not sampled before this many tokens.", low=0)
    max_prompt_tokens: int = _setting(512, "A longer prompt is refused, never cut.", low=1)

    # The run.
    seed: int = _setting(
        0, "Seed of prompt order, sampling and minibatches.", low=0, high=2**32 - 1
    )
    checkpoint_every: int = _setting(10, "Updates between checkpoints; 0 writes none.", low=0)
    start_from: str = _setting(
        "sft",
        "Weights the policy starts from: the SFT model, or the previous iteration's policy.  "
        "The reference is the SFT model either way.",
        choices=("sft", "previous"),
    )
    precision: str = _setting(
        "auto",
        "bf16 is autocast over fp32 weights; auto takes it on a GPU that has it, else fp32.",
        choices=("auto", "bf16", "fp32"),
    )
    sharding: str = _setting(
        "none",
        "Processes (worker.processes, or started by `accelerate launch`) hold whole copies of the weights, or (fsdp2) a "
        "part each of weights, gradients and optimizer states.",
        choices=("none", "fsdp2"),
    )
    gradient_checkpointing: bool = _setting(
        False, "Compute activations again in the backward pass: a third more time, less memory."
    )
    lora_rank: int = _setting(
        0, "Rank of LoRA adapters; 0 trains all weights.", source="LoRA: 16", low=0
    )
    lora_alpha: float = _setting(
        32.0, "LoRA's α; adapters are scaled by α / rank.", source="LoRA: 2 × rank", above=0
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item.name, getattr(self, item.name), type(item.default), item.metadata)
        if self.rollouts % self.minibatch:
            raise ValueError(
                f"ppo.minibatch={self.minibatch} must divide ppo.rollouts={self.rollouts}"
            )
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"ppo.min_new_tokens={self.min_new_tokens} must not exceed "
                f"ppo.max_new_tokens={self.max_new_tokens}"
            )
        if self.baseline != "critic" and (self.critic != "shared" or self.value_warmup):
            raise ValueError(
                f"ppo.baseline={self.baseline!r} trains no values; with it leave ppo.critic "
                "and ppo.value_warmup as they are"
            )
        if self.sharding != "none" and self.lora_rank:
            raise ValueError(
                f"ppo.sharding={self.sharding!r} does not go with ppo.lora_rank; adapters are "
                "small enough to be held whole"
            )
        if self.sharding != "none" and self.rollout_backend != "own":
            raise ValueError(
                f"ppo.sharding={self.sharding!r} goes with ppo.rollout_backend='own' only"
            )
        plain = (self.top_k, self.top_p, self.min_new_tokens, self.lora_rank) == (0, 1.0, 0, 0)
        if self.rollout_backend == "vllm" and not plain:
            raise ValueError(
                "ppo.rollout_backend='vllm' samples a fully trained model from its whole "
                "distribution; leave ppo.top_k, top_p, min_new_tokens and lora_rank as they are"
            )
        if 0 < self.dual_clip <= 1:
            raise ValueError(f"ppo.dual_clip={self.dual_clip} must be above 1, or 0 for none")
        if self.kl_in == "loss" and self.kl_estimator not in ("k2", "full"):
            raise ValueError(
                f"ppo.kl_estimator={self.kl_estimator!r} has no sound gradient as a loss; with "
                "ppo.kl_in='loss' use 'k2' or 'full'"
            )
        if self.kl_weight_min > self.kl_weight_max:
            raise ValueError(
                f"ppo.kl_weight_min={self.kl_weight_min} must not exceed "
                f"ppo.kl_weight_max={self.kl_weight_max}"
            )
        if self.kl_control == "adaptive" and not (
            self.kl_weight_min <= self.kl_weight <= self.kl_weight_max
        ):
            raise ValueError(
                f"ppo.kl_weight={self.kl_weight} must lie between ppo.kl_weight_min="
                f"{self.kl_weight_min} and ppo.kl_weight_max={self.kl_weight_max} when "
                "ppo.kl_control='adaptive'"
            )


def _check(name: str, value: Any, kind: type, rules: Any) -> None:
    """Raise one clear sentence unless `value` has the type and range of its field."""
    said = f"ppo.{name}={value!r}"
    # bool is an int to Python, but `updates=True` is a mistake.
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{said} must be of type {kind.__name__}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{said} must be a finite number")
    if "choices" in rules and value not in rules["choices"]:
        raise ValueError(f"{said} must be one of {', '.join(rules['choices'])}")
    if "low" in rules and value < rules["low"]:
        raise ValueError(f"{said} must be at least {rules['low']}")
    if "above" in rules and value <= rules["above"]:
        raise ValueError(f"{said} must be greater than {rules['above']}")
    if "high" in rules and value > rules["high"]:
        raise ValueError(f"{said} must be at most {rules['high']}")
