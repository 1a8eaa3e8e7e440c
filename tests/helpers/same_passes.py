"""Two passes over one text in training mode, for architectures that keep dropout as a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    OPTConfig,
    PreTrainedConfig,
    Starcoder2Config,
)

from tests.helpers.tiny import tiny_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 261, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 99, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip

DROPPING: dict[str, PreTrainedConfig] = {
    "opt": OPTConfig(**SIZES, ffn_dim=64, word_embed_proj_dim=32, dropout=0.5, layerdrop=0.5),
    "llama": LlamaConfig(**SIZES, intermediate_size=64, attention_dropout=0.5),
    "starcoder2": Starcoder2Config(
        **SIZES, intermediate_size=64, num_key_value_heads=2, residual_dropout=0.5,
        embedding_dropout=0.5, sliding_window=None,
    ),
}  # fmt: skip


def save_dropping(path: Path, name: str) -> str:
    """A model that drops half of something while it is trained, as a Hugging Face directory."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(DROPPING[name]).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return str(path)


def passes_agree(model: Any) -> bool:
    """Whether ten passes in training mode give one text the same logits."""
    text = torch.arange(2, 34)[None]
    model.train()
    with torch.no_grad():
        first, *others = (
            model(input_ids=text, attention_mask=torch.ones_like(text)).logits for _ in range(10)
        )
    return all(torch.equal(first, other) for other in others)
