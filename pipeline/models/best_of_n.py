"""The manifest of a best-of-N policy, and its KL.  Does not import torch.

The directory of such a policy has the reference's weights, `best_of_n.json`, and the reward model
that chooses in `reward_model/`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MANIFEST = "best_of_n.json"
REWARD_MODEL = "reward_model"
"""The folder with the reward model that chooses."""
_README = """\
# Best of {n} samples of {reference}

This directory is a best-of-N policy of Kitestring. Its weights are those of {reference}: a library that
only loads the weights gets {reference}. To answer, sample {n} responses from the weights, score each
with the reward model in `{folder}/` ({reward_model}), and take the one with the highest reward.
`{manifest}` has N and the names of both models.

Its KL to {reference} is at most log N − (N−1)/N = {kl:.3f} nats per response (Stiennon et al. 2020,
arXiv:2009.01325; Beirami et al. 2024, arXiv:2401.01879).
"""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What makes a directory a best-of-N policy; models by their ids in the workspace."""

    n: int
    reference: str
    reward_model: str

    @property
    def kl_bound(self) -> float:
        """An upper bound on its KL to the reference, nats."""
        return best_of_n_kl(self.n)

    def write(self, path: Path) -> None:
        """Write the manifest, and a README that explains the directory."""
        path.mkdir(parents=True, exist_ok=True)
        (path / MANIFEST).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        about = {**asdict(self), "folder": REWARD_MODEL, "manifest": MANIFEST, "kl": self.kl_bound}
        (path / "README.md").write_text(_README.format(**about), encoding="utf-8")


def manifest_of(path: str | Path) -> Manifest | None:
    """The manifest of a model's directory; None if it is no best-of-N policy."""
    file = Path(path) / MANIFEST
    return Manifest(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def no_weights(name: str, manifest: Manifest) -> str:
    """Why the policy cannot be used as a language model, in one sentence."""
    return (
        f"{name} is the best of {manifest.n} samples of {manifest.reference} by "
        f"{manifest.reward_model}: it has no weights and no token probabilities of its own"
    )


def best_of_n_kl(n: int) -> float:
    """log N − (N−1)/N nats, an upper bound on best-of-N's KL to the policy that it samples.

    (Stiennon et al. 2020, arXiv:2009.01325; Beirami et al. 2024, arXiv:2401.01879.)  The true KL is
    far below it where few different answers are possible.
    """
    return math.log(n) - (n - 1) / n


def expected_best(rewards: Sequence[float], n: int) -> float:
    """The expected highest reward of `n` of these rewards, drawn without replacement.

    The mean over all subsets of size n: Σ_i x_(i) C(i−1, n−1) / C(N, n), with x_(i) the i-th
    smallest.  It is an unbiased estimate for best-of-n from N ≥ n samples.
    """
    total = math.comb(len(rewards), n)
    return sum(
        value * math.comb(place, n - 1) / total for place, value in enumerate(sorted(rewards))
    )
