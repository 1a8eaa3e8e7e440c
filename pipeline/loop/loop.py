"""The loop as a state machine: sampling → labeling → reward → policy → evaluating → done → next.

Each phase except labeling and done runs a stage.  The stage `sft` has no phase of its own: the
sampling phase runs it first if there is no SFT model, there are demonstrations and `sft.enabled` is
set.  `advance` reads the phase of the current iteration, does one step and stores the new phase.  It
can be called again after a crash at any point: each step is idempotent, and a stage's outputs are
stored only after the stage has succeeded.  A timer in the app calls it, or `launch.py iterate`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from pipeline.config import metric_definitions, paths
from pipeline.config.policy import still_settings
from pipeline.config.sections import Config
from pipeline.evidence.package import Package, write_package
from pipeline.loop.budgets import Budgets
from pipeline.loop.label_budget import Holds, why_start
from pipeline.loop.milestones import Milestones
from pipeline.loop.remedies import describe_stopped
from pipeline.loop.settings_store import (
    Layers,
    SettingsStore,
    allowed_functions,
    refuse_operator_settings,
)
from pipeline.loop.settings_view import check_unlocked, form, overridden
from pipeline.loop.stage_inputs import Preparation, require_reference
from pipeline.loop.studies import Studies
from pipeline.loop.workspace_config import fresh_config
from pipeline.models.hub import base_model_path
from pipeline.ppo.metrics import METRICS as PPO_METRICS
from pipeline.promotion import gate
from pipeline.promotion.model_board import model_board
from pipeline.reward.report.report import RewardReports
from pipeline.runs.jobs import Jobs
from pipeline.runs.study_folder import active_study, starting
from storage import worker_files
from storage.engine.database import Database
from storage.gate_report import GateReport, ModelBoard, Standing
from storage.labeling import follow_ups
from storage.records import Iteration, ModelVersion, Phase, Run, Stage, now
from storage.reports import (
    Blocked,
    LabelBudget,
    LoopState,
    SettingView,
    Stopped,
    WorkspaceSettings,
)
from storage.tables import audit, iterations, models, policy_judgments, prompts, settings
from storage.tables.model_judgments import judged
from storage.tables.runs import run_settings, runs

STAGE_OF: dict[Phase, Stage] = {
    "sampling": "sampling",
    "reward": "reward",
    "policy": "policy",
    "evaluating": "evaluate",
}
"""The stage that must succeed before a phase ends; labeling has none."""


class Loop:
    """One workspace's loop.  Every public method may be called from any thread."""

    def __init__(self, db: Database, config: Config, layers: Layers = Layers()) -> None:
        self._db = db
        self._config = config
        self._store = SettingsStore(db, layers)
        self._jobs = Jobs(db)
        self._milestones = Milestones(db)
        self._lock = threading.RLock()
        self.studies = Studies(
            db, lock=self._lock, busy=self._busy_for_studies, permitted=self._require_permitted
        )
        self.reports = RewardReports(
            db.workspace, lambda: models.reward_models(db), lambda: self.state().message
        )
        self._budgets = Budgets(db, self.reports, self._holds_training)
        self._apply(config)

    def _apply(self, config: Config) -> None:
        """Run with these settings, including those that storage reads."""
        db, labeling = self._db, config.labeling
        self._config = config
        # Storage counts the labels of these kinds of annotators.
        settings.set_learn_from(db, self._current_config().reward.learn_from)
        form = {f.name: getattr(labeling, f.name) for f in fields(settings.JudgmentForm)}
        settings.configure_judgment_form(db, settings.JudgmentForm(**form))
        plan = {f.name: getattr(labeling, f.name) for f in fields(settings.CheckPlan)}
        settings.set_check_plan(db, settings.CheckPlan(**plan))

    # --- for the researcher's page -----------------------------------------------------------

    def settings(self) -> list[SettingView]:
        """Every setting with its value in the current iteration.

        A setting is fixed if neither training nor the stopped stage reads it any more.
        """
        stopped, config = self.blocked_by(), self._current_config()
        last = run_settings.last_trained(runs.listing(self._db))
        return form(
            config,
            fresh_config(config.model.name),
            last=run_settings.settings_of(last) if last else {},
            again=stopped.stage if stopped else None,
        )

    def workspace_settings(self) -> WorkspaceSettings:
        """The settings in config.toml."""
        return self._store.view(self._config)

    def save_settings(
        self, changes: Mapping[str, str], version: str, *, by_operator: bool = False
    ) -> WorkspaceSettings:
        """Change settings in config.toml and run with them; returns all settings.

        `version` is that of the settings that the caller has seen: Conflict if the file has another
        one.  InvalidSettings names every setting that is wrong.  `by_operator` as in `train`.
        """
        with self._lock:
            self._apply(self._store.save(changes, version, self._config, by_operator=by_operator))
            return self.workspace_settings()

    def stopped_stage(self) -> Stopped | None:
        """The stopped stage that the loop waits for, with suggested remedies; None if there is none."""
        if (run := self.blocked_by()) is None:
            return None
        flags = runs.notes(self._db, run.id, kind="flag")
        return describe_stopped(
            run, flags, resumable=runs.has_checkpoint(self._db, run), now=self._current_config()
        )

    def can_train(self) -> str | None:
        """None if `train` would be accepted, else the reason."""
        current = iterations.latest(self._db)
        if current is None:
            return "The loop has not started. Import prompts first."
        return self._training_blocked_by(current, self._config_of(current))

    def _training_blocked_by(self, current: Iteration, config: Config) -> str | None:
        """Why the iteration cannot be trained with these settings, or None."""
        if reason := self._study_runs():
            return reason
        if current.phase != "labeling":
            return self._busy(current)
        counted = worker_files.judgment_counts_by_kind(self._db, config.reward.learn_from)
        if not counted["used"]:
            return worker_files.no_labels(counted)
        if not prompts.counts(self._db).get("held-out"):
            return "There are no held-out prompts for the evaluation. Import some first."
        try:
            # Otherwise the reward stage fails on this check later, when nobody is labeling.
            Preparation(self._db, current, config).require_judgments()
        except ValueError as error:
            return str(error)
        return None

    def _holds_training(self, current: Iteration, config: Config) -> Holds:
        """Why training of an iteration that collects labels does not start."""
        automatic = (
            "Training does not start by itself again, because a reward stage has stopped. Press Train "
            "when you are ready."
        )
        return Holds(
            training=self._training_blocked_by(current, config) or "",
            automatic=automatic if self._was_left_for_labeling(current) else "",
        )

    def _was_left_for_labeling(self, current: Iteration) -> bool:
        """Whether `label_more` left a stopped reward stage, which only a person restarts."""
        return runs.newest(self._db, current.number, "reward") is not None

    def _busy(self, current: Iteration) -> str:
        """What the iteration does instead of waiting for *Train*."""
        if run := self.blocked_by():
            return f"The {runs.name(run)} stage has stopped. Resume or retry it first."
        if current.phase == "sampling":
            return f"Iteration {current.number} is sampling its pairs."
        if current.phase == "done":
            return f"Iteration {current.number} is done. The next one starts automatically."
        names = {"reward": "reward model", "evaluating": "evaluation"}
        return f"Already training: {names.get(current.phase) or self._phase_name(current)}."

    def _study_runs(self) -> str | None:
        """Why no stage can start: a study runs.  None if none does."""
        study = self.studies.active()
        return study and f"The study {study.name} is running. Wait until it ends, or cancel it."

    def _busy_for_studies(self) -> str | None:
        """Why the loop leaves no room for a study: it trains, or will without being asked."""
        current = iterations.latest(self._db)
        if current is None or self._stage_due(current) is None or self.blocked_by():
            return None
        return f"{self._busy(current)} Start the study when the iteration waits for labels."

    def _require_permitted(self, config: Config, settings: Mapping[str, str]) -> None:
        """ValueError for a setting that a researcher may not give a study that repeats `config`."""
        check_unlocked(settings, "policy")
        chosen = config.override(settings)
        allowed = self._allowed_functions(chosen, (config, self._config))
        Preparation(self._db, self._current(), chosen).require_components(allowed)

    def train(self, overrides: Mapping[str, str], *, by_operator: bool = False) -> None:
        """End labeling and train on all judgments so far, with `overrides` for this iteration.

        Only the operator, who uses the command line, may name functions and files that config.toml
        does not name.
        """
        self._train(overrides, by_operator=by_operator)

    def _train(
        self, overrides: Mapping[str, str], *, by_operator: bool = False, why: str = ""
    ) -> None:
        """`train`; `why` says why the loop does it by itself."""
        self._require_components(overrides, due=None, by_operator=by_operator)
        with self._lock:
            current = self._current()
            changed, config = overridden(
                self._config, current, overrides, due=self._stage_due(current)
            )
            reason = self._training_blocked_by(current, config)
            if reason:
                raise ValueError(reason)
            prepared = Preparation(self._db, changed, config)
            prepared.require_reward_models()
            prepared.require_models("reward")
            self._jobs.require_machine(prepared.job("reward"))
            self._milestones.labels(current)
            settings.set_learn_from(self._db, config.reward.learn_from)
            changed = iterations.save(self._db, replace(changed, phase="reward"))
            subject = f"iteration {current.number}"
            if why:
                audit.note_of_studio(self._db, "train", subject, why=why)
            else:
                audit.note(self._db, "train", subject, settings=dict(overrides))
            if runs.newest(self._db, changed.number, "reward"):
                # The loop left a stopped reward stage for labeling; this run has a new snapshot.
                self._start(changed, "reward")

    def label_more(self, run: str) -> None:
        """Return from a failed or cancelled reward stage to labeling.

        Its run stays unchanged; the next "Train" starts another one, on a new snapshot.
        """
        with self._lock:
            stage = self._blocking_run(run).stage
            if stage != "reward":
                raise ValueError(
                    f"the {stage} stage does not learn from labels: retry it; annotators can continue "
                    "labeling meanwhile"
                )
            iterations.save(self._db, replace(self._current(), phase="labeling"))
            audit.note(self._db, "label-more", run)

    def cancel(self, run: str) -> None:
        with self._lock:
            self._jobs.cancel(run)
            audit.note(self._db, "cancel", run)

    def resume(self, run: str, overrides: Mapping[str, str] | None = None) -> None:
        """Continue from the last checkpoint; `overrides` may raise `ppo.updates`."""
        with self._lock, self._machine():
            self._jobs.resume(
                self._blocking_run(run).id, overrides or {}, machine=self._current_config().worker
            )
            audit.note(self._db, "resume", run, settings=dict(overrides or {}))

    def retry(
        self, run: str, overrides: Mapping[str, str] | None = None, *, by_operator: bool = False
    ) -> None:
        """Start a stopped stage from scratch as a new run, with the current settings and `overrides`.

        The stopped run is kept.  A refusal changes nothing.  `by_operator` as in `train`.
        """
        due = self._blocking_run(run).stage
        self._require_components(overrides or {}, due=due, by_operator=by_operator)
        with self._lock:
            stage = self._blocking_run(run).stage
            changed, config = overridden(self._config, self._current(), overrides or {}, due=stage)
            if stage == "sft" and not self._fine_tunes(changed):
                iterations.save(self._db, changed)  # nothing to train: the base model is used
                return
            prepared = Preparation(self._db, changed, config)
            prepared.require_reward_models()
            prepared.require_models(stage)
            with self._machine():
                self._jobs.retry(run, prepared.job(stage), fill=partial(prepared.fill, stage))
            iterations.save(self._db, changed)
            settings.set_learn_from(self._db, config.reward.learn_from)
            audit.note(self._db, "retry", run, settings=dict(overrides or {}))

    def log(self, run: str, tail: int = 200) -> str:
        """The end of a run's log."""
        return self._jobs.directory(runs.get(self._db, run)).log_tail(tail)

    def gate(self) -> GateReport:
        """Every policy's verdict with its evidence, and the leaderboard."""
        return gate.report(policy_judgments.evidence(self._db), self._current_config())

    def label_budget(self) -> LabelBudget:
        """How many more labels the newest iteration needs, for the gate and for the reward model."""
        return self._budgets.get(iterations.latest(self._db), self._current_config())

    def model_board(self, anchor: str | None = None, category: str | None = None) -> ModelBoard:
        """The leaderboard of all models in the judgments, imported ones included.

        ValueError for a model or a category without judgments.
        """
        references = models.listing(self._db, role="sft")
        return model_board(
            judged(self._db),
            reference=references[-1].id if references else None,
            anchor=anchor,
            category=category,
        )

    def evidence(self, out: str) -> Package:
        """Write an evidence package with the current figures; see `write_package`."""
        made = write_package(self._db, self._current_config(), Path(out))
        audit.note(self._db, "evidence", Path(out).name)
        return made

    def override_gate(
        self, ruling: str, reason: str, *, policy: str | None = None, researcher: str = ""
    ) -> Standing:
        """Rule on a policy, by default the candidate: promote, block or evidence.  Returns its standing."""
        chosen = policy or iterations.candidate(self._db, self._current()) or ""
        policy_judgments.override(self._db, chosen, ruling, reason=reason, researcher=researcher)
        evidence = policy_judgments.evidence(self._db)
        self._milestones.verdicts(evidence, policy=chosen)
        return gate.standing(evidence, chosen)

    def metric_help(self) -> dict[str, str]:
        return PPO_METRICS | metric_definitions.METRICS

    # --- the state machine -------------------------------------------------------------------

    def advance(self) -> Phase | None:
        """Do one step if one is due; return the phase after it."""
        with self._lock:
            self._jobs.poll()
            self.studies.poll()
            current = iterations.latest(self._db)
            if current is None and not prompts.counts(self._db).get("train"):
                return None  # no prompts yet
            if current is None or current.phase == "done":
                current = self._begin_iteration(current)
            self._milestones.look(current)
            stage = self._stage_due(current)
            if stage is None:
                return self._train_if_enough(current)
            if stage == "sft" and not self._fine_tunes(current):
                self._register_base_model(current)
                return current.phase
            run = runs.newest(self._db, current.number, stage)
            if run is None and active_study(self._db.workspace):
                return current.phase  # the stage starts when the study has ended
            if run is None:
                self._start(current, stage)
            elif run.status == "succeeded":
                current = self._complete_stage(current, run)
            return current.phase

    def _stage_due(self, current: Iteration) -> Stage | None:
        """The stage that must succeed next; None during labeling."""
        # Sampling needs the reference.
        if current.phase == "sampling" and not models.newest(self._db, "sft"):
            return "sft"
        return STAGE_OF.get(current.phase)

    def state(self) -> LoopState:
        """The current state of the loop."""
        current, stopped = iterations.latest(self._db), self.blocked_by()
        trouble = self._db.health.loop_error
        if current is None:
            return LoopState(trouble=trouble)
        running = [run for run in runs.listing(self._db) if run.status == "running"]
        message = ""
        if running:
            run = running[-1]
            message = f"{runs.name(run)} {run.progress:.0%} {run.message}".strip()
        elif study := self.studies.active():
            message = f"study {study.name} {study.progress:.0%} {study.message}".strip()
        return LoopState(
            iteration=current.number,
            phase=current.phase,
            phase_name=self._phase_name(current),
            message=message,
            blocked=stopped and self._blocked(stopped),
            trouble=trouble,
        )

    def _blocked(self, run: Run) -> Blocked:
        return Blocked(
            run=run.id,
            stage=runs.name(run),
            reason=run.reason,
            resumable=runs.has_checkpoint(self._db, run),
        )

    def _phase_name(self, current: Iteration) -> str:
        method = runs.method(self._db, current)
        return runs.METHODS.get(method, method) if current.phase == "policy" else current.phase

    def blocked_by(self) -> Run | None:
        """The stopped run that somebody must resume or retry, or None."""
        current = iterations.latest(self._db)
        if current is None or (stage := self._stage_due(current)) is None:
            return None
        run = runs.newest(self._db, current.number, stage)
        return run if run and run.status in ("failed", "cancelled") else None

    def refresh(self) -> None:
        """Store the events of running workers; starts nothing."""
        with self._lock:
            self._jobs.poll()
            self.studies.poll()

    def stopped(self) -> Run:
        """`blocked_by` after `refresh`; ValueError if nothing is stopped."""
        self.refresh()
        found = self.blocked_by()
        if found is None:
            raise ValueError("no stage is stopped; there is nothing to resume or retry")
        return found

    def shut_down(self) -> None:
        """Release running workers without stopping them."""
        self._jobs.shut_down()
        self.studies.shut_down()
        self.reports.shut_down()

    def _begin_iteration(self, previous: Iteration | None) -> Iteration:
        sampled = None
        if previous:  # judgments since the verdict count too
            previous = iterations.save(self._db, self._with_verdict(previous))
            sampled = gate.next_sampled(policy_judgments.evidence(self._db), previous)
        current = Iteration(
            number=previous.number + 1 if previous else 1,
            phase="sampling",
            policy_sampled=sampled,
            labels_wanted=self._config.labeling.labels,
        )
        iterations.save(self._db, current)
        settings.set_learn_from(self._db, self._config.reward.learn_from)
        return current

    def _train_if_enough(self, current: Iteration) -> Phase:
        config = self._config_of(current)
        if not config.labeling.auto_train or self._was_left_for_labeling(current):
            return "labeling"
        if config.labeling.autopilot:
            budget = self.label_budget()
        else:
            labels = worker_files.labels_in(self._db, current)
            budget = LabelBudget(labels=labels, wanted=current.labels_wanted)
        why = why_start(budget, config.labeling)
        if why is None or self._training_blocked_by(current, config):
            return "labeling"
        self._train({}, why=why)
        return "reward"

    def _fine_tunes(self, current: Iteration) -> bool:
        """Whether SFT runs: `sft.enabled` is set and demonstrations were imported.

        Otherwise the base model is the reference.
        """
        return self._config_of(current).sft.enabled and worker_files.has_demonstrations(
            self._db, edits=self._config_of(current).sft.edits
        )

    def _register_base_model(self, current: Iteration) -> None:
        name = self._config_of(current).model.name
        # `demo` is not resolved to a path, so that the installation can move.
        path = "demo" if name == "demo" else base_model_path(name)
        base = ModelVersion(id="sft-1", role="sft", name=f"{name} (base)", path=path, iteration=0)
        models.add(self._db, base)

    def _start(self, current: Iteration, stage: Stage) -> None:
        prepared = self._prepared(current)
        first = stage == "sampling" and current.number == 1
        if first and (shipped := prepared.shipped_pairs()):
            self._jobs.adopt(prepared.job(stage), shipped)
            return
        with self._machine():
            self._jobs.start(prepared.job(stage), fill=partial(prepared.fill, stage))

    @contextmanager
    def _machine(self) -> Iterator[None]:
        """Held while a stage starts; ValueError if a study runs, one of a command too."""
        with starting(self._db.workspace):
            if study := active_study(self._db.workspace):
                raise ValueError(
                    f"The study {study.name} is running. Wait until it ends, or cancel it."
                )
            yield

    def _complete_stage(self, current: Iteration, run: Run) -> Iteration:
        """Store the outputs of a succeeded run; if they cannot be stored, the run has failed."""
        try:
            taken = self._store_outputs(current, run)
        except (ValueError, FileNotFoundError) as error:
            # The same outputs would be refused again: another attempt is needed.
            self._jobs.reject(run, str(error))
            return current
        return iterations.save(self._db, taken)

    def _store_outputs(self, current: Iteration, run: Run) -> Iteration:
        """Store the outputs of a succeeded stage; return the iteration in its next phase."""
        config, directory = self._config_of(current), self._jobs.directory(run)
        summary, number = directory.result() or {}, current.number
        if run.stage == "sft":  # the sampling phase waits for it
            self._jobs.register(run, role="sft", id="sft-1", name="SFT", parent=None)
            return current
        if run.stage == "sampling":
            worker_files.import_comparisons_output(
                self._db, directory.outputs, run=run.id, iteration=current.number,
                overlap=config.labeling.overlap, seed=config.seed,
            )  # fmt: skip
            policy = current.policy_sampled or require_reference(self._db).id
            return replace(current, phase="labeling", policy_sampled=policy)
        if run.stage == "reward":
            # First, because it can fail, and no model may be registered then.
            proxy = directory.job().names.get("proxy")
            policy_judgments.import_predictions_output(self._db, directory.outputs, proxy=proxy)
            made = self._jobs.register(run, role="reward", id=f"reward-{number}", summary=summary)
            return replace(self._with_verdict(current), phase="policy", reward_model=made.id)
        if run.stage == "policy":
            made = self._jobs.register(run, role="policy", id=f"policy-{number}", summary=summary)
            return replace(current, phase="evaluating", policy_produced=made.id)
        worker_files.import_completions_output(self._db, directory.outputs)
        follow_ups.import_output(
            self._db, directory.inputs, directory.outputs, iteration=current.number
        )
        return replace(current, phase="done", evaluation=summary, finished_at=now())

    # --- helpers -----------------------------------------------------------------------------

    def _current(self) -> Iteration:
        current = iterations.latest(self._db)
        if current is None:
            raise ValueError("The loop has not started. Import prompts first.")
        return current

    def _blocking_run(self, run: str) -> Run:
        """The stopped run that the loop waits for; ValueError for any other."""
        found, blocking = self._jobs.stopped(run), self.blocked_by()
        if blocking is None or blocking.id != run:
            raise ValueError(f"the loop no longer waits for {run}")
        return found

    def _require_components(
        self, overrides: Mapping[str, str], *, due: Stage | None, by_operator: bool
    ) -> None:
        """ValueError if a user function or a file is not permitted or not available.

        Called without the lock: importing a user function may take half a minute.
        """
        current = self._current()
        changed, config = overridden(self._config, current, overrides, due=due)
        allowed = None
        if not by_operator:
            refuse_operator_settings(overrides)
            allowed = self._allowed_functions(config, (self._config_of(current), self._config))
        Preparation(self._db, changed, config).require_components(allowed)

    def _allowed_functions(self, config: Config, operator_configs: Sequence[Config]) -> set[str]:
        """The functions that a researcher may use; ValueError if the settings name a file or model
        that they may not name."""
        paths.require_open(
            config,
            workspace=self._db.workspace,
            models=[model.id for model in models.listing(self._db)],
            operator_configs=operator_configs,
        )
        return allowed_functions(operator_configs)

    def _config_of(self, current: Iteration) -> Config:
        return self._config.override(still_settings(current.settings))

    def _current_config(self) -> Config:
        """The current settings."""
        current = iterations.latest(self._db)
        return self._config_of(current) if current else self._config

    def _prepared(self, current: Iteration) -> Preparation:
        return Preparation(self._db, current, self._config_of(current))

    def _with_verdict(self, iteration: Iteration) -> Iteration:
        """The iteration with the current verdict on its candidate policy."""
        policy = iterations.candidate(self._db, iteration)
        return replace(iteration, verdict=gate.verdict(policy_judgments.evidence(self._db), policy))
