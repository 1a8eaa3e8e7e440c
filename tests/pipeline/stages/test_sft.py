"""Supervised fine-tuning: what is learned, what counts in the loss, resume."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from pipeline.config.sections import SFTConfig
from pipeline.models.hf_trainer import divide_batch, last_checkpoint
from pipeline.models.text import ChatTokenizer, Encoded, TooLong
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.stages import sft
from pipeline.stages.sft import LengthSortedBatches, cross_entropy, train_sft
from tests.helpers.tiny import tiny_model, tiny_tokenizer

CONFIG = SFTConfig(epochs=1.0, lr=1e-2, batch=4, warmup=0.0)
EXAMPLES = [(f"Say {i}", "yes") for i in range(60)]


@pytest.fixture
def report(tmp_path: Path):
    made = Report(RunDirectory(tmp_path / "run"))
    yield made
    made.close()


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def test_only_the_response_is_learned(tmp_path: Path, report: Report):
    model, chat = tiny_model(), ChatTokenizer(tiny_tokenizer())
    prompts = [Encoded(chat.prompt(text), prompt_tokens=1) for text, _ in EXAMPLES]
    before = cross_entropy(model, prompts, pad_id=chat.pad_id)
    summary = train_sft(model, chat, EXAMPLES, CONFIG, tmp_path / "checkpoint", report)
    after = cross_entropy(model, prompts, pad_id=chat.pad_id)
    assert (summary.examples, summary.held_out_examples) == (57, 3)
    assert summary.held_out_loss < 3.0  # from log 261 = 5.6
    # "Say 12" was never a target: it has not become likelier, let alone as likely as "yes".
    assert after > before - 0.5
    assert model.config.use_cache


def test_a_tokenizer_does_as_well_as_a_chat_tokenizer(tmp_path: Path, report: Report):
    summaries = [
        train_sft(tiny_model(), t, EXAMPLES[:8], CONFIG, tmp_path / str(i), report)
        for i, t in enumerate((tiny_tokenizer(), ChatTokenizer(tiny_tokenizer())))
    ]
    assert summaries[0] == summaries[1]
    assert summaries[0].held_out_loss is None  # eight prompts are too few to hold any out


def test_cross_entropy_by_hand():
    # Uniform logits: log 261 for every token, whatever the padding and the batch.
    model = tiny_model()
    torch.nn.init.zeros_(model.lm_head.weight)
    texts = [Encoded([2, 3, 4, 5], prompt_tokens=1), Encoded([2, 3], prompt_tokens=1)]
    assert cross_entropy(model, texts, pad_id=0) == pytest.approx(math.log(261), abs=1e-5)


def test_cross_entropy_is_of_the_response_tokens_in_their_context():
    model = tiny_model()
    ids = torch.tensor([[7, 8, 9, 10, 11]])
    logprobs = model(ids).logits.log_softmax(-1)
    # Tokens 10 and 11 are predicted at places 2 and 3.
    expected = -(logprobs[0, 2, 10] + logprobs[0, 3, 11]).item() / 2
    found = cross_entropy(model, [Encoded(ids[0].tolist(), prompt_tokens=3)], pad_id=0)
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_long_demonstration_is_an_error(tmp_path: Path, report: Report):
    config = SFTConfig(max_tokens=12)
    with pytest.raises(TooLong, match=r"1 of 2 demonstrations .* sft\.max_tokens=12"):
        train_sft(
            tiny_model(),
            tiny_tokenizer(),
            [("Hi", "yes"), ("Hi", "y" * 12)],
            config,
            tmp_path,
            report,
        )
    with pytest.raises(TooLong, match="the model's context=8"):
        train_sft(
            tiny_model(context=8),
            tiny_tokenizer(),
            [("Hi", "yes please")],
            CONFIG,
            tmp_path,
            report,
        )


def test_no_demonstrations_is_an_error(tmp_path: Path, report: Report):
    with pytest.raises(ValueError, match="no demonstrations"):
        train_sft(tiny_model(), tiny_tokenizer(), [], CONFIG, tmp_path, report)


def test_a_resume_ends_where_the_whole_run_ends_and_tells_each_step_once(tmp_path: Path):
    """57 examples in batches of 4 are 15 steps, with a checkpoint at 10 and at the end."""
    ends, logs = [], []
    for resume in (False, True):
        directory = RunDirectory(tmp_path / "run")
        report = Report(directory, attempt=1 + resume)
        model = tiny_model()
        if resume:
            last = last_checkpoint(directory.checkpoint)
            assert last is not None
            assert last.name == "checkpoint-15"
            # As if killed while the last checkpoint was being written: it has no mark.
            (last / "report.json").unlink()
        train_sft(
            model, tiny_tokenizer(), EXAMPLES, CONFIG, directory.checkpoint, report, resume=resume
        )
        report.close()
        ends.append(weights(model))
        lines = [json.loads(line) for line in directory.events.read_text().splitlines()]
        logs.append([(e["step"], e["values"]) for e in lines if e["kind"] == "metrics"])
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)
    assert logs[0] == logs[1]
    assert [step for step, _ in logs[1]] == [*range(1, 16), 15]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_resume_passes_over_a_damaged_checkpoint_and_says_so(
    tmp_path: Path, name: str, damage: str
):
    """Of 15 steps there are checkpoints at 10 and at the end."""
    directory, whole = RunDirectory(tmp_path / "run"), tiny_model()
    with Report(directory) as report:
        train_sft(whole, tiny_tokenizer(), EXAMPLES, CONFIG, directory.checkpoint, report)
    newest = directory.checkpoint / "checkpoint-15"
    spoil(newest / name, damage)
    again = tiny_model()
    with Report(directory, attempt=2) as report:
        train_sft(
            again, tiny_tokenizer(), EXAMPLES, CONFIG, directory.checkpoint, report, resume=True
        )
    torch.testing.assert_close(weights(again), weights(whole), rtol=0, atol=0)
    lines = [json.loads(line) for line in directory.events.read_text().splitlines()]
    (note,) = [e for e in lines if e["kind"] == "note" and e["name"] == "damaged_checkpoint"]
    assert note["note"] == "warning"
    assert name in note["message"]
    assert note["payload"] == {"damaged": "checkpoint-15", "used": "checkpoint-10"}
    assert "checkpoint-15" in directory.log.read_text()


def test_without_a_checkpoint_that_can_be_read_a_resume_says_what_to_do(
    tmp_path: Path, report: Report
):
    train_sft(tiny_model(), tiny_tokenizer(), EXAMPLES, CONFIG, tmp_path / "c", report)
    for folder in (tmp_path / "c").glob("checkpoint-*"):
        spoil(folder / "model.safetensors", "cut")
    with pytest.raises(ValueError, match=r"checkpoint-15.*checkpoint-10.*start.* again"):
        train_sft(
            tiny_model(), tiny_tokenizer(), EXAMPLES, CONFIG, tmp_path / "c", report, resume=True
        )


def spoil(file: Path, damage: str) -> None:
    data = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 255
        file.write_bytes(data)


@pytest.mark.parametrize(
    ("batch", "longest", "expected"),
    [(16, 512, 16), (16, 2048, 8), (12, 4096, 4), (16, 100_000, 1)],
)
def test_a_batch_is_divided_until_it_fits(batch: int, longest: int, expected: int):
    assert divide_batch(batch, longest=longest, tokens=16_384) == expected


def test_an_optimizer_step_sees_random_rows_sorted_by_length():
    lengths = [n % 17 for n in range(100)]
    order = LengthSortedBatches(lengths, 8, seed=0)
    first = list(order)
    assert sorted(first) == list(range(100))
    steps = [[lengths[i] for i in first[start : start + 8]] for start in range(0, 100, 8)]
    assert all(step == sorted(step, reverse=True) for step in steps)
    # Sorted over all rows, a step would hold one or two lengths.
    assert min(len(set(step)) for step in steps[:-1]) >= 4
    assert list(order) == first
    order.set_epoch(1)
    assert list(order) != first


def test_leaving_out_trls_metrics_changes_no_weight(
    tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch
):
    examples = [(f"Say {i}", "yes" * (1 + i % 7)) for i in range(24)]

    def trained(name: str) -> torch.Tensor:
        model = tiny_model()
        train_sft(model, tiny_tokenizer(), examples, CONFIG, tmp_path / name, report)
        return weights(model)

    ours = trained("ours")
    monkeypatch.delattr(sft._Trainer, "compute_loss")
    # Adam divides by a root of tiny squares: the rounding of a sum grows to 1e-5 here.
    torch.testing.assert_close(trained("trl"), ours, rtol=0, atol=1e-4)
