"""Devices, precision, and loading models for a job."""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from pipeline.config.sections import ModelConfig, WorkerConfig
from pipeline.models.hub import loading, require_model
from pipeline.ppo.model import detect_device, without_dropout


def pick_device(wanted: str = "auto") -> torch.device:
    """The device that `worker.device` names; ``auto`` takes CUDA, then Apple's MPS, then the CPU.

    Raises ValueError if the machine has no such device.
    """
    available = {
        "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()
    }  # fmt: skip
    if not available.get(wanted, True):
        raise ValueError(f"worker.device={wanted} is not available on this machine; set it to auto")
    device = detect_device() if wanted == "auto" else torch.device(wanted)
    if device.type == "cuda":
        # Under `accelerate launch` every process has its own GPU.
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


def inference_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """The dtype of weights for inference: bf16 on a GPU that has it, else fp32.

    Weights that are trained stay fp32: in bf16, small updates would be lost.
    """
    if config.dtype != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if has_bf16 else torch.float32


def cap_threads(config: WorkerConfig) -> None:
    """Use `worker.threads` CPU threads; 0 uses all cores."""
    if config.threads:
        torch.set_num_threads(config.threads)


def load_causal_lm(
    name: str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    model_class: Any = AutoModelForCausalLM,
) -> Any:
    """A causal language model from a local directory or the hub, in eval mode on `device`.

    All dropout rates are 0, so that scores and probability ratios are deterministic.  Raises
    `ModelUnavailable` with one sentence.
    """
    path = require_model(name)
    with loading(name):
        model: PreTrainedModel = model_class.from_pretrained(
            path, dtype=dtype, trust_remote_code=False
        )
    without_dropout(model)
    _make_savable(model)
    return model.to(device).eval()  # type: ignore[arg-type]


def _make_savable(model: Any) -> None:
    """Fix generation settings that transformers refuses to save.

    Some published models set a temperature without `do_sample`.  Only the end-of-text ids are used
    here, so if `do_sample` does not help, only the token ids are kept.
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
    return _context(model.config)


def context_of(name: str) -> int | None:
    """`context_length` of a model that is not loaded; raises `ModelUnavailable`."""
    path = require_model(name)
    with loading(name):
        return _context(AutoConfig.from_pretrained(path, trust_remote_code=False))


def _context(config: Any) -> int | None:
    return getattr(config.get_text_config(), "max_position_embeddings", None)
