"""Real runs: a healthy one raises no red flag; broken in one way each, it raises the ones for that."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest
import torch

from pipeline.ppo import Flag, PPOTrainer, metrics
from pipeline.ppo.rollouts import decoding, draws
from pipeline.ppo.rollouts.backends import BuiltinSampler
from pipeline.ppo.rollouts.rollout import Rollout
from tests.helpers.ppo_helpers import tiny_tokenizer, tiny_trainer

PROMPTS = [[2 + i, 2 + j] for i in range(4) for j in range(4)]
WORTH = {f"w{i}": (i - 8.5) / 10 for i in range(2, 16)}
"""Of each word; all of them sum to 0, so that a score has as far to fall as to rise."""


def worth(indices: list[int], texts: list[str]) -> list[float]:
    """What a text's words are worth, and what its prompt is: the part that values can learn."""
    prompts = [0.4 * (PROMPTS[i][0] - 3.5) for i in indices]
    words = [sum(WORTH.get(word, 0.0) for word in text.split()) for text in texts]
    return [p + w for p, w in zip(prompts, words, strict=True)]


HEALTHY: dict[str, Any] = {
    "prompts": PROMPTS,
    "reward": worth,
    "updates": 20,
    "rollouts": 64,
    "minibatch": 16,
    "epochs": 4,
    "lr": 1e-3,
    "kl_weight": 0.2,
    "value_weight": 0.5,
    "value_clip": 0.0,
    "max_new_tokens": 8,
}


def negate_scores(trainer: PPOTrainer) -> None:
    shape = trainer.rewarder.shape

    def wrong(batch):
        scores = batch.scores  # metrics are of the true scores
        batch.scores = -scores
        shape(batch)
        batch.scores = scores

    trainer.rewarder.shape = wrong


def negate_advantages(trainer: PPOTrainer) -> None:
    update = trainer.learner.update

    def wrong(batch, **rest):
        batch.advantages = -batch.advantages
        return update(batch, **rest)

    trainer.learner.update = wrong


def negate_kl(trainer: PPOTrainer) -> None:
    trainer.rewarder.kl_controller.kl_coef *= -1


def sample_hotter(trainer: PPOTrainer) -> None:
    """The learner keeps the temperature that it was made with."""
    assert isinstance(trainer.backend, BuiltinSampler)
    hot = replace(trainer.config, temperature=5.0)
    trainer.backend.setup = replace(trainer.backend.setup, config=hot)


def draw_hotter(trainer: PPOTrainer) -> None:
    """Tokens are drawn at a temperature that their log-probabilities leave out."""
    sample = trainer.backend

    def hotter(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        return draws.sample_tokens((probs.log() / 5).softmax(-1), uniforms)

    class Hotter:
        foreign = False

        def __call__(self, *arguments: Any) -> Rollout:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(decoding, "sample_tokens", hotter)
                return sample(*arguments)

    trainer.backend = Hotter()


def with_special_words() -> Any:
    """A tokenizer that leaves a quarter of the words out of a text."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["w2", "w3", "w4", "w5"]})
    return tokenizer


def share_reference(trainer: PPOTrainer) -> None:
    """Behind the back of the constructor, which refuses it."""
    policy = dict(trainer.model.policy.named_parameters())
    for name, parameter in trainer.reference.named_parameters():
        parameter.data = policy[name].data


def spoil_values(trainer: PPOTrainer) -> None:
    for parameter in trainer.model.value_head.parameters():
        torch.nn.init.normal_(parameter)


@dataclass(frozen=True, kw_only=True)
class Broken:
    """The healthy run with one thing wrong, and the flags that must tell."""

    flags: set[str]
    changes: dict[str, Any] = field(default_factory=dict)
    wreck: Callable[[PPOTrainer], None] = lambda _: None


BROKEN = {
    "the score's sign": Broken(flags={"reward_falling"}, wreck=negate_scores),
    "the advantages' sign": Broken(flags={"reward_falling"}, wreck=negate_advantages),
    "the KL's sign": Broken(flags={"no_kl_penalty", "kl_high"}, wreck=negate_kl),
    "beta 0": Broken(flags={"no_kl_penalty", "kl_high"}, changes={"kl_weight": 0.0}),
    "learning rate x 100": Broken(flags={"duplicates"}, changes={"lr": 0.1}),
    "reward that saying nothing games": Broken(
        flags={"entropy_collapse", "duplicates", "length_drift"},
        changes={"reward": lambda _, texts: [-float(len(text.split())) for text in texts]},
    ),
    "20 epochs": Broken(flags={"many_epochs", "clip_fraction_high"}, changes={"epochs": 20}),
    "shared reference": Broken(flags={"reference_changed"}, wreck=share_reference),
    "temperature on one side": Broken(flags={"ratio_not_one"}, wreck=sample_hotter),
    # Log-probabilities computed again after sampling hide it from the ratio.
    "temperature of the sampler alone": Broken(
        flags={"sampler_mismatch"}, changes={"kl_estimator": "full"}, wreck=sample_hotter
    ),
    # The sampler's own figures hide it from both, not from the KL.
    "temperature that the log-probabilities leave out": Broken(
        flags={"kl_negative"}, wreck=draw_hotter
    ),
    "words that the tokenizer calls special": Broken(
        flags={"unseen_tokens"}, changes={"tokenizer": with_special_words()}
    ),
    "dead reward": Broken(
        flags={"reward_flat"}, changes={"reward": lambda _, texts: [0.5 for _ in texts]}
    ),
    "uncentered reward": Broken(
        flags={"reward_low"},
        changes={"reward": lambda i, texts: [score - 12 for score in worth(i, texts)]},
    ),
    "reward for length": Broken(
        flags={"length_drift"},
        changes={
            "reward": lambda _, texts: [len(text.split()) / 2 for text in texts],
            "max_new_tokens": 24,
        },
    ),
    # A value head that training makes this bad would take minutes, so it is given bad and kept so.
    "random values": Broken(
        flags={"explained_variance_negative"}, changes={"value_weight": 0.0}, wreck=spoil_values
    ),
}

METRIC_OF = {
    "ratio_not_one": "policy/first_ratio_error",
    "sampler_mismatch": "rollout/mismatch_kl",
    "unseen_tokens": "completion/unseen_tokens",
    "kl_high": "kl/reference",
    "kl_negative": "kl/reference",
    "entropy_collapse": "policy/entropy",
    "clip_fraction_high": "policy/clip_fraction",
    "explained_variance_negative": "value/explained_variance",
    "reward_flat": "reward/std",
    "reward_low": "reward/mean",
    "duplicates": "completion/unique",
    "length_drift": "completion/length_mean",
    "many_epochs": "optim/epochs",
    "no_kl_penalty": "kl/coefficient",
}
"""What a flag's figure is the last reading of; `reference_changed` is a yes or no."""


def healthy(**changes: Any) -> PPOTrainer:
    return tiny_trainer(None, **HEALTHY | changes)


def says(text: str, value: float) -> bool:
    """Whether a number in the text is this value, rounded to the digits that are printed."""
    for figure, percent in re.findall(r"(-?\d+(?:\.\d+)?(?:e[-+]\d+)?)(%?)", text):
        scale = 100 if percent else 1
        unit = 10.0 ** int(Decimal(figure).as_tuple().exponent)
        if abs(float(figure) - value * scale) <= 0.501 * unit:
            return True
    return False


def explains(flag: Flag, history: list[dict[str, float]]) -> bool:
    """What was seen, with its figure; why it matters; what to try: a sentence each."""
    sentences = all(re.fullmatch(r"[A-Z\d].{15,}\.", s) for s in (flag.seen, flag.why, flag.remedy))
    if flag.name == "reference_changed":
        return sentences
    if flag.name == "reward_falling":
        means = [update["reward/mean"] for update in history]
        return sentences and all(says(flag.seen, sum(p) / 5) for p in (means[:5], means[-5:]))
    return sentences and says(flag.seen, history[-1][METRIC_OF[flag.name]])


@pytest.mark.parametrize("seed", range(2))
def test_a_healthy_run_raises_no_flag_and_learns(seed):
    updates = list(healthy(seed=seed).run())
    assert {flag.name: update.step for update in updates for flag in update.flags} == {}
    assert updates[-1].metrics["reward/mean"] > updates[0].metrics["reward/mean"] + 1


@pytest.mark.parametrize("what", BROKEN)
def test_the_same_run_broken_raises_its_flags(what):
    broken = BROKEN[what]
    trainer = healthy(**broken.changes)
    broken.wreck(trainer)
    raised: set[str] = set()
    for update in trainer.run():
        assert all(explains(flag, trainer.history) for flag in update.flags), update.flags
        raised |= {flag.name for flag in update.flags}
        if broken.flags <= raised:
            return
    pytest.fail(f"after {trainer.step} updates only {raised} were raised")


def test_every_flag_there_is_was_raised():
    names = set(re.findall(r'\bname="(\w+)"', inspect.getsource(metrics)))
    assert len(names) == len(metrics._RULES)
    assert names == {name for broken in BROKEN.values() for name in broken.flags}
