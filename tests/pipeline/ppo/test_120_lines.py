"""docs/ppo_in_120_lines.md runs, learns, and makes the engine's first step."""

import copy
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.helpers.ppo_helpers import EOS, count_of_w3, tiny_model, tiny_trainer

PAGE = Path(__file__).parents[3] / "docs" / "ppo_in_120_lines.md"
CODE = "\n\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))


@pytest.fixture(scope="module")
def page() -> Any:
    """What the page defines once its training has run and its assertions have held."""
    module = ModuleType("ppo_in_120_lines")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(CODE, PAGE.name, "exec"), vars(module))
    return module


def test_the_page_has_the_length_that_its_title_says_and_imports_nothing_of_ours() -> None:
    assert 100 < sum(bool(line.strip()) for line in CODE.splitlines()) <= 120
    assert "pipeline" not in CODE


def test_the_page_learns(page: Any) -> None:
    assert len(page.scores) == page.UPDATES
    assert page.scores[-1] > page.scores[0] + 2


def reader(trunk: Any, value_head: Any) -> Any:
    """A transformers model as the page wants one: (L,) ids to (L, V) logits and (L,) values."""

    def read(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = trunk(ids[None], output_hidden_states=True)
        return output.logits[0], value_head(output.hidden_states[-1][0])[:, 0]

    return read


def test_its_first_step_has_the_gradient_of_the_engines(page: Any, monkeypatch: Any) -> None:
    trainer = tiny_trainer(
        reference=tiny_model(seed=1),
        rollouts=8,
        minibatch=8,  # the first minibatch is the whole batch, in whatever order
        epochs=1,
        kl_weight=page.KL_WEIGHT,
        missing_eos_penalty=page.MISSING_EOS_PENALTY,
        gamma=page.GAMMA,
        lam=page.LAM,
        clip=page.CLIP,
        value_clip=page.VALUE_CLIP,
        value_weight=page.VALUE_WEIGHT,
    )
    model: Any = trainer.model
    torch.manual_seed(2)
    torch.nn.init.normal_(model.value_head.weight, std=0.1)  # at 0 no trunk learns from values
    before = copy.deepcopy(model)
    batches, found = [], {}
    update, clip = trainer.learner.update, torch.nn.utils.clip_grad_norm_

    def keep_batch(batch: Any, **rest: Any) -> Any:
        batches.append(batch)
        return update(batch, **rest)

    def keep_gradients(parameters: Any, limit: float) -> torch.Tensor:
        found.update({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        return clip(parameters, limit)

    monkeypatch.setattr(trainer.learner, "update", keep_batch)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", keep_gradients)
    next(trainer.run())

    (batch,) = batches
    assert page.EOS == EOS
    assert batch.lengths.unique().numel() > 1
    policy = reader(before.policy, before.value_head)
    reference = reader(trainer.reference, before.value_head)
    samples = [
        page.score_and_shape(policy, reference, trainer.prompts[index], response, score)
        for index, response, score in zip(
            batch.prompt_indices,
            batch.token_lists(),
            count_of_w3(batch.prompt_indices, batch.texts),
            strict=True,
        )
    ]
    page.whiten_advantages(samples)
    page.ppo_loss(policy, samples).backward()
    expected = {n: p.grad for n, p in before.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    assert max(gradient.abs().max() for gradient in expected.values()) > 0.01
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() < 1e-5, name
