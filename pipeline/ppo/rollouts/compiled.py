"""Rollouts by a compiled decoding step: `torch.compile` fuses its kernels, and on CUDA one graph
launches them all.

The eager loop launches hundreds of small kernels for a token of a small model, and the GPU waits for
them.  Compiling takes about a minute per shape, so rows are not removed when they end and the
cache's length is rounded up to a power of two.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from pipeline.ppo.network.distributed import is_sharded
from pipeline.ppo.network.model import Setup, autocast
from pipeline.ppo.rollouts.decoding import CHECK_EVERY, Choice, left_padded
from pipeline.ppo.rollouts.draws import on_device
from pipeline.ppo.rollouts.kv_cache import FixedLayer, cache_of, has_attention_only
from pipeline.ppo.rollouts.rollout import Rollout, as_rollout, truncate_at_end

_SHORTEST = 64
"""Length of the smallest cache; longer ones are powers of two, so that few lengths are compiled."""


class CompiledSampler:
    """Decodes with a compiled step; the trainer computes log-probabilities, entropies and values.

    ValueError for a model with other layers than attention.  Needs a C++ compiler on a CPU and triton
    on a GPU.
    """

    foreign = True

    def __init__(self, setup: Setup) -> None:
        policy: Any = setup.model.policy
        if not has_attention_only(policy):
            raise ValueError(
                f"ppo.rollout_backend='compiled' cannot decode {type(policy).__name__}, which has "
                "other layers than attention; set it to 'transformers'"
            )
        if is_sharded(policy):
            raise ValueError(
                "ppo.rollout_backend='compiled' needs a whole model in each process; set "
                "ppo.sharding='none'"
            )
        self.setup = setup
        self.rounded = _Rounded(policy) if setup.precision == "bf16" else None
        self.policy: Any = policy if self.rounded is None else self.rounded.twin
        config = setup.config
        self.choice = Choice(
            ends=torch.tensor(setup.eos_token_ids, device=setup.device),
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            min_new_tokens=config.min_new_tokens,
        )
        mode = "reduce-overhead" if setup.device.type == "cuda" else None
        self._compiled = torch.compile(self._step, dynamic=False, fullgraph=True, mode=mode)
        self._caches: dict[tuple[int, int], Cache] = {}

    @torch.no_grad()
    def __call__(self, prompts: Sequence[Sequence[int]], uniforms: Tensor) -> Rollout:
        setup = self.setup
        if self.rounded is not None:
            self.rounded.refresh()
        uniforms = on_device(uniforms, setup.device)
        rows = setup.config.rollout_batch or len(prompts)
        tokens: list[list[int]] = []
        logprobs: list[list[float]] = []
        self.policy.eval()
        with autocast(setup.precision, setup.device):
            for start in range(0, len(prompts), rows):
                part = slice(start, start + rows)
                drawn, likely = self._decode(prompts[part], uniforms[part])
                tokens += [truncate_at_end(row, setup.eos_token_ids) for row in drawn.tolist()]
                logprobs += likely.tolist()
        logprobs = [row[: len(ids)] for row, ids in zip(logprobs, tokens, strict=True)]
        return as_rollout(tokens, logprobs, setup)

    def _decode(self, prompts: Sequence[Sequence[int]], uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """(B, steps) tokens and log-probabilities; those after a row's end have no meaning."""
        ids, real = left_padded(prompts, self.setup.pad_token_id, self.setup.device)
        rows, width = ids.shape
        steps = uniforms.shape[1]
        capacity = max(_SHORTEST, 1 << (width + steps - 1).bit_length())
        mask = real.new_zeros(rows, capacity)
        mask[:, :width] = real
        places = (real.cumsum(1) - 1).clamp_min(0)
        cache = self._cache(rows, capacity)
        tokens = ids.new_zeros(rows, steps)
        logprobs = torch.zeros(rows, steps, device=ids.device)
        for step in range(steps):
            # The first pass reads prompts of any width, so it is not compiled.
            run = self._step if step == 0 else self._compiled
            early = step < self.setup.config.min_new_tokens
            drawn, likely = run(ids, mask, places, cache, uniforms[:, step], early=early)
            tokens[:, step], logprobs[:, step] = drawn, likely
            ids, places = tokens[:, step : step + 1], places[:, -1:] + 1
            if step + 1 == steps:
                break
            mask[:, width + step] = 1
            if (step + 1) % CHECK_EVERY == 0 and self._all_ended(tokens[:, : step + 1]):
                break
        return tokens, logprobs

    def _step(
        self,
        ids: Tensor,
        mask: Tensor,
        places: Tensor,
        cache: Cache,
        uniforms: Tensor,
        *,
        early: bool,
    ) -> tuple[Tensor, Tensor]:
        """Read (B, L) tokens; return (B,) next tokens and their log-probabilities."""
        output = self.policy(
            input_ids=ids,
            attention_mask=mask,
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits = self.choice.logits(output.logits[:, -1].float(), early=early)
        drawn = self.choice.token(logits, uniforms)
        return drawn, logits.log_softmax(-1).gather(1, drawn[:, None]).squeeze(1)

    def _cache(self, rows: int, capacity: int) -> Cache:
        """An empty static cache; kept, because a graph is tied to its memory."""
        shape = (rows, capacity)
        if shape not in self._caches:
            self._caches[shape] = cache_of(self.policy, FixedLayer, capacity)
        cache = self._caches[shape]
        cache.reset()
        return cache

    def _all_ended(self, tokens: Tensor) -> bool:
        return bool(torch.isin(tokens, self.choice.ends).any(1).all())


class _Rounded:
    """A twin of the policy whose linear layers have bf16 weights of their own; it shares the rest.

    Autocast would round the weights for every token inside a compiled step.
    """

    def __init__(self, policy: nn.Module) -> None:
        shared = {id(x): x for x in [*policy.parameters(), *policy.buffers()]}
        self.twin = copy.deepcopy(policy, shared)
        layers = dict(self.twin.named_modules())
        self._pairs: list[tuple[Tensor, Tensor]] = []
        for name, layer in policy.named_modules():
            if type(layer) is nn.Linear and layer.weight.dtype == torch.float32:
                rounded = nn.Parameter(layer.weight.detach().bfloat16(), requires_grad=False)
                layers[name].weight = rounded
                self._pairs.append((rounded, layer.weight))

    @torch.no_grad()
    def refresh(self) -> None:
        """Round the current weights."""
        for rounded, weight in self._pairs:
            rounded.copy_(weight)
