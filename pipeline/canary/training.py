"""The canary during training with the PPO engine: pass rates every few updates, and a red flag.

SFT's answers are sampled once, before training.  Both models get the same random numbers, which are
not those of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pipeline.canary.checks import Canary, load_canary
from pipeline.config.sections import Config
from pipeline.models.generate import Sampler, needed_tokens
from pipeline.models.loading import context_length
from pipeline.models.text import ChatTokenizer, name_rows
from pipeline.ppo import PPOConfig
from pipeline.ppo.checkpoint import random_states, restore_random_states
from pipeline.ppo.metrics import Flag
from pipeline.ppo.network.distributed import Processes
from pipeline.ppo.rollouts.rollout import generate
from pipeline.runs.rundir import Job
from pipeline.statistics.canary import canary_figures
from storage.gate_report import CanaryFigures
from storage.records import Message, derive_seed
from storage.wording import shortened

FLAG = "canary_loss"
Respond = Callable[[Sequence[Sequence[int]], int], list[str]]
"""(prompts as token ids, seed) → the policy's responses."""


def canary_of(config: Config) -> Canary | None:
    """The canary that the settings name; None without one."""
    return load_canary(config.gate.canary) if config.gate.canary else None


def canary_seed(job: Job) -> int:
    """The seed of the answers, also in the evaluation."""
    return derive_seed("canary", str(job.seed))


def require_canary_room(
    canary: Canary, chat: ChatTokenizer, limit: int, *, context: int | None, setting: str
) -> None:
    """ValueError unless every prompt leaves room in the context for an answer of `limit` tokens."""
    needed = [(_shown(prompt), needed_tokens(chat, prompt, limit)) for prompt in canary.prompts]
    long = [row for row in needed if context is not None and row[1] > context]
    if long:
        raise ValueError(
            f"{len(long)} prompts of gate.canary exceed the model's context with {setting}={limit}: "
            f"{name_rows(long)}; lower it, or shorten them"
        )


def _shown(prompt: Sequence[Message]) -> str:
    return repr(shortened(prompt[-1].content, 40))


class CanaryWatch:
    """Compares the policy's answers with SFT's while it is trained.

    The first of the `processes` loads the reference of the `job` for a moment, and runs all checks.
    ValueError for checks that fail or prompts that are too long.
    """

    def __init__(
        self,
        canary: Canary,
        job: Job,
        chat: ChatTokenizer,
        config: PPOConfig,
        device: torch.device,
        processes: Processes,
    ) -> None:
        self._canary = canary
        self._gate = job.config.gate
        self._seed = canary_seed(job)
        self._processes = processes
        self._prompts = [chat.prompt(messages) for messages in canary.prompts]

        def reference() -> list[bool]:
            sft = Sampler.of_job(job, job.model("reference"), device)
            require_canary_room(
                canary, chat, config.max_new_tokens,
                context=context_length(sft.model), setting="ppo.max_new_tokens",
            )  # fmt: skip
            return canary.passed(_answers(sft, self._prompts, config, self._seed))

        self._reference = processes.first(reference)

    def is_due(self, step: int, *, last: bool) -> bool:
        """Whether this update is measured: every `gate.canary_every`, and the `last` one."""
        return step % self._gate.canary_every == 0 or last

    def start(self) -> dict[str, float]:
        """SFT's rates, as the metrics of update 0."""
        figures = self._figures(self._reference, [""] * len(self._prompts))
        return _metrics(figures)

    def measure(self, respond: Respond) -> tuple[dict[str, float], Flag | None]:
        """The policy's rates as metrics, and a flag if it has clearly lost too much.

        The checks cannot change the global random numbers, which rewards may use.
        """
        answers = respond(self._prompts, self._seed)
        states = random_states({})
        try:
            passed = self._processes.first(lambda: self._canary.passed(answers))
        finally:
            restore_random_states(states, {})
        figures = self._figures(passed, answers)
        return _metrics(figures), _flag(figures) if figures.blocks else None

    def _figures(self, policy: Sequence[bool], answers: Sequence[str]) -> CanaryFigures:
        return canary_figures(
            self._canary.compared(
                policy, self._reference, answers=answers, allowed_loss=self._gate.canary_loss
            )
        )


def _answers(
    sampler: Sampler, prompts: Sequence[Sequence[int]], config: PPOConfig, seed: int
) -> list[str]:
    """The reference's answers, with the random numbers of `PPOTrainer.respond`."""
    rollout = generate(
        sampler.model,
        prompts,
        eos_token_ids=sampler.chat.stop_ids,
        pad_token_id=sampler.chat.pad_id,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        min_new_tokens=config.min_new_tokens,
        generator=torch.Generator().manual_seed(seed),
        batch_size=config.rollout_batch,
    )
    return [sampler.chat.decode(tokens) for tokens in rollout.token_lists()]


def _metrics(figures: CanaryFigures) -> dict[str, float]:
    rates = {f"canary/passes/{check.name}": check.policy for check in figures.checks}
    return {"canary/pass_rate": figures.policy} | (rates if len(rates) > 1 else {})


def _flag(figures: CanaryFigures) -> Flag:
    return Flag(
        name=FLAG,
        level="warn",
        seen=f"{figures.policy:.0%} of the answers pass the canary, and {figures.reference:.0%} of SFT's: "
        f"a loss of {100 * figures.loss:.0f} points (95% interval {100 * figures.low:.0f} to "
        f"{100 * figures.high:.0f}).",
        why="The policy loses abilities that SFT has. The gate blocks a policy that ends like this.",
        remedy="Raise ppo.kl_weight, or train for fewer updates.",
    )
