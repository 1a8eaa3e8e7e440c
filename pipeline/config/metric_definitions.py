"""Definitions of the metrics of all stages but PPO.  Does not import torch."""

METRICS: dict[str, str] = {
    "train/loss": "Mean over the last steps: cross-entropy per response token in nats (SFT), "
    "or negative log-likelihood per judgment (reward model, DPO).",
    "train/lr": "Learning rate of the step.",
    "train/grad_norm": "L2 norm of the gradient before clipping.",
    "train/theta": "Tie threshold θ of the reward model, in units of reward.",
    "dpo/margin": "Mean over judgments of β (log π/π_ref of the chosen − of the rejected response).",
    "dpo/accuracy": "Share of judgments for which log π/π_ref is higher for the chosen response.",
    "dpo/chosen": "Mean of β log π/π_ref over chosen responses.",
    "dpo/rejected": "Mean of β log π/π_ref over rejected responses.",
    "best_of_n/reward": "Expected highest reward of n samples of SFT, by n; mean over prompts.",
    "best_of_n/kl_bound": "log n − (n−1)/n: an upper bound on the KL of best-of-n to SFT, nats.",
    "openrlhf/kl_per_token": "Mean over responses of the mean over their tokens of log π − log π_ref, "
    "nats per token: OpenRLHF's kl.",
    "openrlhf/grad_norm": "L2 norm of the gradient in the update's last optimizer step.",
    "openrlhf/reward_std": "Standard deviation over responses of what OpenRLHF gets as the reward: the "
    "score after clipping and the penalty for cut-off responses.",
    "reward/ensemble_sd": "Population standard deviation of the reward models' scores of a "
    "response, averaged over responses; it is larger for responses unlike the training data.",
    "held_out/loss": "Cross-entropy per response token on held-out demonstrations, nats.",
    "held_out/accuracy": "Share of decisive held-out judgments whose winner has the higher reward "
    "(DPO: the higher log π/π_ref); ties count half.",
    "held_out/log_loss": "Negative log-likelihood per held-out judgment under the tie model, nats.",
    "out_of_bag/log_loss": "Negative log-likelihood per judgment on the audit set (whole prompts, "
    "not a bootstrap's out-of-bag judgments), with the annotators' slopes and side biases and the "
    "best reward scale, nats. Training stops when it stays clearly above its lowest value.",
    "held_out/ece": "Expected calibration error on decisive held-out judgments: mean difference "
    "between predicted probability and accuracy, over ten bins of probability.",
    "sampling/tokens_per_second": "Sampled tokens per wall-clock second of sampling.",
    "sampling/near_duplicates": "Comparisons left out because their completions are too similar.",
    "sampling/bald": "Mean over candidate pairs of H(p̄) − mean H(p_k) over the reward model's "
    "members k, nats: the information that a judgment gives about the members.",
    "sampling/bald_chosen": "Mean of H(p̄) − mean H(p_k) over the chosen pairs, nats.",
    "evaluate/<policy>/kl": "KL(policy ‖ reference), exact over the vocabulary, summed over a "
    "response's tokens; mean over responses, nats.",
    "evaluate/<policy>/reward": "Mean reward of the policy's responses to held-out prompts.",
    "evaluate/<policy>/audit_reward": "Mean reward of the same responses by the audit model, which "
    "learned from other judgments and which PPO does not use. If this does not rise with the "
    "reward, PPO over-optimizes the reward model.",
    "evaluate/<policy>/length": "Mean response length, tokens, including end-of-text.",
    "evaluate/<policy>/distinct": "Share of distinct token bigrams among all token bigrams of the responses.",
    "evaluate/<policy>/unique": "Share of distinct texts among all responses.",
    "evaluate/<policy>/canary": "Share of the canary's prompts whose answers pass all their checks.",
    "canary/pass_rate": "Share of the canary's prompts whose answers by the policy pass all their checks; "
    "at update 0, by SFT.",
    "canary/passes/<check>": "Share of the answers that pass one of the canary's checks; at update 0, of "
    "SFT's.",
    "evaluate/win_rate": "Share of held-out responses with a higher reward than the reference's "
    "response to the same prompt; ties count half.",
}
