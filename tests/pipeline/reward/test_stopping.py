"""Early stopping outside the samples, the audit model, bootstraps and the length penalty."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from pipeline.config.reward import RewardConfig
from pipeline.models.text import read_messages
from pipeline.reward import trainer as reward_trainer
from pipeline.reward.data import bootstrap_weights, split_for_stopping, stopping_pairs
from pipeline.reward.quality.metrics import length_correlation_in_pairs
from pipeline.reward.scoring import RewardModel
from pipeline.reward.stopping import EarlyStop, EarlyStopping, clearly_worse
from pipeline.reward.trainer import squared_correlation
from pipeline.runs.cancellation import Cancelled
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.stages import evaluate, reward
from pipeline.stages.reward import run
from tests.helpers.judged_pairs import pair
from tests.helpers.stage_inputs import (
    first_update,
    give,
    make_job,
    make_judgments,
    make_prompts,
    tiny_models,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def audited(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished reward stage of several networks with an audit model: its directory and summary."""
    job = make_job(
        "reward",
        models,
        reward__epochs=2,
        reward__held_out_share=0.25,
        reward__stopping_judgments=20,
    )
    directory = RunDirectory.create(tmp_path_factory.mktemp("stage"), job)
    return directory, work(directory)


def work(directory: RunDirectory) -> dict[str, Any]:
    give(directory, "judgments.parquet", make_judgments(240, ties=0.1))
    give(directory, "prompts.parquet", make_prompts(6))
    job = directory.job()
    with Report(directory, attempt=job.attempt) as report:
        return run(job, report, directory)


# --- the rule ---------------------------------------------------------------------------------


def rehearse(losses: list[float], *, patience: int, epochs: int = 2) -> tuple[list[int], Any, Any]:
    """Steps that were checked, what was kept and the weight of the network afterwards.

    The weight is the number of the step; every judgment has the given loss.
    """
    network = nn.Linear(1, 1, bias=False)
    checked: list[int] = []

    def measure(step: int) -> torch.Tensor:
        checked.append(step)
        return torch.full((4,), losses[len(checked) - 1]) + torch.tensor([0.0, 0.1, 0.2, 0.3])

    stopping = EarlyStopping(network, measure, list("abcd"), patience=patience)
    control = SimpleNamespace(should_training_stop=False, should_save=False)
    for step in range(1, 8 * epochs + 1):
        nn.init.constant_(network.weight, step)
        state = SimpleNamespace(global_step=step, max_steps=8 * epochs, epoch=step / 8)
        stopping.on_step_end(SimpleNamespace(num_train_epochs=epochs), state, control)
        if control.should_training_stop:
            assert control.should_save
            break
    return checked, stopping.keep(), network.weight.item()


def test_a_state_that_is_worse_at_the_last_check_is_not_kept():
    _, kept, weight = rehearse([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.9], patience=2)
    assert kept is not None
    assert (kept.step, weight) == (14, 14)


def test_the_best_state_is_kept_once_the_loss_has_clearly_risen():
    checked, kept, weight = rehearse([1.0, 0.8, 0.9, 0.95, 1.0, 1.1], patience=2)
    assert checked == [2, 4, 6, 8]  # four checks an epoch of eight steps
    assert (kept.step, kept.epoch, weight) == (4, 0.5, 4)
    assert kept.log_loss == pytest.approx(0.95)  # .8 + the mean of 0, .1, .2, .3


def test_a_training_that_goes_on_improving_keeps_its_end():
    checked, kept, weight = rehearse([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3], patience=1)
    assert checked[-1] == kept.step == weight == 16


def test_one_bad_check_does_not_end_it():
    _, kept, _ = rehearse([1.0, 0.5, 0.9, 0.5, 0.9, 0.5, 0.4, 0.4], patience=2)
    assert kept.step == 16


def test_what_is_known_is_saved_with_a_checkpoint_and_taken_up(tmp_path: Path):
    """Best at step 4, interrupted after step 6; the resumed training ends where the whole one does."""
    losses = {2: 1.0, 4: 0.8, 6: 0.9, 8: 0.95}
    network = nn.Linear(1, 1, bias=False)
    args = SimpleNamespace(output_dir=str(tmp_path), num_train_epochs=2)

    def stopping() -> EarlyStopping:
        return EarlyStopping(
            network, lambda step: torch.full((4,), losses[step]), list("abcd"), patience=2
        )

    def train(callback: EarlyStopping, steps: range) -> SimpleNamespace:
        control = SimpleNamespace(should_training_stop=False, should_save=False)
        for step in steps:
            nn.init.constant_(network.weight, step)
            state = at(step)
            callback.on_step_end(args, state, control)
        callback.on_save(args, state, control)
        return control

    def at(step: int) -> SimpleNamespace:
        return SimpleNamespace(
            global_step=step, max_steps=16, epoch=step / 8,
            is_world_process_zero=True,
        )  # fmt: skip

    for step in (6, 8):
        (tmp_path / f"checkpoint-{step}").mkdir()
    train(stopping(), range(1, 7))
    resumed = stopping()
    resumed.on_train_begin(args, at(6), None)
    assert train(resumed, range(7, 9)).should_training_stop
    assert resumed.keep() == EarlyStop(step=4, epoch=0.5, log_loss=pytest.approx(0.8))
    assert network.weight.item() == 4
    # Resumed once it had ended, it ends again without another look.
    again = stopping()
    again.on_train_begin(args, at(8), None)
    control = SimpleNamespace(should_training_stop=False)
    again.on_step_end(args, at(10), control)
    assert control.should_training_stop
    assert again.keep() == resumed.keep()


def test_clearly_worse_is_by_a_standard_error_of_prompts():
    best = torch.zeros(4)
    # Mean 1, deviations 1, −1, 1, −1: a variance of 4/3 · 4/16 where each stands alone, so a
    # standard error of .577; the means of what is shifted are .6 and .55.
    more = torch.tensor([2.0, 0.0, 2.0, 0.0])
    assert clearly_worse(more, best, list("abcd"))
    assert clearly_worse(more - 0.4, best, list("abcd"))
    assert not clearly_worse(more - 0.45, best, list("abcd"))
    # Two prompts with sums of 2 and −2: 2/1 · 8/16, a standard error of 1.
    assert not clearly_worse(more - 0.1, best, list("abab"))
    assert clearly_worse(more + 0.1, best, list("abab"))
    # One prompt does not tell how prompts differ.
    assert not clearly_worse(more + 100, best, list("aaaa"))
    assert not clearly_worse(best, best, list("abcd"))


# --- what is set apart ------------------------------------------------------------------------


def test_prompts_set_apart_are_few_whole_and_stable():
    pairs = [pair(0, prompt=f"p{n % 40}", name=f"j{n}") for n in range(200)]
    learned, audit_set = split_for_stopping(pairs, share=0.15, least=20, seed=0)
    assert len({p.prompt for p in audit_set}) == 6
    assert not {p.prompt for p in audit_set} & {p.prompt for p in learned}
    assert len(learned) + len(audit_set) == 200
    assert split_for_stopping(pairs[::-1], share=0.15, least=20, seed=0)[1][::-1] == audit_set
    assert split_for_stopping(pairs, share=0.15, least=20, seed=1)[1] != audit_set


@pytest.mark.parametrize(("audit", "learned"), [(0, 850), (1, 850), (149, 850), (300, 700)])
def test_audit_prompts_are_part_of_the_share_and_never_learned_from(audit: int, learned: int):
    pairs = [pair(0, prompt=f"p{n}", name=f"j{n}", audit=n < audit) for n in range(1000)]
    found, audit_set = split_for_stopping(pairs, share=0.15, least=100, seed=0)
    assert (len(found), len(audit_set)) == (learned, 1000 - learned)
    assert not any(p.audit for p in found)


def test_audit_prompts_too_few_to_stop_by_are_not_learned_from_either():
    pairs = [pair(0, prompt=f"p{n}", name=f"j{n}", audit=n < 3) for n in range(60)]
    learned, audit_set = split_for_stopping(pairs, share=0.15, least=20, seed=0)
    assert (len(learned), [p.prompt for p in audit_set]) == (57, ["p0", "p1", "p2"])
    # Unless there is nothing else.
    all_audit = [pair(0, prompt=f"p{n}", name=f"j{n}", audit=True) for n in range(60)]
    assert split_for_stopping(all_audit, share=0.15, least=20, seed=0) == (all_audit, [])


def test_too_few_to_decide_anything_are_learned_from():
    pairs = [pair(0, prompt=f"p{n}", name=f"j{n}") for n in range(100)]
    assert split_for_stopping(pairs, share=0.15, least=20, seed=0) == (pairs, [])


@pytest.mark.parametrize(
    ("asked", "judged", "stops"), [(True, 20, True), (True, 19, False), (False, 20, False)]
)
def test_training_stops_early_where_it_is_asked_to_and_enough_is_set_apart(asked, judged, stops):
    audit_set = [pair(0)] * judged
    config = RewardConfig(early_stopping=asked, stopping_judgments=20)
    assert stopping_pairs(config, audit_set) == (audit_set if stops else ())


def test_bootstrap_counts_are_poisson_and_follow_from_the_judgment():
    drawn = [w for n in range(2500) for w in bootstrap_weights(f"j{n}", heads=4, seed=0)]
    share = {k: v / len(drawn) for k, v in Counter(drawn).items()}
    # e^−1 / k!: .368, .368, .184, .061; a share of .368 of 10,000 has a standard error of .005.
    for count, expected in ((0, 0.368), (1, 0.368), (2, 0.184), (3, 0.061)):
        assert share[count] == pytest.approx(expected, abs=0.015)
    assert bootstrap_weights("j7", heads=4, seed=0) == bootstrap_weights("j7", heads=4, seed=0)
    assert bootstrap_weights("j7", heads=6, seed=0)[:4] == bootstrap_weights("j7", heads=4, seed=0)
    # .368² + .368² + .184² + … = .31 of two independent draws agree.
    again = [w for n in range(2500) for w in bootstrap_weights(f"j{n}", heads=4, seed=1)]
    assert sum(a == b for a, b in zip(drawn, again, strict=True)) / 10_000 < 0.35
    assert bootstrap_weights("j7", heads=1, seed=0) == [1]


# --- in the stage -----------------------------------------------------------------------------


def test_the_stage_reports_what_it_kept_and_how_good_the_audit_is(audited: Any):
    directory, summary = audited
    # A quarter of 24 prompts is held out, 15% of the other 18 set apart: ten judgments per prompt.
    counts = summary.counts
    assert (counts.held_out_pairs, counts.apart_pairs, counts.pairs) == (60, 30, 150)
    assert summary.audit.pairs == 90
    assert summary.audit.measured_pairs == 150
    assert summary.audit.accuracy > 0.9
    events = [json.loads(line) for line in directory.events.read_text().splitlines()]
    told = [
        (e["step"], e["values"]["out_of_bag/log_loss"])
        for e in events
        if "out_of_bag/log_loss" in e.get("values", {})
    ]
    assert len(told) == 8  # by the first network, four times an epoch
    assert summary.kept.step == told[-1][0] == 38
    # The mean of four networks, of which the first was told of.
    assert summary.kept.log_loss == pytest.approx(told[-1][1], abs=0.02)


def test_the_audit_model_is_another_and_centered_alike(audited: Any):
    directory, _ = audited
    proxy, audit = (RewardModel.load(directory.model / part) for part in ("", "audit"))
    assert (proxy.members, audit.members) == (4, 1)
    asked, texts = ["Say 1"] * 2, ["zzbzzzcz", "abcdefgh"]
    ours, theirs = proxy(asked, texts), audit(asked, texts)
    assert ours[0] > ours[1]
    assert theirs[0] > theirs[1]
    assert abs(ours[0] - theirs[0]) > 1e-3


def test_few_judgments_make_no_audit_model_and_say_so(models: dict[str, str], tmp_path: Path):
    directory = RunDirectory.create(tmp_path, make_job("reward", models))
    give(directory, "judgments.parquet", make_judgments(48))
    give(directory, "prompts.parquet", make_prompts(4))
    with Report(directory) as report:
        summary = run(directory.job(), report, directory)
    assert (summary.audit, summary.kept, summary.counts.apart_pairs) == (None, None, 0)
    assert not (directory.model / "audit").exists()
    notes = {
        e["name"]
        for e in map(json.loads, directory.events.read_text().splitlines())
        if e["kind"] == "note"
    }
    assert {"audit", "early_stopping"} <= notes


def test_evaluation_reports_the_audits_reward_beside_the_reward(
    models: dict[str, str], audited: Any, tmp_path: Path
):
    job = make_job("evaluate", models | {"reward": str(audited[0].model)})
    directory = RunDirectory.create(tmp_path, job)
    give(directory, "prompts.parquet", make_prompts(4))
    with Report(directory) as report:
        found = evaluate.run(job, report, directory)
    audit = RewardModel.load(audited[0].model / "audit")
    scores = [
        audit([messages], [response])[0] for messages, response in answers(directory, role="policy")
    ]
    assert found.policy.audit_reward == pytest.approx(sum(scores) / len(scores), abs=1e-4)
    assert found.policy.audit_reward != found.policy.reward


def answers(directory: RunDirectory, *, role: str) -> list[tuple[Any, str]]:
    asked = pd.read_parquet(directory.inputs / "prompts.parquet").set_index("id")["messages"]
    given = pd.read_parquet(directory.outputs / "completions.parquet")
    name = directory.job().names[role]
    return [
        (read_messages(asked[row["prompt"]]), row["text"])
        for row in given.to_dict("records")
        if row["policy"] == name
    ]


@pytest.mark.parametrize("how", ["mean", "lower_bound", "min"])
def test_the_members_of_one_reward_model_reach_ppo(
    models: dict[str, str], audited: Any, tmp_path: Path, how: str
):
    found = first_update(
        models | {"reward": str(audited[0].model)}, tmp_path,
        shaping__ensemble=how, shaping__ensemble_lambda=0.5,
    )  # fmt: skip
    members = [found[f"reward/member_{n}"] for n in (1, 2, 3, 4)]
    mean, sd = sum(members) / 4, found["reward/ensemble_sd"]
    assert sd > 0
    if how == "min":
        assert found["reward/score"] <= min(members) + 1e-6
        assert found["reward/score"] < mean
    else:
        expected = mean - (0.5 * sd if how == "lower_bound" else 0)
        assert found["reward/score"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("network", "step"),
    [
        pytest.param(1, 17, marks=pytest.mark.slow),
        pytest.param(3, 5, marks=pytest.mark.slow),
        (3, 17),
    ],
)
def test_a_resumed_stage_ends_as_the_uninterrupted_one(
    audited: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: int, step: int
):
    """Killed in its first network, in a later one before any checkpoint of that, and after one."""

    class Interrupting(reward_trainer.ReportCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            super().on_step_end(args, state, control, **more)
            if f"network {network} of 4" in self._doing and state.global_step == step:
                raise Cancelled

    whole, summary = audited
    broken = RunDirectory.create(tmp_path, whole.job())
    with monkeypatch.context() as patched:
        patched.setattr(reward_trainer, "ReportCallback", Interrupting)
        with pytest.raises(Cancelled):
            work(broken)
    saved = broken.checkpoint / f"member-{network}" / "checkpoint-10" / "stopping.pt"
    assert saved.exists() == (step > 10)
    finished = sorted(path.parent.name for path in broken.checkpoint.glob("member-*/finished.json"))
    assert finished == [f"member-{n}" for n in range(1, network)]
    broken.write_job(type(whole.job())(**(vars(whole.job()) | {"resume": True, "attempt": 2})))
    found = work(broken)
    assert found == summary
    for part in ("", "member-2", "member-3", "member-4", "audit"):
        weights = [(d.model / part / "model.safetensors").read_bytes() for d in (whole, broken)]
        assert weights[0] == weights[1]
    assert told_metrics(broken) == told_metrics(whole)


def told_metrics(directory: RunDirectory) -> list[tuple[int, set[str]]]:
    """Which figures were told at which step, in order."""
    events = map(json.loads, directory.events.read_text().splitlines())
    return [(e["step"], set(e["values"])) for e in events if e["kind"] == "metrics"]


# --- length -----------------------------------------------------------------------------------


def test_correlation_with_length_in_pairs_by_hand():
    pairs = [pair(0, first_length=a, second_length=b) for a, b in ((3, 1), (1, 2), (4, 4))]
    # d = 1, 1, 5 and Δ = 2, −1, 0: (2 − 1) / √(27 · 5).
    found = length_correlation_in_pairs([2, 1, 5], [1, 0, 0], pairs)
    assert found == pytest.approx(1 / 135**0.5)
    assert length_correlation_in_pairs([1, 1, 1], [1, 1, 1], pairs) is None
    d, longer = torch.tensor([1.0, 1.0, 5.0]), torch.tensor([2.0, -1.0, 0.0])
    assert squared_correlation(d, longer).item() == pytest.approx(1 / 135)
    assert squared_correlation(torch.zeros(3), longer).item() == 0


def test_correlation_with_length_counts_each_response_once():
    """Rewards 0, 1, 2 of lengths 1, 5, 3: covariance 2/3 over √(2/3 · 8/3)."""

    def once(name: str, length: int) -> dict[str, Any]:
        return {name: f"r-{length}", f"{name}_ids": [length], f"{name}_length": length}

    pairs = [
        pair(0, **once("first", a), **once("second", b), name=f"j-{n}")
        for n, (a, b) in enumerate([(1, 5), (1, 3), (5, 1)])
    ]
    model: Any = SimpleNamespace(score=lambda ids: [{1: 0, 5: 1, 3: 2}[i] for (i,) in ids])
    found = reward._spread(model, pairs)
    assert found.length_correlation == pytest.approx(0.5)
    assert (found.judged_mean, found.judged_std) == (1, pytest.approx((2 / 3) ** 0.5))


def test_the_penalty_takes_the_correlation_with_length_out(models: dict[str, str], tmp_path: Path):
    """Responses with more z win and are longer, so that a reward may learn either."""
    rows = make_judgments(160, ties=0)
    for row in rows:
        winner = f"{row['outcome']}_text"
        row[winner] += "zb" * 6
    found = {}
    for weight in (0.0, 20.0):
        job = make_job(
            "reward", models, reward__length_penalty_weight=weight, reward__center=False,
            reward__audit_share=0, reward__epochs=2,
        )  # fmt: skip
        directory = RunDirectory.create(tmp_path / str(weight), job)
        give(directory, "judgments.parquet", rows)
        with Report(directory) as report:
            found[weight] = run(job, report, directory).length_correlation_in_pairs
    assert found[0.0] > 0.8
    assert abs(found[20.0]) < 0.5 * found[0.0]
