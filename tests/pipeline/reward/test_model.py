"""Reading, splitting, training, measuring, centering, saving and scoring."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from pipeline.config.reward import RewardConfig
from pipeline.models.hub import ModelUnavailable
from pipeline.models.padding import pad_right
from pipeline.models.text import ChatTokenizer, LengthLimits, TooLong
from pipeline.ppo.network.packing import last_states_of_pairs
from pipeline.reward.data import (
    JudgedPair,
    PairCollator,
    notes_on_kinds,
    read_pairs,
    resolved,
    split_by_prompt,
    training_rows,
)
from pipeline.reward.likelihood import BOTH_BAD, FIRST, SECOND, TIE, Likelihood
from pipeline.reward.likelihood_parameters import Ties
from pipeline.reward.network import from_language_model, load_network
from pipeline.reward.scoring import RewardModel
from pipeline.reward.trainer import Training, likelihood_of, train_network
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.stages.reward import run
from tests.helpers.judged_pairs import pair
from tests.helpers.same_passes import DROPPING, passes_agree, save_dropping
from tests.helpers.stage_inputs import give, make_job, make_judgments, make_prompts, tiny_models
from tests.helpers.tiny import save_tiny, tiny_tokenizer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models(tmp_path_factory.mktemp("models"))


def stage(job: Job, path: Path, judgments: list[dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
    directory = RunDirectory.create(path, job)
    give(directory, "judgments.parquet", judgments)
    give(directory, "prompts.parquet", make_prompts(6))
    report = Report(directory)
    try:
        return directory, run(job, report, directory)
    finally:
        report.close()


def read(rows: list[dict[str, Any]], path: Path, *, max_tokens: int = 4096) -> list[JudgedPair]:
    directory = RunDirectory.create(path, make_job("reward", {}))
    give(directory, "judgments.parquet", rows)
    chat = ChatTokenizer(tiny_tokenizer())
    return read_pairs(
        directory.inputs / "judgments.parquet",
        chat,
        LengthLimits(limits={"reward.max_tokens": max_tokens}),
    )


# --- the whole stage --------------------------------------------------------------------------


def test_a_planted_preference_is_learned_and_survives_saving(
    models: dict[str, str], tmp_path: Path
):
    job = make_job(
        "reward", models, reward__epochs=3, reward__held_out_share=0.25, reward__audit_share=0
    )
    judgments = make_judgments(240)
    directory, summary = stage(job, tmp_path, judgments)
    # The head starts at zero, so before training every pair is a coin toss: accuracy .5.
    assert summary.held_out.accuracy > 0.95
    assert summary.held_out.log_loss < 0.75  # the best constant guess at 40/40/20 costs 1.05 nats
    assert summary.held_out.ece < 0.15
    assert (summary.counts.pairs, summary.counts.held_out_pairs) == (180, 60)
    # Every judgment prefers a response or does not; the accuracy is of those that do.
    preferred = pd.read_parquet(directory.outputs / "held_out.parquet")["outcome"]
    assert summary.counts.held_out_preferences == preferred.isin(["first", "second"]).sum() < 60
    assert summary.counts.ties == sum(row["outcome"] in ("tie", "both_bad") for row in judgments)

    model = RewardModel.load(directory.model)
    assert model.network.ties().item() == pytest.approx(summary.counts.theta, abs=1e-6)
    good, bad = model(["Say 1"] * 2, ["zzbzzzcz", "abcdefgh"])
    assert good > bad + 1
    events = [json.loads(line) for line in directory.events.read_text().splitlines()]
    accuracies = [
        e["values"]["held_out/accuracy"]
        for e in events
        if "held_out/accuracy" in e.get("values", {})
    ]
    assert len(accuracies) == 3
    assert accuracies[-1] == summary.held_out.accuracy


def test_the_saved_model_is_centered_on_the_references_own_responses(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[tuple[Any, list[str]]] = []
    original = RewardModel.member_scores

    def spy(self: RewardModel, conversations: Any, completions: Any) -> list[list[float]]:
        seen.append((conversations, completions))
        return original(self, conversations, completions)

    monkeypatch.setattr(RewardModel, "member_scores", spy)
    directory, summary = stage(make_job("reward", models), tmp_path, make_judgments(48))
    assert summary.centering.shift != 0
    asked = seen[0]
    heads = RewardModel.load(directory.model).member_scores(*asked)
    assert [len(rewards) for rewards in heads] == [6] * 4
    assert [sum(rewards) / 6 for rewards in heads] == pytest.approx([0] * 4, abs=1e-5)
    assert heads[0] != heads[1]


def test_transformers_own_class_loads_it_and_differs_by_the_shift_only(
    models: dict[str, str], tmp_path: Path
):
    job = make_job("reward", models, reward__ensemble="heads")
    directory, summary = stage(job, tmp_path, make_judgments(48))
    model = RewardModel.load(directory.model)
    assert (model.members, len(model.networks)) == (4, 1)
    stock = AutoModelForSequenceClassification.from_pretrained(directory.model)
    texts = [model.chat.chat("Say 1", text).ids for text in ("zz", "abcabc")]
    level = model.network.score.bias.item()
    assert summary.centering.shift != 0
    for ids, reward in zip(texts, model.score(texts), strict=True):
        plain = stock(torch.tensor([ids])).logits
        assert plain.shape == (1, 1)
        assert reward - plain.item() == pytest.approx(level, abs=1e-4)


def test_auto_reads_strengths_where_most_preferences_state_one():
    def chosen(strengths: list[int], **settings: Any) -> str:
        pairs = [pair(FIRST if n % 2 else SECOND, strength=s) for n, s in enumerate(strengths)]
        ties = [pair(TIE), pair(BOTH_BAD), pair(TIE)]  # a tie has none to state
        return resolved(RewardConfig(**settings), pairs + ties).tie_model

    assert chosen([1, 0, 3, 0]) == "ordinal"
    assert chosen([1, 0, 0, 0, 3]) == "rao_kupper"
    assert chosen([]) == "rao_kupper"
    assert chosen([1, 2, 3], margin=1.0) == "rao_kupper"
    assert chosen([1, 2, 3], tie_model="davidson") == "davidson"
    with pytest.raises(ValueError, match="must be resolved"):
        likelihood_of(RewardConfig())


def test_a_stage_says_which_tie_model_auto_was(models: dict[str, str], tmp_path: Path):
    job = make_job("reward", models, reward__center=False)
    judgments = make_judgments(48)
    for row in judgments:
        row["strength"] = 2 if row["outcome"] in ("first", "second") else None
    directory, summary = stage(job, tmp_path, judgments)
    assert summary.counts.tie_model == "ordinal"
    assert load_network(directory.model).likelihood.tie_model == "ordinal"


@pytest.mark.parametrize("tie_model", ["drop", "half", "davidson", "ordinal"])
def test_other_tie_models_train_too(models: dict[str, str], tmp_path: Path, tie_model: str):
    job = make_job("reward", models, reward__tie_model=tie_model, reward__center=False)
    judgments = make_judgments(96)
    for row in judgments:
        row["strength"] = 2 if row["outcome"] in ("first", "second") else None
    directory, summary = stage(job, tmp_path, judgments)
    assert (summary.counts.theta is None) == (tie_model in ("drop", "half"))
    assert summary.held_out.accuracy > 0.8
    assert summary.centering is None
    network = load_network(directory.model)
    assert network.likelihood.tie_model == tie_model
    # Everybody said "clearly": the thresholds of strength learned that, from wherever they began.
    moved = network.ties.values().gap_clearly - Ties().values().gap_clearly
    assert (abs(moved.item()) > 0.1) == (tie_model == "ordinal")


def test_a_model_saved_with_a_threshold_alone_still_loads(models: dict[str, str], tmp_path: Path):
    chat = ChatTokenizer.load(models["reference"])
    network = from_language_model(models["reference"], chat)
    with torch.no_grad():
        torch.nn.init.normal_(network.score.weight)
        network.ties.raw.fill_(0.3)
    network.save_pretrained(tmp_path)
    chat.tokenizer.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    later = {"ties.gaps", "ties.level", "ties.sharpness"}
    assert later <= tensors.keys()
    old = {name: tensor for name, tensor in tensors.items() if name not in later}
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("reward_heads", "reward_likelihood"):
        config.pop(name, None)
    (tmp_path / "config.json").write_text(json.dumps(config))

    found = load_network(tmp_path)
    assert found.ties().item() == pytest.approx(math.log1p(math.exp(0.3)))
    assert found.ties.values()[1:] == Ties().values()[1:]
    assert found.likelihood == Likelihood(tie_model="rao_kupper", both_bad="tie")
    assert found.members == 1
    assert torch.equal(found.score.weight, network.score.weight)


def test_no_prompt_to_center_on_is_an_error(models: dict[str, str], tmp_path: Path):
    job = make_job("reward", models)
    directory = RunDirectory.create(tmp_path, job)
    give(directory, "judgments.parquet", make_judgments(24))
    report = Report(directory)
    with pytest.raises(ValueError, match=r"reward\.center=false"):
        run(job, report, directory)
    report.close()


# --- reading and splitting --------------------------------------------------------------------


def test_no_pair_is_dropped_or_cut_over_1024_tokens(models: dict[str, str], tmp_path: Path):
    rows = make_judgments(6, ties=0, prompts=6)
    for row in rows[:3]:
        row["first_text"] = "z" * 1500
    pairs = read(rows, tmp_path)
    assert [len(p.first_ids) > 1500 for p in pairs] == [True] * 3 + [False] * 3
    chat = ChatTokenizer.load(models["reference"])
    network = from_language_model(models["reference"], chat)
    seen: list[int] = []
    network.register_forward_pre_hook(
        lambda _, __, inputs: seen.extend(inputs["attention_mask"].sum(1).tolist()),
        with_kwargs=True,
    )
    report = Report(RunDirectory(tmp_path / "run"))
    config = RewardConfig(epochs=1, batch=2)
    training = Training(
        base=models["reference"], chat=chat, config=config, checkpoints=tmp_path / "c",
        report=report, device=CPU,
    )  # fmt: skip
    train_network(network, training, pairs)
    report.close()
    # Each text of each pair went through the model once, at its full length.
    lengths = [len(ids) for p in pairs for ids in (p.first_ids, p.second_ids)]
    assert sorted(seen) == sorted(lengths)


def test_a_pair_over_the_limit_is_an_error_that_counts(tmp_path: Path):
    rows = make_judgments(4)
    rows[1]["second_text"] = "z" * 200
    with pytest.raises(TooLong, match=r"1 of 4 judged pairs .* reward\.max_tokens=128"):
        read(rows, tmp_path, max_tokens=128)


def test_both_bad_is_not_decisive_and_first_is_first(tmp_path: Path):
    rows = make_judgments(4)
    for row, outcome in zip(rows, ("first", "second", "tie", "both_bad"), strict=True):
        row["outcome"] = outcome
    pairs = read(rows, tmp_path)
    assert [p.outcome for p in pairs] == [FIRST, SECOND, TIE, BOTH_BAD]
    assert [p.decisive for p in pairs] == [True, True, False, False]


def test_drop_leaves_out_ties_and_nothing_else():
    pairs = [pair(FIRST), pair(TIE), pair(SECOND)]
    assert [row["outcome"] for row in training_rows(pairs, "drop")] == [FIRST, SECOND]
    assert len(training_rows(pairs, "half")) == len(training_rows(pairs, "rao_kupper")) == 3


def test_no_prompt_is_on_both_sides_of_the_split():
    pairs = [pair(FIRST, prompt=f"p{i % 20}", name=str(i)) for i in range(200)]
    train, held_out = split_by_prompt(pairs, held_out_share=0.15, seed=0)
    assert len({p.prompt for p in held_out}) == 3
    assert not {p.prompt for p in train} & {p.prompt for p in held_out}
    assert len(train) + len(held_out) == 200


def test_held_out_prompts_mostly_stay_held_out_as_labels_come_in():
    few = [pair(FIRST, prompt=f"p{i}") for i in range(100)]
    more = [pair(FIRST, prompt=f"p{i}") for i in range(120)]
    before, after = (
        {p.prompt for p in split_by_prompt(pairs, held_out_share=0.2, seed=0)[1]}
        for pairs in (few, more)
    )
    assert len(before) == 20
    assert len(before - after) <= 4


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([pair(TIE, prompt="a"), pair(TIE, prompt="b")], "None of the 2 judgments prefers"),
        ([pair(FIRST), pair(SECOND)], "All judgments are on one prompt"),
    ],
)
def test_too_little_to_learn_is_one_clear_sentence(pairs: list[JudgedPair], says: str):
    with pytest.raises(ValueError, match=says):
        split_by_prompt(pairs, held_out_share=0.15, seed=0)


def test_decisive_judgments_on_one_prompt_only_are_refused_or_all_trained_on():
    pairs = [pair(FIRST, prompt="a"), pair(TIE, prompt="b")]
    verdicts = set()
    for seed in range(8):
        try:
            train, _ = split_by_prompt(pairs, held_out_share=0.5, seed=seed)
            verdicts.add(train[0].prompt)
        except ValueError as error:
            verdicts.add(str(error)[:27])
    assert verdicts == {"a", "Every judgment that prefers"}


def test_strengths_sides_and_annotators_are_read(tmp_path: Path):
    rows = make_judgments(3)
    for row, strength, swapped in zip(rows, (3, None, 1), (True, False, False), strict=True):
        row |= {"strength": strength, "shown_swapped": swapped, "annotator": f"a{strength}"}
        row["prompt_role"] = "audit" if swapped else "train"
    pairs = read(rows, tmp_path)
    assert [p.strength for p in pairs] == [3, 0, 1]
    assert [p.side for p in pairs] == [-1, 1, 1]
    assert [p.annotator for p in pairs] == ["a3", "aNone", "a1"]
    assert [p.audit for p in pairs] == [True, False, False]
    for row in rows:
        del row["shown_swapped"]
    with pytest.raises(ValueError, match="lacks the columns shown_swapped"):
        read(rows, tmp_path / "lacking")


def test_a_batch_holds_the_firsts_then_the_seconds():
    pairs = [
        pair(FIRST, first_ids=[5, 6, 0], second_ids=[7], first_length=3, strength=2),
        pair(TIE, first_ids=[8], second_ids=[9, 9], second_length=2, side=-1, annotator="a-0"),
    ]
    batch = PairCollator(pad_id=0)(training_rows(pairs, "rao_kupper"))
    assert batch["input_ids"].tolist() == [[5, 6, 0], [8, 0, 0], [7, 0, 0], [9, 9, 0]]
    # The first text ends with a real 0, which a mask made from ids would take for padding.
    assert batch["attention_mask"].sum(1).tolist() == [3, 1, 1, 2]
    assert batch["outcomes"].tolist() == [FIRST, TIE]
    assert batch["strength"].tolist() == [2, 0]
    assert batch["side"].tolist() == [1, -1]
    assert batch["annotators"].tolist() == [1, 0]  # in the order of their ids
    assert batch["longer"].tolist() == [2, -1]
    assert batch["weights"].tolist() == [[1], [1]]


# --- the network ------------------------------------------------------------------------------


def test_rewards_do_not_depend_on_padding_even_where_pad_is_end(tmp_path: Path):
    path = str(save_tiny(tmp_path / "m"))
    chat = ChatTokenizer.load(path)
    chat.tokenizer.pad_token = chat.tokenizer.eos_token
    network = from_language_model(path, chat)
    torch.nn.init.normal_(network.score.weight)
    model = RewardModel(network, chat, CPU)
    texts = [chat.chat("Hi", text).ids for text in ("yes", "a much longer answer", "")]
    alone = [model.score([ids])[0] for ids in texts]
    assert model.score(texts) == pytest.approx(alone, abs=1e-5)
    # The reward is read at the end of the turn, not at the token before it.
    without_end = [model.score([ids[:-1]])[0] for ids in texts]
    assert all(abs(a - b) > 1e-3 for a, b in zip(alone, without_end, strict=True))


def test_packed_texts_get_the_rewards_of_padded_ones(tmp_path: Path, monkeypatch):
    path = str(save_tiny(tmp_path / "m"))
    chat = ChatTokenizer.load(path)
    network = from_language_model(path, chat)
    torch.nn.init.normal_(network.score.weight)
    texts = [chat.chat("Hi", "word " * count).ids for count in (1, 9, 3, 30)]
    packed = RewardModel(network, chat, CPU).score(texts)
    monkeypatch.setattr("pipeline.reward.scoring.reads_packed", lambda *_: False)
    padded = RewardModel(network, chat, CPU)
    shapes: list[torch.Size] = []
    network.base_model.register_forward_pre_hook(
        lambda _, __, inputs: shapes.append(inputs["input_ids"].shape), with_kwargs=True
    )
    assert padded.score(texts) == pytest.approx(packed, abs=1e-5)
    assert shapes == [(4, max(map(len, texts)))]
    assert max(packed) - min(packed) > 0.01


def test_a_packed_training_pass_gives_the_rewards_and_gradients_of_padded_texts(
    models: dict[str, str],
):
    """Also where a text begins with the whole other one, and where both are equal."""
    chat = ChatTokenizer.load(models["reference"])
    network = from_language_model(models["reference"], chat).train()
    torch.manual_seed(0)
    torch.nn.init.normal_(network.score.weight)
    first = [[5, 6, 7, 8, 9, 10], [5, 6, 7, 8], [9, 9, 4], [3, 7]]
    second = [[5, 6, 11, 12], [5, 6, 7, 8, 9], [9, 9, 4], [8, 8, 8, 8]]
    batch = pad_right([*first, *second], chat.pad_id)

    def learned(*, packs: bool) -> list[torch.Tensor]:
        network.packs = packs
        network.zero_grad()
        rewards = network(**batch).logits.squeeze(1)
        (rewards * torch.arange(1.0, 9)).sum().backward()
        known = [p.grad.clone() for p in network.parameters() if p.grad is not None]
        return [rewards.detach(), *known]

    for packed, padded in zip(learned(packs=True), learned(packs=False), strict=True):
        torch.testing.assert_close(packed, padded, rtol=1e-4, atol=1e-4)


def test_a_packed_training_pass_reads_the_beginning_that_two_texts_share_once(
    models: dict[str, str],
):
    network = from_language_model(models["reference"], ChatTokenizer.load(models["reference"]))
    read: list[int] = []
    network.base_model.register_forward_pre_hook(
        lambda _, __, named: read.append(named["input_ids"].numel()), with_kwargs=True
    )
    batch = pad_right([[5, 6, 7, 8], [4, 4], [5, 6, 9], [3, 3, 3]], 0)
    last_states_of_pairs(network.base_model, batch["input_ids"], batch["attention_mask"])
    assert read == [4 + 1 + 2 + 3]


def test_remembered_texts_are_scored_without_a_pass_also_when_heads_changed(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    chat = ChatTokenizer.load(models["reference"])
    networks = [from_language_model(models["reference"], chat) for _ in range(2)]
    for number, network in enumerate(networks):
        torch.manual_seed(number)
        torch.nn.init.normal_(network.score.weight)
    model = RewardModel(networks[0], chat, CPU, peers=networks[1:])
    texts = [[5, 6, 7], [8, 9], [5, 6, 7], [4, 4, 4, 4]]
    before = model.rewards(texts)
    model.remember(texts)
    model.rescale(2.0)
    model.shift([1.0, 3.0])
    monkeypatch.setattr(model, "_pass", lambda *_: pytest.fail("a pass"))
    for k, by in enumerate((1.0, 3.0)):
        assert model.rewards(texts[1:])[k] == pytest.approx([2 * r + by for r in before[k][1:]])
    with pytest.raises(pytest.fail.Exception, match="a pass"):
        model.rewards([*texts, [7]])


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_is_off_while_a_reward_model_is_trained(name: str, tmp_path: Path):
    path = save_dropping(tmp_path / "m", name)
    chat = ChatTokenizer.load(path)
    network = from_language_model(path, chat)
    torch.nn.init.normal_(network.score.weight)
    assert passes_agree(network)
    RewardModel(network, chat, CPU).save(tmp_path / "reward")
    assert passes_agree(load_network(tmp_path / "reward"))


def test_a_language_model_is_no_reward_model(models: dict[str, str]):
    with pytest.raises(ModelUnavailable, match="is a LlamaForCausalLM, not a reward model"):
        load_network(models["reference"])


def test_shifting_the_rewards_leaves_every_probability_as_it_was(models: dict[str, str]):
    chat = ChatTokenizer.load(models["reference"])
    network = from_language_model(models["reference"], chat, heads=2)
    torch.nn.init.normal_(network.heads.weight)
    torch.nn.init.normal_(network.score.weight)
    model, texts = RewardModel(network, chat, CPU), [[5, 6, 7], [8, 9]]
    likelihood = Likelihood(tie_model="rao_kupper", both_bad="absolute")

    def bad() -> float:
        first, second = (torch.tensor([reward]) for reward in model.score(texts))
        ties = network.ties.values()
        return likelihood.log_likelihood(
            first - second, torch.tensor([BOTH_BAD]), ties=ties, level=(first + second) / 2
        ).item()

    before, rewards = bad(), model.score(texts)
    network.shift(torch.tensor([1.0, 3.0]))
    assert model.score(texts) == pytest.approx([reward + 2 for reward in rewards], abs=1e-5)
    assert bad() == pytest.approx(before, abs=1e-5)


def test_the_stage_says_whose_judgments_it_learned_from(models: dict[str, str], tmp_path: Path):
    job = make_job("reward", models, reward__center=False)
    directory = RunDirectory.create(tmp_path / "run", job)
    give(directory, "judgments.parquet", make_judgments(48))
    kinds = {"used": {"model": 8, "person": 40}, "left_out": {}}
    (directory.inputs / "judged_by.json").write_text(json.dumps(kinds))
    with Report(directory) as report:
        summary = run(job, report, directory)
    assert summary.judged_by == kinds
    (note,) = (
        event
        for event in map(json.loads, directory.events.read_text().splitlines())
        if event["kind"] == "note" and event["name"] == "judged_by"
    )
    # Mixed kinds are worth a warning; people alone would be plain news.
    assert (note["note"], note["message"]) == (
        "warning",
        "learned from judgments by model 8, person 40",
    )
    assert notes_on_kinds({"used": {"person": 3}, "left_out": {}})[0].kind == "info"
