"""The policy that OpenRLHF saved, checked before it becomes the run's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from pipeline.models.hub import explaining_load_errors
from pipeline.models.loading import make_savable
from pipeline.models.text import ChatTokenizer


def load_checked(folder: Path, chat: ChatTokenizer, start: str) -> Any:
    """The saved model, in bf16 as OpenRLHF saves it.

    ValueError unless it is complete and finite and has the tokenizer of `start`, the policy that it
    started from; `chat` is that tokenizer.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"OpenRLHF saved no policy in {folder}; its nodes must see the workspace under the path "
            "of the stage"
        )
    if ChatTokenizer.load(str(folder)).tokenizer.get_vocab() != chat.tokenizer.get_vocab():
        raise ValueError(
            "the policy that OpenRLHF saved has another vocabulary than the one that it started from, "
            f"{Path(start).name}"
        )
    with explaining_load_errors(str(folder)):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, trust_remote_code=False, output_loading_info=True
        )
    model, about = loaded
    if missing := sorted(about["missing_keys"]):
        raise ValueError(
            f"the policy that OpenRLHF saved lacks {len(missing)} weights, such as {missing[0]}"
        )
    for name, weights in model.named_parameters():
        if not torch.isfinite(weights).all():
            raise ValueError(
                f"the policy that OpenRLHF saved has weights that are not finite, in {name}; lower "
                "ppo.lr"
            )
    make_savable(model)
    return model
