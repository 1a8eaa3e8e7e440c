"""A workspace with a plausible history, and a loop that writes down what it is asked.

``python tests/helpers/research_seed.py WORKSPACE [PORT]`` serves it, to look at.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pandas as pd

from pipeline.promotion import gate
from storage.engine.database import Database
from storage.gate_records import Prediction
from storage.records import (
    Annotator,
    Comparison,
    Completion,
    Flag,
    Iteration,
    Judgment,
    Metric,
    ModelVersion,
    Prompt,
    Run,
    RunNote,
    Skip,
    Snapshot,
    new_id,
    now,
)
from storage.reports import to_json
from storage.sides import shown_swapped
from storage.tables import (
    comparisons,
    completions,
    iterations,
    models,
    policy_judgments,
    prompts,
    settings,
)
from storage.tables.people import annotators
from storage.tables.runs import runs
from tests.helpers.gate_evidence import canary_results
from tests.helpers.recording_loop import HOSTILE, RecordingLoop
from tests.helpers.reward_figures import make_curve, quality

GUIDELINES = """Prefer the answer that **helps** and is *true*.

1. A wrong answer loses, however well it is written.
2. Flattery does not help: `Great question!` earns nothing.
3. Shorter wins between two good ones.
"""
TOPICS = (
    "keep basil alive on a windowsill", "get over jet lag", "sharpen a kitchen knife",
    "plan a week of lunches", "choose running shoes", "store bread so it stays fresh",
    "learn ten words a day", "clean a cast-iron pan", "fall asleep faster",
    "write a thank-you note", "fix a squeaky door", "start a compost bin",
    "pack for a weekend trip", "read more books", "brew better coffee", "calm a nervous dog",
)  # fmt: skip
GOOD = (
    "Start small. {topic} works best when you do one thing at a time: pick the easiest step, do it "
    "today, and write down what changed.",
    "The short answer: be regular. To {topic}, set a fixed time and keep what you need in reach. "
    "Tip: ten minutes are enough.",
)
POOR = (
    "Great question! You clearly have excellent taste. There are many ways to {topic}, and I am "
    "sure that whatever you choose will be wonderful.",
    "It is hard to say. Some people manage to {topic} and others do not; it may depend on many "
    "things, and perhaps there is no single answer.",
)
PEOPLE = ("Ada", "Björn", "Chloé " + HOSTILE, "Divya", "Careless Carl")
FITTED = [
    {"annotator": f"annotator-{i}", "slope": slope, "slope_sd": 0.12, "side_bias": bias,
     "side_bias_sd": 0.15, "weight": slope**2, "judgments": 40, "decided": 31,
     "with_model": 0.5 + slope / 6, "with_model_expected": 0.5 + slope / 5}
    for i, (slope, bias) in enumerate([(1.3, 0.05), (1.1, -0.1), (0.9, 0.0), (-0.6, 0.1), (0.1, 2.4)])
]  # fmt: skip
COURSES = {
    "dpo": (
        ("train/loss", 0.69, -0.2),
        ("dpo/margin", 0.0, 1.5),
        ("dpo/accuracy", 0.5, 0.3),
        ("train/lr", 1e-5, 0.0),
    ),
    "rloo": (("reward/mean", 0.0, 1.0), ("kl/reference", 0.0, 5.0), ("train/loss", 0.1, -0.05)),
    "best-of-n": (("best_of_n/reward", 0.0, 1.2), ("best_of_n/kl_bound", 0.0, 2.4)),
}
"""Metrics of the other methods: name, first value, change in 30 steps."""
REWARDS = {"reference": 0.0, "previous": 0.45, "policy": 0.9}


class Seeding:
    """Fills a database; every figure follows from the seed of `coin`."""

    def __init__(self, db: Database, *, seed: int = 7, begun: datetime | None = None) -> None:
        self.db = db
        self.coin = random.Random(seed)
        self.begun = begun or now() - timedelta(days=2)

    def history(self, *, finished: int = 2, labels: int = 120, methods: Sequence[str] = ()) -> None:
        """`finished` whole iterations, and one that is being labeled; `methods` trained the policies,
        by default PPO."""
        self.people()
        self.prompts()
        self.reference()
        for number in range(1, finished + 1):
            self.sample_and_label(number, labels=labels, wanted=labels)
            self.train(number, *methods[number - 1 : number])
            self.evaluate(number, labels=labels)
        number = finished + 1
        self.iteration(number, "labeling", labels)
        self.sample_and_label(number, labels=labels * 2 // 3, wanted=labels)
        self.flag_and_skip(number)
        settings.put(self.db, "guidelines", GUIDELINES)

    def people(self) -> None:
        annotators.add(self.db, Annotator(id="researcher", name="Rosa", role="researcher"))
        for i, name in enumerate(PEOPLE):
            # As they were stored when any name was taken.
            self.db.write(
                lambda tx, i=i, name=name: tx.store(Annotator(id=f"annotator-{i}", name=name))
            )
        robot = Annotator(id="annotator-sim", name="gold-1", kind="simulated", disabled=True)
        annotators.add(self.db, robot)

    def prompts(self) -> None:
        made = [
            Prompt.make(f"How do I {topic}?", role=role, category="advice")
            for role, topics in (("train", TOPICS[:10]), ("held-out", TOPICS[10:]))
            for topic in topics
        ]
        chat = [
            {"role": "system", "content": "You are brief."},
            {"role": "user", "content": "My tea tastes bitter."},
            {"role": "assistant", "content": "How hot is the water?"},
            {"role": "user", "content": f"Boiling. {HOSTILE}"},
        ]
        prompts.add(self.db, [*made, Prompt.make(chat, role="held-out")])

    def reference(self) -> None:
        sft = ModelVersion(id="sft-1", role="sft", name="SFT", iteration=0, created_at=self.begun)
        models.add(self.db, sft)

    def iteration(self, number: int, phase, wanted: int, **more) -> Iteration:
        record = Iteration(
            number=number,
            phase=phase,
            policy_sampled=f"policy-{number - 1}" if number > 1 else "sft-1",
            labels_wanted=wanted,
            created_at=self.begun + timedelta(hours=12 * (number - 1)),
            **more,
        )
        return iterations.save(self.db, record)

    def answer(self, prompt: Prompt, policy: str, quality: float, name: str) -> Completion:
        topic = prompt.messages[-1].content.removeprefix("How do I ").rstrip("?")
        pool = GOOD if self.coin.random() < quality else POOR
        return Completion(
            id=name, prompt=prompt.id, policy=policy, tokens=40, finish_reason="stop",
            text=self.coin.choice(pool).format(topic=topic),
        )  # fmt: skip

    def sample_and_label(self, number: int, *, labels: int, wanted: int) -> None:
        """`labels` comparisons of the iteration, one judgment each and a tenth judged twice."""
        policy = f"policy-{number - 1}" if number > 1 else "sft-1"
        asked = prompts.listing(self.db, role="train")
        answers, pairs = [], []
        for i in range(wanted):
            prompt = asked[i % len(asked)]
            first, second = (
                self.answer(prompt, policy, 0.3 + 0.15 * number, f"r-{number}-{i}-{side}")
                for side in ("x", "y")
            )
            answers += [first, second]
            pairs.append(
                Comparison(
                    id=f"c-{number}-{i}", prompt=prompt.id, first=first.id, second=second.id,
                    iteration=number, arm="random", wanted=2 if i % 10 == 0 else 1, position=i,
                )
            )  # fmt: skip
        completions.add(self.db, answers)
        comparisons.add(self.db, pairs)
        texts = {answer.id: answer.text for answer in answers}
        self.db.write(lambda tx: tx.store(*self.judgments(pairs[:labels], texts)))

    def judgments(self, pairs: list[Comparison], texts: dict[str, str]) -> list[Judgment]:
        begun = now() - timedelta(hours=len(pairs) / 30)
        made = []
        for i, pair in enumerate(pairs):
            people = self.coin.sample(range(len(PEOPLE)), pair.wanted)
            made += [
                self.judgment(pair, texts, person, begun + timedelta(minutes=2 * i))
                for person in people
            ]
        return made

    def judgment(
        self, pair: Comparison, texts: dict[str, str], person: int, when: datetime
    ) -> Judgment:
        who = f"annotator-{person}"
        swapped = shown_swapped(who, pair.id)
        good = [
            texts[side].startswith(("Start", "The short")) for side in (pair.first, pair.second)
        ]
        outcome = "tie" if good[0] == good[1] else "first" if good[0] else "second"
        if PEOPLE[person].startswith("Careless"):  # always presses the left one
            outcome = "second" if swapped else "first"
        elif outcome == "tie" and self.coin.random() < 0.5:
            outcome = self.coin.choice(["first", "second", "both_bad"])
        return Judgment(
            id=new_id("j"), comparison=pair.id, annotator=who, outcome=outcome,
            shown_swapped=swapped, milliseconds=self.coin.randint(4000, 40000), created_at=when,
        )  # fmt: skip

    def flag_and_skip(self, number: int) -> None:
        self.db.write(
            lambda tx: tx.store(
                Flag(
                    id=f"flag-{number}", comparison=f"c-{number}-100", annotator="annotator-1",
                    comment=f"Both answers are about another topic {HOSTILE}",
                ),
                Skip(id=f"skip-{number}", comparison=f"c-{number}-101", annotator="annotator-0"),
            )
        )  # fmt: skip

    def train(self, number: int, method: str = "ppo") -> None:
        ids = [row["id"] for row in self.db.read("SELECT id FROM current_judgments")]
        snapshot = Snapshot(hash=f"s-{number}-{len(ids)}", iteration=number, judgments=tuple(ids))
        self.db.write(lambda tx: tx.store(snapshot))
        for stage, minutes in (("sampling", 1), ("reward", 2)):
            self.run(number, stage, "succeeded", minutes=minutes)
        self.metrics(
            f"run-{number}-reward",
            [("train/loss", i, 0.7 - 0.3 * i / 30) for i in range(30)]
            + [("held_out/accuracy", 30, 0.71), ("held_out/ece", 30, 0.04)],
        )
        summary = {
            "accuracy": 0.68 + 0.03 * number,
            "ece": 0.05,
            "held_out_preferences": 18 * number,
            "expected_agreement": 0.66,
            "observed_agreement": 0.6,
            "expected_alpha": 0.34,
            "observed_alpha": 0.27,
            "overlapping_items": 40,
            "annotators": FITTED,
        }
        if number > 1:  # the first was trained before there were reports
            summary["quality"] = quality()
        models.add(
            self.db,
            ModelVersion(
                id=f"reward-{number}", role="reward", name=f"reward-{number}", parent="sft-1",
                iteration=number, run=f"run-{number}-reward", snapshot=snapshot.hash,
                summary=summary,
            ),
        )  # fmt: skip
        config = {"optimize": {"method": method}}
        self.run(number, "policy", "succeeded", minutes=6, config=config)
        if method == "ppo":
            self.ppo_events(f"run-{number}-policy", updates=100)
        else:
            self.metrics(
                f"run-{number}-policy",
                [
                    (name, step, start + change * step / 30)
                    for name, start, change in COURSES[method]
                    for step in range(1, 31)
                ],
            )
        models.add(
            self.db,
            ModelVersion(
                id=f"policy-{number}", role="policy", name=f"policy-{number}", parent="sft-1",
                iteration=number, run=f"run-{number}-policy", reward_model=f"reward-{number}",
                summary={"method": method},
            ),
        )  # fmt: skip

    def run(self, number: int, stage, status, *, minutes: float = 1, **more) -> Run:
        begun = self.begun + timedelta(hours=12 * (number - 1) + 10)
        offset = {"sampling": 0, "reward": 5, "policy": 10, "evaluate": 30}[stage]
        begun += timedelta(minutes=offset)
        record = Run(
            id=f"run-{number}-{stage}", stage=stage, iteration=number, status=status,
            directory=f"runs/run-{number}-{stage}",
            **{
                "progress": 1.0, "created_at": begun,
                "finished_at": begun + timedelta(minutes=minutes), **more,
            },
        )  # fmt: skip
        if stage == "policy":
            (self.db.workspace / record.directory / "checkpoint" / "step-1").mkdir(parents=True)
        return runs.save(self.db, record)

    def metrics(self, run: str, values: list[tuple[str, int, float]]) -> None:
        found = [
            Metric(run=run, seq=i + 1, step=step, name=name, value=value)
            for i, (name, step, value) in enumerate(values)
        ]
        record = replace(runs.get(self.db, run), ingested_seq=len(found))
        runs.ingest(self.db, record, found, [])

    def ppo_events(self, run: str, *, updates: int, flags: bool = False) -> None:
        """A course as PPO's are: reward rises, entropy falls, KL grows; then two red flags."""
        found, notes = [], []
        for step in range(1, updates + 1):
            t = step / 100
            wiggle = self.coin.gauss
            values = {
                "reward/mean": 1.4 * (1 - math.exp(-3 * t)) + wiggle(0, 0.06),
                "reward/total": 1.1 * (1 - math.exp(-3 * t)) + wiggle(0, 0.06),
                "reward/std": 0.9 - 0.3 * t + wiggle(0, 0.03),
                "reward/length_correlation": 0.1 + 0.4 * t + wiggle(0, 0.05),
                "kl/reference": (12.5 if flags else 6) * t**1.2 + abs(wiggle(0, 0.1)),
                "kl/coefficient": 0.05,
                "policy/entropy": 1.9 - 0.7 * t + wiggle(0, 0.03),
                "policy/approx_kl": 0.01 + abs(wiggle(0, 0.003)),
                "policy/clip_fraction": 0.12 + 0.1 * t + wiggle(0, 0.02),
                "value/clip_fraction": 0.05 + abs(wiggle(0, 0.01)),
                "policy/loss": -0.02 + wiggle(0, 0.006),
                "value/loss": 0.4 * math.exp(-4 * t) + 0.05 + abs(wiggle(0, 0.01)),
                "value/explained_variance": 0.75 * (1 - math.exp(-5 * t)) - 0.2 * (step < 4),
                "completion/length_mean": 42 + 9 * t + wiggle(0, 1),
                "completion/eos_rate": min(1.0, 0.93 + 0.05 * t),
                "completion/unique": 0.97 - 0.05 * t,
                "optim/grad_norm": 1.1 + abs(wiggle(0, 0.2)),
                "optim/lr": 5e-05 * (1 - t) + 1e-9,
                "speed/tokens_per_second": 2100 + wiggle(0, 40),
            }
            found += [
                Metric(run=run, seq=step, step=step, name=name, value=value)
                for name, value in values.items()
            ]
            if step % 20 == 0:
                notes.append(self.sample(run, step, values["reward/mean"]))
            if flags and values["kl/reference"] > 10:
                notes.append(kl_flag(run, step, values["kl/reference"]))
        record = replace(runs.get(self.db, run), ingested_seq=updates)
        runs.ingest(self.db, record, found, notes)

    def sample(self, run: str, step: int, reward: float) -> RunNote:
        asked = self.coin.choice(prompts.listing(self.db, role="train"))
        return RunNote(
            run=run, seq=step, step=step, kind="sample", name="response",
            message=GOOD[1].format(topic="do it") + HOSTILE,
            payload={"prompt": asked.id, "reward": reward, "kl": 2.0, "finish_reason": "length"},
        )  # fmt: skip

    def evaluate(self, number: int, *, labels: int) -> None:
        run = self.run(number, "evaluate", "succeeded", minutes=2)
        outputs = self.db.workspace / run.directory / "outputs"
        outputs.mkdir(parents=True)
        policies = {"reference": "sft-1", "policy": f"policy-{number}"}
        if number > 1:
            policies["previous"] = f"policy-{number - 1}"
        answers, scores = [], []
        for i, prompt in enumerate(prompts.listing(self.db, role="held-out")):
            for role, policy in policies.items():
                made = self.answer(prompt, policy, REWARDS[role] + 0.1, f"e-{number}-{i}-{role}")
                text = made.text + (HOSTILE if i == 0 else "")
                answers.append({"id": made.id, "prompt": prompt.id, "policy": policy, "text": text})
                reward = REWARDS[role] + self.coin.gauss(0, 0.5)
                scores.append({"completion": made.id, "reward": reward})
        pd.DataFrame(answers).to_parquet(outputs / "completions.parquet", index=False)
        pd.DataFrame(scores).to_parquet(outputs / "scores.parquet", index=False)
        figures = [("policy", number), ("reference", 0)]
        if number > 1:
            figures.append(("previous", number - 1))
        self.metrics(
            run.id,
            [
                (f"evaluate/{role}/{name}", 0, value)
                for role, made in figures
                for name, value in (
                    ("reward", 0.4 + 0.3 * made if made else 0.0), ("kl", 3.1 * made),
                    ("length", 44.0 + made), ("distinct", 0.6 - 0.02 * made), ("unique", 1.0),
                )
            ] + [("evaluate/win_rate", 0, 0.62 + 0.06 * number)],
        )  # fmt: skip
        self.iteration(
            number, "done", labels,
            reward_model=f"reward-{number}", policy_produced=f"policy-{number}",
            finished_at=self.begun + timedelta(hours=12 * number - 1),
            evaluation={
                "policy": {"reward": 0.4 + 0.3 * number, "kl": 3.1 * number, "length": 44 + number},
                "reference": {"reward": 0.0, "kl": 0.0, "length": 41},
                **({"previous": {"reward": 0.1 + 0.3 * number, "kl": 3.1 * (number - 1), "length": 43 + number}}
                   if number > 1 else {}),
                "win_rate_reward_model": 0.62 + 0.06 * number,
                "win_rate_against_reference": {
                    "win_rate": 0.62 + 0.06 * number, "low": 0.52 + 0.06 * number,
                    "high": min(1.0, 0.71 + 0.06 * number),
                    "comparisons": 200, "prompts": 200,
                },
            },
        )  # fmt: skip

    def judge_policies(
        self, number: int, *, wins: float, judgments: int = 60, unjudged: int = 0
    ) -> None:
        """policy-`number` against SFT in the iteration after, and a prediction for each pair;
        `unjudged` more pairs are in the queue."""
        policy = f"policy-{number}"
        stored: list[object] = []
        for i in range(judgments + unjudged):
            prompt = Prompt.make(f"How do I {TOPICS[i % 10]} in week {i}?", role="train")
            answers = [
                self.answer(prompt, who, 0.5, f"e-{number}-{i}-{who}") for who in (policy, "sft-1")
            ]
            pair = Comparison(
                id=f"e-{number}-{i}", prompt=prompt.id, first=answers[0].id,
                second=answers[1].id, iteration=number + 1, arm="reference",
            )  # fmt: skip
            tie, won = self.coin.random() < 0.15, self.coin.random() < wins
            judgment = Judgment(
                id=new_id("j"), comparison=pair.id, annotator=f"annotator-{i % 3}",
                outcome="tie" if tie else "first" if won else "second", shown_swapped=False,
                milliseconds=9000,
            )  # fmt: skip
            expected = Prediction(
                comparison=pair.id, reward_model=f"reward-{number}", first=0.72,
                first_score=1.0, second_score=0.2,
            )  # fmt: skip
            stored += [prompt, *answers, pair]
            stored += [judgment, expected] if i < judgments else []
        self.db.write(lambda tx: tx.store(*stored))
        done = iterations.get(self.db, number + 1)
        verdict = gate.verdict(policy_judgments.evidence(self.db), policy)
        iterations.save(self.db, replace(done, verdict=verdict))

    def canary(self, number: int, *, lost: int, gained: int = 0) -> None:
        """What policy-`number` passes of a canary: at the evaluation, and during its training."""
        results = canary_results(lost=lost, gained=gained)
        done = iterations.get(self.db, number)
        evaluation = {
            **done.evaluation,
            "policy": {**done.evaluation["policy"], "canary": 1 - lost / 100},
            "reference": {**done.evaluation["reference"], "canary": 1 - gained / 100},
            "canary": to_json(results),
        }
        iterations.save(self.db, replace(done, evaluation=evaluation))
        stage = f"run-{number}-policy"
        record = runs.get(self.db, stage)
        seq = record.ingested_seq
        found = [
            Metric(run=stage, seq=seq + 1 + step, step=step, name=f"canary/{name}", value=value)
            for step in range(0, 101, 10)
            for name, value in (
                ("pass_rate", 1 - lost * step / 10_000 - 0.01 * (step % 20 > 0)),
                ("passes/on topic", 1 - lost * step / 10_000),
                ("passes/well-formed", 1 - 0.01 * (step % 20 > 0)),
            )
        ]
        runs.ingest(self.db, replace(record, ingested_seq=seq + 101), found, [])

    def failed_ppo(self, number: int) -> Run:
        """The iteration's PPO has died two thirds through, with a red flag up."""
        self.iteration(number, "policy", 120, reward_model=f"reward-{number - 1}")
        self.run(number, "reward", "succeeded", minutes=2)
        self.run(
            number, "policy", "failed", minutes=4, progress=0.9, message="update 90 of 100",
            reason=f"out of memory at update 90: {HOSTILE}",
        )  # fmt: skip
        self.ppo_events(f"run-{number}-policy", updates=90, flags=True)
        return runs.get(self.db, f"run-{number}-policy")


def kl_flag(run: str, step: int, kl: float) -> RunNote:
    return RunNote(
        run=run, seq=step, step=step, kind="flag", name="kl_high",
        message=f"KL to the reference is {kl:.1f} nats per response.",
        payload={
            "level": "warn",
            "seen": f"KL to the reference is {kl:.1f} nats per response.",
            "why": "Far from the reference the reward model is unreliable, and texts often degenerate.",
            "remedy": "Raise kl_weight or lower lr. Set kl_budget to end the run in time.",
        },
    )  # fmt: skip


def labeling_workspace(folder: Path) -> Iterator[Database]:
    """One iteration in labeling, as a fixture yields it."""
    with Database.open(folder) as db:
        Seeding(db).history(finished=0, labels=30)
        yield db


def main(folder: Path, port: int, what: str) -> None:
    """Serve a fresh workspace until interrupted and print a sign-in link."""
    import uvicorn  # noqa: PLC0415

    from labeler.app import create_app  # noqa: PLC0415

    with_db = Database.open(folder)
    seeding = Seeding(with_db)
    reason = None
    if what == "empty":
        seeding.people()
        reason = "The loop has not started. Import prompts first."
    else:
        seeding.history()
        if what == "curve":
            make_curve(with_db, "reward-2")
        if what == "policies":
            seeding.judge_policies(1, wins=0.5)
            seeding.judge_policies(2, wins=0.78)
            seeding.canary(1, lost=2, gained=1)
            seeding.canary(2, lost=14, gained=2)
        if what == "budget":
            seeding.judge_policies(1, wins=0.5)
            seeding.judge_policies(2, wins=0.78, judgments=14, unjudged=40)
            make_curve(with_db, "reward-2")
        if what == "failed":
            seeding.failed_ppo(3)
            reason = "Already training: PPO."
    loop = RecordingLoop(reason, with_db)
    app = create_app(
        with_db, loop=loop, admin=lambda *_: None, admin_token="x", accounts_required=False
    )
    link = app.state.sign_in_url(annotators.get(with_db, "researcher"), landing="/research/")
    sys.stdout.write(f"http://127.0.0.1:{port}{link}\n")
    sys.stdout.flush()
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
    with_db.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "history")
