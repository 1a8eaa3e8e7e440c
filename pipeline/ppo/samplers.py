"""Who samples the rollouts: this engine's own loop, transformers' `generate`, or vLLM.

A backend other than our own returns only the tokens it drew and their log-probabilities.  All else
is computed afterwards by the trainer, whose arithmetic may differ: `importance_weights` measures
that difference and corrects for it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from pipeline.ppo.algorithm import kl_estimate, length_mask, masked_mean
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.distributed import Processes, is_sharded
from pipeline.ppo.lora import adapters_folded
from pipeline.ppo.model import ActorCritic, autocast, not_ending, token_logprobs
from pipeline.ppo.rollout import Rollout, generate, left_padded, on_device, sample_tokens, truncate


class Backend(Protocol):
    """Samples one response to each prompt with the policy's present weights."""

    foreign: bool
    """Whether the trainer must compute log-probabilities, entropies and values itself, since this
    backend's arithmetic differs and it returns no entropies and values."""

    def __call__(self, prompts: Sequence[Sequence[int]], uniforms: Tensor) -> Rollout:
        """`uniforms` (B, max_new_tokens) are the rows' random numbers, or seeds for them.

        Recorded log-probabilities are of the full distribution at the sampling temperature,
        without end-of-text in the first `min_new_tokens`.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Request:
    """What every backend must know."""

    model: ActorCritic
    config: PPOConfig
    eos_token_ids: list[int]
    pad_token_id: int
    precision: str
    device: torch.device


def make_backend(request: Request, processes: Processes) -> Backend:
    """The backend that `ppo.rollout_backend` names; ValueError where it cannot be had."""
    name = request.config.rollout_backend
    if name == "own":
        return OwnLoop(request)
    if name == "transformers":
        return TransformersGenerate(request)
    if processes.size > 1 or request.device.type != "cuda":
        raise ValueError(
            "ppo.rollout_backend='vllm' needs one process on one CUDA GPU, and this run has "
            f"{processes.size} on {request.device.type}; set it to 'own'"
        )
    return VLLM(request)


class OwnLoop:
    """`rollout.generate`: keeps entropies and values as it samples."""

    foreign = False

    def __init__(self, request: Request) -> None:
        self.request = request

    def __call__(self, prompts: Sequence[Sequence[int]], uniforms: Tensor) -> Rollout:
        request, config = self.request, self.request.config
        with autocast(request.precision, request.device), self._weights():
            return generate(
                request.model,
                prompts,
                eos_token_ids=request.eos_token_ids,
                pad_token_id=request.pad_token_id,
                max_new_tokens=config.max_new_tokens,
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                min_new_tokens=config.min_new_tokens,
                uniforms=uniforms,
                batch_size=config.rollout_batch,
            )

    def _weights(self) -> AbstractContextManager[None]:
        """Inside, the policy's weights as sampling reads them fastest."""
        request = self.request
        # In bf16 an adapter that is small beside its weight would be rounded away; a sharded
        # weight is a part of one.
        if (
            request.config.lora_rank
            and request.precision == "fp32"
            and not is_sharded(request.model)
        ):
            return adapters_folded(request.model.policy)
        return nullcontext()


class TransformersGenerate:
    """The model's own `generate`, for models whose cache our loop cannot drive.

    Forward passes, cache and stopping are transformers'; tokens are drawn with our random numbers,
    so in fp32 its responses are those of our loop.
    """

    foreign = True

    def __init__(self, request: Request) -> None:
        self.request = request

    @torch.no_grad()
    def __call__(self, prompts: Sequence[Sequence[int]], uniforms: Tensor) -> Rollout:
        step = self.request.config.rollout_batch or len(prompts)
        tokens: list[list[int]] = []
        logprobs: list[list[float]] = []
        self.request.model.eval()
        for start in range(0, len(prompts), step):
            rows = slice(start, start + step)
            drawn, likely = self._generate(prompts[rows], uniforms[rows])
            tokens += drawn
            logprobs += likely
        return as_rollout(tokens, logprobs, self.request)

    def _generate(
        self, prompts: Sequence[Sequence[int]], uniforms: Tensor
    ) -> tuple[list[list[int]], list[list[float]]]:
        request, config = self.request, self.request.config
        ids, mask = left_padded(prompts, request.pad_token_id, request.device)
        chooser = _Chooser(request, on_device(uniforms, request.device))
        policy: Any = request.model.policy
        # Drawing is the chooser's; without sampling, no warper comes between.
        settings = GenerationConfig(
            do_sample=False,
            max_new_tokens=config.max_new_tokens,
            eos_token_id=request.eos_token_ids,
            pad_token_id=request.pad_token_id,
        )
        with autocast(request.precision, request.device), _no_defaults(policy):
            texts = policy.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=settings,
                logits_processor=LogitsProcessorList([chooser]),
            )
        drawn, likely = texts[:, ids.shape[1] :], torch.stack(chooser.logprobs, dim=1)
        lengths = [_length(row, request.eos_token_ids) for row in drawn.tolist()]
        cut = zip(drawn.tolist(), likely.tolist(), lengths, strict=True)
        rows = [(row[:length], values[:length]) for row, values, length in cut]
        return [row for row, _ in rows], [values for _, values in rows]


class _Chooser(LogitsProcessor):
    """Draws each row's next token with the row's own random number and leaves no other choice."""

    def __init__(self, request: Request, uniforms: Tensor) -> None:
        self.config = request.config
        self.eos = torch.tensor(request.eos_token_ids, device=uniforms.device)
        self.uniforms = uniforms
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        config, step = self.config, len(self.logprobs)
        logits = scores.float() / config.temperature
        if step < config.min_new_tokens:
            logits = not_ending(logits, self.eos)
        allowed = truncate(logits, top_k=config.top_k, top_p=config.top_p)
        drawn = sample_tokens(allowed.softmax(-1), self.uniforms[:, step])
        self.logprobs.append(token_logprobs(logits, drawn))
        return torch.full_like(scores, -torch.inf).scatter(1, drawn.unsqueeze(1), 0.0)


@contextmanager
def _no_defaults(policy: Any) -> Iterator[None]:
    """Inside, the model's own generation settings (penalties, top-k, …) do not apply."""
    holders = [module for module in policy.modules() if "generation_config" in vars(module)]
    before = [module.generation_config for module in holders]
    try:
        for module in holders:
            module.generation_config = GenerationConfig()
        yield
    finally:
        for module, settings in zip(holders, before, strict=True):
            module.generation_config = settings


def _length(tokens: list[int], eos: list[int]) -> int:
    """Tokens up to the first end-of-text, which counts."""
    return next((n for n, token in enumerate(tokens, 1) if token in eos), len(tokens))


def as_rollout(
    tokens: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]], request: Request
) -> Rollout:
    """Responses of B prompts, and their tokens' log-probabilities, as a rollout without values."""
    lengths = [len(row) for row in tokens]
    width, pad, device = max(lengths), request.pad_token_id, request.device
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
        finish_reasons=["stop" if row[-1] in request.eos_token_ids else "length" for row in tokens],
    )


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
    """Rollouts by vLLM in the trainer's own process, on the trainer's GPU.

    Before each batch of rollouts the policy's weights are copied into vLLM's model, and afterwards
    vLLM gives its memory back (sleep level 2 keeps neither weights nor cache).  The trainer computes
    log-probabilities again, and `rollout/mismatch_kl` measures how far off vLLM's are; where weights
    did not arrive it is large, and the run stops.

    Run with vLLM 0.32 on a CPU, and not yet on a GPU.  That CPU build samples from stale weights
    where the output layer is the embedding (`tie_word_embeddings`): the run stops at its first
    update.  Raises ValueError where vLLM is missing.
    """

    foreign = True

    def __init__(self, request: Request) -> None:
        self.request = request
        # In one process the model can be reached, and weights need not be copied through a pipe.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        try:
            # Imported by name: it brings CUDA extensions that few installations have.
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
            # Only our ids end a response, not those in the model's files.
            ignore_eos=True,
            stop_token_ids=self.request.eos_token_ids,
            logprobs=0,  # of the drawn token only
            detokenize=False,
            seed=seed,
        )


class Mismatch(NamedTuple):
    """Importance weights (B, T) of sampled tokens, None where all are 1, and metrics on them."""

    weights: Tensor | None
    metrics: dict[str, float]


def importance_weights(
    *, sampler_logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, cap: float, foreign: bool
) -> Mismatch:
    """Compare the sampler's log-probabilities with the trainer's.

    Tokens drawn by μ, a sampler of other arithmetic than the trainer's π, are off-policy from the
    start.  Weights min(π/μ, `cap`) undo that token by token, for `foreign` samplers (Yao et al. 2025,
    "Your efficient RL framework secretly brings you off-policy RL training"; TRL and verl do the
    same).  The cap bounds the variance and leaves a bias: what is rare to μ counts too little.  A
    token's weight ignores the tokens before it; the weight of a whole text would include them, but
    its variance grows exponentially with length.
    """
    # Of the sampler from the trainer, since the sampler drew the tokens.
    kl = kl_estimate(sampler_logprobs - old_logprobs, "k3")
    metrics = {
        "rollout/mismatch_kl": masked_mean(kl, mask).item(),
        "rollout/importance_weight_clipped": 0.0,
    }
    if not foreign:
        return Mismatch(None, metrics)
    ratio = torch.where(mask, old_logprobs - sampler_logprobs, 0).exp()
    metrics["rollout/importance_weight_clipped"] = masked_mean((ratio > cap).float(), mask).item()
    return Mismatch(ratio.clamp_max(cap), metrics)
