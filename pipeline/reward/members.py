"""The members of a reward model: networks of their own, or heads on one trunk.

Networks that learn the same judgments from the same weights end apart, because each meets them in
an order of its own (Lakshminarayanan et al. 2017, *Simple and Scalable Predictive Uncertainty
Estimation using Deep Ensembles*, who find that bootstrap samples on top of it do harm).  Their mean
is a better reward than any of them, and where they part is where they have learned little.
Heads on one trunk cost nothing and tell only the second (`pipeline.reward.network`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from pipeline.config.reward import RewardConfig
from pipeline.models.hf_trainer import is_large, last_checkpoint
from pipeline.models.text import ChatTokenizer
from pipeline.reward.annotators import AnnotatorEffects
from pipeline.reward.data import JudgedPair, annotator_ids, resolved
from pipeline.reward.network import from_language_model
from pipeline.reward.scoring import RewardModel
from pipeline.reward.stopping import EarlyStop
from pipeline.reward.trainer import SHARE, likelihood_of, train_reward_model
from pipeline.runs.rundir import Report, write_atomically
from storage.records import derive_seed

_FINISHED, _WEIGHTS = "finished.json", "weights.pt"


def train_members(
    base: str,
    chat: ChatTokenizer,
    pairs: Sequence[JudgedPair],
    config: RewardConfig,
    checkpoints: Path,
    report: Report,
    *,
    device: torch.device,
    seed: int,
    bootstrap_seed: int = 0,
    resume: bool = False,
    measure: Callable[[RewardModel, int], None] | None = None,
    outside: Sequence[JudgedPair] = (),
    notes: Sequence[dict[str, Any]] = (),
    doing: str = "training the reward model",
    share: tuple[float, float] = (0.0, SHARE),
    quiet: bool = False,
) -> tuple[RewardModel, EarlyStop | None]:
    """A reward model from the language model `base`, and what early stopping kept, on average.

    Arguments are those of `train_reward_model`; only the first network reports more than its
    progress, and `measure` is given it as a model.  A resumed run goes on with the network that
    was being trained.  Each network keeps its `annotators`, and all leave with the same ties.
    """
    first, count = _first(base, chat, config)
    networks, kept = [], []
    begin, end = share
    for number in range(count):
        network = first if number == 0 else from_language_model(base, chat)
        network.to(device)
        folder = checkpoints / f"member-{number + 1}"
        if resume and (folder / _FINISHED).exists():
            found = _restore(network, folder, pairs, config)
        else:
            goes_on = resume and (number == 0 or last_checkpoint(folder) is not None)
            if resume and not goes_on:  # after its first network, and before a checkpoint of this
                report.rewind(_seq(checkpoints, number))
            found = train_reward_model(
                network,
                chat,
                pairs,
                config,
                folder,
                report,
                device=device,
                seed=_seed(seed, number),
                bootstrap_seed=bootstrap_seed,
                resume=goes_on,
                measure=_measuring(measure, network, chat, device) if number == 0 else None,
                outside=outside,
                notes=notes if number == 0 else (),
                doing=f"{doing}: network {number + 1} of {count}" if count > 1 else doing,
                share=(
                    begin + (end - begin) * number / count,
                    begin + (end - begin) * (number + 1) / count,
                ),
                quiet=quiet or number > 0,
            )
            _finish(network, folder, found, report)
            resume = False
        networks.append(network)
        kept.append(found)
    if resume:  # everything was trained, and what follows is told anew
        report.rewind(_seq(checkpoints, count))
    _agree(networks)
    return RewardModel(networks[0], chat, device, peers=networks[1:]), _mean(kept)


def _first(base: str, chat: ChatTokenizer, config: RewardConfig) -> tuple[Any, int]:
    """The first network, before it has learned anything, and how many there are to be."""
    network = from_language_model(base, chat)
    large = config.ensemble == "auto" and is_large(network)
    if config.members > 1 and (large or config.ensemble == "heads"):
        return from_language_model(base, chat, heads=config.members), 1
    return network, config.members


def _seed(seed: int, number: int) -> int:
    """Of the order in which a network meets the judgments."""
    return seed if number == 0 else derive_seed("member", str(seed), str(number))


def _measuring(
    measure: Callable[[RewardModel, int], None] | None,
    network: Any,
    chat: ChatTokenizer,
    device: torch.device,
) -> Callable[[int], None] | None:
    if measure is None:
        return None

    def at(step: int) -> None:
        measure(RewardModel(network, chat, device), step)
        network.train()

    return at


def _finish(network: Any, folder: Path, kept: EarlyStop | None, report: Report) -> None:
    """Remember a trained network until all are; its checkpoints are of no more use."""
    found = {"kept": asdict(kept) if kept else None, "seq": report.seq}
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), folder / _WEIGHTS)
    write_atomically(folder / _FINISHED, json.dumps(found))
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)


def _restore(
    network: Any, folder: Path, pairs: Sequence[JudgedPair], config: RewardConfig
) -> EarlyStop | None:
    weights = torch.load(folder / _WEIGHTS, map_location="cpu", weights_only=True)
    if any(name.startswith("annotators.") for name in weights):
        network.annotators = AnnotatorEffects(annotator_ids(pairs)).to(network.device)
    network.likelihood = likelihood_of(resolved(config, pairs))
    network.load_state_dict(weights)
    kept = _finished(folder)["kept"]
    return EarlyStop(**kept) if kept else None


def _finished(folder: Path) -> dict[str, Any]:
    """What is remembered of a trained network beside its weights."""
    return json.loads((folder / _FINISHED).read_text())


def _seq(checkpoints: Path, count: int) -> int:
    """The last event of the first `count` networks."""
    return int(_finished(checkpoints / f"member-{count}")["seq"])


@torch.no_grad()
def _agree(networks: Sequence[Any]) -> None:
    """Give all networks the mean of what each has learned of ties, in the form that is stored."""
    for parameters in zip(*(network.ties.parameters() for network in networks), strict=True):
        mean = torch.stack(parameters).mean(0)
        for parameter in parameters:
            parameter.copy_(mean)


def _mean(kept: Iterable[EarlyStop | None]) -> EarlyStop | None:
    known = [each for each in kept if each]
    if not known:
        return None
    return EarlyStop(
        step=round(fmean(each.step for each in known)),
        epoch=fmean(each.epoch for each in known),
        log_loss=fmean(each.log_loss for each in known),
    )
