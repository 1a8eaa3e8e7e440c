"""Best-of-N: the policy is the reference, and the reward model chooses the best of N samples.

Stiennon et al. 2020 (arXiv:2009.01325); Beirami et al. 2024 (arXiv:2401.01879) for the KL.  Nothing
is trained: the stage measures what N gains, and writes the reference with a manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from pipeline.models.best_of_n import REWARD_MODEL, Manifest, best_of_n_kl, expected_best
from pipeline.models.devices import pick_device
from pipeline.models.hf_trainer import save_policy
from pipeline.models.loading import context_length, load_causal_lm
from pipeline.models.text import ChatTokenizer
from pipeline.policy_methods.inputs import SAMPLES, read_prompts, write_samples
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import Job, Note, Report, RunDirectory
from pipeline.sampling.best_of_n import BestOfN, best
from storage.records import derive_seed

MEASURED = 64
"""Prompts on which the gain of N is measured."""


@dataclass(frozen=True, kw_only=True)
class BestOfNSummary:
    """The summary of a policy stage with best-of-N."""

    method: Literal["best-of-n"] = "best-of-n"
    n: int
    kl_bound: float
    """log N − (N−1)/N nats per response, an upper bound on the KL to the reference."""
    prompts: int
    """Prompts that it was measured on."""
    reward: float
    """Mean reward of the chosen responses."""
    reference_reward: float
    """Mean reward of all samples."""


def run(job: Job, report: Report, directory: RunDirectory) -> BestOfNSummary:
    """Measure best-of-N on inputs/prompts.parquet; saves model/ with its manifest."""
    device, sampling = pick_device(job.config.worker.device), job.config.ppo
    path = job.model("reference")
    chat, model = ChatTokenizer.load(path), load_causal_lm(path, device=device)
    reward = RewardModel.load(job.model("reward"), device=device)
    manifest = Manifest(
        n=job.config.optimize.best_of,
        reference=job.names["reference"] or "",
        reward_model=job.names["reward"] or "",
    )
    prompts, left_out = read_prompts(directory, chat, sampling, context_length(model))
    _notes(job, report, left_out)
    measured = prompts[:MEASURED]
    done, total = 0, len(measured) * manifest.n

    def progress(batch: list[Any]) -> None:
        nonlocal done
        done += len(batch)
        report.progress(done, total, f"{done} of {total} responses sampled")

    found = BestOfN(model, chat, reward, manifest).candidates(
        [prompt.messages for prompt in measured],
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_new_tokens=sampling.max_new_tokens,
        seed=derive_seed("best-of-n", str(job.seed)),
        batch=job.config.sampling.batch,
        on_batch=progress,
    )
    for n in _values(manifest.n):
        gained = fmean(expected_best(rewards, n) for _, rewards in found)
        report.metrics(n, {"best_of_n/reward": gained, "best_of_n/kl_bound": best_of_n_kl(n)})
    for prompt, (responses, rewards) in list(zip(measured, found, strict=True))[:SAMPLES]:
        chosen = best(rewards)
        about = {
            "prompt": prompt.id,
            "reward": rewards[chosen],
            "length": len(responses[chosen].ids),
            "finish_reason": responses[chosen].finish_reason,
        }
        message = responses[chosen].text
        sample = Note(kind="sample", name="response", message=message, payload=about)
        report.add(sample, step=manifest.n)
    save_policy(model, chat.tokenizer, directory.model)
    reward.save(directory.model / REWARD_MODEL)
    manifest.write(directory.model)
    write_samples(directory)
    return BestOfNSummary(
        n=manifest.n,
        kl_bound=manifest.kl_bound,
        prompts=len(measured),
        reward=fmean(max(rewards) for _, rewards in found),
        reference_reward=fmean(fmean(rewards) for _, rewards in found),
    )


def _notes(job: Job, report: Report, left_out: str | None) -> None:
    if left_out:
        report.note("warning", "long_prompts", left_out)
    shaping = job.config.shaping
    if shaping.weights or shaping.extra_reward_models:
        message = (
            "best-of-N chooses by the newest reward model alone: shaping.weights and "
            "shaping.extra_reward_models are not used"
        )
        report.note("warning", "shaping", message)


def _values(n: int) -> list[int]:
    """1, 2, 4, … and `n`."""
    return sorted({n} | {2**k for k in range(n.bit_length()) if 2**k < n})
