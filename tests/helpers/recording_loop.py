"""A loop for the research page that only remembers what it was asked, and hostile text for it to show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from pipeline.config.sections import Config
from pipeline.loop.budgets import Budgets
from pipeline.loop.label_budget import Holds
from pipeline.promotion import gate
from pipeline.promotion.model_board import model_board
from storage.engine.database import Database
from storage.errors import Conflict
from storage.gate_records import Evidence
from storage.gate_report import GateReport, ModelBoard, Standing
from storage.reports import InvalidSettings, LabelBudget, SettingView, Stopped, WorkspaceSettings
from storage.tables import iterations, model_judgments, policy_judgments
from tests.helpers.recorded_studies import RecordingStudies
from tests.helpers.reward_figures import RecordingReports

T = TypeVar("T")

HOSTILE = "<img src=x onerror=\"document.title='owned'\">{{7*7}}${alert(1)}\u202e"


def in_a_loop(make: Callable[[], T]) -> T:
    """Make Gradio's Blocks inside an event loop; outside one they open loops they never close."""

    async def inside() -> T:
        return make()

    return asyncio.run(inside())


class RecordingLoop:
    """A loop that does nothing but remember what it was asked; `reason` closes "Train".

    With a database it judges policies as the real one does; without one it knows of none.
    """

    def __init__(self, reason: str | None = None, db: Database | None = None) -> None:
        self.reason = reason
        self.db = db
        self.asked: list[tuple[str, object]] = []
        self.stopped: Stopped | None = None
        self.reports = RecordingReports(self, db)
        self.studies = RecordingStudies(self.asked)
        self._budgets = Budgets(db, self.reports, lambda *_: Holds()) if db else None

    def settings(self) -> list[SettingView]:
        return [
            SettingView(
                name="optimize.method", value="ppo", default="ppo", choices=("ppo", "dpo", "best-of-n"), basic={"ppo": 0, "dpo": 0, "best-of-n": 0},
                label="Method", group="Method", help="Method that makes the policy.",
            ),
            SettingView(
                name="ppo.updates", value=100, default=100, kind="int", basic={"ppo": 1}, last=100,
                label="Policy updates", group="PPO", help="Policy updates in the run. Each one samples, scores and trains once.",
            ),
            SettingView(
                name="ppo.kl_weight", value=0.05, default=0.05, kind="float", basic={"ppo": 2}, last=0.05,
                label="KL weight (β)", group="PPO", help="β: penalty per nat of KL from the reference, in reward units.",
            ),
            SettingView(
                name="ppo.lr", value=5e-05, default=3e-06, kind="float", basic={"ppo": 3}, last=1e-05, preset=2e-05,
                label="Policy learning rate", group="PPO", help="Peak learning rate of AdamW.",
            ),
            SettingView(
                name="optimize.dpo_beta", value=0.1, default=0.1, kind="float", basic={"dpo": 1},
                label="DPO β", group="Method", help="DPO's β; higher values keep the policy closer to SFT.",
            ),
            SettingView(
                name="reward.tie_model", value="rao_kupper", default="rao_kupper", kind="str",
                choices=("rao_kupper", "drop", "half"), basic={"ppo": 4, "dpo": 2},
                label="Tie model", group="Reward model", help="How ties are modeled.",
            ),
            SettingView(
                name="reward.center", value=True, default=True, kind="bool", last=True,
                label="Center rewards", group="Reward model", help="Shift rewards so that their mean over SFT responses is 0.",
            ),
            SettingView(
                name="sampling.top_p", value=0.9, default=1.0, kind="float", why_fixed="sampling.top_p acts earlier", last=0.8,
                label="Top-p of annotators' samples", group="Sampling", help="Nucleus kept while sampling for annotators.",
                applies="iteration", applies_text="Applies from the next iteration",
            ),
            SettingView(
                name="seed", value=0, default=0, kind="int", label="Random seed", group="General", help="Seed of the pipeline.",
            ),
        ]  # fmt: skip

    def workspace_settings(self) -> WorkspaceSettings:
        return WorkspaceSettings(
            file="/somewhere/config.toml",
            version="1",
            preset="demo",
            settings=tuple(self.settings()),
        )

    def save_settings(self, changes: Mapping[str, str], version: str) -> WorkspaceSettings:
        if version != "1":
            raise Conflict("config.toml changed on disk.")
        self._require_valid(changes)
        self.asked.append(("save", dict(changes)))
        return self.workspace_settings()

    @staticmethod
    def _require_valid(changes: Mapping[str, str]) -> None:
        """The KL weight must be at least 0, and the learning rate more than 0."""
        wrong = {}
        if changes.get("ppo.kl_weight", "0").startswith("-"):
            wrong["ppo.kl_weight"] = f"ppo.kl_weight={changes['ppo.kl_weight']} must be at least 0"
        if changes.get("ppo.lr") == "0":
            wrong["ppo.lr"] = "ppo.lr=0 must be more than 0"
        if wrong:
            raise InvalidSettings(wrong)

    def can_train(self) -> str | None:
        return self.reason

    def train(self, overrides: dict[str, str]) -> None:
        if self.reason:
            raise ValueError(self.reason)
        self._require_valid(overrides)
        self.asked.append(("train", overrides))

    def cancel(self, run: str) -> None:
        self.asked.append(("cancel", run))

    def resume(self, run: str) -> None:
        self.asked.append(("resume", run))

    def retry(self, run: str, overrides: Mapping[str, str] | None = None) -> None:
        self._require_valid(overrides or {})
        self.asked.append(("retry", (run, overrides)))

    def label_more(self, run: str) -> None:
        self.asked.append(("label more", run))

    def stopped_stage(self) -> Stopped | None:
        return self.stopped

    def log(self, run: str, tail: int = 200) -> str:
        text = [f"08:{i:02d}:00 {run} update {i}: reward {i / 60:.2f}" for i in range(60)]
        text.append(HOSTILE)
        return "\n".join(text[-tail:])

    def gate(self) -> GateReport:
        known = policy_judgments.evidence(self.db) if self.db else Evidence()
        return gate.report(known, Config())

    def label_budget(self) -> LabelBudget:
        if self._budgets is None:
            return LabelBudget()
        assert self.db
        return self._budgets.get(iterations.latest(self.db), Config())

    def model_board(self, anchor: str | None = None, category: str | None = None) -> ModelBoard:
        found = model_judgments.judged(self.db) if self.db else []
        return model_board(found, reference="sft-1", anchor=anchor, category=category)

    def override_gate(
        self, ruling: str, reason: str, *, policy: str | None = None, researcher: str = ""
    ) -> Standing:
        assert self.db
        policy_judgments.override(
            self.db, policy or "", ruling, reason=reason, researcher=researcher
        )
        return gate.standing(policy_judgments.evidence(self.db), policy or "")

    def metric_help(self) -> dict[str, str]:
        return {
            "reward/mean": "Mean score of the responses, before KL and penalties.",
            "reward/<component>": "Mean of a named component of the score.",
            "kl/reference": "Mean over responses of Σ (log π − log π_ref) over their tokens, nats.",
            "policy/entropy": "Mean entropy of the sampling distribution, nats.",
            "train/loss": "Negative log-likelihood per judgment.",
            "evaluate/<policy>/kl": "KL of the policy to the reference, nats.",
        }
