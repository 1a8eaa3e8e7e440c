"""Rollouts by vLLM."""

import copy
import os
from collections.abc import Sequence
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from pipeline.ppo.checks import context_of
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.network.distributed import Processes
from pipeline.ppo.network.lora import merged_weights
from pipeline.ppo.network.model import Setup
from pipeline.ppo.rollouts.rollout import Rollout, as_rollout

_SEEDS = 2**53
"""Number of distinct values of `torch.rand` in fp64."""


_OTHERWISE = "set ppo.rollout_backend='own'"


def supports_sleep(device: torch.device) -> bool:
    """Whether vLLM can release its memory; its CPU build cannot."""
    return device.type == "cuda"


def unties(device: torch.device) -> bool:
    """Whether vLLM's output layer gets weights of its own where the policy's is the embedding.

    vLLM's CPU build packs the output layer when it starts, and does not pack it again when the
    embedding's weights are replaced.
    """
    return device.type == "cpu"


def load_vllm(device: torch.device, processes: Processes, *, otherwise: str) -> Any:
    """The module; ValueError, ending in `otherwise`, if it is missing or uses another device."""
    # In one process, weights need not be copied through a pipe, and memory is freed at the end.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        # Imported by name, because few installations have it.
        vllm = import_module("vllm")
        built_for = import_module("vllm.platforms").current_platform.device_type
    except ImportError as error:
        raise ValueError(
            f"vLLM cannot be imported ({error}); install it as docs/own_model.md says, or {otherwise}"
        ) from error
    # vLLM selects its device itself.
    elsewhere = processes.size == 1 and (device.index or 0) != 0
    if built_for != device.type or elsewhere:
        uses = f"{built_for}:0" if elsewhere else built_for
        raise ValueError(f"vLLM uses {uses} here, and the run is on {device}; {otherwise}")
    return vllm


def start_engine(vllm: Any, *, otherwise: str, **settings: Any) -> Any:
    """vLLM with a model that reads and writes token ids; ValueError if it does not start."""
    try:
        return vllm.LLM(
            skip_tokenizer_init=True,
            generation_config="vllm",  # not the model's own sampling defaults
            **settings,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"vLLM does not start: {reason}; remove the cause, which its log names, or {otherwise}"
        ) from error


class VLLM:
    """Rollouts by vLLM in the trainer's own process, on the trainer's device.

    Before each batch of rollouts the policy's weights, with LoRA adapters merged, are copied into
    vLLM's model; afterwards vLLM releases its memory (sleep level 2 keeps neither weights nor cache).
    Each of several processes has a vLLM of its own, which samples the process's rows.  The trainer
    recomputes log-probabilities.  If vLLM did not load the weights, `rollout/mismatch_kl` is large
    and the run stops.

    Tested with vLLM 0.32 on a CPU, and not yet on a GPU.  Raises ValueError if vLLM is not installed
    or does not start.
    """

    foreign = True

    def __init__(self, setup: Setup, processes: Processes) -> None:
        self.setup = setup
        self._vllm = load_vllm(setup.device, processes, otherwise=_OTHERWISE)
        self._sleeps = supports_sleep(setup.device)
        self._unties = unties(setup.device)
        with TemporaryDirectory() as folder:
            _model_config(setup.model.policy, untied=self._unties).save_pretrained(folder)
            self._llm = self._start(folder, processes)
        self._sleep()

    def _start(self, folder: str, processes: Processes) -> Any:
        """vLLM with a model of random weights."""
        setup, config = self.setup, self.setup.config
        return start_engine(
            self._vllm,
            otherwise=_OTHERWISE,
            model=folder,
            load_format="dummy",  # weights are copied before each use
            dtype="bfloat16" if setup.precision == "bf16" else "float32",
            max_model_len=_longest(config, setup.model.policy),
            gpu_memory_utilization=config.vllm_memory,
            enable_sleep_mode=self._sleeps,
            # Log-probabilities at the sampling temperature; raw ones are at temperature 1.
            logprobs_mode="processed_logprobs",
            seed=config.seed,
            **_beside_other_processes(processes, setup.device),
        )

    def __call__(self, prompts: Sequence[Sequence[int]], uniforms: Tensor) -> Rollout:
        llm = self._llm
        self._wake("weights")
        # Not `model.load_weights`: vLLM's CPU build repacks some layers into a layout without a
        # loader.
        weights = merged_weights(self.setup.model.policy, untied=self._unties)
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self._wake("kv_cache")
        llm.reset_prefix_cache()  # it was computed with the old weights
        outputs = llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts],
            [self._sampling(seed) for seed in (uniforms[:, 0] * _SEEDS).long().tolist()],
            use_tqdm=False,
        )
        self._sleep()
        answers = [output.outputs[0] for output in outputs]
        tokens = [list(answer.token_ids) for answer in answers]
        logprobs = [
            [found[token].logprob for token, found in zip(row, answer.logprobs, strict=True)]
            for row, answer in zip(tokens, answers, strict=True)
        ]
        return as_rollout(tokens, logprobs, self.setup)

    def _sleep(self) -> None:
        if self._sleeps:
            self._llm.sleep(level=2)

    def _wake(self, what: str) -> None:
        if self._sleeps:
            self._llm.wake_up(tags=[what])

    def _sampling(self, seed: int) -> Any:
        config = self.setup.config
        return self._vllm.SamplingParams(
            temperature=config.temperature,
            max_tokens=config.max_new_tokens,
            # Only the engine's end ids end a response, not those of the model's files.
            ignore_eos=True,
            stop_token_ids=self.setup.eos_token_ids,
            logprobs=0,  # only of the drawn token
            detokenize=False,
            seed=seed,
        )


def _model_config(policy: Any, *, untied: bool) -> Any:
    """The configuration that vLLM makes its model from."""
    config = copy.deepcopy(policy.config)
    if not config.architectures:  # a model that was never saved
        model = policy.get_base_model() if hasattr(policy, "get_base_model") else policy
        config.architectures = [type(model).__name__]
    if untied:
        for each in (config, config.get_text_config()):
            each.tie_word_embeddings = False
    return config


def _longest(config: PPOConfig, policy: Any) -> int:
    """Tokens of the longest text, at most the model's context, as vLLM requires."""
    wanted = config.max_prompt_tokens + config.max_new_tokens
    context = context_of(policy.config)
    return min(wanted, context or wanted)


def _beside_other_processes(processes: Processes, device: torch.device) -> dict[str, Any]:
    """What makes vLLM join the processes that are connected already, and use this one's device."""
    if processes.size == 1:
        return {}
    local = processes.rank if device.index is None else device.index
    os.environ |= {"RANK": str(processes.rank), "LOCAL_RANK": str(local)}
    return {"distributed_executor_backend": "external_launcher"}
