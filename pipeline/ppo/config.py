"""Settings of the PPO engine.  Loads no torch.

Each field's `metadata` holds its help, source and range, for the form, for `--help` and for the
check in `Section`.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pipeline.ppo.settings import Section, require, setting

MAX_KL_WEIGHT = 1e4


@dataclass(frozen=True, kw_only=True)
class PPOConfig(Section):
    """All settings of a PPO run, checked on construction.

    Raises ValueError with one sentence that names the field, its value and what is accepted.
    """

    section: ClassVar[str] = "ppo"

    # Batch sizes.
    updates: int = setting(
        100,
        "Policy updates in the run; each samples, scores and trains once.  A resume may raise it.",
        low=1,
    )
    rollouts: int = setting(
        64, "Responses sampled for each update.", source="InstructGPT 512, TRL 64", low=1
    )
    minibatch: int = setting(
        16, "Responses in one optimizer step; divides `rollouts`.", source="4 minibatches", low=1
    )
    micro_batch_tokens: int = setting(
        16384,
        "Padded tokens in one forward and backward pass.  Bounds memory, never the result.",
        low=1,
    )
    packing: Literal["auto", "on", "off"] = setting(
        "auto",
        "Read several texts as one row in training passes instead of padding them; auto does on "
        "a CPU, where all models agree with themselves read so, and on is refused where they do not.",
    )
    rollout_batch: int = setting(
        0, "Responses decoded side by side; 0 decodes all `rollouts` together.", low=0
    )
    epochs: int = setting(
        4, "Passes over the sampled responses in one update.", source="PPO, InstructGPT", low=1
    )

    # The optimizer.
    lr: float = setting(
        3e-6,
        "Peak learning rate of AdamW.  Small models want more: 5e-5 at two million parameters.",
        source="Llama 2: 1e-6; N+ implementation details: 3e-6",
        above=0,
    )
    critic_lr: float = setting(
        0.0,
        "Peak learning rate of a separate critic, or of the value head on a shared trunk; 0 takes "
        "ten times `lr` for the one and `lr` for the other.",
        source="OpenRLHF: actor 1e-6, critic 9e-6; verl: 1e-6, 1e-5",
        low=0,
    )
    schedule: Literal["linear", "constant"] = setting(
        "linear",
        "Learning rate over the run: linear to 0, or constant (hovers off the optimum).",
        source="N+ implementation details",
    )
    adam_eps: float = setting(
        1e-5,
        "Adam's epsilon, added to the root of its second moment.",
        source="PPO implementation details",
        above=0,
    )
    max_grad_norm: float = setting(
        1.0, "Gradients longer than this L2 norm are scaled down to it.", source="TRL", above=0
    )

    # The objective.
    clip: float = setting(
        0.2,
        "How far the probability ratio may leave 1 before its gain stops counting.",
        source="PPO (Schulman 2017)",
        above=0,
        high=1,
    )
    clip_high: float = setting(
        0.0,
        "How far the ratio may rise above 1, where that differs from `clip`; 0 takes `clip`.",
        source="DAPO .28",
        low=0,
    )
    dual_clip: float = setting(
        0.0,
        "A token with negative advantage loses at most this many times it, however large its "
        "ratio; 0 is off, else above 1.",
        source="Ye et al. (2020): 3",
        low=0,
    )
    negative_clip: Literal["pessimistic", "symmetric"] = setting(
        "pessimistic",
        "Clip for negative advantages.  symmetric is for study: it lets a ratio fall to 0 "
        "unchecked.",
    )
    value_clip: float = setting(
        0.2,
        "How far a value may move from its rollout value before its gain stops counting, "
        "in reward units; 0 is off.",
        source="OpenAI baselines, TRL",
        low=0,
    )
    value_huber: float = setting(
        0.0,
        "Value errors beyond this count linearly (Huber), reward units; 0 squares them all.",
        low=0,
    )
    value_weight: float = setting(
        0.1, "Weight of the value error in the loss.", source="InstructGPT, TRL", low=0
    )
    entropy_weight: float = setting(
        0.0, "Weight of the entropy bonus in the loss, per nat; 0 is off.", source="TRL", low=0
    )
    gamma: float = setting(1.0, "Discount per token.", source="InstructGPT", above=0, high=1)
    lam: float = setting(
        0.95, "GAE's λ: 0 trusts the values, 1 the sampled return.", source="GAE", low=0, high=1
    )
    whiten_advantages: bool = setting(
        True, "Shift and scale advantages to mean 0, variance 1 over all sampled tokens."
    )

    advantage_clip: float = setting(
        0.0, "Advantages are clipped to ± this after whitening; 0 is off.", low=0
    )

    # The value function.
    critic: Literal["shared", "separate"] = setting(
        "shared",
        "Values from a head on the policy's own trunk, or from a separate model that starts from "
        "the reward model.",
    )
    value_head: Literal["linear", "mlp"] = setting(
        "linear",
        "The head on the trunk; mlp adds a tanh layer.  Both start at 0.",
    )
    value_warmup: int = setting(
        0, "Updates at the start that train the values alone and leave the policy.", low=0
    )
    update_order: Literal["joint", "alternating"] = setting(
        "joint",
        "One step on policy and value loss together, or a value step and then a policy step.",
    )
    baseline: Literal["critic", "return_to_go", "category_mean"] = setting(
        "critic",
        "What returns are compared with: the critic, nothing (return_to_go), or the mean return so "
        "far of the prompt's category (or of all without one).  The last two, for study, train no values.",
    )

    # The KL penalty.
    kl_weight: float = setting(
        0.05,
        "β: reward paid per nat of divergence from the reference; the start value when adaptive.",
        source="InstructGPT .02, Llama 2 .01, TRL .05",
        low=0,
        high=MAX_KL_WEIGHT,
    )
    kl_estimator: Literal["k1", "k2", "full"] = setting(
        "k1",
        "How a token's divergence from the reference is charged: k1, its log-ratio; k2, half the square of that, "
        "as a term of the loss; or full, the exact sum over the vocabulary (less noise, one more reference "
        "pass a minibatch).",
        source="Shah et al., A Comedy of Estimators (arXiv:2512.21852)",
    )
    kl_in: Literal["reward", "loss"] = setting(
        "reward",
        "Where a token's own divergence is charged: reward (k1) or loss (k2).  full is charged in the "
        "loss under either.  The divergence of later tokens is always charged in the reward.",
        source="InstructGPT: reward",
    )
    kl_control: Literal["fixed", "adaptive"] = setting(
        "fixed",
        "Keep β fixed, or let it follow `kl_target`.",
        source="Ziegler et al. (2019)",
    )
    kl_target: float = setting(
        6.0,
        "Nats per response that an adaptive β steers to.",
        source="Ziegler et al. (2019)",
        above=0,
    )
    kl_horizon: int = setting(
        10_000,
        "Responses over which an adaptive β reacts; more is slower.",
        source="Ziegler et al. (2019)",
        low=1,
    )
    kl_weight_min: float = setting(0.001, "An adaptive β never falls below this.", above=0)
    kl_weight_max: float = setting(10.0, "An adaptive β never rises above this.", above=0)
    target_kl: float = setting(
        0.0,
        "Ends an update early once a minibatch's policy has moved this far from the rollout "
        "policy, nats per token; 0 is off.",
        source="Spinning Up; .04 in the demo",
        low=0,
    )
    kl_budget: float = setting(
        0.0,
        "Ends the run once the KL to the reference exceeds this, nats per response; 0 is off.",
        low=0,
    )

    reward_collapse: float = setting(
        0.0,
        "Ends the run once the mean score of 5 updates is this many standard deviations of the "
        "first 5 below theirs; 0 is off.",
        low=0,
    )

    # The score.
    missing_eos_penalty: float = setting(
        1.0,
        "Subtracted from the score of a response cut off at `max_new_tokens`.",
        source="TRL, N+ implementation details",
        low=0,
    )
    score_scaling: Literal["none", "batch", "running"] = setting(
        "none",
        "Standardize scores by this batch's moments, by running ones, or not at all.",
        source="OpenRLHF, trlX",
    )
    score_clip: float = setting(
        0.0, "Scores are clipped to ± this after scaling; 0 is off.", source="trlX: 10", low=0
    )
    whiten_rewards: bool = setting(
        False,
        "Divide per-token rewards by their standard deviation; the mean stays.",
        source="N+ implementation details",
    )

    # Sampling.
    temperature: float = setting(
        1.0,
        "Sampling temperature; log-probabilities of policy and reference are taken at it.",
        above=0,
    )
    top_k: int = setting(
        0, "Sample among this many likeliest tokens; 0 is off.  Log-probabilities ignore it.", low=0
    )
    top_p: float = setting(
        1.0,
        "Sample among the likeliest tokens holding this mass; 1 is off.  Log-probabilities "
        "ignore it, so PPO is exact only at 1.",
        above=0,
        high=1,
    )
    rollout_backend: Literal["own", "transformers", "vllm"] = setting(
        "own",
        "Who samples: our loop; transformers' generate, for models whose cache our loop cannot "
        "drive; or vLLM (pip install vllm, one GPU).  With the last two log-probabilities are "
        "computed again and gains weighed by them.",
    )
    importance_cap: float = setting(
        2.0,
        "Largest weight (trainer's over sampler's probability) of a token that another backend "
        "sampled.",
        source="Yao et al. (2025): 2",
        low=1,
    )
    vllm_memory: float = setting(
        0.3, "Share of the GPU's memory that vLLM takes while it samples.", above=0, high=1
    )
    max_new_tokens: int = setting(64, "Longest response, tokens, end-of-text included.", low=1)
    min_new_tokens: int = setting(0, "End-of-text is not sampled before this many tokens.", low=0)
    max_prompt_tokens: int = setting(512, "A longer prompt is refused, never cut.", low=1)

    # The run.
    seed: int = setting(0, "Seed of prompt order, sampling and minibatches.", low=0, high=2**32 - 1)
    checkpoint_every: int = setting(10, "Updates between checkpoints; 0 writes none.", low=0)
    start_from: Literal["sft", "previous"] = setting(
        "sft",
        "Weights the policy starts from: the SFT model, or the previous iteration's policy.  "
        "The reference is the SFT model either way.",
    )
    precision: Literal["auto", "bf16", "fp32"] = setting(
        "auto",
        "bf16 is autocast over fp32 weights; auto takes it on a GPU that has it, else fp32.",
    )
    sharding: Literal["none", "fsdp2"] = setting(
        "none",
        "Processes (worker.processes, or started by `accelerate launch`) hold whole copies of the weights, or (fsdp2) a "
        "part each of weights, gradients and optimizer states.",
    )
    gradient_checkpointing: bool = setting(
        False, "Compute activations again in the backward pass: a third more time, less memory."
    )
    lora_rank: int = setting(
        0, "Rank of LoRA adapters; 0 trains all weights.", source="LoRA: 16", low=0
    )
    lora_alpha: float = setting(
        32.0, "LoRA's α; adapters are scaled by α / rank.", source="LoRA: 2 × rank", above=0
    )

    @property
    def charges_kl_in_loss(self) -> bool:
        """Whether a token's own divergence is a term of the loss, and not part of its reward."""
        return self.kl_estimator != "k1"

    def __post_init__(self) -> None:
        _check_kl(self.kl_estimator, self.kl_in)
        super().__post_init__()
        require(
            self.rollouts % self.minibatch == 0,
            f"ppo.minibatch={self.minibatch} must divide ppo.rollouts={self.rollouts}",
        )
        require(
            self.min_new_tokens <= self.max_new_tokens,
            f"ppo.min_new_tokens={self.min_new_tokens} must not exceed "
            f"ppo.max_new_tokens={self.max_new_tokens}",
        )
        require(
            self.baseline == "critic" or (self.critic == "shared" and not self.value_warmup),
            f"ppo.baseline={self.baseline!r} trains no values; with it leave ppo.critic "
            "and ppo.value_warmup as they are",
        )
        require(
            self.sharding == "none" or not self.lora_rank,
            f"ppo.sharding={self.sharding!r} does not go with ppo.lora_rank; adapters are "
            "small enough to be held whole",
        )
        require(
            self.sharding == "none" or self.rollout_backend == "own",
            f"ppo.sharding={self.sharding!r} goes with ppo.rollout_backend='own' only",
        )
        plain = (self.top_k, self.top_p, self.min_new_tokens, self.lora_rank) == (0, 1.0, 0, 0)
        require(
            self.rollout_backend != "vllm" or plain,
            "ppo.rollout_backend='vllm' samples a fully trained model from its whole "
            "distribution; leave ppo.top_k, top_p, min_new_tokens and lora_rank as they are",
        )
        require(
            not 0 < self.dual_clip <= 1,
            f"ppo.dual_clip={self.dual_clip} must be above 1, or 0 for none",
        )
        low, high = self.kl_weight_min, self.kl_weight_max
        require(low <= high, f"ppo.kl_weight_min={low} must not exceed ppo.kl_weight_max={high}")
        require(
            self.kl_control == "fixed" or low <= self.kl_weight <= high,
            f"ppo.kl_weight={self.kl_weight} must lie between ppo.kl_weight_min={low} and "
            f"ppo.kl_weight_max={high} when ppo.kl_control='adaptive'",
        )


# Combinations whose optimum is not that of reward − β · KL, and why.
_BIASED_KL = {
    ("k2", "reward"): "punishes a token for having become rare",
    ("k3", "reward"): "punishes a token for having become rare",
    ("abs", "reward"): "punishes a token for having become rare",
    ("k1", "loss"): "has a gradient of mean zero",
    ("k3", "loss"): "has the gradient of another divergence",
    ("abs", "loss"): "has the gradient of another divergence",
}


def _check_kl(estimator: object, place: object) -> None:
    """ValueError for an estimator whose gradient at this place is not that of the KL."""
    defect = _BIASED_KL.get((str(estimator), str(place)))
    if defect is not None:
        raise ValueError(
            f"ppo.kl_estimator={estimator!r} with ppo.kl_in={place!r} {defect}, so training ends at "
            "another policy than the KL penalty's optimum (arXiv:2512.21852); use 'k1' with "
            "ppo.kl_in='reward', 'k2' with ppo.kl_in='loss', or 'full'"
        )
