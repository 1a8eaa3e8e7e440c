"""The device, precision and CPU threads of a job.

Every stage calls `pick_device` at its start (`worker.device`) and fails if the device is missing.
All stages but PPO sample in `inference_dtype`.  Training has fp32 weights; `resolve_precision`
(pipeline/ppo/network/model.py) adds bf16 autocast on a GPU.  PPO follows `ppo.precision`; other stages
always use autocast (`trainer_arguments` in hf_trainer.py).
"""

from __future__ import annotations

import os

import torch

from pipeline.config.sections import ModelConfig, WorkerConfig
from pipeline.ppo.network.model import detect_device


def pick_device(wanted: str = "auto") -> torch.device:
    """The device that `worker.device` names; ``auto`` prefers CUDA, then Apple's MPS, then the CPU.

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
