"""A reply of a best-of-N policy in the generation service: it has no text before its end."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pipeline.ppo.rollouts.decoding import forward_without_padding
from pipeline.ppo.rollouts.draws import on_device, sample_tokens, truncate
from pipeline.sampling.best_of_n import BestOfN, best
from pipeline.serving.engine import Piece, Reply
from storage.generation_records import ReplyEnd, ReplyRequest


class BestReply(Reply):
    """N replies that are decoded together, one token of each in turn; the best one is emitted."""

    def __init__(
        self,
        sampler: BestOfN,
        prompt: list[int],
        request: ReplyRequest,
        emit: Callable[[Piece], None],
    ) -> None:
        super().__init__(sampler, prompt, request, emit)
        self._best_of, n = sampler, sampler.manifest.n
        self._next = self._next.repeat(n, 1)
        self._rows: list[list[int]] = [[] for _ in range(n)]
        # Drawn as `BestOfN.sample` draws them: the same seed gives the same reply.
        generator = torch.Generator().manual_seed(request.seed)
        size = (n, request.max_tokens)
        uniforms = torch.rand(size, generator=generator, dtype=torch.float64)
        self._uniforms = on_device(uniforms, self._device)
        self._steps = 0

    def step(self) -> bool:
        """Sample one token of each row; True when all have ended and the best was emitted."""
        request, stops = self.request, self.sampler.chat.stop_ids
        output = forward_without_padding(self.sampler.model, self._next, self._length, self._cache)
        self._length += self._next.shape[1]
        self._cache = output.cache
        if not bool(output.logits.isfinite().any()):
            raise ValueError(f"{request.model} returns no finite logits; its weights are damaged")
        if request.temperature == 0:
            drawn = output.logits.argmax(-1)
        else:
            logits = truncate(output.logits / request.temperature, top_k=0, top_p=request.top_p)
            drawn = sample_tokens(logits.softmax(-1), self._uniforms[:, self._steps])
        self._next, self._steps = drawn.unsqueeze(1), self._steps + 1
        for row, id in zip(self._rows, drawn.tolist(), strict=True):
            if not row or row[-1] not in stops:
                row.append(id)
        if self._steps < request.max_tokens and not all(row[-1] in stops for row in self._rows):
            return False
        self._emit_best()
        return True

    def _emit_best(self) -> None:
        chat, request = self.sampler.chat, self.request
        texts = [chat.decode(row) for row in self._rows]
        chosen = best(self._best_of.reward([request.messages] * len(texts), texts))
        row = self._rows[chosen]
        if texts[chosen]:
            self.emit(texts[chosen])
        reason = "stop" if row[-1] in chat.stop_ids else "length"
        ids = tuple(row) if request.token_ids else ()
        self.emit(ReplyEnd(finish_reason=reason, tokens=len(row), ids=ids))
