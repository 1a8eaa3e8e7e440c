"""Loading causal language models, from a local directory or the Hugging Face hub.

Every stage loads its models here: `load_causal_lm` runs no code of the model's author
(`trust_remote_code=False`) and removes dropout.  hub.py explains a model that cannot be loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from pipeline.models.best_of_n import manifest_of, no_weights
from pipeline.models.hub import ModelUnavailable, explaining_load_errors, require_model
from pipeline.ppo import checks
from pipeline.ppo.network.model import without_dropout


def load_causal_lm(
    name: str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Load a causal language model from a local directory or the hub, in eval mode on `device`.

    On the meta device it has no weights, and its files are not read.
    All dropout rates are 0, so that scores and probability ratios are deterministic.  Raises
    `ModelUnavailable` with one sentence, also for a best-of-N policy, which has no weights of its own.
    """
    if manifest := manifest_of(name):
        raise ModelUnavailable(no_weights(Path(name).name, manifest))
    return load_weights(name, device=device, dtype=dtype)


def load_weights(
    name: str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Any:
    """`load_causal_lm`, and the reference's weights for a best-of-N policy."""
    path = require_model(name)
    with explaining_load_errors(name):
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, device_map=meta_only(device), trust_remote_code=False
        )
    without_dropout(model)
    make_savable(model)
    return model.to(device).eval()  # type: ignore[arg-type]


def meta_only(device: torch.device | str) -> str | None:
    """transformers' `device_map` for the meta device; models for others are loaded, then moved."""
    return "meta" if torch.device(device).type == "meta" else None


def make_savable(model: Any) -> None:
    """Fix generation settings that transformers refuses to save.

    Some published models set a temperature without `do_sample`.  Kitestring uses only the
    end-of-text ids, so if setting `do_sample` does not help, only the token ids are kept.
    """
    settings = getattr(model, "generation_config", None)
    if settings is None or _is_valid(settings):
        return
    settings.do_sample = True
    if not _is_valid(settings):
        pad = settings.pad_token_id
        model.generation_config = GenerationConfig(
            eos_token_id=settings.eos_token_id,
            bos_token_id=settings.bos_token_id,
            pad_token_id=None if pad is None or pad < 0 else pad,
        )


def _is_valid(settings: GenerationConfig) -> bool:
    try:
        settings.validate(strict=True)
    except ValueError:
        return False
    return True


def context_length(model: Any) -> int | None:
    """The number of tokens that the model's positions allow; None without a limit."""
    return checks.context_of(model.config)


def context_of(name: str) -> int | None:
    """`context_length` of a model that is not loaded; raises `ModelUnavailable`."""
    path = require_model(name)
    with explaining_load_errors(name):
        return checks.context_of(AutoConfig.from_pretrained(path, trust_remote_code=False))
