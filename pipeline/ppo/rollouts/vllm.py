"""Rollouts by vLLM."""

import os
from collections.abc import Sequence
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from pipeline.ppo.checks import context_of
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.network.model import Setup
from pipeline.ppo.rollouts.rollout import Rollout, as_rollout

_SEEDS = 2**53
"""Number of distinct values of `torch.rand` in fp64."""


def supports_sleep(device: torch.device) -> bool:
    """Whether vLLM can release its memory; its CPU build cannot."""
    return device.type == "cuda"


def _longest(config: PPOConfig, policy: Any) -> int:
    """Tokens of the longest text, at most the model's context, as vLLM requires."""
    wanted = config.max_prompt_tokens + config.max_new_tokens
    context = context_of(policy.config)
    return min(wanted, context or wanted)


class VLLM:
    """Rollouts by vLLM in the trainer's own process, on the trainer's GPU.

    Before each batch of rollouts the policy's weights are copied into vLLM's model; afterwards vLLM
    releases its memory (sleep level 2 keeps neither weights nor cache).  The trainer recomputes
    log-probabilities.  If vLLM did not load the weights, `rollout/mismatch_kl` is large and the run
    stops.

    Tested with vLLM 0.32 on a CPU, and not yet on a GPU.  That CPU build samples from stale weights
    with `tie_word_embeddings`: the run stops at its first update.  Raises ValueError without vLLM.
    """

    foreign = True

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        # In one process, weights need not be copied through a pipe.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        try:
            # Imported by name, because few installations have it.
            self._vllm: Any = import_module("vllm")
        except ImportError as error:
            raise ValueError(
                "ppo.rollout_backend='vllm' needs vLLM, which is not installed "
                "(pip install vllm); or set it to 'own'"
            ) from error
        self._sleeps = supports_sleep(setup.device)
        config, policy = setup.config, setup.model.policy
        with TemporaryDirectory() as folder:
            policy.config.save_pretrained(folder)  # type: ignore[operator, union-attr]
            self._llm = self._vllm.LLM(
                model=folder,
                load_format="dummy",  # weights are copied before each use
                skip_tokenizer_init=True,
                generation_config="vllm",  # not the model's own sampling defaults
                dtype="bfloat16" if setup.precision == "bf16" else "float32",
                max_model_len=_longest(config, policy),
                gpu_memory_utilization=config.vllm_memory,
                enable_sleep_mode=self._sleeps,
                # Log-probabilities at the sampling temperature; raw ones are at temperature 1.
                logprobs_mode="processed_logprobs",
                seed=config.seed,
            )
        self._sleep()

    def __call__(self, prompts: Sequence[Sequence[int]], uniforms: Tensor) -> Rollout:
        llm = self._llm
        self._wake("weights")
        weights = [(name, p.detach()) for name, p in self.setup.model.policy.named_parameters()]
        # Not `model.load_weights`: vLLM's CPU build repacks some layers into a layout without a
        # loader.
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
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
