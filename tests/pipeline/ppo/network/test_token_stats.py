"""Log-probabilities, entropies, exact KLs and their gradients in chunks, against all logits at once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
)

from pipeline.ppo.network import token_stats
from pipeline.ppo.network.distributed import Processes
from pipeline.ppo.network.token_stats import (
    OutputHead,
    Reference,
    Tokens,
    chunked_stats,
    output_head,
    share_gradient,
)
from pipeline.ppo.summary import Stopwatch
from tests.helpers.ppo_helpers import PAD, tiny_model, tiny_trainer

N, WIDTH, VOCABULARY = 7, 5, 11
SHAPE = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
}  # fmt: skip
EXACT = {"kl_estimator": "full", "kl_in": "loss"}
HEADS = {
    "plain": {},
    "cap": {"cap": 3.0},
    "scale": {"scale": 0.25},
    "both": {"cap": 2.0, "scale": 1.5},
}


@pytest.fixture
def three_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_stats, "CHUNK_BYTES", 3 * 4 * VOCABULARY)


def made(
    seed: int = 0, *, bias: bool = True, width: int = WIDTH, **head: float
) -> tuple[OutputHead, torch.Tensor]:
    torch.manual_seed(seed)
    layer = nn.Linear(width, VOCABULARY, bias=bias).double()
    return OutputHead(layer=layer, **head), 2 * torch.randn(N, width, dtype=torch.float64)


def distribution(
    head: OutputHead, hidden: torch.Tensor, tokens: Tokens, temperature: float
) -> Categorical:
    logits = hidden @ head.layer.weight.T + (0 if head.layer.bias is None else head.layer.bias)
    if head.cap:
        logits = head.cap * torch.tanh(logits / head.cap)
    logits = logits * head.scale / temperature
    if tokens.early is not None:
        blocked = torch.zeros(N, VOCABULARY, dtype=torch.bool)
        blocked[tokens.early] = torch.isin(torch.arange(VOCABULARY), tokens.ends)
        logits = torch.where(blocked, -1e30, logits)
    return Categorical(logits=logits)


def all_at_once(
    head: OutputHead, hidden: torch.Tensor, tokens: Tokens, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """By torch.distributions, which has its own log-softmax and entropy."""
    spread = distribution(head, hidden, tokens, temperature)
    return spread.log_prob(tokens.ids), spread.entropy()


@pytest.mark.usefixtures("three_at_a_time")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_statistics_and_gradients_are_those_of_all_logits(name, early, temperature):
    check_against_all_logits(name, None, early=early, temperature=temperature, entropy=True)


@pytest.mark.usefixtures("three_at_a_time")
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("reference", HEADS)
@pytest.mark.parametrize("name", HEADS)
def test_the_exact_kl_is_that_of_all_logits(name, reference, early, entropy):
    check_against_all_logits(name, reference, early=early, temperature=0.7, entropy=entropy)


def check_against_all_logits(
    name: str, reference: str | None, *, early: bool, temperature: float, entropy: bool
) -> None:
    """Compare the statistics in chunks, and gradients of a sum that weighs each in each token."""
    head, hidden = made(**HEADS[name])
    hidden.requires_grad_()
    ids = torch.tensor([1, 4, 10, 4, 3, 8, 5])
    tokens = Tokens(
        ids=ids,
        ends=torch.tensor([0, 2]),
        early=torch.tensor([True, True, False, True, False, False, False]) if early else None,
    )
    spread = distribution(head, hidden, tokens, temperature)
    wanted = {"logprobs": spread.log_prob(tokens.ids)}
    compared = None
    if entropy:
        wanted["entropies"] = spread.entropy()
    if reference is not None:
        # Another width, and no bias: nothing of the policy's may be used in its place.
        other, states = made(1, bias=False, width=WIDTH + 2, **HEADS[reference])
        compared = Reference(head=other, hidden=states)
        other_spread = distribution(other, states, tokens, temperature)
        wanted["kl"] = kl_divergence(spread, other_spread)
        wanted["ref_logprobs"] = other_spread.log_prob(tokens.ids).detach()
    stats = chunked_stats(
        head, hidden, tokens,
        temperature=temperature, wants_entropy=entropy, reference=compared,
    )  # fmt: skip
    found = {key: value for key, value in stats._asdict().items() if value is not None}
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, msg=key)
    weights = {key: torch.randn(N, dtype=torch.float64) for key in wanted}
    leaves = [hidden, head.layer.weight, head.layer.bias]
    gradients = [
        torch.autograd.grad(sum((weights[key] * x[key]).sum() for key in x), leaves)
        for x in (found, wanted)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("three_at_a_time")
def test_the_gradient_of_the_kl_alone_is_that_of_its_formula_in_float64():
    """∂KL/∂W = Σ p · (log p − log q − KL) · hᵀ, and the reference has no gradient."""
    head, hidden = made()
    other, states = made(1)
    tokens = Tokens(ids=torch.arange(N), ends=torch.tensor([0]))
    stats = chunked_stats(
        head, hidden, tokens,
        temperature=1.0, wants_entropy=False, reference=Reference(head=other, hidden=states),
    )  # fmt: skip
    assert stats.kl is not None
    assert stats.ref_logprobs is not None
    assert not stats.ref_logprobs.requires_grad
    stats.kl.sum().backward()
    p, q = ((h.layer(x)).log_softmax(-1) for h, x in ((head, hidden), (other, states)))
    kl = (p.exp() * (p - q)).sum(-1, keepdim=True)
    torch.testing.assert_close(head.layer.weight.grad, (p.exp() * (p - q - kl)).T @ hidden)
    assert other.layer.weight.grad is None


@pytest.mark.usefixtures("three_at_a_time")
def test_frozen_weights_and_no_bias_get_no_gradient():
    head, hidden = made(bias=False)
    head.layer.weight.requires_grad_(False)
    hidden.requires_grad_()
    tokens = Tokens(ids=torch.arange(N), ends=torch.tensor([0]))
    stats = chunked_stats(head, hidden, tokens, temperature=1.0, wants_entropy=False)
    assert stats.entropies is None
    stats.logprobs.sum().backward()
    expected = torch.autograd.grad(all_at_once(head, hidden, tokens, 1.0)[0].sum(), hidden)[0]
    torch.testing.assert_close(hidden.grad, expected)
    assert head.layer.weight.grad is None


@pytest.mark.usefixtures("three_at_a_time")
def test_a_logit_of_minus_infinity_has_no_gradient():
    head, hidden = made()
    hidden.requires_grad_()
    tokens = Tokens(ids=torch.arange(N) + 3, ends=torch.tensor([0]))
    with torch.no_grad():
        head.layer.bias[2] = -1e9
    expected = torch.autograd.grad(1e3 * all_at_once(head, hidden, tokens, 1.0)[1].sum(), hidden)
    with torch.no_grad():
        head.layer.bias[2] = -torch.inf
    stats = chunked_stats(head, hidden, tokens, temperature=1.0, wants_entropy=True)
    assert stats.entropies is not None
    found = torch.autograd.grad(1e3 * stats.entropies.sum(), hidden)
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("three_at_a_time")
def test_a_logit_of_minus_infinity_adds_nothing_to_the_kl():
    """Both distributions exclude token 2."""
    found = []
    for excluded in (-1e9, -torch.inf):
        (head, hidden), (other, states) = made(), made(1)
        hidden.requires_grad_()
        with torch.no_grad():
            head.layer.bias[2] = other.layer.bias[2] = excluded
        stats = chunked_stats(
            head, hidden, Tokens(ids=torch.arange(N) + 3, ends=torch.tensor([0])),
            temperature=1.0, wants_entropy=False, reference=Reference(head=other, hidden=states),
        )  # fmt: skip
        assert stats.kl is not None
        found.append((stats.kl, *torch.autograd.grad(stats.kl.sum(), hidden)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("three_at_a_time")
def test_at_most_one_chunk_of_logits_is_alive(monkeypatch):
    sizes = []
    real = token_stats.token_logprobs
    monkeypatch.setattr(
        token_stats, "token_logprobs", lambda logits, ids: sizes.append(len(logits)) or real(logits, ids)
    )  # fmt: skip
    head, hidden = made()
    tokens = Tokens(ids=torch.arange(N), ends=torch.tensor([0]))
    chunked_stats(head, hidden, tokens, temperature=1.0, wants_entropy=False)
    assert sizes == [3, 3, 1]
    sizes.clear()
    other = Reference(head=head, hidden=hidden)  # the logits of two models
    chunked_stats(head, hidden, tokens, temperature=1.0, wants_entropy=False, reference=other)
    assert sizes == [1] * 2 * N


@pytest.mark.parametrize(
    ("model", "config", "cap", "scale"),
    [
        (GPT2LMHeadModel, GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2), None, 1.0),
        (Gemma2ForCausalLM, Gemma2Config(**SHAPE, final_logit_softcapping=5.0), 5.0, 1.0),
        (CohereForCausalLM, CohereConfig(**SHAPE, logit_scale=0.125, pad_token_id=0), None, 0.125),
        (GraniteForCausalLM, GraniteConfig(**SHAPE, logits_scaling=4.0), None, 0.25),
    ],
)
def test_the_head_of_an_architecture_is_found(model, config, cap, scale):
    found = output_head(model(config).eval(), Processes())
    assert found is not None
    assert (found.cap, found.scale) == (cap, scale)


def gradient(model: Any, head: OutputHead, ids: torch.Tensor) -> torch.Tensor:
    """Of a tied weight, by two texts after each other."""
    model.zero_grad()
    for row in ids:
        hidden = model.model(row[None]).last_hidden_state[0]
        tokens = Tokens(ids=row, ends=torch.tensor([0]))
        found = chunked_stats(head, hidden, tokens, temperature=1.0, wants_entropy=False)
        (found.logprobs * torch.arange(1, 1 + len(row))).sum().backward()
    return model.get_input_embeddings().weight.grad.clone()


def test_a_tied_weight_has_one_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_stats, "CHUNK_BYTES", 3 * 4 * 16)
    model = tiny_model(tie_word_embeddings=True)
    assert model.get_input_embeddings().padding_idx == PAD
    ids = torch.tensor([[2, 3, PAD, 4, 3, 15], [5, PAD, 5, 6, 2, 2]])
    head = output_head(model, Processes())
    assert head is not None
    apart = gradient(model, head, ids)
    shared = share_gradient(model, head)
    assert shared.shares_gradient
    torch.testing.assert_close(gradient(model, shared, ids), apart)
    # Autograd has no gradient to add: neither layer returns one.
    weight = model.get_input_embeddings().weight
    seen: list[torch.Tensor | None] = []
    weight.register_hook(seen.append)
    gradient(model, shared, ids)
    assert seen == [None, None]


@pytest.mark.parametrize("change", ["untied", "frozen", "norm"])
def test_other_weights_keep_two_gradients(change: str) -> None:
    model = tiny_model(tie_word_embeddings=change != "untied")
    if change == "frozen":
        model.get_input_embeddings().weight.requires_grad_(False)
    if change == "norm":
        model.get_input_embeddings().max_norm = 1.0
    head = output_head(model, Processes())
    assert head is not None
    assert share_gradient(model, head) is head


class Shifted(GPT2LMHeadModel):
    """Adds 1 to the logit of token 3 after its output layer."""

    def forward(self, *args: Any, **inputs: Any) -> Any:
        output = super().forward(*args, **inputs)
        output.logits[..., 3] += 1
        return output


def test_an_unknown_head_is_not_chunked():
    config = GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2)
    assert output_head(Shifted(config).eval(), Processes()) is None


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"critic": "separate", "entropy_weight": 0.01},
        {"lora_rank": 2, "temperature": 0.7},
        {"min_new_tokens": 3, "kl_in": "loss", "kl_estimator": "k2"},
        {"tied": True},
        {"tied": True, "critic": "separate", "gradient_checkpointing": True},
        {"tied": True, "lora_rank": 2, "reference": None},
        EXACT,
        EXACT | {"kl_in": "reward", "temperature": 0.7, "critic": "separate"},
        EXACT | {"min_new_tokens": 3, "entropy_weight": 0.01, "tied": True},
        EXACT | {"lora_rank": 2, "reference": None, "gradient_checkpointing": True},
    ],
    ids=str,
)
def test_an_update_in_chunks_is_the_same_update(monkeypatch, settings):
    """A chunk of eight tokens: every micro-batch takes several."""
    settings = dict(settings)
    tied = settings.pop("tied", False)

    def trained(chunk: int) -> Any:
        monkeypatch.setattr(token_stats, "CHUNK_BYTES", chunk)
        parts = {"model": tiny_model(tie_word_embeddings=tied), "reference": tiny_model(seed=1)}
        parts |= settings
        trainer = tiny_trainer(updates=2, rollouts=8, minibatch=4, lr=1e-3, **parts)
        calls = []
        real = token_stats._Chunked.apply
        monkeypatch.setattr(
            token_stats._Chunked, "apply", lambda *a: calls.append(len(a[1])) or real(*a)
        )
        metrics = [update.metrics for update in trainer.run()]
        monkeypatch.setattr(token_stats._Chunked, "apply", real)
        return copy.deepcopy(trainer.model.state_dict()), metrics, calls

    vocabulary = tiny_trainer(**settings).model.policy.get_output_embeddings().weight.shape[0]
    at_once, in_chunks = trained(2**27), trained(8 * 4 * vocabulary)
    assert not at_once[2]
    assert max(in_chunks[2]) > 8
    for name, value in at_once[0].items():
        torch.testing.assert_close(in_chunks[0][name], value, rtol=1e-4, atol=1e-5, msg=name)
    for ours, theirs in zip(in_chunks[1], at_once[1], strict=True):
        names = ("policy/loss", "value/loss", "policy/approx_kl", "kl/reference", "kl/loss")
        for name in (*names, "kl/penalty"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-6), name


@pytest.mark.parametrize(
    "settings", [{}, EXACT, EXACT | {"lora_rank": 2, "reference": None}], ids=str
)
def test_in_bf16_chunks_give_the_figures_of_all_logits(monkeypatch, settings):
    """Frozen weights are in bf16 then: the heads must be found before they are rounded."""

    def figures(chunk: int) -> list[torch.Tensor]:
        monkeypatch.setattr(token_stats, "CHUNK_BYTES", chunk)
        trainer = tiny_trainer(precision="bf16", **{"reference": tiny_model(seed=1)} | settings)
        learner = trainer.learner
        assert [head is not None for head in learner._heads.values()] == [chunk < 2**20] * 2
        torch.manual_seed(0)
        for name, weight in trainer.model.named_parameters():
            if "lora_B" in name:  # adapters start at 0
                nn.init.normal_(weight, std=0.1)
        batch = trainer._sample(8, Stopwatch(trainer.device))
        stats, _ = learner.token_stats(
            trainer.model, batch, wants_entropy=True, exact_kl=bool(settings)
        )
        found = [x for x in stats if x is not None]
        torch.stack([x.mean() for x in found if x.requires_grad]).sum().backward()
        gradients = [p.grad for p in learner.parameters if p.grad is not None]
        return [*found, torch.cat([x.flatten() for x in gradients])]

    at_once, in_chunks = figures(2**27), figures(8 * 4 * 16)
    assert len(at_once) == len(in_chunks) == (5 if settings else 3)
    for ours, theirs in zip(in_chunks, at_once, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2 * theirs.abs().max().item())
