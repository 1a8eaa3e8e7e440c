"""What the gate knows of one policy, worked out beforehand."""

from __future__ import annotations

from storage.gate_records import Candidate, Evidence, PolicyJudgment

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
