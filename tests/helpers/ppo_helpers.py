"""Tiny models, tokenizers and runs for the tests of the PPO engine."""

import copy
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pipeline.ppo import PPOConfig, PPOTrainer, UpdateResult

EOS, PAD = 0, 1
TIMED = ("speed/", "memory/")


def tiny_tokenizer(vocab: int = 16, *, pad: int | None = PAD) -> Any:
    """Words w2, w3, … by id, with 0 as end-of-text and, unless told otherwise, 1 as padding."""
    words = {"<eos>": EOS, "<pad>": PAD} | {f"w{i}": i for i in range(2, vocab)}
    base = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    names = list(words)
    padding = {} if pad is None else {"pad_token": names[pad]}
    return PreTrainedTokenizerFast(tokenizer_object=base, eos_token="<eos>", **padding)


def tiny_model(vocab: int = 16, *, seed: int = 0, scale: float = 0.3, **config: Any) -> Any:
    """A two-layer Llama; `scale` spreads its logits, so that it prefers some tokens."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "initializer_range": scale,
    }
    llama = LlamaConfig(
        vocab_size=vocab, eos_token_id=EOS, pad_token_id=PAD, bos_token_id=None, **settings | config
    )
    return LlamaForCausalLM(llama).eval()


PROMPTS = [[2, 3], [4, 5, 6, 7, 8], [9], [10, 11, 12]]


def count_of_w3(_: list[int], texts: list[str]) -> list[float]:
    """A reward that is easy to raise: how many words are w3, at most 3."""
    return [float(min(text.split().count("w3"), 3)) for text in texts]


def tiny_config(**settings: Any) -> PPOConfig:
    small = {"updates": 3, "rollouts": 8, "minibatch": 4, "epochs": 2, "lr": 1e-3}
    small |= {"max_new_tokens": 6, "checkpoint_every": 0, "missing_eos_penalty": 0.0}
    return PPOConfig(**small | settings)


def tiny_trainer(directory: Path | None = None, **changes: Any) -> PPOTrainer:
    """A trainer of a tiny model against its own copy; other arguments go to the config."""
    model = changes.pop("model", None) or tiny_model()
    parts = {
        "model": model,
        "reference": changes.pop("reference", copy.deepcopy(model)),
        "tokenizer": changes.pop("tokenizer", None) or tiny_tokenizer(),
        "prompts": changes.pop("prompts", PROMPTS),
        "reward": changes.pop("reward", count_of_w3),
        "reward_weights": changes.pop("reward_weights", None),
        "critic": changes.pop("critic_model", None),
        "categories": changes.pop("categories", None),
        "eos_token_ids": changes.pop("eos_token_ids", None),
        "device": "cpu",
    }
    return PPOTrainer(**parts, config=tiny_config(**changes), directory=directory)


def untimed(update: UpdateResult) -> dict[str, float]:
    """An update's metrics without those that a clock or the machine decides."""
    return {k: v for k, v in update.metrics.items() if not k.startswith(TIMED)}


def assert_same_state(a: Any, b: Any) -> None:
    """Equal to the bit, wherever the tensors are, but for what a clock or the machine decides."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            if not str(key).startswith(TIMED):
                assert_same_state(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same_state(x, y)
    else:
        assert a == b
