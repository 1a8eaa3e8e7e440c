"""The coefficient β of the KL penalty: fixed (the default, `ppo.kl_weight` = 0.05) or adaptive.

`Rewarder.shape` charges it; the trainer calls `update` after each update.  A checkpoint keeps it.
"""

from __future__ import annotations

from pipeline.ppo.config import PPOConfig


class KLController:
    """β, fixed or adapted so that the KL to the reference approaches a target.

    After n responses with KL k: β ← β · (1 + clip(k / target − 1, ±.2) · n / horizon), within its
    bounds.  (Ziegler et al. 2019, "Fine-tuning language models from human preferences", 2.2.)
    """

    def __init__(self, config: PPOConfig) -> None:
        self.config = config
        self.kl_coef = config.kl_weight

    def update(self, kl: float, responses: int) -> None:
        config = self.config
        if config.kl_control == "fixed":
            return
        error = min(max(kl / config.kl_target - 1, -0.2), 0.2)
        kl_coef = self.kl_coef * (1 + error * responses / config.kl_horizon)
        self.kl_coef = min(max(kl_coef, config.kl_weight_min), config.kl_weight_max)
