"""Reward models that processes divide: the scores of whole ones, each process of its own texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.models.text import ChatTokenizer
from pipeline.ppo.network.distributed import Processes, local_tensor
from pipeline.reward import scoring
from pipeline.reward.network import from_language_model
from pipeline.reward.scoring import RewardModel
from tests.helpers.processes import found_by, run_processes
from tests.helpers.stage_inputs import tiny_models_and_reward

TEXTS = [["yes", "a much longer answer than the others", "no"], ["one"]]
"""Of each process: the first makes more passes."""
KINDS = {"packed": {}, "padded": {"packs": False}, "bf16": {"precision": "bf16"}}

CHILD = """
from tests.pipeline.reward.test_sharded_scoring import KINDS, scored
from pipeline.ppo.network.distributed import Processes
for name, kind in KINDS.items():
    torch.save(scored(folder / "reward", Processes(), **kind), folder / f"{name}-{rank}")
"""


def save_reward(folder: Path) -> Path:
    """A reward model of two networks, one with two heads."""
    base = tiny_models_and_reward(folder / "models")["reference"]
    chat = ChatTokenizer.load(base)
    networks = [from_language_model(base, chat, heads=heads) for heads in (2, 1)]
    torch.manual_seed(0)
    for network in networks:
        for weight in network.parameters():
            weight.data += torch.randn_like(weight) / 16  # of no two networks, and not in bf16
    RewardModel(networks[0], chat, "cpu", peers=networks[1:]).save(folder / "reward")
    return folder / "reward"


def scored(
    path: Path, processes: Processes | None, *, packs: bool = True, precision: str = "fp32"
) -> tuple[list[list[list[float]]], int, int]:
    """Each member's scores of this process's texts, or of all; weights held, and in all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "_TOKENS_AT_ONCE", 16)
        patch.setattr(scoring, "_SLACK", 0)
        patch.setattr(scoring, "resolve_precision", lambda *_: precision)
        model = RewardModel.load(path, processes=processes)
        assert model._packs
        model._packs = packs
        if processes is None and precision == "bf16":
            for network in model.networks:
                for weight in network.base_model.parameters():
                    weight.data = weight.data.bfloat16().float()
        rows = TEXTS if processes is None else [TEXTS[processes.rank]]
        scores = [model.member_scores(["Say it"] * len(texts), texts) for texts in rows]
    weights = [weight for network in model.networks for weight in network.parameters()]
    held = sum(local_tensor(weight).numel() for weight in weights)
    return scores, held, sum(weight.numel() for weight in weights)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    save_reward(folder)
    run_processes(CHILD, folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_shards_score_as_whole_reward_models(pair: Path, kind: str):
    """In bf16 as models whose trunk is rounded to bf16, with heads in fp32."""
    settings: dict[str, Any] = KINDS[kind]
    expected, _, _ = scored(pair / "reward", None, **settings)
    assert len({score for scores in expected for member in scores for score in member}) == 12
    for rank in (0, 1):
        (found,), held, whole = found_by(pair, kind)[rank]
        for ours, theirs in zip(found, expected[rank], strict=True):
            # Gathered weights lie elsewhere in memory, so fp32 sums may differ in the last digit.
            assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6)
        assert held == pytest.approx(whole / 2, rel=0.02)
