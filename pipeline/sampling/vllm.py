"""`VLLMSampler`: a policy that vLLM samples from, in the stage's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pipeline.models.best_of_n import manifest_of, no_weights
from pipeline.models.devices import inference_dtype
from pipeline.models.generate import Response, answers
from pipeline.models.hub import ModelUnavailable, require_model
from pipeline.models.text import ChatTokenizer, Messages
from pipeline.ppo.network.distributed import Processes
from pipeline.ppo.rollouts.vllm import load_vllm, start_engine
from pipeline.runs.rundir import Job

_OTHERWISE = "set sampling.backend=own"
_LEAST_AT_ONCE = 256
"""vLLM makes its own batches; more prompts at once only delay the progress."""
_SEEDS = 2**53


class VLLMSampler:
    """Samples with a running vLLM; `Sampler.sample` without the studio's loop."""

    def __init__(self, vllm: Any, engine: Any, chat: ChatTokenizer) -> None:
        self._vllm = vllm
        self._engine = engine
        self._chat = chat

    def sample(
        self,
        conversations: Sequence[Messages],
        *,
        temperature: float,
        max_new_tokens: int,
        seed: int,
        top_p: float = 1.0,
        batch: int = 32,
        on_batch: Callable[[list[Response]], Any] = lambda _: None,
    ) -> list[Response]:
        """One answer to each conversation, in the same order, reproducible by `seed`."""
        generator = torch.Generator().manual_seed(seed)

        def decode(prompts: list[list[int]]) -> list[list[int]]:
            seeds = torch.randint(_SEEDS, (len(prompts),), generator=generator).tolist()
            options = {
                "temperature": temperature,
                "top_p": top_p,
                "max_tokens": max_new_tokens,
                # Only the end ids of our tokenizer end an answer, not those of the model's files.
                "ignore_eos": True,
                "stop_token_ids": self._chat.stop_ids,
                "detokenize": False,
            }
            outputs = self._engine.generate(
                [{"prompt_token_ids": prompt} for prompt in prompts],
                [self._vllm.SamplingParams(**options, seed=each) for each in seeds],
                use_tqdm=False,
            )
            return [list(output.outputs[0].token_ids) for output in outputs]

        at_once = max(batch, _LEAST_AT_ONCE)
        return answers(self._chat, conversations, decode, batch=at_once, on_batch=on_batch)


@contextmanager
def vllm_sampler(job: Job, path: str, device: torch.device) -> Iterator[VLLMSampler]:
    """vLLM with the model at `path`, which is freed at the end.

    Raises ValueError if vLLM does not start, `ModelUnavailable` for a policy without weights.
    """
    if manifest := manifest_of(path):
        raise ModelUnavailable(f"{no_weights(path, manifest)}; {_OTHERWISE}")
    chat = ChatTokenizer.load(path)
    vllm = load_vllm(device, Processes(), otherwise=_OTHERWISE)
    bf16 = inference_dtype(job.config.model, device) == torch.bfloat16
    engine = start_engine(
        vllm,
        otherwise=_OTHERWISE,
        model=require_model(path),
        dtype="bfloat16" if bf16 else "float32",
        gpu_memory_utilization=job.config.sampling.vllm_memory,
        seed=job.seed,
    )
    try:
        yield VLLMSampler(vllm, engine, chat)
    finally:
        engine.llm_engine.engine_core.shutdown()  # or its memory stays taken until it is collected
