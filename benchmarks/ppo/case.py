"""The work that both engines do: models from a config, prompts, a tokenizer.  Imports no engine."""

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
)

VOCABULARY, EOS, PAD = 2048, 0, 1
PROMPTS, SHORTEST, LONGEST, NEW_TOKENS = 32, 12, 24, 48
EPOCHS, MINIBATCH, LR = 4, 8, 1e-9
END_PROBABILITY = 1 / 32
SIZES = {"S": (256, 6, 4, 704), "M": (512, 8, 8, 1408)}
"""Hidden width, layers, heads, feed-forward width."""


@dataclass(frozen=True)
class Case:
    """Which models, and whether responses end by themselves."""

    size: str
    eos: bool

    def config(self, **extra: Any) -> LlamaConfig:
        hidden, layers, heads, inner = SIZES[self.size]
        return LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            intermediate_size=inner,
            max_position_embeddings=256,
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
        biased = nn.Linear(hidden, VOCABULARY)
        biased.weight = model.lm_head.weight
        nn.init.zeros_(biased.bias)
        model.lm_head = biased
        with torch.no_grad():
            ids = torch.randint(2, VOCABULARY, (16, 32), generator=torch.Generator().manual_seed(0))
            logits = model(input_ids=ids).logits.flatten(0, 1)
            others = logits[:, 2:].logsumexp(-1).mean()
            odds = torch.tensor(END_PROBABILITY / (1 - END_PROBABILITY))
            biased.bias[EOS] = others + odds.log() - logits[:, EOS].mean() if self.eos else -30.0
            biased.bias[PAD] = -30.0  # a sampled padding id would be cut from the text
        return model

    def scorer(self, seed: int) -> Any:
        """A model with one score a text, of the policy's size: the reward model, a critic."""
        torch.manual_seed(seed)
        return LlamaForSequenceClassification(self.config(num_labels=1)).eval()


def prompts(count: int = PROMPTS) -> list[list[int]]:
    """Random prompts of 12 to 24 tokens."""
    dice = random.Random(0)
    return [
        [dice.randrange(2, VOCABULARY) for _ in range(dice.randint(SHORTEST, LONGEST))]
        for _ in range(count)
    ]


def tokenizer() -> Any:
    """Words t2, t3, … by id."""
    words = {"<eos>": EOS, "<pad>": PAD} | {f"t{i}": i for i in range(2, VOCABULARY)}
    base = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=base, eos_token="<eos>", pad_token="<pad>", padding_side="left"
    )


class Pacer:
    """Waits for "go" before every iteration and reports what it cost."""

    def __init__(self) -> None:
        self._cpu = self._wall = 0.0

    def wait(self) -> bool:
        """Block until the next iteration is wanted; False when none is."""
        line = sys.stdin.readline().strip()
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return line == "go"

    def report(self, **extra: float) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        say(
            cpu=time.process_time() - self._cpu,
            wall=time.perf_counter() - self._wall,
            rss=peak,
            **extra,
        )


def say(**fields: Any) -> None:
    """One line of JSON for the driver; everything else goes to stderr."""
    sys.__stdout__.write(json.dumps(fields) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def sgemm_peak() -> float:
    """GF/s of large fp32 matrix products on the threads this process has, the best of several."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return max(_rate(lambda: a @ b, 2 * 1024**3) for _ in range(8)) / 1e9


def _rate(work: Callable[[], Any], operations: float) -> float:
    start = time.process_time()
    work()
    return operations / (time.process_time() - start)
