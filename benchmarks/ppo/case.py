"""The workload of both engines: models from a config, prompts, a tokenizer.  Imports no engine."""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

EOS, PAD = 0, 1
EPOCHS, LR = 4, 1e-9
END_PROBABILITY = 1 / 32


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model's shape, and the size of an iteration."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int = 2048
    prompts: int = 32
    shortest: int = 12
    longest: int = 24
    new_tokens: int = 48
    minibatch: int = 8
    bars: tuple[tuple[str, float], ...] = ()
    """Target speed-ups over TRL with end-of-text, by variant."""


SIZES = {
    "S": Size(
        hidden=256, layers=6, heads=4, kv_heads=4, inner=704,
        bars=(("separate-fp32", 1.6), ("shared-fp32", 3.0), ("lora-fp32", 3.3)),
    ),
    "M": Size(
        hidden=512, layers=8, heads=8, kv_heads=8, inner=1408,
        bars=(
            ("separate-fp32", 1.6), ("shared-fp32", 2.8), ("lora-fp32", 3.3),
            ("shared-bf16", 4.2), ("lora-bf16", 5.0),
        ),
    ),
    # For a test of the benchmark; too small for meaningful figures.
    "T": Size(
        hidden=32, layers=2, heads=2, kv_heads=2, inner=64, vocabulary=128, prompts=8, new_tokens=8,
        minibatch=4,
    ),
    # The shape of Qwen's half-billion models, for a GPU.
    "Q": Size(
        hidden=896, layers=24, heads=14, kv_heads=2, inner=4864, vocabulary=151_936,
        prompts=128, shortest=128, longest=128, new_tokens=256, minibatch=32,
        bars=(("shared-bf16", 5.0),),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """The models, and whether responses end with end-of-text."""

    name: str
    eos: bool
    device: str = "cpu"

    @property
    def size(self) -> Size:
        return SIZES[self.name]

    def config(self, **extra: Any) -> LlamaConfig:
        size = self.size
        return LlamaConfig(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.kv_heads,
            intermediate_size=size.inner,
            max_position_embeddings=1024,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=EOS,
            pad_token_id=PAD,
            **extra,
        )

    def policy(self) -> Any:
        """A causal LM that ends with probability 1/32 at each token, or never."""
        torch.manual_seed(0)
        model = LlamaForCausalLM(self.config()).eval()
        hidden = self.config().hidden_size
        biased = nn.Linear(hidden, self.size.vocabulary)
        biased.weight = model.lm_head.weight
        nn.init.zeros_(biased.bias)
        model.lm_head = biased
        with torch.no_grad():
            dice = torch.Generator().manual_seed(0)
            ids = torch.randint(2, self.size.vocabulary, (16, 32), generator=dice)
            logits = model(input_ids=ids).logits.flatten(0, 1)
            others = logits[:, 2:].logsumexp(-1).mean()
            odds = torch.tensor(END_PROBABILITY / (1 - END_PROBABILITY))
            biased.bias[EOS] = others + odds.log() - logits[:, EOS].mean() if self.eos else -30.0
            biased.bias[PAD] = -30.0  # a sampled padding id would be cut from the text
        return model

    def scorer(self, seed: int) -> Any:
        """A model with one score per text, of the policy's size: the reward model or a critic."""
        torch.manual_seed(seed)
        return LlamaForSequenceClassification(self.config(num_labels=1)).eval()


def qwen3(*, hidden: int, layers: int, vocabulary: int) -> Qwen3Config:
    """A model in the shape of Qwen3, with heads of 64 and tied embeddings."""
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 128),
        head_dim=64,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
    )


def prompts(size: Size) -> list[list[int]]:
    """Random prompts."""
    dice = random.Random(0)
    return [
        [
            dice.randrange(2, size.vocabulary)
            for _ in range(dice.randint(size.shortest, size.longest))
        ]
        for _ in range(size.prompts)
    ]


def tokenizer(size: Size) -> Any:
    """Words t2, t3, … by id."""
    words = {"<eos>": EOS, "<pad>": PAD} | {f"t{i}": i for i in range(2, size.vocabulary)}
    base = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=base, eos_token="<eos>", pad_token="<pad>", padding_side="left"
    )


class Pacer:
    """Waits for "go" before every iteration and reports its time and memory.

    `seconds` are CPU seconds, which depend little on other programs, or wall-clock seconds on a
    GPU.  `memory` is the process's peak, or the peak of torch's allocations on a GPU, MB.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._cuda = device == "cuda"
        self._start = 0.0

    def wait(self) -> bool:
        """Block until the driver requests an iteration; False if it requests no more."""
        line = sys.stdin.readline().strip()
        self._start = self._now()
        return line == "go"

    def report(self, **extra: float) -> None:
        say(seconds=self._now() - self._start, memory=self._memory(), **extra)

    def _now(self) -> float:
        if not self._cuda:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def _memory(self) -> float:
        if self._cuda:
            return torch.cuda.max_memory_allocated() / 1e6
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def say(**fields: Any) -> None:
    """Write one line of JSON for the driver; all other output goes to stderr."""
    sys.__stdout__.write(json.dumps(fields) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def sgemm_peak() -> float:
    """GFLOP/s of large fp32 matrix products on this process's threads, the best of several."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return max(_rate(lambda: a @ b, 2 * 1024**3) for _ in range(8)) / 1e9


def _rate(work: Callable[[], Any], operations: float) -> float:
    start = time.process_time()
    work()
    return operations / (time.process_time() - start)
