"""Settings of the PPO engine.  Does not import torch.

Each field's `metadata` has its help, source and range, for the form, for `--help` and for the
check in `Section`.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pipeline.ppo.settings import Section, require, setting

MAX_KL_WEIGHT = 1e4
MAX_LORA_RANK = 1024
"""A mistyped rank would fill the memory when a run starts.  Adapters of this rank have half as many
weights as the square layers of a model of width 4096, so a larger one hardly saves memory."""


@dataclass(frozen=True, kw_only=True)
class PPOConfig(Section):
    """All settings of a PPO run, checked on construction.

    Raises ValueError with one sentence that names the field, its value and what is accepted.
    """

    section: ClassVar[str] = "ppo"

    # Batch sizes.
    updates: int = setting(
        100,
        "Policy updates in the run. Each one samples, scores and trains once. You can raise it when you "
        "resume a run.",
        low=1,
    )
    rollouts: int = setting(
        64, "Responses sampled per update.", source="InstructGPT 512, TRL 64", low=1
    )
    minibatch: int = setting(
        16, "Responses per optimizer step; must divide `rollouts`.", source="4 minibatches", low=1
    )
    samples_per_prompt: int = setting(
        0,
        "Responses sampled to each prompt; must divide `rollouts`. 0 means 4 with the baselines "
        "leave_one_out and group_mean, which compare the responses to a prompt, and 1 with the others.",
        source="RLOO 2 and 4, TRL 8",
        low=0,
    )
    dynamic_sampling: int = setting(
        0,
        "Maximum number of additional rounds of sampling per update. Each one replaces the prompts "
        "whose responses all have the same reward, because they teach nothing. 0 keeps all prompts.",
        source="DAPO (arXiv:2503.14476); verl: 10",
        low=0,
    )
    micro_batch_tokens: int = setting(
        16384,
        "Maximum padded tokens per forward and backward pass. It limits memory and does not change the "
        "result.",
        low=1,
    )
    packing: Literal["auto", "on", "off"] = setting(
        "auto",
        "Concatenate several texts into one row in training passes instead of padding them. auto does "
        "so on a CPU if the models' logits stay the same; on is an error if they do not, and also packs on "
        "a GPU (torch 2.11).",
    )
    rollout_batch: int = setting(
        0, "Responses decoded in parallel; 0 decodes all `rollouts` together.", low=0
    )
    epochs: int = setting(
        4, "Passes over the sampled responses per update.", source="PPO, InstructGPT", low=1
    )

    # The optimizer.
    lr: float = setting(
        3e-6,
        "Peak learning rate of AdamW. Small models need a higher one: 2e-4 at two million parameters.",
        source="Llama 2: 1e-6; N+ implementation details: 3e-6",
        above=0,
    )
    critic_lr: float = setting(
        0.0,
        "Peak learning rate of a separate critic, or of the value head on a shared trunk. 0 means ten "
        "times `lr` for a separate critic and `lr` for the value head.",
        source="OpenRLHF: actor 1e-6, critic 9e-6; verl: 1e-6, 1e-5",
        low=0,
    )
    schedule: Literal["linear", "constant"] = setting(
        "linear",
        "Learning rate over the run: linear decay to 0, or constant (does not settle at the optimum).",
        source="N+ implementation details",
    )
    optimizer: Literal["adamw", "adamw_8bit"] = setting(
        "adamw",
        "adamw stores two fp32 moments per weight; adamw_8bit stores them in 8 bits, a quarter of the "
        "memory (pip install 'kitestring[quantized]').",
        source="Dettmers et al. (arXiv:2110.02861)",
    )
    adam_eps: float = setting(
        1e-5,
        "Adam's epsilon, added to the square root of the second moment.",
        source="PPO implementation details",
        above=0,
    )
    max_grad_norm: float = setting(
        1.0, "Gradients with a larger L2 norm are scaled down to this norm.", source="TRL", above=0
    )

    # The objective.
    clip: float = setting(
        0.2,
        "Maximum distance of the probability ratio from 1; a gain beyond it has no gradient.",
        source="PPO (Schulman 2017)",
        above=0,
        high=1,
    )
    clip_high: float = setting(
        0.0,
        "Maximum rise of the ratio above 1, if it differs from `clip`; 0 means `clip`.",
        source="DAPO .28",
        low=0,
    )
    dual_clip: float = setting(
        0.0,
        "Limit of the ratio for tokens with a negative advantage, so that a large ratio does not "
        "dominate the loss. 0 disables it; other values must exceed 1.",
        source="Ye et al. (2020): 3",
        low=0,
    )
    negative_clip: Literal["pessimistic", "symmetric"] = setting(
        "pessimistic",
        "Clip for negative advantages. symmetric is for experiments: it does not stop a ratio from "
        "falling to 0.",
    )
    ratio_level: Literal["token", "response"] = setting(
        "token",
        "Clip the probability ratio of each token, or of the whole response, which is the product over "
        "its tokens. response needs a group baseline and loss_mean = response.",
        source="RLOO: response",
    )
    loss_mean: Literal["token", "response", "constant"] = setting(
        "token",
        "Average the policy loss over all tokens of the minibatch (token), over the tokens of each "
        "response and then over responses (response), or divide its sum by the number of responses "
        "times `max_new_tokens` (constant).",
        source="DAPO: token; GRPO: response; Dr. GRPO: constant",
    )
    value_clip: float = setting(
        0.2,
        "Maximum distance of a value from its value at rollout time, in reward units; a gain beyond it "
        "has no gradient. 0 disables it.",
        source="OpenAI baselines, TRL",
        low=0,
    )
    value_huber: float = setting(
        0.0,
        "Huber loss: value errors above this, in reward units, are penalized linearly. 0 squares "
        "all errors.",
        low=0,
    )
    value_weight: float = setting(
        0.1, "Weight of the value error in the loss.", source="InstructGPT, TRL", low=0
    )
    entropy_weight: float = setting(
        0.0, "Weight of the entropy bonus in the loss, per nat; 0 disables it.", source="TRL", low=0
    )
    gamma: float = setting(1.0, "Discount per token.", source="InstructGPT", above=0, high=1)
    lam: float = setting(
        0.95,
        "GAE's λ: 0 relies on the values, 1 on the sampled returns.",
        source="GAE",
        low=0,
        high=1,
    )
    whiten_advantages: bool = setting(
        True, "Shift and scale advantages to mean 0 and variance 1 over all sampled tokens."
    )

    advantage_clip: float = setting(
        0.0, "Clip advantages to ± this value after whitening; 0 disables it.", low=0
    )

    # The value function.
    critic: Literal["shared", "separate"] = setting(
        "shared",
        "Where values come from: a head on the policy's trunk, or a separate model that starts from the "
        "reward model.",
    )
    value_head: Literal["linear", "mlp"] = setting(
        "linear",
        "Value head on the trunk; mlp adds a tanh layer. Both start at 0.",
    )
    value_warmup: int = setting(
        0, "Updates at the start that train only the values and not the policy.", low=0
    )
    update_order: Literal["joint", "alternating"] = setting(
        "joint",
        "joint takes one step on the sum of policy and value loss; alternating takes a value step and "
        "then a policy step.",
    )
    baseline: Literal["critic", "leave_one_out", "group_mean", "return_to_go", "category_mean"] = (
        setting(
            "critic",
            "What a response's reward is compared with: the critic's values, the mean reward of the other "
            "responses to the prompt (leave_one_out: RLOO), or of all its responses (group_mean: GRPO), "
            "nothing (return_to_go: REINFORCE++), or the mean return so far of the prompt's category. All "
            "but the first train no values.",
        )
    )
    group_scaling: Literal["none", "std"] = setting(
        "none",
        "With a group baseline: divide advantages by the standard deviation of the rewards of the "
        "prompt's responses (std: GRPO), or not (none: Dr. GRPO, RLOO).",
    )

    # The KL penalty.
    kl_weight: float = setting(
        0.05,
        "β: penalty per nat of KL from the reference, in reward units; the initial value if kl_control "
        "is adaptive.",
        source="InstructGPT .02, Llama 2 .01, TRL .05",
        low=0,
        high=MAX_KL_WEIGHT,
    )
    kl_estimator: Literal["k1", "k2", "full"] = setting(
        "k1",
        "Estimator of a token's divergence from the reference: k1, the log-ratio; k2, half its square, as "
        "a term of the loss; or full, the exact sum over the vocabulary (less noise, but one more "
        "reference pass per minibatch).",
        source="Shah et al., A Comedy of Estimators (arXiv:2512.21852)",
    )
    kl_in: Literal["reward", "loss"] = setting(
        "reward",
        "Where a token's own divergence is penalized: in the reward (k1) or in the loss (k2). full is "
        "always in the loss. The divergence of later tokens is always in the reward.",
        source="InstructGPT: reward",
    )
    kl_control: Literal["fixed", "adaptive"] = setting(
        "fixed",
        "Keep β fixed, or adapt it to reach `kl_target`.",
        source="Ziegler et al. (2019)",
    )
    kl_target: float = setting(
        6.0,
        "Target KL of an adaptive β, in nats per response.",
        source="Ziegler et al. (2019)",
        above=0,
    )
    kl_horizon: int = setting(
        10_000,
        "Responses over which β adapts; higher values adapt more slowly.",
        source="Ziegler et al. (2019)",
        low=1,
    )
    kl_weight_min: float = setting(0.001, "Minimum of an adaptive β.", above=0)
    kl_weight_max: float = setting(10.0, "Maximum of an adaptive β.", above=0)
    target_kl: float = setting(
        0.0,
        "End an update early when a minibatch's KL from the rollout policy exceeds this, in nats per "
        "token. 0 disables it.",
        source="Spinning Up; .04 in the demo",
        low=0,
    )
    kl_budget: float = setting(
        0.0,
        "End the run when the KL to the reference exceeds this, in nats per response. 0 disables it.",
        low=0,
    )

    reward_collapse: float = setting(
        0.0,
        "End the run when the mean score of the last 5 updates is this many standard deviations below "
        "that of the first 5. 0 disables it.",
        low=0,
    )

    # The score.
    missing_eos_penalty: float = setting(
        1.0,
        "Penalty on the score of a response that is cut off at `max_new_tokens`.",
        source="TRL, N+ implementation details",
        low=0,
    )
    score_scaling: Literal["none", "batch", "running"] = setting(
        "none",
        "Standardize scores by the mean and standard deviation of the batch, by running ones, or not "
        "at all.",
        source="OpenRLHF, trlX",
    )
    score_clip: float = setting(
        0.0, "Clip scores to ± this value after scaling; 0 disables it.", source="trlX: 10", low=0
    )
    whiten_rewards: bool = setting(
        False,
        "Divide per-token rewards by their standard deviation and keep their mean.",
        source="N+ implementation details",
    )

    # Sampling.
    temperature: float = setting(
        1.0,
        "Sampling temperature; log-probabilities of policy and reference use it too.",
        above=0,
    )
    top_k: int = setting(
        0,
        "Sample from this many of the likeliest tokens; 0 disables it. Log-probabilities ignore it.",
        low=0,
    )
    top_p: float = setting(
        1.0,
        "Sample from the likeliest tokens with this total probability; 1 disables it. Log-probabilities "
        "ignore it, so PPO is exact only at 1.",
        above=0,
        high=1,
    )
    rollout_backend: Literal["own", "compiled", "transformers", "vllm"] = setting(
        "own",
        "Sampler of rollouts: own, the engine's loop; compiled, the loop with torch.compile, for long "
        "runs of small models on a GPU; transformers, its generate method, for models whose cache "
        "the loop does not support; or vllm, which must be installed. With the last three, the "
        "trainer recomputes log-probabilities, and importance weights correct for the difference.",
    )
    importance_cap: float = setting(
        2.0,
        "Maximum importance weight (trainer's probability / sampler's) of a token that another "
        "backend sampled.",
        source="Yao et al. (2025): 2",
        low=1,
    )
    vllm_memory: float = setting(
        0.3, "Share of the GPU's memory that vLLM uses while it samples.", above=0, high=1
    )
    max_new_tokens: int = setting(64, "Maximum tokens per response, including end-of-text.", low=1)
    min_new_tokens: int = setting(
        0, "Minimum tokens per response; end-of-text is not sampled earlier.", low=0
    )
    max_prompt_tokens: int = setting(
        512, "Maximum tokens per prompt; a longer prompt is an error and is not truncated.", low=1
    )

    # The run.
    seed: int = setting(0, "Seed of prompt order, sampling and minibatches.", low=0, high=2**32 - 1)
    checkpoint_every: int = setting(10, "Updates between checkpoints; 0 writes none.", low=0)
    start_from: Literal["sft", "previous"] = setting(
        "sft",
        "Initial weights of the policy: those of the SFT model, or of the previous iteration's policy. "
        "The reference is always the SFT model.",
    )
    precision: Literal["auto", "bf16", "fp32"] = setting(
        "auto",
        "Precision of training: bf16 means autocast with fp32 weights. auto selects bf16 on a GPU that "
        "supports it, else fp32. model.dtype sets the precision of sampling in other stages.",
    )
    sharding: Literal["none", "fsdp2"] = setting(
        "none",
        "none gives each process a whole copy of the weights; fsdp2 divides weights, gradients and "
        "optimizer states among the processes (worker.processes, or `accelerate launch`).",
    )
    offload: Literal["none", "frozen"] = setting(
        "none",
        "frozen keeps the reference and the reward models in host memory while they do not run: more GPU "
        "memory for the update, and one copy of them to the GPU per update.",
        source="OpenRLHF, verl",
    )
    gradient_checkpointing: bool = setting(
        False, "Recompute activations in the backward pass: about a third more time, less memory."
    )
    lora_rank: int = setting(
        0,
        "Rank of the LoRA adapters; 0 trains all weights.",
        source="LoRA: 16",
        low=0,
        high=MAX_LORA_RANK,
    )
    lora_alpha: float = setting(
        32.0, "LoRA's α; the adapters are scaled by α / rank.", source="LoRA: 2 × rank", above=0
    )

    critic_lora_rank: int = setting(
        0,
        "Rank of the LoRA adapters of a separate critic; 0 trains all its weights, with about 16 bytes of "
        "memory per weight.",
        low=0,
        high=MAX_LORA_RANK,
    )
    quantization: Literal["none", "nf4"] = setting(
        "none",
        "Store the frozen linear layers of a LoRA policy in 4 bits (nf4: QLoRA), to fit a larger model "
        "(pip install 'kitestring[quantized]'). The reference is then the policy in 4 bits without "
        "adapters.",
        source="QLoRA (arXiv:2305.14314)",
    )

    @property
    def has_group_baseline(self) -> bool:
        """Whether a response is compared with the other responses to its prompt."""
        return self.baseline in ("leave_one_out", "group_mean")

    @property
    def group_size(self) -> int:
        """Responses to each prompt; they are adjacent rows of a batch."""
        return self.samples_per_prompt or (4 if self.has_group_baseline else 1)

    @property
    def charges_kl_in_loss(self) -> bool:
        """Whether a token's own divergence is a term of the loss instead of its reward."""
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
            f"ppo.baseline={self.baseline!r} trains no values; leave ppo.critic "
            "and ppo.value_warmup at their defaults",
        )
        _check_groups(self)
        require(
            self.critic == "separate" or not self.critic_lora_rank,
            f"ppo.critic_lora_rank={self.critic_lora_rank} needs ppo.critic='separate'",
        )
        require(
            self.sharding == "none" or not (self.lora_rank or self.critic_lora_rank),
            f"ppo.sharding={self.sharding!r} cannot be combined with ppo.lora_rank or critic_lora_rank; "
            "adapters are small enough for every process to hold them",
        )
        require(
            self.sharding == "none" or self.rollout_backend == "own",
            f"ppo.sharding={self.sharding!r} needs ppo.rollout_backend='own'",
        )
        plain = (self.top_k, self.top_p, self.min_new_tokens) == (0, 1.0, 0)
        require(
            self.rollout_backend != "vllm" or plain,
            "ppo.rollout_backend='vllm' does not support ppo.top_k, top_p and min_new_tokens; "
            "leave them at their defaults",
        )
        require(
            not 0 < self.dual_clip <= 1,
            f"ppo.dual_clip={self.dual_clip} must be above 1, or 0 for none",
        )
        _check_offload(self)
        _check_bits(self)
        low, high = self.kl_weight_min, self.kl_weight_max
        require(low <= high, f"ppo.kl_weight_min={low} must not exceed ppo.kl_weight_max={high}")
        require(
            self.kl_control == "fixed" or low <= self.kl_weight <= high,
            f"ppo.kl_weight={self.kl_weight} must lie between ppo.kl_weight_min={low} and "
            f"ppo.kl_weight_max={high} when ppo.kl_control='adaptive'",
        )


def needs_bitsandbytes(config: PPOConfig) -> bool:
    """Whether a run with these settings imports bitsandbytes, of the extra `quantized`."""
    return config.quantization != "none" or config.optimizer == "adamw_8bit"


def _check_offload(config: PPOConfig) -> None:
    """ValueError for settings with which the reference runs all the time, or is divided."""
    if config.offload == "none":
        return
    offload = f"ppo.offload={config.offload!r}"
    require(
        config.sharding == "none",
        f"{offload} needs ppo.sharding='none'; with fsdp2, a process holds only its share",
    )
    require(
        config.kl_estimator != "full",
        f"{offload} needs ppo.kl_estimator='k1' or 'k2'; 'full' runs the reference on every minibatch",
    )


def _check_bits(config: PPOConfig) -> None:
    """ValueError for settings that cannot be combined with weights or moments of few bits."""
    require(
        config.optimizer == "adamw" or config.sharding == "none",
        f"ppo.optimizer={config.optimizer!r} needs ppo.sharding='none'",
    )
    if config.quantization == "none":
        return
    bits = f"ppo.quantization={config.quantization!r}"
    require(
        config.lora_rank > 0,
        f"{bits} freezes the weights that it rounds; set ppo.lora_rank, such as 16",
    )
    require(
        config.start_from == "sft",
        f"{bits} with ppo.start_from='previous' would round away what the previous iteration learned; "
        "set it to 'sft'",
    )
    require(
        config.rollout_backend in ("own", "transformers"),
        f"{bits} needs ppo.rollout_backend='own' or 'transformers'",
    )


# Combinations whose optimum differs from that of reward − β · KL, and why.
_BIASED_KL = {
    ("k2", "reward"): "penalizes a token for having become less likely",
    ("k3", "reward"): "penalizes a token for having become less likely",
    ("abs", "reward"): "penalizes a token for having become less likely",
    ("k1", "loss"): "has a gradient with mean zero",
    ("k3", "loss"): "has the gradient of another divergence",
    ("abs", "loss"): "has the gradient of another divergence",
}


def _check_kl(estimator: object, place: object) -> None:
    """ValueError for an estimator whose gradient at this place is not that of the KL."""
    defect = _BIASED_KL.get((str(estimator), str(place)))
    if defect is not None:
        raise ValueError(
            f"ppo.kl_estimator={estimator!r} with ppo.kl_in={place!r} {defect}, so training misses "
            "the KL penalty's optimum (arXiv:2512.21852); use 'k1' with "
            "ppo.kl_in='reward', 'k2' with ppo.kl_in='loss', or 'full'"
        )


def _check_groups(config: PPOConfig) -> None:
    """ValueError for settings of group methods that contradict each other or bias the gradient."""
    size, baseline = config.group_size, f"ppo.baseline={config.baseline!r}"
    require(
        config.rollouts % size == 0,
        f"ppo.samples_per_prompt={size} must divide ppo.rollouts={config.rollouts}",
    )
    if config.has_group_baseline:
        require(
            size > 1,
            f"{baseline} compares the responses to a prompt; set ppo.samples_per_prompt to 2 or more",
        )
        require(
            config.gamma == 1,
            f"{baseline} compares whole responses, which are not discounted; set ppo.gamma=1",
        )
    weighting = {
        "group_scaling": config.group_scaling == "std",
        "loss_mean": config.loss_mean == "response",
        "ratio_level": config.ratio_level == "response",
        "dynamic_sampling": config.dynamic_sampling > 0,
    }
    in_loss = config.charges_kl_in_loss and config.kl_weight > 0
    for setting_name in (name for name, chosen in weighting.items() if chosen):
        value = f"ppo.{setting_name}={getattr(config, setting_name)!r}"
        require(
            config.has_group_baseline,
            f"{value} needs a group baseline; set ppo.baseline to 'leave_one_out' or 'group_mean'",
        )
        # Exact only if every advantage is 0 at the optimum, where all rewards minus KL are equal.
        require(
            not in_loss,
            f"{value} weights responses differently, which moves the optimum unless the KL penalty is "
            "part of the reward; set ppo.kl_estimator='k1' and ppo.kl_in='reward'",
        )
    require(
        config.baseline != "group_mean" or not in_loss,
        f"{baseline} shrinks advantages by 1/{size}, because the mean includes the response itself, but not "
        "a KL penalty in the loss; set ppo.baseline='leave_one_out', or ppo.kl_estimator='k1' with "
        "ppo.kl_in='reward'",
    )
    require(
        config.ratio_level == "token" or config.loss_mean == "response",
        "ppo.ratio_level='response' has one term per response; set ppo.loss_mean='response'",
    )
    require(
        config.ratio_level == "token" or config.rollout_backend == "own",
        "ppo.ratio_level='response' cannot use the importance weights of single tokens; set "
        "ppo.rollout_backend='own'",
    )
