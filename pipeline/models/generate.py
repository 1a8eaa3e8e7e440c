"""`Sampler`: a policy that answers conversations with text, for every stage except PPO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.models.beam_search import beam_search
from pipeline.models.devices import inference_dtype
from pipeline.models.loading import context_length, load_causal_lm
from pipeline.models.text import ChatTokenizer, Messages
from pipeline.ppo.rollouts.rollout import generate
from pipeline.runs.rundir import Job
from storage.records import FinishReason


@dataclass(frozen=True, kw_only=True)
class Response:
    """One sampled answer; `ids` includes the end-of-text, `text` does not."""

    prompt_ids: list[int]
    ids: list[int]
    text: str
    finish_reason: FinishReason


class Sampler:
    """A language model with its tokenizer on a device."""

    def __init__(self, model: Any, chat: ChatTokenizer) -> None:
        self.model = model
        self.chat = chat

    @classmethod
    def load(cls, path: str, *, device: torch.device, dtype: torch.dtype) -> Sampler:
        """Load a model directory or hub id; raises ModelUnavailable with one sentence."""
        return cls(load_causal_lm(path, device=device, dtype=dtype), ChatTokenizer.load(path))

    @classmethod
    def of_job(cls, job: Job, path: str, device: torch.device) -> Sampler:
        """Load a model for inference, in the precision that the job's settings name."""
        return cls.load(path, device=device, dtype=inference_dtype(job.config.model, device))

    def fits(self, messages: Messages, max_new_tokens: int) -> bool:
        """Whether a prompt with the longest answer fits the model's context."""
        context = context_length(self.model)
        return context is None or self.needs(messages, max_new_tokens) <= context

    def needs(self, messages: Messages, max_new_tokens: int) -> int:
        """`needed_tokens` with this model's tokenizer."""
        return needed_tokens(self.chat, messages, max_new_tokens)

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
            return generate(
                self.model,
                prompts,
                eos_token_ids=self.chat.stop_ids,
                pad_token_id=self.chat.pad_id,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_p=top_p,
                generator=generator,
            ).token_lists()

        return answers(self.chat, conversations, decode, batch=batch, on_batch=on_batch)

    def search(
        self,
        conversations: Sequence[Messages],
        *,
        beams: int,
        max_new_tokens: int,
        length_penalty: float = 1.0,
        batch: int = 32,
        on_batch: Callable[[list[Response]], Any] = lambda _: None,
    ) -> list[Response]:
        """The answer that beam search finds to each conversation; `batch` counts beams."""

        def decode(prompts: list[list[int]]) -> list[list[int]]:
            return beam_search(
                self.model,
                prompts,
                beams=beams,
                eos_token_ids=self.chat.stop_ids,
                pad_token_id=self.chat.pad_id,
                max_new_tokens=max_new_tokens,
                length_penalty=length_penalty,
            )

        rows = max(1, batch // beams)
        return answers(self.chat, conversations, decode, batch=rows, on_batch=on_batch)


def needed_tokens(chat: ChatTokenizer, messages: Messages, max_new_tokens: int) -> int:
    """Tokens of a prompt with the longest answer, as a reward model reads them.

    It appends an end-of-text to an answer that was cut off, which adds one token.
    """
    return len(chat.prompt(messages)) + max_new_tokens + 1


def answers(
    chat: ChatTokenizer,
    conversations: Sequence[Messages],
    decode: Callable[[list[list[int]]], list[list[int]]],
    *,
    batch: int,
    on_batch: Callable[[list[Response]], Any],
) -> list[Response]:
    """Decode prompts of similar length together; `decode` maps prompts to response ids."""
    prompts = [chat.prompt(messages) for messages in conversations]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    found: dict[int, Response] = {}
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        decoded = decode([prompts[i] for i in rows])
        responses = [
            Response(
                prompt_ids=prompts[i],
                ids=ids,
                text=chat.decode(ids),
                finish_reason="stop" if ids[-1] in chat.stop_ids else "length",
            )
            for i, ids in zip(rows, decoded, strict=True)
        ]
        found.update(zip(rows, responses, strict=True))
        on_batch(responses)
    return [found[i] for i in range(len(prompts))]
