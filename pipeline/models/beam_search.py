"""Beam search: the likeliest response that a narrow look-ahead finds.  For evaluation only.

What it returns is chosen and not sampled, so there is no distribution that a probability ratio or
a KL estimate of it would speak of: never train on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.ppo.rollout import left_padded, read_on


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A response that beam search found; `tokens` end with the end-of-text where there is one."""

    tokens: list[int]
    logprob: float
    """Σ log π of its tokens at temperature 1, nats."""
    score: float
    """`logprob` over the length raised to the length penalty."""
    finish_reason: str
    """"stop" for one that ended itself, "length" for one that was cut off."""


@torch.no_grad()
def beam_search(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    *,
    beams: int,
    eos_token_ids: Sequence[int],
    pad_token_id: int,
    max_new_tokens: int,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """The best response found to each prompt of token ids.

    At every step the `beams` likeliest unfinished beginnings of a prompt go on.  A continuation
    by an end-of-text that is among the `beams` likeliest is a finished hypothesis; a prompt is
    done once it has `beams` of them, or at `max_new_tokens`, where what is unfinished counts too.
    The best has the highest log-probability / length**`length_penalty`, end-of-text counted: 0
    takes the likeliest text, 1 the likeliest per token, more favours longer ones.  (Wu et al.
    2016, "Google's neural machine translation system", with the simpler length term of
    transformers, whose `generate` with `early_stopping=True` finds the same.)

    `model` is an `ActorCritic` or any causal LM on one device; all prompts × `beams` rows are
    decoded together.  One beam is greedy decoding.  Raises ValueError for what cannot be searched.
    """
    _check_request(prompts, beams, eos_token_ids, max_new_tokens)
    was_training = model.training
    model.eval()
    try:
        search = _Search(model, prompts, beams, sorted(set(eos_token_ids)), length_penalty)
        return search.run(pad_token_id, max_new_tokens)
    finally:
        model.train(was_training)


class _Search:
    """The beams of all prompts side by side; a prompt that is done leaves."""

    def __init__(
        self,
        model: nn.Module,
        prompts: Sequence[Sequence[int]],
        beams: int,
        eos: list[int],
        length_penalty: float,
    ) -> None:
        self.model = model
        self.prompts = prompts
        self.beams = beams
        self.device = next(model.parameters()).device
        self.eos = torch.tensor(eos, device=self.device)
        self.length_penalty = length_penalty
        self.finished: list[list[Hypothesis]] = [[] for _ in prompts]

    def run(self, pad: int, max_new_tokens: int) -> list[Hypothesis]:
        """Search until every prompt is done; the best hypothesis of each."""
        ids, mask = left_padded(self.prompts, pad, self.device)
        live = list(range(len(self.prompts)))  # the prompts still searched
        scores = torch.zeros(len(live), 1, device=self.device)  # (P, K) Σ log π of the beams
        begun = torch.zeros(len(live), 1, 0, dtype=torch.long, device=self.device)  # (P, K, t)
        cache = None
        for step in range(max_new_tokens):
            logprobs, cache = self._read(ids, mask, cache)
            ranked, beam, token = self._candidates(scores, logprobs)
            texts = torch.cat([_of_beams(begun, beam), token.unsqueeze(2)], dim=2)
            ended = torch.isin(token, self.eos)
            self._collect(live, texts, ranked, ended, last=step + 1 == max_new_tokens)
            going_on = self._next_beams(ranked, ended)
            rows = [row for row, p in enumerate(live) if len(self.finished[p]) < self.beams]
            if not rows or not going_on.shape[1] or step + 1 == max_new_tokens:
                break
            kept = torch.tensor(rows, device=self.device)
            live, going_on = [live[row] for row in rows], going_on[kept]
            begun = _of_beams(texts[kept], going_on)
            old = kept.unsqueeze(1) * scores.shape[1] + beam[kept].gather(1, going_on)
            scores = ranked[kept].gather(1, going_on)
            cache.reorder_cache(old.flatten())
            mask = mask[old.flatten()]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            ids = begun[:, :, -1].reshape(-1, 1)
        return [max(found, key=lambda hypothesis: hypothesis.score) for found in self.finished]

    def _read(self, ids: Tensor, mask: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """(P · K, V) log-probabilities of the token after the last one, and the cache grown by it."""
        output = read_on(self.model, ids, mask, cache)
        return output.logits.log_softmax(-1), output.cache

    def _candidates(self, scores: Tensor, logprobs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The likeliest continuations of each prompt, best first: Σ log π, beam and token, (P, C).

        So many that `beams` of them go on even where every beam ends with every end-of-text.
        """
        prompts, vocabulary = len(scores), logprobs.shape[-1]
        every = (scores.unsqueeze(2) + logprobs.view(prompts, -1, vocabulary)).flatten(1)
        wanted = self.beams * (1 + len(self.eos))
        ranked, index = every.topk(min(wanted, every.shape[1]))
        return ranked, index // vocabulary, index % vocabulary

    def _collect(
        self, live: list[int], texts: Tensor, ranked: Tensor, ended: Tensor, *, last: bool
    ) -> None:
        """Keep what is finished among the `beams` best candidates."""
        top = (ended | last)[:, : self.beams] & ranked[:, : self.beams].isfinite()
        for row, rank in top.nonzero().tolist():
            tokens, logprob = texts[row, rank].tolist(), ranked[row, rank].item()
            self.finished[live[row]].append(
                Hypothesis(
                    tokens=tokens,
                    logprob=logprob,
                    score=logprob / len(tokens) ** self.length_penalty,
                    finish_reason="stop" if ended[row, rank] else "length",
                )
            )

    def _next_beams(self, ranked: Tensor, ended: Tensor) -> Tensor:
        """(P, K) numbers of the candidates that go on, the best first.

        Fewer than `beams` while there are not so many beginnings: in the first steps over a
        small vocabulary.
        """
        count = min(self.beams, int((~ended).sum(1).min()))
        return ranked.masked_fill(ended, -torch.inf).topk(count).indices


def _of_beams(texts: Tensor, chosen: Tensor) -> Tensor:
    """The chosen ones of (P, K, t) texts, (P, C): (P, C, t)."""
    return texts.gather(1, chosen.unsqueeze(2).expand(-1, -1, texts.shape[2]))


def _check_request(
    prompts: Sequence[Sequence[int]], beams: int, eos_token_ids: Sequence[int], max_new_tokens: int
) -> None:
    if not prompts or not all(prompts):
        raise ValueError("beam search needs at least one prompt, and a token in each")
    if not eos_token_ids:
        raise ValueError("beam search needs at least one end-of-text id in eos_token_ids")
    if beams < 1 or max_new_tokens < 1:
        raise ValueError(
            f"beams={beams} and max_new_tokens={max_new_tokens} must be at least 1 each"
        )
