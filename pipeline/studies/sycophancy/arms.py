"""The arms: PPO on the lab's prompts with one penalty each, and steering without training.

Every arm starts from the reference.  It is measured on the held-out prompts every few updates, and
after each update near the end.  It ends when its KL reaches the lab's KL; the measurement closest
to that KL is reported, so arms are compared at equal KL.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.shaping import ShapingConfig
from pipeline.models.generate import Sampler
from pipeline.models.loading import load_causal_lm
from pipeline.models.text import ChatTokenizer
from pipeline.policy_methods.inputs import shaped_reward
from pipeline.ppo import PPOTrainer
from pipeline.reward.ensemble import Ensemble
from pipeline.reward.scoring import RewardModel
from pipeline.sampling.steering import load_vector, steered
from pipeline.studies.sycophancy.measure import Measured, Measurement
from pipeline.studies.sycophancy.prompts import lab_prompts
from pipeline.studies.sycophancy.testbed import Progress, Testbed

NO_PENALTY = "none"
STEERING = "steering"


@dataclass(frozen=True, kw_only=True)
class PolicyMeasurement:
    """A measurement of a policy; `at` is the update, or the coefficient of steering."""

    at: float
    measured: Measured


@dataclass(frozen=True, kw_only=True)
class LabArm:
    """An arm's measurements, and a final one with more completions near the lab's KL."""

    name: str
    looks: list[PolicyMeasurement]
    final: PolicyMeasurement


def penalties(testbed: Testbed) -> dict[str, ShapingConfig]:
    """The settings of `[shaping]` of each trained arm.

    Weights are multiples of the reward's standard deviation, to outweigh the reward for agreeing.
    """
    weight = testbed.lab.penalty * testbed.reward_spread
    plain = testbed.config.shaping
    return {
        NO_PENALTY: plain,
        "rules": replace(plain, weights={"sycophancy": -weight}),
        "rules + echo": replace(plain, weights={"sycophancy": -weight, "echo": -weight}),
        "classifier": replace(
            plain,
            weights={"sycophancy_classifier": -weight},
            classifier=str(testbed.classifier.resolve()),
        ),
        "contrast": replace(
            plain, weights={"contrast": weight}, references=str(testbed.references.resolve())
        ),
    }


def names(testbed: Testbed) -> list[str]:
    """All arms, in the order in which they run and are reported."""
    return [*penalties(testbed), STEERING]


class Arms:
    """Runs arms on a testbed; loads the models once."""

    def __init__(self, testbed: Testbed, progress: Progress) -> None:
        self._testbed = testbed
        self._progress = progress
        self._device = testbed.device
        self._chat = ChatTokenizer.load(testbed.policy)
        self._reference = load_causal_lm(testbed.policy, device=self._device)
        self._reward_model = RewardModel.load(testbed.reward, device=self._device)
        self._measure = Measurement(
            testbed.held_out(),
            self._reference,
            self._reward_model,
            max_new_tokens=testbed.config.ppo.max_new_tokens,
            batch=testbed.config.evaluate.batch,
            seed=testbed.lab.seed,
        )

    def run(self, name: str) -> LabArm:
        """Run one arm from the start."""
        return self._steer() if name == STEERING else self._train(name)

    def reference(self) -> PolicyMeasurement:
        """Measure the reference in the same way as the arms."""
        return PolicyMeasurement(
            at=0, measured=self._look(self._reference, samples=self._testbed.lab.samples)
        )

    def _look(self, model: Any, *, samples: int = 1) -> Measured:
        return self._measure(Sampler(model, self._chat), samples=samples)

    def _train(self, name: str) -> LabArm:
        lab = self._testbed.lab
        trainer = self._trainer(name)
        looks, nearest = [PolicyMeasurement(at=0, measured=self._look(self._reference))], None
        for update in trainer.run():
            near = update.metrics["kl/reference"] >= _NEAR * lab.kl
            last = update.step == trainer.config.updates
            if update.step % lab.every and not near and not last:
                continue
            policy = trainer.model.policy
            look = PolicyMeasurement(at=update.step, measured=self._look(policy))
            self._report(name, f"update {update.step}", look)
            if nearest is None or self._kl_gap(look) < self._kl_gap(nearest[0]):
                nearest = look, copy.deepcopy(policy.state_dict())
            looks.append(look)
            if look.measured.kl >= lab.kl:
                break
        assert nearest is not None
        trainer.model.policy.load_state_dict(nearest[1])
        final = PolicyMeasurement(
            at=nearest[0].at,
            measured=self._look(trainer.model.policy, samples=lab.samples),
        )
        return LabArm(name=name, looks=looks, final=final)

    def _trainer(self, name: str) -> PPOTrainer:
        config, seed = self._testbed.config, self._testbed.lab.seed
        prompts = lab_prompts("train")
        shaping = penalties(self._testbed)[name]
        reward, weights = shaped_reward(
            Ensemble([self._reward_model], shaping),
            shaping,
            [prompt.messages for prompt in prompts],
            device=self._device,
        )
        return PPOTrainer(
            load_causal_lm(self._testbed.policy),
            self._reference,
            self._chat.tokenizer,
            [self._chat.prompt(prompt.messages) for prompt in prompts],
            reward,
            replace(config.ppo, seed=seed, checkpoint_every=0),
            reward_weights=weights,
            eos_token_ids=self._chat.stop_ids,
            device=self._device,
        )

    def _steer(self) -> LabArm:
        """Steer the reference with growing coefficients until its KL is close to the lab's."""
        lab = self._testbed.lab
        vector, layer = load_vector(self._testbed.vector)
        model = load_causal_lm(self._testbed.policy, device=self._device)

        def at(coefficient: float, samples: int = 1) -> PolicyMeasurement:
            with steered(model, vector, layer=layer, coefficient=coefficient):
                return PolicyMeasurement(
                    at=coefficient, measured=self._look(model, samples=samples)
                )

        looks = [at(0.0)]
        last_below, step = 0.0, _COEFFICIENT_STEP
        for _ in range(_MAX_COEFFICIENTS):
            look = at(last_below - step)
            looks.append(look)
            self._report(STEERING, f"coefficient {look.at:g}", look)
            if look.measured.kl < lab.kl:
                last_below = look.at
            else:
                step /= 2
            if step < _COEFFICIENT_STEP / 8:
                break
        looks.sort(key=lambda look: -look.at)
        nearest = min(looks[1:], key=self._kl_gap)
        return LabArm(name=STEERING, looks=looks, final=at(nearest.at, lab.samples))

    def _kl_gap(self, look: PolicyMeasurement) -> float:
        return abs(look.measured.kl - self._testbed.lab.kl)

    def _report(self, name: str, where: str, look: PolicyMeasurement) -> None:
        found = look.measured
        self._progress(
            f"{name}: {where}: KL {found.kl:.2f} of {self._testbed.lab.kl:g}, "
            f"agrees {found.agrees.rate:.0%}, truthful {found.truthful.rate:.0%}"
        )


_NEAR = 0.6
"""Share of the lab's KL from which every update is measured, because KL grows ever faster."""
_COEFFICIENT_STEP = 0.25
_MAX_COEFFICIENTS = 20
