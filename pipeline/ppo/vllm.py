"""Rollouts by vLLM in the trainer's own process, on the trainer's GPU.

Before each batch of rollouts the policy's weights are copied into vLLM's model, and afterwards
vLLM gives its memory back (sleep level 2 keeps neither weights nor cache).  The trainer computes
log-probabilities again, and `rollout/mismatch_kl` tells how far vLLM's are off; where weights did
not arrive it is large, and the run stops.

Run with vLLM 0.32 on a CPU, and not yet on a GPU.  That CPU build samples from stale weights where
the output layer is the embedding (`tie_word_embeddings`): the run stops at its first update.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from pipeline.ppo.backends import Request, as_rollout
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.rollout import Rollout

_SEEDS = 2**53
"""Different random numbers that fp64 holds between 0 and 1."""


def sleeps_on(device: torch.device) -> bool:
    """Whether vLLM can give its memory back there; its CPU build cannot."""
    return device.type == "cuda"


def _longest(config: PPOConfig, policy: Any) -> int:
    """Tokens of the longest text; vLLM refuses more than the model's context."""
    wanted = config.max_prompt_tokens + config.max_new_tokens
    context = getattr(policy.config.get_text_config(), "max_position_embeddings", None)
    return min(wanted, context or wanted)


class VLLM:
    """A `Backend`; ValueError where vLLM is missing."""

    foreign = True

    def __init__(self, request: Request) -> None:
        self.request = request
        # In one process the model can be reached, and weights need not be copied through a pipe.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        try:
            self._vllm: Any = import_module("vllm")
        except ImportError as error:
            raise ValueError(
                "ppo.rollout_backend='vllm' needs vLLM, which is not installed "
                "(pip install vllm); or set it to 'own'"
            ) from error
        self._sleeps = sleeps_on(request.device)
        config, policy = request.config, request.model.policy
        with TemporaryDirectory() as folder:
            policy.config.save_pretrained(folder)  # type: ignore[operator, union-attr]
            self._llm = self._vllm.LLM(
                model=folder,
                load_format="dummy",  # the weights are copied in before they are used
                skip_tokenizer_init=True,
                generation_config="vllm",  # not the model's own sampling defaults
                dtype="bfloat16" if request.precision == "bf16" else "float32",
                max_model_len=_longest(config, policy),
                gpu_memory_utilization=config.vllm_memory,
                enable_sleep_mode=self._sleeps,
                # At the temperature that was sampled at; the raw ones are at 1.
                logprobs_mode="processed_logprobs",
                seed=config.seed,
            )
        self._sleep()

    def __call__(self, prompts: Sequence[Sequence[int]], uniforms: Tensor) -> Rollout:
        llm = self._llm
        self._wake("weights")
        weights = [(name, p.detach()) for name, p in self.request.model.policy.named_parameters()]
        # Not `model.load_weights`: a layer's weights may have another layout than a checkpoint's
        # by then, and no loader (vLLM's CPU build repacks them so).
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        self._wake("kv_cache")
        llm.reset_prefix_cache()  # else prompts would be continued from the old weights' cache
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
        return as_rollout(tokens, logprobs, self.request)

    def _sleep(self) -> None:
        if self._sleeps:
            self._llm.sleep(level=2)

    def _wake(self, what: str) -> None:
        if self._sleeps:
            self._llm.wake_up(tags=[what])

    def _sampling(self, seed: int) -> Any:
        config = self.request.config
        return self._vllm.SamplingParams(
            temperature=config.temperature,
            max_tokens=config.max_new_tokens,
            # Ours alone end a response, whatever the model's files say.
            ignore_eos=True,
            stop_token_ids=self.request.eos_token_ids,
            logprobs=0,  # of the drawn token only
            detokenize=False,
            seed=seed,
        )
