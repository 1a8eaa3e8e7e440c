"""What the gate knows of one policy, worked out beforehand."""

from __future__ import annotations

from storage.gate_records import (
    CanaryResults,
    Candidate,
    CheckResults,
    Evidence,
    LostAnswer,
    PolicyJudgment,
)

WON = (1.0, 1.0, 0.0, 1.0, 0.5, 1.0, 0.0, 1.0, 1.0, 0.5, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.5)  # fmt: skip
"""Of policy-1 against SFT, on one prompt each."""


def evidence(copies: int, *, swapped: bool = False) -> Evidence:
    """What the gate knows after `copies` judgments of each prompt, which all say the same."""
    sides = ("sft-1", "policy-1") if swapped else ("policy-1", "sft-1")
    judged = [
        PolicyJudgment(
            comparison=f"c{n}", prompt=f"p{n}", iteration=2, first=sides[0], second=sides[1],
            outcome=1 - won if swapped else won,
            predicted=0.2 + 0.02 * n, reward_model="reward-1",
        )
        for n, won in enumerate(WON)
        for _ in range(copies)
    ]  # fmt: skip
    return Evidence(
        judged=judged, policies=["sft-1", "policy-1"], reference="sft-1",
        iteration=Candidate(number=2, policy="policy-1", labels=100),
        proxies={"policy-1": "reward-1"}, kl_weights={"policy-1": 0.1},
    )  # fmt: skip


def canary_results(*, lost: int, gained: int = 0, prompts: int = 100) -> CanaryResults:
    """The policy fails on `lost` prompts where SFT passes, and the other way round on `gained`."""
    same = "1" * (prompts - lost - gained)
    return CanaryResults(
        function="my_canary:checks", allowed_loss=0.05,
        checks=(
            CheckResults(
                name="on topic", prompts=tuple(range(prompts)),
                policy="0" * lost + "1" * gained + same, reference="1" * lost + "0" * gained + same,
            ),
            CheckResults(
                name="well-formed", prompts=tuple(range(prompts)), policy="1" * prompts,
                reference="1" * prompts,
            ),
        ),
        lost=(LostAnswer(check="on topic", prompt="How do I pack?", answer="Knead the dough."),),
    )  # fmt: skip
