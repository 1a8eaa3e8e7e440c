"""Supervised fine-tuning on demonstrations, which produces the frozen reference.

The loop decides whether it runs (`Loop._stage_due`, `Loop._fine_tunes` in pipeline/loop/loop.py): once,
before the first sampling, if `sft.enabled` is set (the default) and demonstrations were imported.
Otherwise the base model is the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pandas as pd
import torch
import trl
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import Trainer

from pipeline.config.sections import SFTConfig
from pipeline.models.devices import pick_device
from pipeline.models.hf_trainer import (
    ReportCallback,
    save_policy,
    tokens_at_once,
    train,
    trainer_arguments,
)
from pipeline.models.likelihoods import response_logprobs
from pipeline.models.loading import context_length, load_causal_lm
from pipeline.models.text import (
    CONTEXT,
    ChatTokenizer,
    Encoded,
    LengthLimits,
    Messages,
    read_messages,
)
from pipeline.runs.rundir import Job, Report, RunDirectory
from storage.records import as_messages, digest, messages_json

_HELD_OUT_SHARE = 0.05
_MAX_HELD_OUT = 200


def run(job: Job, report: Report, directory: RunDirectory) -> SFTSummary:
    """Fine-tune the base model on inputs/examples.parquet (prompt, messages, response); saves model/."""
    path = job.model("policy")
    device = pick_device(job.config.worker.device)
    frame = pd.read_parquet(directory.inputs / "examples.parquet")
    examples = [
        (read_messages(messages), response)
        for messages, response in zip(frame["messages"], frame["response"], strict=True)
    ]
    model = load_causal_lm(path, device=device)
    chat = ChatTokenizer.load(path)
    summary = train_sft(
        model,
        chat,
        examples,
        job.config.sft,
        directory.checkpoint,
        report,
        seed=job.seed,
        resume=job.resume,
        device=device,
        prompts=list(frame["prompt"]) if "prompt" in frame else None,
        skip_long=job.config.model.long_rows == "skip",
    )
    save_policy(model, chat.tokenizer, directory.model)
    return summary


@dataclass(frozen=True, kw_only=True)
class SFTSummary:
    """The summary of an SFT stage; losses are nats per response token."""

    examples: int
    """Demonstrations that the model learned from."""
    held_out_examples: int
    loss: float
    """Mean over the run."""
    held_out_loss: float | None
    """None without held-out examples."""


def train_sft(
    model: Any,
    tokenizer: Any,
    examples: Sequence[tuple[Messages, str]],
    config: SFTConfig,
    directory: Path,
    report: Report,
    *,
    seed: int = 0,
    resume: bool = False,
    device: torch.device | str = "cpu",
    prompts: Sequence[str] | None = None,
    skip_long: bool = False,
) -> SFTSummary:
    """Train `model` in place on (conversation, response) pairs.

    `tokenizer` is a transformers tokenizer or a `ChatTokenizer`.  Only response tokens count in
    the loss, including the end of the turn.  Checkpoints go to `directory`.  Five percent of the
    prompts, at most 200, are held out for `held_out_loss` if there are 20 or more.

    Raises ValueError without examples, and `TooLong` for rows over `config.max_tokens` or the
    model's context, named by `prompts` or by row; with `skip_long` they are left out with a warning.
    """
    if not examples:
        raise ValueError("there are no demonstrations to fine-tune on; import some with --sft")
    chat = tokenizer if isinstance(tokenizer, ChatTokenizer) else ChatTokenizer(tokenizer)
    encoded = [chat.chat(messages, response) for messages, response in examples]

    def warn(sentence: str) -> None:
        report.log(sentence)
        if not resume:  # a resumed run's events begin at its checkpoint
            report.note("warning", "long_rows", sentence)

    limits = {"sft.max_tokens": config.max_tokens, CONTEXT: context_length(model)}
    names = [
        f"row {i + 1}" + (f" (prompt {prompts[i]})" if prompts else "") for i in range(len(encoded))
    ]
    length_limits = LengthLimits(limits=limits, skip=skip_long, warn=warn)
    fitting = length_limits.fitting([len(e.ids) for e in encoded], names, what="demonstrations")
    held_out_rows = _held_out_rows([examples[i] for i in fitting], seed)
    training = [encoded[i] for n, i in enumerate(fitting) if n not in held_out_rows]
    held_out = [encoded[i] for n, i in enumerate(fitting) if n in held_out_rows]
    longest = max(len(encoded[i].ids) for i in fitting)
    trainer = _trainer(
        model, chat, training, config, directory, report, longest=longest, seed=seed, device=device
    )
    loss = train(trainer, directory, report, resume=resume)
    model.eval()
    model.config.use_cache = True  # the trainer switched it off
    held_out_loss = cross_entropy(model, held_out, pad_id=chat.pad_id) if held_out else None
    if held_out_loss is not None:
        report.metrics(trainer.state.global_step, {"held_out/loss": held_out_loss})
    return SFTSummary(
        examples=len(training),
        held_out_examples=len(held_out),
        loss=loss,
        held_out_loss=held_out_loss,
    )


def _trainer(
    model: Any,
    chat: ChatTokenizer,
    training: Sequence[Encoded],
    config: SFTConfig,
    checkpoints: Path,
    report: Report,
    *,
    longest: int,
    seed: int,
    device: torch.device | str,
) -> _Trainer:
    arguments = trainer_arguments(
        model,
        checkpoints=checkpoints,
        examples=len(training),
        batch=config.batch,
        longest=longest,
        tokens=tokens_at_once(device),
        epochs=config.epochs,
        lr=config.lr,
        seed=seed,
        device=torch.device(device),
    )
    return _Trainer(
        model=model,
        args=trl.SFTConfig(**arguments, warmup_steps=config.warmup, lr_scheduler_type="cosine"),
        train_dataset=Dataset.from_list([_row(e) for e in training]),
        processing_class=chat.tokenizer,
        callbacks=[ReportCallback(report, "fine-tuning")],
    )


class _Trainer(trl.SFTTrainer):
    """TRL's trainer, with the same losses and a third faster on a CPU.

    It does not compute TRL's entropy and token accuracy, which read the whole vocabulary, and puts
    rows of similar length into a micro-batch.
    """

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        return Trainer.compute_loss(self, model, inputs, return_outputs, num_items_in_batch)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        rows: Any = train_dataset if train_dataset is not None else self.train_dataset
        batch = self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps
        return LengthSortedBatches(list(map(len, rows["input_ids"])), batch, seed=self.args.seed)


class LengthSortedBatches(Sampler[int]):
    """Row numbers in random order, sorted from long to short within each batch.

    Micro-batches then need little padding, and an optimizer step still sees rows of all lengths:
    batches of one length would give tokens of short responses more weight.
    """

    def __init__(self, lengths: Sequence[int], batch: int, *, seed: int) -> None:
        self._lengths, self._batch, self._seed, self._epoch = lengths, batch, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Each epoch has its own order, which a resumed epoch gets again."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        rows = list(range(len(self._lengths)))
        Random(f"{self._seed} {self._epoch}").shuffle(rows)
        for start in range(0, len(rows), self._batch):
            yield from sorted(rows[start : start + self._batch], key=lambda i: -self._lengths[i])


def cross_entropy(model: Any, texts: Sequence[Encoded], *, pad_id: int) -> float:
    """Mean negative log-likelihood per response token, nats."""
    found = response_logprobs(model, texts, pad_id=pad_id)
    return -fmean(logprob for response in found for logprob in response)


def _row(encoded: Encoded) -> dict[str, Any]:
    """A row with labels, which TRL's trainer does not change."""
    labels = [-100] * encoded.prompt_tokens + encoded.ids[encoded.prompt_tokens :]
    return {"input_ids": encoded.ids, "labels": labels}


def _held_out_rows(examples: Sequence[tuple[Messages, str]], seed: int) -> set[int]:
    """Rows of the held-out prompts; responses to one prompt resemble each other."""
    keys = [messages_json(as_messages(messages)) for messages, _ in examples]
    prompts = sorted(set(keys), key=lambda key: digest("sft", str(seed), key))
    count = min(math.floor(_HELD_OUT_SHARE * len(prompts)), _MAX_HELD_OUT)
    held_out = set(prompts[:count])
    return {i for i, key in enumerate(keys) if key in held_out}
