"""A finished study that trained a reward model again, with plausible figures and no workers."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.runs.study_folder import Spec
from pipeline.studies.retrain.files import PARTS, Fact
from pipeline.studies.retrain.findings import findings, notes
from pipeline.studies.retrain.plot import write_report
from pipeline.studies.retrain.report import Measured, RetrainReport, summary
from storage.engine.database import Database
from storage.gate_records import Evidence, PolicyJudgment
from storage.records import Study, StudyRun
from storage.reports import JudgmentCount, RetrainOffer
from storage.tables.runs import studies
from tests.helpers.recording_loop import HOSTILE

PEOPLE = ("Ada", "Björn", f"Chloé {HOSTILE}", "Careless Carl")
CONTROLS = 3
OFFER = RetrainOffer(
    model="reward-2", iteration=2, seconds=130.0,
    annotators=tuple(JudgmentCount(value=name, judgments=100) for name in PEOPLE),
    kinds=(JudgmentCount(value="person", judgments=400),),
    guidelines=(
        JudgmentCount(value="0" * 16, judgments=150), JudgmentCount(value="1" * 16, judgments=250),
    ),
)  # fmt: skip


def made_report(controls: int = CONTROLS) -> RetrainReport:
    """400 judgments, a quarter of them by Carl, who judges at random."""
    coin = random.Random(3)
    facts = [
        Fact(
            judgment=f"j-{n}", annotator=PEOPLE[n % 4], kind="person",
            part=PARTS[0 if n * 7 % 20 > 7 else 1 if n * 7 % 20 > 3 else 2], left_out=n % 4 == 3,
        )
        for n in range(400)
    ]  # fmt: skip
    facts += [
        Fact(judgment=f"g-{n}", annotator=PEOPLE[n % 4], kind="person", part="", left_out=n % 4 == 3)
        for n in range(160)
    ]  # fmt: skip
    spec = Spec(
        kind="retrain",
        name="without Carl",
        repeats="run-2-reward",
        iteration=2,
        plan={
            "without": ["Careless Carl"], "only": [], "guidelines": [], "before": None,
            "controls": controls, "model": "reward-2",
        },
    )  # fmt: skip
    held_out = [fact.judgment for fact in facts if fact.part == "held_out"]
    truth = {judgment: coin.gauss(0.5, 1) for judgment in held_out}
    policies = {"policy-2": 0.72, "policy-1": 0.57}
    made = summary(
        spec,
        facts=facts,
        original=_measured(coin, truth, policies, noise=1.0),
        retrained=_measured(coin, truth, policies | {"policy-1": 0.66}, noise=0.6),
        controls=[_measured(coin, truth, policies, noise=1.1) for _ in range(controls)],
        evidence=_evidence(coin),
        tie_model="rao_kupper",
        not_evaluated=[],
    )
    return replace(made, findings=findings(made), notes=notes(made))


def _measured(
    coin: random.Random, truth: dict[str, float], policies: dict[str, float], *, noise: float
) -> Measured:
    held_out: dict[str, Any] = {}
    for n, (judgment, utility) in enumerate(truth.items()):
        d = utility + coin.gauss(0, noise)
        first = 0.85 / (1 + math.exp(-d))
        held_out[judgment] = {
            "judgment": judgment, "prompt": f"p-{n // 2}", "arm": "random", "d": d,
            "outcome": "tie" if n % 8 == 7 else "first" if n % 4 != 3 or n % 3 else "second",
            "p_first": first, "p_second": 0.85 - first,
        }  # fmt: skip
    scores = {
        policy: [
            {
                "policy": policy, "prompt": f"h-{n}", "reward": coin.gauss(2 * rate - 1, 0.7),
                "reference_reward": coin.gauss(0, 0.7),
                "expected": min(max(coin.gauss(rate, 0.15), 0.02), 0.98),
            }
            for n in range(120)
        ]
        for policy, rate in policies.items()
    }  # fmt: skip
    return Measured(held_out=held_out, scores=scores)


def _evidence(coin: random.Random) -> Evidence:
    """Two policies with 80 judgments against SFT; Carl answers against policy-2."""
    judged = [
        PolicyJudgment(
            comparison=f"c-{n}", judgment=f"g-{n}", prompt=f"q-{n}", iteration=2 + n % 2,
            first=f"policy-{1 + n // 80}", second="sft-1",
            outcome=float(coin.random() < (0.3 if n % 4 == 3 else 0.56 + 0.14 * (n // 80))),
        )
        for n in range(160)
    ]  # fmt: skip
    return Evidence(judged=judged, policies=["sft-1", "policy-1", "policy-2"], reference="sft-1")


def store_retrained(db: Database, *, controls: int = CONTROLS) -> RetrainReport:
    """Store the study with its report, and one that runs."""
    report = made_report(controls)
    folder = db.workspace / "retrain" / "without Carl"
    folder.mkdir(parents=True)
    write_report(folder, report)
    _store(db, "without Carl", report, [*_labels(controls)], status="succeeded")
    return report


def store_running(db: Database) -> None:
    """Store a study of which one model is trained and the other is being trained."""
    report = made_report(1)
    plan = report.plan | {"without": [], "only": ["person"], "before": "2026-03-02T00:00:00+00:00"}
    _store(db, "people only", replace(report, plan=plan), [*_labels(1)], status="running")


def _labels(controls: int) -> Sequence[str]:
    return ("retrained", *(f"control-{n}" for n in range(1, controls + 1)))


def _store(
    db: Database, name: str, report: RetrainReport, labels: list[str], *, status: Any
) -> None:
    study = f"retrain-{name}"
    running = status == "running"
    studies.save(
        db,
        *(
            StudyRun(
                id=f"{study}/{label}", study=study, title=label.replace("-", " "),
                method="reward model", directory=f"retrain/{name}/{label}",
                status="running" if running and label == labels[-1] else "succeeded",
            )
            for label in labels
        ),
        Study(
            id=study, kind="retrain", name=name, status=status, repeats="run-2-reward", iteration=2,
            plan=report.plan, progress=0.62 if running else 1.0,
            message="control 1 (2 of 2): training without these judgments: step 40 of 160"
            if running
            else "",
        ),
    )  # fmt: skip
