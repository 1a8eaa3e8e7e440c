"""The inputs of a stage: its job, with models and settings, and the files in `inputs/`.

Each attempt from scratch gets a new job and new inputs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import canary
from pipeline.config.plugins import require_allowed
from pipeline.config.sections import Config
from pipeline.demo.pairs import shipped_pairs
from pipeline.models.best_of_n import manifest_of, no_weights
from pipeline.models.hub import ModelUnavailable, base_model_path, is_local, require_reward_model
from pipeline.promotion import gate
from pipeline.reward.validation_split import LEARNED, PromptJudgments, validation_prompts
from pipeline.runs.rundir import Job
from pipeline.shaping import require_available
from storage import worker_files
from storage.engine.database import Database
from storage.labeling import follow_ups
from storage.records import Iteration, ModelVersion, Snapshot, Stage, derive_seed, new_id
from storage.tables import iterations, models, policy_judgments
from storage.tables.runs import runs

JUDGED = ("judgments.parquet", "judged_by.json", "snapshot.txt")
"""The reward stage's input files with judgments; DPO gets the same files."""


def iteration_seed(seed: int, number: int) -> int:
    """The seed of an iteration, below 2³¹.

    It is not the sum, because iteration 2 of seed 0 would then equal iteration 1 of seed 1.
    """
    return derive_seed("iteration", str(seed), str(number))


def require_reference(db: Database) -> ModelVersion:
    """The SFT reference; RuntimeError if there is none yet."""
    reference = models.newest(db, "sft")
    if reference is None:
        raise RuntimeError("no SFT reference is registered; sampling creates one first")
    return reference


_TRAINING: tuple[Stage, ...] = ("reward", "policy", "evaluate")


@dataclass(frozen=True)
class Preparation:
    """Checks, jobs and inputs of the stages of one iteration, under these settings."""

    db: Database
    current: Iteration
    config: Config

    def job(self, stage: Stage) -> Job:
        """A job of a new run, with the models that its stage may need."""
        current, config, reference = self.current, self.config, models.newest(self.db, "sft")
        names: dict[str, str | None] = {"policy": None, "reference": None, "previous": None}
        notes: dict[str, str] = {}
        extra = () if stage in ("sft", "reward") else config.shaping.extra_reward_models
        if reference:
            names["reference"] = reference.id
            names["policy"] = current.policy_sampled or reference.id
            names["previous"] = self._previous()
            # Sampling uses the reward model of the previous iteration.
            latest = models.newest(self.db, "reward")
            names["reward"] = current.reward_model or (latest.id if latest else None)
            if stage == "sampling":
                names["candidate"] = iterations.candidate(self.db, current)
            if stage == "reward":
                names["proxy"] = self._proxy()
            is_best_of_n = config.optimize.method == "best-of-n"
            if stage == "policy" and (config.ppo.start_from == "sft" or is_best_of_n):
                names["policy"] = reference.id
            elif stage == "policy" and current.verdict == "blocked":
                names["policy"] = gate.last_promoted(policy_judgments.evidence(self.db))
            if stage == "policy":
                config, notes = gate.with_raised_kl_weight(
                    config, policy_judgments.evidence(self.db)
                )
            if stage == "evaluate":
                names["policy"], names["previous"] = current.policy_produced, names["policy"]
        paths = {key: self._path(id) if id else None for key, id in names.items()}
        for number, name in enumerate(extra, 2):
            names[f"reward_{number}"], paths[f"reward_{number}"] = name, self._path(name)
        if stage == "sft":
            paths["policy"] = base_model_path(config.model.name)
        return Job(
            run=new_id("run"),
            stage=stage,
            iteration=current.number,
            config=config,
            seed=iteration_seed(config.seed, current.number),
            models=paths,
            names=names,
            notes=notes,
        )

    def fill(self, stage: Stage, inputs: Path) -> None:
        """Write the stage's inputs; ValueError if there is nothing to write."""
        fills: Mapping[Stage, Callable[[Path], Any]] = {
            "sft": lambda inputs: worker_files.write_demonstrations_input(
                self.db, inputs, edits=self.config.sft.edits
            ),
            "sampling": self._plan_sampling,
            "reward": self._write_judgments,
            "policy": self._write_policy_inputs,
            "evaluate": self._write_evaluation_inputs,
        }
        fills[stage](inputs)

    def require_reward_models(self) -> None:
        """ValueError unless all of shaping.extra_reward_models are available reward models."""
        known = {m.id: m.role for m in models.listing(self.db)}
        ours = [id for id, role in known.items() if role == "reward"]
        for name in self.config.shaping.extra_reward_models:
            if name in ours:
                continue
            # Hub ids of reward models have an owner; a name without a slash is a misspelled id.
            path = self._path(name)
            if name in known or not (is_local(path) or "/" in path):
                raise ValueError(
                    f"shaping.extra_reward_models names {name!r}, which is neither a reward model of this "
                    f"workspace ({', '.join(ours) or 'it has none yet'}), nor a local directory, nor a "
                    "Hugging Face id (owner/name)"
                )
            try:
                require_reward_model(path)
            except ModelUnavailable as error:
                raise ValueError(f"shaping.extra_reward_models: {error}") from None

    def require_models(self, due: Stage) -> None:
        """ValueError if the stage `due`, or a later one, needs a model that is missing.

        Checked before training: the evaluation would otherwise fail after hours.
        """
        stages = _TRAINING[_TRAINING.index(due) :] if due in _TRAINING else (due,)
        needed = {
            name
            for stage in stages
            for key, name in self.job(stage).names.items()
            if key != "reward" or name == self.current.reward_model  # an earlier stage will make it
        }
        gone = [model.path for model in models.missing(self.db) if model.id in needed]
        if "policy" in stages:
            self._require_weights()
        if gone:
            raise ValueError(
                f"{', '.join(gone)} is missing from {self.db.workspace}: a backup does not contain models. "
                "Copy the directory from the workspace that was backed up"
            )

    def _require_weights(self) -> None:
        """ValueError if the policy stage would start from a policy without weights of its own."""
        job = self.job("policy")
        manifest = manifest_of(job.models["policy"] or "")
        if manifest and job.names["policy"] != job.names["reference"]:
            sentence = no_weights(job.names["policy"] or "", manifest)
            raise ValueError(f"{sentence}; set ppo.start_from=sft")

    def require_components(self, allowed: Set[str] | None) -> None:
        """ValueError if a shaping component or the canary is not available, or is a function not in
        `allowed`.

        None allows all.  A function that is not allowed is not imported.
        """
        if allowed is not None:
            require_allowed(self.config.functions, allowed)
        require_available(self.config.shaping)
        canary.require_available(self.config.gate.canary)

    def require_judgments(self) -> None:
        """ValueError unless there are enough judgments to train and to measure the reward model."""
        reward = self.config.reward
        counted = worker_files.judgment_counts_by_kind(self.db, reward.learn_from)
        if not counted["used"]:
            raise ValueError(worker_files.no_labels(counted))
        judged = {
            each.prompt: PromptJudgments(
                judgments=each.judgments, decisive=each.decisive, random_stream=each.random_stream
            )
            for each in worker_files.judged_prompts(self.db, reward.learn_from)
        }
        validation_prompts(judged, share=reward.held_out_share, seed=self.config.seed)

    def shipped_pairs(self) -> Path | None:
        """The pairs shipped with the demo, if they fit the settings; None otherwise."""
        found = shipped_pairs(self.config, wanted=self._pairs_wanted())
        return found if found and worker_files.knows_prompts(self.db, found) else None

    def _pairs_wanted(self) -> int:
        config = self.config
        wanted = self.current.labels_wanted * config.sampling.surplus
        return max(1, round(wanted / (1 + config.labeling.overlap)))

    def _plan_sampling(self, inputs: Path) -> None:
        config, reference = self.config, require_reference(self.db).id
        worker_files.write_sampling_plan_input(
            self.db, inputs,
            pairs=self._pairs_wanted(),
            shares=gate.shares(
                config, self.current, previous=self._previous(), reference=reference
            ),
            chosen=config.sampling.chosen(),
            prompts_per_pair=config.sampling.selection_prompts,
            seed=iteration_seed(config.seed, self.current.number),
        )  # fmt: skip

    def _write_judgments(self, inputs: Path) -> None:
        self.require_judgments()
        number = self.current.number
        snapshot, ids = worker_files.write_judgments_input(
            self.db, inputs, iteration=number, kinds=self.config.reward.learn_from
        )
        if self.config.reward.learn_from_edits:
            kinds = self.config.reward.learn_from
            worker_files.write_edits_input(self.db, inputs, kinds=kinds)
        (inputs / "snapshot.txt").write_text(snapshot)
        record = Snapshot(hash=snapshot, iteration=number, judgments=tuple(ids))
        self.db.write(lambda tx: tx.store(record))
        worker_files.write_prompts_input(self.db, inputs, role="train", limit=64)
        policy_judgments.write_pairs_input(self.db, inputs, iteration=number, proxy=self._proxy())

    def _write_policy_inputs(self, inputs: Path) -> None:
        """Prompts, and for DPO the judgments that the reward model learned from."""
        number = self.current.number
        seed = iteration_seed(self.config.seed, number)
        worker_files.write_prompts_input(self.db, inputs, role="train", seed=seed)
        if self.config.optimize.method != "dpo":
            return
        if (run := runs.newest(self.db, number, "reward")) is None:
            raise RuntimeError(f"iteration {number} has no judgment that DPO can learn from")
        written = self.db.workspace / run.directory / "inputs"
        for name in (*JUDGED, "edits.parquet"):
            if name in JUDGED or (written / name).exists():  # edits: only if learned from
                shutil.copy(written / name, inputs)

    def _write_evaluation_inputs(self, inputs: Path) -> None:
        """Held-out prompts, and prompts that people judged, for the annotators' page."""
        evaluate, number = self.config.evaluate, self.current.number
        worker_files.write_prompts_input(self.db, inputs, role="held-out", limit=evaluate.prompts)
        run = runs.newest(self.db, number, "reward")
        if run is None or not evaluate.follow_ups:
            return
        follow_ups.write_input(
            self.db, inputs,
            iteration=number,
            learned=self.db.workspace / run.directory / "outputs" / LEARNED,
            limit=evaluate.follow_ups,
            seed=iteration_seed(self.config.seed, number),
        )  # fmt: skip

    def _previous(self) -> str | None:
        return iterations.opponent_of(self.current, iterations.before(self.db, self.current))

    def _proxy(self) -> str | None:
        """The candidate policy's own reward model, whose predictions the gate compares."""
        policy = iterations.candidate(self.db, self.current)
        return models.get(self.db, policy).reward_model if policy else None

    def _path(self, name: str) -> str:
        """The path of a model of this workspace; other names are directories or hub ids."""
        path = {model.id: model.path for model in models.listing(self.db)}.get(name, name)
        return resolved_path(self.db, path)


def resolved_path(db: Database, path: str) -> str:
    """A stored path of a model, as libraries load it: an absolute directory or a hub id."""
    local = db.workspace / path
    return str(local.resolve()) if local.exists() else base_model_path(path)
