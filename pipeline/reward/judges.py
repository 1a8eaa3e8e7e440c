"""Model judges beside people: how much a judge's judgments count.

A judge may give most of the judgments.  If its slope were learned with the rewards, the rewards would
learn the judge's errors, and the judge would look reliable.  So people are the standard: a network that
learns from people alone is scaled to people's judgments that it did not learn from.  For its difference
of rewards d, a judge judges by

    z = slope · d + bias · s + length · Δ

with s as in annotators.py, and the difference Δ of the responses' lengths in tokens, because judges
prefer long responses (Dubois et al. 2024, *Length-Controlled AlpacaEval*, arXiv:2404.04475).  The three
are fitted to the judge's preferences and stay fixed while the reward model learns, so that what a judge
thinks of sides and lengths is not learned.  A judge's ties are neither measured nor learned from: most
are contradictory answers in the two orders, which have a threshold of their own.  A judge that agrees
with people as they agree with each other has slope 1, or about 2 if it is asked in both orders, because
consistent answers are surer.  If the slope is not surely different from 0, nothing is learned from the
judge.

The priors are N(1, 1) for the slope, and N(0, 1) for the bias and for the length, the latter per
standard deviation of Δ: judges differ more than people do.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor
from torch.autograd.functional import hessian

from pipeline.reward.annotators import AnnotatorJudgments, GroundedJudge
from pipeline.reward.data import JudgedPair, Split, annotator_ids
from pipeline.reward.likelihood import Likelihood, TieValues
from pipeline.reward.members import train_members
from pipeline.reward.quality.calibration import calibrate
from pipeline.reward.quality.reliability import judged_by_rewards
from pipeline.reward.scoring import RewardModel
from pipeline.reward.trainer import Training
from pipeline.runs.peers import ALONE, Peers
from pipeline.runs.rundir import Note

MIN_PREFERENCES = 40
"""People's preferences that a network needs before it can measure a judge."""

SURE = 2.0
"""Standard errors by which a slope must differ from 0."""

_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class Grounded:
    """A training with the measured judges, the judgments to learn from, and notes to report."""

    training: Training
    learned: Sequence[JudgedPair]
    notes: Sequence[Note] = ()


def ground_judges(training: Training, split: Split, processes: Peers = ALONE) -> Grounded:
    """Measure the model judges that are beside people.

    Nothing changes without such judges, or if `reward.annotators` is off.  A resumed stage measures
    them again.  The first of several `processes` measures them for all; a collective call.  Raises
    ValueError if people give nothing to learn from.
    """
    if not training.config.annotators or not any(pair.judge for pair in split.learned):
        return Grounded(training=training, learned=split.learned)
    people = [pair for pair in split.learned if not pair.judge]
    judged = [pair for pair in split.learned if pair.judge and pair.decisive]
    if not judged:
        return Grounded(training=training, learned=people)
    preferences = sum(pair.decisive and not pair.edited for pair in people)
    if not preferences:
        raise ValueError(
            "No judgment by a person on a prompt to learn from prefers a response. Label more pairs, or "
            'set reward.learn_from=["model"] to learn from models alone.'
        )
    if preferences < MIN_PREFERENCES:
        message = (
            f"nothing is learned from model judges: measuring them needs {MIN_PREFERENCES} preferences "
            f'by people to learn from, and there are {preferences}; reward.learn_from=["model"] learns '
            "from models alone"
        )
        note = Note(kind="warning", name="judges", message=message)
        return Grounded(training=training, learned=people, notes=[note])
    found: dict[str, GroundedJudge] = {}
    if processes.rank == 0:
        found = measured_judges(_model_of_people(training, people, split), judged)
    found = processes.gather(found)[0]
    kept = {id for id, judge in found.items() if abs(judge.slope) > SURE * judge.slope_sd}
    return Grounded(
        training=replace(training, judges=found),
        learned=[p for p in split.learned if not p.judge or (p.decisive and p.annotator in kept)],
        notes=[note_on_judges(found, kept)],
    )


def _model_of_people(training: Training, people: Sequence[JudgedPair], split: Split) -> RewardModel:
    """A network that learned from people's judgments, scaled to others of them."""
    own = replace(
        training,
        checkpoints=training.checkpoints / "people",
        config=replace(training.config, members=1),
        resume=False,
        doing="measuring the model judges",
        share=(0.0, 0.0),
        quiet=True,
    )
    shutil.rmtree(own.checkpoints, ignore_errors=True)
    model, _ = train_members(own, people)
    shutil.rmtree(own.checkpoints, ignore_errors=True)
    model.network.annotators = None
    calibrate(model, split.measured, [pair for pair in split.audit_set if pair.random_stream])
    return model


def measured_judges(model: RewardModel, pairs: Sequence[JudgedPair]) -> dict[str, GroundedJudge]:
    """Each annotator of `pairs`, which the model did not learn from."""
    network = model.network
    likelihood = Likelihood(tie_model="drop", both_bad="tie")
    ties = TieValues(*(torch.as_tensor(value).double().cpu() for value in network.ties.values()))
    found = {}
    for id in annotator_ids(pairs):
        its = [pair for pair in pairs if pair.annotator == id]
        judged, rows = judged_by_rewards(
            its, *model.both_sides(its), [id], tie_model=likelihood.tie_model
        )
        longer = [float(its[n].first_length - its[n].second_length) for n in rows]
        found[id] = _fitted(judged, torch.tensor(longer, dtype=torch.float64), likelihood, ties)
    return found


def _fitted(
    judged: AnnotatorJudgments, longer: Tensor, likelihood: Likelihood, ties: TieValues
) -> GroundedJudge:
    """The optimum of one judge's posterior, by Newton's method with halved steps.

    `longer` (N,) are the differences of lengths.  The posterior is log-concave, as in
    `annotators.fit_annotators`.
    """
    unit = longer.square().mean().sqrt().clamp(min=1e-12)
    features = torch.stack([judged.d, judged.side, longer / unit], -1)
    mean = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)

    def loss(at: Tensor) -> Tensor:
        each = likelihood.log_likelihood(
            features @ at, judged.outcomes, ties=ties, strength=judged.strength
        )
        return (at - mean).square().sum() / 2 - each.sum()

    at = mean.clone()
    for _ in range(_STEPS):
        step = torch.linalg.solve(hessian(loss, at), torch.func.grad(loss)(at))
        share = 1.0
        while loss(at - share * step) > loss(at) and share > 1e-6:
            share /= 2
        at = at - share * step
        if step.abs().max() < 1e-9:
            break
    sd = torch.linalg.inv(hessian(loss, at)).diagonal().sqrt()
    slope, bias, length = at.tolist()
    return GroundedJudge(slope=slope, bias=bias, length=length / unit.item(), slope_sd=sd[0].item())


def note_on_judges(found: Mapping[str, GroundedJudge], kept: Collection[str]) -> Note:
    """How much each judge's judgments count, by the standard of people."""
    said = ", ".join(
        f"{id} {each.slope:.2f} ± {each.slope_sd:.2f}"
        + ("" if id in kept else " (not learned from)")
        for id, each in found.items()
    )
    return Note(
        kind="info" if len(kept) == len(found) else "warning",
        name="judges",
        message=f"slopes of model judges, where 1 is an average person: {said}",
        payload={"judges": {id: asdict(each) for id, each in found.items()}},
    )
