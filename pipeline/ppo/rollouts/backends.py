"""The samplers of rollouts: this engine's own loop, eager or compiled, transformers' `generate`, or
vLLM.

`make_backend` selects one by `ppo.rollout_backend` (default own).  The others return only tokens and
log-probabilities.  The trainer computes everything else, with arithmetic that may differ:
`importance_weights` measures the difference and corrects for it.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from pipeline.ppo.network.distributed import Processes, is_sharded
from pipeline.ppo.network.lora import merged_adapters
from pipeline.ppo.network.model import Setup, autocast
from pipeline.ppo.network.token_stats import forbid_ends, token_logprobs
from pipeline.ppo.rollouts.compiled import CompiledSampler
from pipeline.ppo.rollouts.decoding import left_padded
from pipeline.ppo.rollouts.draws import on_device, sample_tokens, truncate
from pipeline.ppo.rollouts.rollout import Rollout, as_rollout, generate, truncate_at_end
from pipeline.ppo.rollouts.vllm import VLLM


class Backend(Protocol):
    """Samples one response to each prompt with the policy's current weights."""

    foreign: bool
    """Whether the backend's arithmetic differs from the trainer's, which then must compute
    log-probabilities, entropies and values itself."""

    def __call__(self, prompts: Sequence[Sequence[int]], uniforms: Tensor) -> Rollout:
        """`uniforms` (B, max_new_tokens) are the rows' random numbers, or determine their seeds.

        Log-probabilities are those of the full distribution at the sampling temperature, without
        end-of-text in the first `min_new_tokens`.
        """
        ...


def make_backend(setup: Setup, processes: Processes) -> Backend:
    """The backend that `ppo.rollout_backend` names; ValueError if it is not available."""
    name = setup.config.rollout_backend
    if name == "own":
        return BuiltinSampler(setup)
    if name == "compiled":
        return CompiledSampler(setup)
    if name == "transformers":
        return TransformersGenerate(setup)
    return VLLM(setup, processes)


class BuiltinSampler:
    """`rollout.generate`, which records entropies and values while it samples."""

    foreign = False

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def __call__(self, prompts: Sequence[Sequence[int]], uniforms: Tensor) -> Rollout:
        setup, config = self.setup, self.setup.config
        with autocast(setup.precision, setup.device), self._weights():
            return generate(
                setup.model,
                prompts,
                eos_token_ids=setup.eos_token_ids,
                pad_token_id=setup.pad_token_id,
                max_new_tokens=config.max_new_tokens,
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                min_new_tokens=config.min_new_tokens,
                uniforms=uniforms,
                batch_size=config.rollout_batch,
            )

    def _weights(self) -> AbstractContextManager[None]:
        """Merge LoRA adapters into the weights if that is exact enough."""
        setup = self.setup
        # In bf16, and in layers of 4 bits, merging would round a small adapter away.
        exact = setup.precision == "fp32" and setup.config.quantization == "none"
        if setup.config.lora_rank and exact and not is_sharded(setup.model):
            return merged_adapters(setup.model.policy)
        return nullcontext()


class TransformersGenerate:
    """transformers' `generate`, for models whose cache the engine's loop does not support.

    Tokens are drawn with the engine's random numbers, so in fp32 the responses equal those of its
    loop.
    """

    foreign = True

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @torch.no_grad()
    def __call__(self, prompts: Sequence[Sequence[int]], uniforms: Tensor) -> Rollout:
        step = self.setup.config.rollout_batch or len(prompts)
        tokens: list[list[int]] = []
        logprobs: list[list[float]] = []
        self.setup.model.eval()
        for start in range(0, len(prompts), step):
            rows = slice(start, start + step)
            drawn, likely = self._generate(prompts[rows], uniforms[rows])
            tokens += drawn
            logprobs += likely
        return as_rollout(tokens, logprobs, self.setup)

    def _generate(
        self, prompts: Sequence[Sequence[int]], uniforms: Tensor
    ) -> tuple[list[list[int]], list[list[float]]]:
        setup, config = self.setup, self.setup.config
        ids, mask = left_padded(prompts, setup.pad_token_id, setup.device)
        chooser = _Chooser(setup, on_device(uniforms, setup.device))
        policy: Any = setup.model.policy
        # The logits processor draws; without do_sample no warper changes its result.
        settings = GenerationConfig(
            do_sample=False,
            max_new_tokens=config.max_new_tokens,
            eos_token_id=setup.eos_token_ids,
            pad_token_id=setup.pad_token_id,
        )
        with autocast(setup.precision, setup.device), without_generation_defaults(policy):
            texts = policy.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=settings,
                logits_processor=LogitsProcessorList([chooser]),
            )
        responses = [
            truncate_at_end(row, setup.eos_token_ids) for row in texts[:, ids.shape[1] :].tolist()
        ]
        recorded = torch.stack(chooser.logprobs, dim=1).tolist()
        logprobs = [row[: len(ids)] for ids, row in zip(responses, recorded, strict=True)]
        return responses, logprobs


class _Chooser(LogitsProcessor):
    """Draws each row's next token with the row's own random number and forbids all others."""

    def __init__(self, setup: Setup, uniforms: Tensor) -> None:
        self.config = setup.config
        self.eos = torch.tensor(setup.eos_token_ids, device=uniforms.device)
        self.uniforms = uniforms
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        config, step = self.config, len(self.logprobs)
        logits = scores.float() / config.temperature
        if step < config.min_new_tokens:
            logits = forbid_ends(logits, self.eos)
        allowed = truncate(logits, top_k=config.top_k, top_p=config.top_p)
        drawn = sample_tokens(allowed.softmax(-1), self.uniforms[:, step])
        self.logprobs.append(token_logprobs(logits, drawn))
        return torch.full_like(scores, -torch.inf).scatter(1, drawn.unsqueeze(1), 0.0)


@contextmanager
def without_generation_defaults(policy: Any) -> Iterator[None]:
    """Disable the model's own generation settings (penalties, top-k, …)."""
    holders = [module for module in policy.modules() if "generation_config" in vars(module)]
    before = [module.generation_config for module in holders]
    try:
        for module in holders:
            module.generation_config = GenerationConfig()
        yield
    finally:
        for module, settings in zip(holders, before, strict=True):
            module.generation_config = settings
