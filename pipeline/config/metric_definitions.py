"""Definitions of the metrics of all stages but PPO.  Loads no torch."""

METRICS: dict[str, str] = {
    "train/loss": "Mean over the last steps: cross-entropy per response token in nats (SFT), "
    "negative log-likelihood per judgment (reward model, DPO), or the clipped policy loss, mean "
    "over responses (RLOO).",
    "train/lr": "Learning rate of the step.",
    "train/grad_norm": "L2 norm of the gradient before clipping.",
    "train/theta": "Tie threshold θ of the reward model, in units of reward.",
    "dpo/margin": "Mean over judgments of β (log π/π_ref of the chosen − of the rejected response).",
    "dpo/accuracy": "Share of judgments for which log π/π_ref is higher for the chosen response.",
    "dpo/chosen": "Mean of β log π/π_ref over chosen responses.",
    "dpo/rejected": "Mean of β log π/π_ref over rejected responses.",
    "reward/ensemble_sd": "Standard deviation of the reward models' scores of a response (divided "
    "by their number), mean over responses; it is larger for responses unlike those that they learned from.",
    "held_out/loss": "Cross-entropy per response token on held-out demonstrations, nats.",
    "held_out/accuracy": "Share of decisive held-out judgments whose winner has the higher reward "
    "(DPO: the higher log π/π_ref); equal ones count half.",
    "held_out/log_loss": "Negative log-likelihood per held-out judgment under the tie model, nats.",
    "out_of_bag/log_loss": "The same on the audit set (whole prompts, not the out-of-bag judgments of "
    "a bootstrap), with the annotators' slopes and side biases and the best scale of rewards. Training "
    "stops when it stays clearly above its lowest value.",
    "held_out/ece": "Expected calibration error on decisive held-out judgments: mean difference "
    "between predicted probability and accuracy, over ten bins of probability.",
    "sampling/tokens_per_second": "Sampled tokens per wall-clock second of sampling.",
    "sampling/near_duplicates": "Comparisons left out because the two texts were nearly the same.",
    "sampling/bald": "Mean over candidate pairs of H(p̄) − mean H(p_k) over the reward model's "
    "members k, nats: the information that a judgment gives about the members.",
    "sampling/bald_chosen": "The same over the chosen pairs.",
    "evaluate/<policy>/kl": "Mean over responses of Σ KL(policy ‖ reference) over their tokens, "
    "each over the whole vocabulary; nats.",
    "evaluate/<policy>/reward": "Mean reward of the policy's responses to held-out prompts.",
    "evaluate/<policy>/audit_reward": "The same by the audit model, which learned from other "
    "judgments and which PPO does not use. If only the reward rises, PPO over-optimizes it.",
    "evaluate/<policy>/length": "Mean response length, tokens, end-of-text included.",
    "evaluate/<policy>/distinct": "Share of distinct token bigrams among all token bigrams of the responses.",
    "evaluate/<policy>/unique": "Share of distinct texts among all responses.",
    "evaluate/win_rate": "Share of held-out responses with a higher reward than the reference's to "
    "the same prompt; equal rewards count half.",
}
