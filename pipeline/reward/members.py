"""The members of a reward model: separate networks, or heads on one trunk.

There are `reward.members` (4).  With `reward.ensemble` = auto they are networks up to 100 million
parameters (`is_large`), else heads.

Networks that learn from the same judgments and the same initial weights differ, because each gets
the judgments in a different order (Lakshminarayanan et al. 2017, *Simple and Scalable Predictive
Uncertainty Estimation using Deep Ensembles*, who find that adding bootstrap samples hurts).
Their mean is a better reward than any single one, and they disagree where there are few judgments.
Heads on one trunk cost nothing but give only the disagreement (`pipeline.reward.network`).

Several processes (`worker.processes`) divide the networks, and read those of others from their files.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from pipeline.config.reward import RewardConfig
from pipeline.models.hf_trainer import is_large, last_checkpoint
from pipeline.reward.annotators import AnnotatorEffects
from pipeline.reward.data import JudgedPair, annotator_ids, resolved
from pipeline.reward.network import from_language_model
from pipeline.reward.scoring import RewardModel
from pipeline.reward.stopping import EarlyStop
from pipeline.reward.trainer import Training, likelihood_of, train_network
from pipeline.runs.peers import ALONE, Peers
from pipeline.runs.rundir import Note, write_atomically
from storage.records import derive_seed

_FINISHED, _WEIGHTS = "finished.json", "weights.pt"


def train_members(
    training: Training,
    pairs: Sequence[JudgedPair],
    *,
    stopping: Sequence[JudgedPair] = (),
    measure: Callable[[RewardModel, int], None] | None = None,
    notes: Sequence[Note] = (),
    processes: Peers = ALONE,
) -> tuple[RewardModel, EarlyStop | None]:
    """Train a reward model; also return what early stopping kept, averaged over its networks.

    Arguments are those of `train_network`.  Only the first network reports `notes`, metrics and
    measurements.  A resumed run continues with the network that was interrupted.  Each network
    keeps its `annotators`; all networks get the mean of their ties.  With `processes`, each trains
    its share of the networks, and all return the same model.
    """
    network, count = _first_network(training)
    own = processes.share(range(count))
    resume = training.resume
    trained: dict[int, tuple[Any, EarlyStop | None]] = {}
    for place, number in enumerate(own):
        network = network if place == 0 else _new_network(training)
        one = _training_of(
            training, number, count, share=(place / len(own), (place + 1) / len(own))
        )
        if resume and (one.checkpoints / _FINISHED).exists():
            stop = _restore(network, one.checkpoints, pairs, training.config)
        else:
            continues = resume and (place == 0 or last_checkpoint(one.checkpoints) is not None)
            if resume and not continues:  # interrupted before this network's first checkpoint
                training.report.rewind(_last_event(training, own[place - 1]))
            stop = train_network(
                network,
                replace(one, resume=continues),
                pairs,
                stopping=stopping,
                measure=_measuring(measure, network, training) if number == 0 else None,
                notes=notes if number == 0 else (),
            )
            _finish(network, one, stop)
            resume = False
        trained[number] = network, stop
    if resume and own:  # all its networks were trained; drop the events after them
        training.report.rewind(_last_event(training, own[-1]))
    processes.gather(None)  # all networks are trained now
    for number in set(range(count)) - set(own):
        network, folder = _new_network(training), _folder(training, number)
        trained[number] = network, _restore(network, folder, pairs, training.config)
    networks, kept = zip(*(trained[number] for number in range(count)), strict=True)
    _share_ties(networks)
    model = RewardModel(networks[0], training.chat, training.device, peers=networks[1:])
    return model, _mean(kept)


def _training_of(
    training: Training, number: int, count: int, *, share: tuple[float, float]
) -> Training:
    """The training of one network of `count`, which has a share of this training."""
    begin, end = training.share
    which = f": network {number + 1} of {count}" if count > 1 else ""
    return replace(
        training,
        checkpoints=_folder(training, number),
        seed=derive_seed("member", str(training.seed), str(number)) if number else training.seed,
        doing=training.doing + which,
        share=(begin + (end - begin) * share[0], begin + (end - begin) * share[1]),
        quiet=training.quiet or number > 0,
    )


def _folder(training: Training, number: int) -> Path:
    return training.checkpoints / f"member-{number + 1}"


def _new_network(training: Training) -> Any:
    return from_language_model(training.base, training.chat).to(training.device)


def _first_network(training: Training) -> tuple[Any, int]:
    """The first network, untrained, and how many networks there will be."""
    config = training.config
    network = _new_network(training)
    large = config.ensemble == "auto" and is_large(network)
    if config.members > 1 and (large or config.ensemble == "heads"):
        heads = from_language_model(training.base, training.chat, heads=config.members)
        return heads.to(training.device), 1
    return network, config.members


def _measuring(
    measure: Callable[[RewardModel, int], None] | None, network: Any, training: Training
) -> Callable[[int], None] | None:
    if measure is None:
        return None

    def at(step: int) -> None:
        measure(RewardModel(network, training.chat, training.device), step)
        network.train()

    return at


def _finish(network: Any, training: Training, kept: EarlyStop | None) -> None:
    """Save a trained network until all are trained, and delete its checkpoints."""
    found = {"kept": asdict(kept) if kept else None, "seq": training.report.seq}
    folder = training.checkpoints
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), folder / _WEIGHTS)
    write_atomically(folder / _FINISHED, json.dumps(found))
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)


def _restore(
    network: Any, folder: Path, pairs: Sequence[JudgedPair], config: RewardConfig
) -> EarlyStop | None:
    """Load what `_finish` saved."""
    weights = torch.load(folder / _WEIGHTS, map_location="cpu", weights_only=True)
    if any(name.startswith("annotators.") for name in weights):
        network.annotators = AnnotatorEffects(annotator_ids(pairs)).to(network.device)
    network.likelihood = likelihood_of(resolved(config, pairs))
    network.load_state_dict(weights)
    kept = json.loads((folder / _FINISHED).read_text())["kept"]
    return EarlyStop(**kept) if kept else None


def _last_event(training: Training, number: int) -> int:
    """The number of the last event of a network and of those that this process trained before."""
    return int(json.loads((_folder(training, number) / _FINISHED).read_text())["seq"])


@torch.no_grad()
def _share_ties(networks: Sequence[Any]) -> None:
    """Give all networks the mean of their learned ties, in stored form."""
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
