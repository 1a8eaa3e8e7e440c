"""A policy that answers prompts: text in, text out, for every stage but PPO itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from pipeline.models.beam_search import beam_search
from pipeline.models.devices import context_length, inference_dtype, load_causal_lm
from pipeline.models.text import ChatTokenizer, Messages
from pipeline.ppo.rollout import generate
from pipeline.runs.rundir import Job
from storage.records import FinishReason


@dataclass(frozen=True, kw_only=True)
class Response:
    """One sampled answer; `ids` still ends with the token that ended it, `text` does not."""

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
        """From a directory or hub id; raises ModelUnavailable with one sentence."""
        return cls(load_causal_lm(path, device=device, dtype=dtype), ChatTokenizer.load(path))

    @classmethod
    def of_job(cls, job: Job, path: str, device: torch.device) -> Sampler:
        """One that only reads its weights, in the precision that the job asks for."""
        return cls.load(path, device=device, dtype=inference_dtype(job.config.model, device))

    def fits(self, messages: Messages, max_new_tokens: int) -> bool:
        """Whether a prompt, the longest answer to it and its end stay within the model's context."""
        context = context_length(self.model)
        return context is None or self.needs(messages, max_new_tokens) <= context

    def needs(self, messages: Messages, max_new_tokens: int) -> int:
        """Tokens of a prompt and the longest answer to it, as a reward model reads them.

        One that is cut off has no token that ends it, and is read with one.
        """
        return len(self.chat.prompt(messages)) + max_new_tokens + 1

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
        """One answer to each conversation, in their order; the seed decides all of them.

        Prompts of like length are decoded together, which changes no answer: random numbers
        belong to rows.
        """
        generator = torch.Generator().manual_seed(seed)

        def decode(prompts: list[list[int]]) -> list[tuple[list[int], str]]:
            rollout = generate(
                self.model,
                prompts,
                eos_token_ids=self.chat.stop_ids,
                pad_token_id=self.chat.pad_id,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_p=top_p,
                generator=generator,
            )
            return list(zip(rollout.token_lists(), rollout.finish_reasons, strict=True))

        return self._answers(conversations, decode, batch=batch, on_batch=on_batch)

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
        """The answer to each conversation that beam search finds; `batch` counts beams."""

        def decode(prompts: list[list[int]]) -> list[tuple[list[int], str]]:
            found = beam_search(
                self.model,
                prompts,
                beams=beams,
                eos_token_ids=self.chat.stop_ids,
                pad_token_id=self.chat.pad_id,
                max_new_tokens=max_new_tokens,
                length_penalty=length_penalty,
            )
            return [(best.tokens, best.finish_reason) for best in found]

        rows = max(1, batch // beams)
        return self._answers(conversations, decode, batch=rows, on_batch=on_batch)

    def _answers(
        self,
        conversations: Sequence[Messages],
        decode: Callable[[list[list[int]]], list[tuple[list[int], str]]],
        *,
        batch: int,
        on_batch: Callable[[list[Response]], Any],
    ) -> list[Response]:
        """Decode prompts of like length together: token ids to ids and finish reasons."""
        prompts = [self.chat.prompt(messages) for messages in conversations]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers: dict[int, Response] = {}
        for rows in _chunks(order, batch):
            decoded = decode([prompts[i] for i in rows])
            made = {
                i: Response(
                    prompt_ids=prompts[i],
                    ids=ids,
                    text=self.chat.decode(ids),
                    finish_reason="stop" if reason == "stop" else "length",
                )
                for i, (ids, reason) in zip(rows, decoded, strict=True)
            }
            answers |= made
            on_batch(list(made.values()))
        return [answers[i] for i in range(len(prompts))]


def _chunks(items: Sequence[int], size: int) -> Iterator[list[int]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
