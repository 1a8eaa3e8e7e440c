"""What OpenRLHF reads: prompts, the reward function, and the command.

The policy and the reference are the folder that the job names: OpenRLHF loads both from it, so they
must be the same model.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config.openrlhf import arguments, prompts_per_update
from pipeline.config.sections import WorkerConfig
from pipeline.models.loading import context_of
from pipeline.models.text import ChatTokenizer, name_rows
from pipeline.policy_methods.inputs import PolicyPrompt, read_prompts
from pipeline.runs.rundir import Job, RunDirectory, write_atomically

MODULE = "openrlhf.cli.train_ppo_ray"
INPUT_KEY, LABEL_KEY = "input", "label"

_REWARD_FILE = '''\
"""The reward of {run}, for OpenRLHF's --reward.remote_url."""

from pipeline.policy_methods.openrlhf.reward import RunReward

reward_func = RunReward({path!r})
'''


class Exchange:
    """The files of a run that OpenRLHF reads and writes.

    ValueError for a path that its command cannot name.
    """

    def __init__(self, directory: RunDirectory, worker: WorkerConfig) -> None:
        here = directory.path.resolve()
        self.folder = here / "openrlhf"
        self.prompts = self.folder / "prompts.jsonl"
        self.reward = self.folder / "reward.py"
        self.tensorboard = self.folder / "tensorboard"
        self.checkpoint = directory.checkpoint.resolve()
        # With the checkpoints, it is deleted when the run has succeeded or is retried.
        self.policy = self.checkpoint / "policy"
        # A stage that is a job of a cluster sees the paths of the nodes itself.
        self._workspace = here.parents[1] if worker.launcher == "local" and worker.root else None
        self._root = Path(worker.root)
        if set(",@") & set(self.there(self.folder)):
            raise ValueError(
                f"OpenRLHF cannot read files in {self.folder}: it splits paths at commas and @"
            )

    def there(self, path: Path) -> str:
        """A path as the cluster's nodes see it (worker.root)."""
        if self._workspace is not None and path.is_relative_to(self._workspace):
            return str(self._root / path.relative_to(self._workspace))
        return str(path)

    @property
    def has_checkpoint(self) -> bool:
        """Whether OpenRLHF has written one."""
        return (self.checkpoint / "_actor").is_dir()


def run_seed(job: Job) -> int:
    return (job.config.ppo.seed + job.seed) % 2**31


def exact_prompts(
    job: Job, directory: RunDirectory, chat: ChatTokenizer
) -> tuple[list[PolicyPrompt], list[str], dict[str, str]]:
    """The prompts, their renderings, and sentences about those left out, by name.

    OpenRLHF tokenizes the renderings.  A prompt is left out if that gives other tokens than ours, as
    where a user wrote a control token, which is text for us.  ValueError if none is left.
    """
    prompts, long = read_prompts(directory, chat, job.config.ppo, context_of(job.model("policy")))
    notes = {"long_prompts": long} if long else {}
    kept, renderings, others = [], [], []
    for prompt in prompts:
        text = rendering(chat, prompt.ids)
        if chat.tokenizer(text, add_special_tokens=False)["input_ids"] == prompt.ids:
            kept.append(prompt)
            renderings.append(text)
        else:
            others.append((prompt.id, len(prompt.ids)))
    if others:
        notes["other_tokens"] = (
            f"{len(others)} of {len(prompts)} prompts are other tokens when OpenRLHF tokenizes their "
            f"text, such as those with control tokens in a message: {name_rows(others)}; they are "
            "left out"
        )
    if not kept:
        raise ValueError(f"no prompt is left for OpenRLHF: {notes['other_tokens']}")
    return kept, renderings, notes


def require_stops(chat: ChatTokenizer) -> None:
    """ValueError if vLLM would not stop where a response ends for us."""
    ends = set(chat.stop_ids) - chat.declared_stop_ids
    if ends:
        named = ", ".join(chat.tokenizer.convert_ids_to_tokens(sorted(ends)))
        raise ValueError(
            f"OpenRLHF would not stop at {named}, which ends a response of {chat.name}; add its id "
            f"({min(ends)}) to eos_token_id in the model's generation_config.json"
        )


def rendering(chat: ChatTokenizer, ids: Sequence[int]) -> str:
    """Tokens as text with control tokens, as OpenRLHF decodes them."""
    return chat.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def write_files(
    job: Job, exchange: Exchange, prompts: list[PolicyPrompt], texts: list[str]
) -> None:
    """Write the prompts of all updates, and the reward function."""
    exchange.folder.mkdir(parents=True, exist_ok=True)
    rows = [
        json.dumps({INPUT_KEY: text, LABEL_KEY: prompt.id})
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    wanted = job.config.ppo.updates * prompts_per_update(job.config.ppo)
    write_atomically(exchange.prompts, "\n".join(_repeated(rows, wanted, run_seed(job))) + "\n")
    source = _REWARD_FILE.format(run=job.run, path=exchange.there(exchange.folder.parent))
    write_atomically(exchange.reward, source)


def _repeated(rows: list[Any], wanted: int, seed: int) -> list[Any]:
    """`wanted` rows: whole passes in random order, then a part of one.

    OpenRLHF takes one update's prompts after another from the file until it ends.
    """
    order, found = random.Random(seed), []
    while len(found) < wanted:
        found += order.sample(rows, len(rows))
    return found[:wanted]


def command(job: Job, exchange: Exchange, *, name: str, longest: int) -> list[str]:
    """OpenRLHF's command; its metrics go to the folder `name`."""
    optimize, start = job.config.optimize, Path(job.model("policy"))
    # A hub id is not a folder here.
    policy = exchange.there(start.resolve()) if start.is_dir() else job.model("policy")
    python = optimize.openrlhf_python or job.config.worker.python or sys.executable
    found = [python, "-m", MODULE, "--actor.model_name_or_path", policy]
    found += ["--critic.model_name_or_path", policy]
    found += arguments(
        job.config.ppo, optimize.openrlhf_cluster, longest=longest, seed=run_seed(job)
    )
    found += [
        "--data.prompt_dataset", exchange.there(exchange.prompts),
        "--data.input_key", INPUT_KEY,
        "--data.label_key", LABEL_KEY,
        "--train.num_episodes", "1",
        "--reward.remote_url", exchange.there(exchange.reward),
        "--ckpt.output_dir", exchange.there(exchange.policy),
        "--ckpt.path", exchange.there(exchange.checkpoint),
        "--logger.tensorboard_dir", exchange.there(exchange.tensorboard),
        "--logger.wandb.run_name", name,
    ]  # fmt: skip
    if exchange.has_checkpoint:
        found.append("--ckpt.load_enable")
    return [*found, *optimize.openrlhf_options]
