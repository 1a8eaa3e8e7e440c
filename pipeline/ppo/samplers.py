"""The samplers of rollouts: this engine's own loop, transformers' `generate`, or vLLM.

`make_backend` selects one by `ppo.rollout_backend` (default own).  The last two return only tokens
and log-probabilities.  The trainer computes everything else, with arithmetic that may differ:
`importance_weights` measures the difference and corrects for it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from pipeline.ppo.algorithm import kl_estimate, length_mask, masked_mean
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.distributed import Processes, is_sharded
from pipeline.ppo.lora import merged_adapters
from pipeline.ppo.model import Setup, autocast
from pipeline.ppo.rollout import Rollout, generate, left_padded, on_device, sample_tokens, truncate
from pipeline.ppo.token_stats import forbid_ends, token_logprobs


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
    if name == "transformers":
        return TransformersGenerate(setup)
    if processes.size > 1 or setup.device.type != "cuda":
        raise ValueError(
            "ppo.rollout_backend='vllm' needs one process on one CUDA GPU, and this run has "
            f"{processes.size} on {setup.device.type}; set it to 'own'"
        )
    return VLLM(setup)


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
        # In bf16, merging would round a small adapter away.
        if setup.config.lora_rank and setup.precision == "fp32" and not is_sharded(setup.model):
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


def truncate_at_end(tokens: list[int], eos_token_ids: Sequence[int]) -> list[int]:
    """The tokens up to and including the first end-of-text."""
    ends = (n for n, token in enumerate(tokens, 1) if token in eos_token_ids)
    return tokens[: next(ends, len(tokens))]


def as_rollout(
    tokens: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]], setup: Setup
) -> Rollout:
    """B responses and their tokens' log-probabilities as a rollout without values."""
    lengths = [len(row) for row in tokens]
    width, pad, device = max(lengths), setup.pad_token_id, setup.device
    padded = torch.tensor([[*row, *[pad] * (width - len(row))] for row in tokens], device=device)
    likely = torch.tensor([[*row, *[0.0] * (width - len(row))] for row in logprobs], device=device)
    assert likely.shape == padded.shape, "a log-probability for each token"
    count = torch.tensor(lengths, device=device)
    return Rollout(
        tokens=padded,
        lengths=count,
        logprobs=torch.where(length_mask(count, width), likely, 0),
        entropies=None,
        values=None,
        finish_reasons=["stop" if row[-1] in setup.eos_token_ids else "length" for row in tokens],
    )


_SEEDS = 2**53
"""Number of distinct values of `torch.rand` in fp64."""


def supports_sleep(device: torch.device) -> bool:
    """Whether vLLM can release its memory; its CPU build cannot."""
    return device.type == "cuda"


def _longest(config: PPOConfig, policy: Any) -> int:
    """Tokens of the longest text, at most the model's context, as vLLM requires."""
    wanted = config.max_prompt_tokens + config.max_new_tokens
    context = getattr(policy.config.get_text_config(), "max_position_embeddings", None)
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


def importance_weights(
    *, sampler_logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, cap: float, foreign: bool
) -> tuple[Tensor | None, dict[str, float]]:
    """Weights (B, T) for tokens of a sampler μ other than the trainer's π, and metrics on them.

    For `foreign` samplers the weights are min(π/μ, `cap`) per token; otherwise None, which means 1
    (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"; TRL
    and verl do the same).  The cap bounds the variance and adds a bias.  The weight of a whole
    response would be unbiased, but its variance grows exponentially with length.
    """
    # KL(μ‖π), because the tokens come from μ.
    kl = kl_estimate(sampler_logprobs - old_logprobs, "k3")
    metrics = {
        "rollout/mismatch_kl": masked_mean(kl, mask).item(),
        "rollout/importance_weight_clipped": 0.0,
    }
    if not foreign:
        return None, metrics
    ratio = torch.where(mask, old_logprobs - sampler_logprobs, 0).exp()
    metrics["rollout/importance_weight_clipped"] = masked_mean((ratio > cap).float(), mask).item()
    return ratio.clamp_max(cap), metrics
