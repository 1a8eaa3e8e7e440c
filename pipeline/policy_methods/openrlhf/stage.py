"""The policy stage with OpenRLHF: writes prompts and reward, submits a Ray job, takes the policy over.

The files, the command and the Ray job are tested with a stand-in for OpenRLHF's training, which needs
GPUs and was not run (docs/openrlhf.md).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.models.hf_trainer import save_policy
from pipeline.models.text import ChatTokenizer
from pipeline.policy_methods.inputs import PolicySummary, write_samples
from pipeline.policy_methods.openrlhf import exchange as files
from pipeline.policy_methods.openrlhf.follow import TrainingJob
from pipeline.policy_methods.openrlhf.takeover import load_checked
from pipeline.runs.cancellation import deferred
from pipeline.runs.launchers.ray_jobs import RayCluster
from pipeline.runs.rundir import Job, Report, RunDirectory


def run(job: Job, report: Report, directory: RunDirectory) -> PolicySummary:
    """Train the policy on inputs/prompts.parquet with OpenRLHF; saves model/."""
    start = job.model("policy")
    if Path(start).resolve() != Path(job.model("reference")).resolve():
        raise ValueError(
            "OpenRLHF takes the policy that it starts from as the reference too, and this stage has "
            "another reference; set ppo.start_from=sft"
        )
    chat = ChatTokenizer.load(start)
    files.require_stops(chat)
    exchange = files.Exchange(directory, job.config.worker)
    with deferred():
        training = _start(job, report, directory, exchange, chat)
        training.follow()
    model = load_checked(exchange.policy, chat, start)
    save_policy(model, chat.tokenizer, directory.model)
    write_samples(directory)
    return PolicySummary(
        method="openrlhf",
        metrics=training.metrics,
        updates=training.step,
        kl_weight=job.config.ppo.kl_weight,
    )


def _start(
    job: Job, report: Report, directory: RunDirectory, exchange: files.Exchange, chat: ChatTokenizer
) -> TrainingJob:
    """Submit OpenRLHF's job, or find that of an earlier attempt."""
    prompts, texts, left_out = files.exact_prompts(job, directory, chat)
    if not job.resume:  # else the first attempt has said so
        for name, sentence in {**job.notes, **left_out}.items():
            report.note("warning", name, sentence)
    # Ray's entry point is a small process; OpenRLHF itself asks for the GPUs.
    machine = replace(job.config.worker, cpus=1, gpus=0)
    cluster = RayCluster(machine, otherwise="choose another optimize.method")
    training = TrainingJob(cluster, job, report, directory, exchange)
    longest = max(len(prompt.ids) for prompt in prompts) + job.config.ppo.max_new_tokens

    def command(name: str) -> list[str]:
        files.write_files(job, exchange, prompts, texts)
        return files.command(job, exchange, name=name, longest=longest)

    training.start(command)
    return training
