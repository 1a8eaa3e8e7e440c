"""The capability canary: fixed prompts whose answers a function checks (`gate.canary`).

The policy must not lose what SFT can do.  The evaluation and the policy stage sample the answers of
both, and `pipeline.promotion.gate` does not promote a policy that loses too much.

    from pipeline.canary import CanaryCheck

    def checks() -> list[CanaryCheck]:
        return [
            CanaryCheck("sums", f"What is {a} + {b}?", lambda answer, c=a + b: str(c) in answer)
            for a in range(2, 12) for b in range(2, 12)
        ]

Only `training` loads torch.
"""

from __future__ import annotations

from pipeline.canary.checks import BUILT_IN, Canary, CanaryCheck, load_canary
from pipeline.config.plugins import require_in_subprocess

__all__ = ["BUILT_IN", "Canary", "CanaryCheck", "load_canary", "require_available"]


def require_available(name: str) -> None:
    """ValueError if `gate.canary` names a function that is not there, or whose checks are wrong.

    The function runs in a separate process (`pipeline.config.plugins`).
    """
    if name not in ("", BUILT_IN):
        require_in_subprocess("pipeline.canary.functions", [name])
