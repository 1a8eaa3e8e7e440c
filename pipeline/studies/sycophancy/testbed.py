"""The lab's testbed: everything that the arms share, made once and stored in a folder.

::

    FOLDER/lab.json             the settings that made it
           policy/              SFT of the base model on `demonstrations`: the reference, which agrees too often
           reward/              reward model of annotators who like agreement
           flags.jsonl          completions flagged by annotators; classifier/ is trained on them
           references.jsonl     an honest and a sycophantic answer to each training prompt
           steering.safetensors the direction from honest to sycophantic
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Self

import numpy as np
import pandas as pd
import torch

from pipeline.config.sections import Config
from pipeline.demo import MODEL_DIR
from pipeline.demo.corpus.styles import fill
from pipeline.models.devices import pick_device
from pipeline.models.generate import Sampler
from pipeline.models.loading import load_causal_lm
from pipeline.models.text import ChatTokenizer
from pipeline.runs.repeat import differences, values
from pipeline.runs.rundir import Job, Report, RunDirectory, write_atomically
from pipeline.sampling.steering import ContrastPair, save_vector, steering_vector
from pipeline.shaping.classifier import (
    TrainedClassifier,
    read_flagged,
    split_by_prompt,
    train_classifier,
)
from pipeline.simulation.annotators import population
from pipeline.stages import reward as reward_stage
from pipeline.stages import sft
from pipeline.studies.sycophancy.annotators import approval, flags
from pipeline.studies.sycophancy.demonstrations import demonstrations
from pipeline.studies.sycophancy.prompts import LabPrompt, lab_prompts
from storage.records import messages_json
from storage.reports import to_json

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class LabConfig:
    """The size of the lab; training follows `Config`, as in the loop."""

    base: str = str(MODEL_DIR)
    demonstrations: int = 4000
    judgments: int = 600
    annotators: int = 8
    flags: int = 600
    flag_noise: float = 0.1
    """Share of flags that are inverted."""
    steering_layer: int = 2
    steering_pairs: int = 0
    """Pairs of answers whose mean difference is the steering vector; 0 uses all."""
    penalty: float = 4.0
    """Weight of each component, in standard deviations of the reward on the policy's responses."""
    kl: float = 1.5
    """Nats per response at which the arms are compared."""
    every: int = 5
    """Updates between two measurements of an arm, until it is near the KL."""
    samples: int = 2
    """Completions per held-out prompt in a final measurement; other measurements use one."""
    prompts: int = 0
    """Held-out prompts used; 0 uses all."""
    seed: int = 0

    @classmethod
    def sized(cls, tiny: bool, **chosen: Any) -> Self:
        """The default size, or a `tiny` one for tests that runs in a minute."""
        small = {"demonstrations": 32, "judgments": 24, "annotators": 2, "flags": 24}
        small |= {"steering_pairs": 12, "every": 1, "samples": 1, "prompts": 6}
        return cls(**(small if tiny else {}), **chosen)


@dataclass(frozen=True, kw_only=True)
class TestbedFigures:
    """How good the testbed's reward model and classifier are."""

    reward_model_accuracy: float
    reward_spread: float
    """Standard deviation of the reward over the policy's own responses."""
    classifier: TrainedClassifier


@dataclass(frozen=True)
class Testbed:
    """The paths of the shared parts, and the figures measured while they were made."""

    folder: Path
    lab: LabConfig
    config: Config

    @property
    def policy(self) -> str:
        return str(self.folder / "policy" / "model")

    @property
    def reward(self) -> str:
        return str(self.folder / "reward" / "model")

    @property
    def flags(self) -> Path:
        return self.folder / "flags.jsonl"

    @property
    def classifier(self) -> Path:
        return self.folder / "classifier"

    @property
    def references(self) -> Path:
        return self.folder / "references.jsonl"

    @property
    def vector(self) -> Path:
        return self.folder / "steering.safetensors"

    @property
    def device(self) -> torch.device:
        return pick_device(self.config.worker.device)

    @property
    def reward_spread(self) -> float:
        """Standard deviation of the reward over the policy's own responses."""
        return float((RunDirectory(self.folder / "reward").result() or {})["std"])

    def held_out(self) -> list[LabPrompt]:
        """The prompts that measure the arms; the seed decides which, if not all are used."""
        prompts = lab_prompts("held-out")
        if not self.lab.prompts:
            return prompts
        return Random(self.lab.seed).sample(prompts, min(self.lab.prompts, len(prompts)))

    def summary(self) -> TestbedFigures:
        """Figures of the reward model and the classifier."""
        reward = RunDirectory(self.folder / "reward").result() or {}
        classifier = json.loads((self.classifier / "result.json").read_text())
        return TestbedFigures(
            reward_model_accuracy=reward["accuracy"],
            reward_spread=self.reward_spread,
            classifier=TrainedClassifier(**classifier),
        )


def build(folder: Path, lab: LabConfig, config: Config, progress: Progress) -> Testbed:
    """Make the parts that are missing; ValueError for a folder with other settings."""
    folder.mkdir(parents=True, exist_ok=True)
    record, wanted = folder / "lab.json", {"lab": asdict(lab), "config": config.to_dict()}
    if record.exists() and (found := _differences(json.loads(record.read_text()), wanted)):
        raise ValueError(
            f"{folder} holds a lab with other settings ({'; '.join(found)}); give this one another "
            "--folder"
        )
    write_atomically(record, json.dumps(wanted, indent=1))
    testbed = Testbed(folder, lab, config)
    steps: list[tuple[str, Path, Callable[[Testbed], None]]] = [
        ("fine-tuning the sycophantic policy", folder / "policy" / "result.json", _make_policy),
        ("training the reward model", folder / "reward" / "result.json", _make_reward),
        ("collecting flags", testbed.flags, _make_flags),
        ("training the classifier", testbed.classifier / "result.json", _make_classifier),
        ("writing the references", testbed.references, _make_references),
        ("measuring the steering vector", testbed.vector, _make_vector),
    ]
    for doing, made, make in steps:
        if made.exists():
            continue
        progress(doing)
        make(testbed)
    return testbed


def _differences(*labs: dict[str, Any]) -> list[str]:
    stored, given = (
        {f"lab.{key}": value for key, value in each["lab"].items()}
        | values(Config.from_dict(each["config"]))
        for each in labs
    )
    return differences(stored, given)


def _make_policy(testbed: Testbed) -> None:
    lab = testbed.lab
    rows = [
        {"messages": messages_json(prompt.messages), "response": response}
        for prompt, response in demonstrations(
            lab_prompts("train"), lab.demonstrations, seed=lab.seed
        )
    ]
    _run_stage(testbed, "sft", "policy", {"policy": lab.base}, {"examples": rows})


def _make_reward(testbed: Testbed) -> None:
    """Train on pairs of the policy's completions, judged by annotators who like agreement."""
    lab = testbed.lab
    rng = Random(f"judgments {lab.seed}")
    asked = [rng.choice(lab_prompts("train")) for _ in range(lab.judgments)]
    firsts, seconds = (_sampled(testbed, asked, purpose=f"{side} side") for side in (1, 2))
    people = population(lab.annotators, bad=0.0, seed=lab.seed)
    judge_rng = np.random.default_rng([lab.seed, 2])
    rows = []
    for number, (prompt, first, second) in enumerate(zip(asked, firsts, seconds, strict=True)):
        verdict = people[number % len(people)].judge(
            left=approval(prompt.topic, first),
            right=approval(prompt.topic, second),
            words=len(f"{first} {second}".split()),
            rng=judge_rng,
        )
        rows.append(
            {
                "judgment": f"j{number}",
                "prompt": prompt.text,
                "messages": messages_json(prompt.messages),
                "first": f"{number} first",
                "second": f"{number} second",
                "first_text": first,
                "second_text": second,
                "outcome": {"a": "first", "b": "second"}.get(verdict.outcome, verdict.outcome),
                "strength": None,
                "annotator": f"annotator {number % len(people)}",
                "shown_swapped": False,
            }
        )
    centered_on = [
        {"messages": messages_json(p.messages)} for p in lab_prompts("train")[::3][: lab.judgments]
    ]
    _run_stage(
        testbed,
        "reward",
        "reward",
        {"reference": testbed.policy},
        {"judgments": rows, "prompts": centered_on},
    )


def _make_flags(testbed: Testbed) -> None:
    lab = testbed.lab
    rng = Random(f"flags {lab.seed}")
    asked = [rng.choice(lab_prompts("train")) for _ in range(lab.flags)]
    rows = []
    for prompt, text in zip(asked, _sampled(testbed, asked, purpose="flags"), strict=True):
        flagged = flags(prompt.topic, text) != (rng.random() < lab.flag_noise)
        rows.append({"prompt": prompt.text, "completion": text, "sycophantic": flagged})
    _write_lines(testbed.flags, rows)


def _make_classifier(testbed: Testbed) -> None:
    training, held_out = split_by_prompt(
        read_flagged(testbed.flags), held_out_share=0.15, seed=testbed.lab.seed
    )
    directory = RunDirectory(testbed.classifier)
    with Report(directory) as report, _logged(directory):
        found = train_classifier(
            testbed.lab.base,
            training,
            held_out,
            testbed.classifier,
            report,
            seed=testbed.lab.seed,
            device=testbed.config.worker.device,
            resume=(testbed.classifier / "checkpoint").is_dir(),
        )
    write_atomically(testbed.classifier / "result.json", json.dumps(asdict(found), indent=1))


def _make_references(testbed: Testbed) -> None:
    rows = [
        {
            "prompt": prompt.text,
            "honest": fill("No. {answer}", prompt.topic),
            "sycophantic": fill("You are right. {wrong}", prompt.topic),
        }
        for prompt in lab_prompts("train")
    ]
    _write_lines(testbed.references, rows)


def _make_vector(testbed: Testbed) -> None:
    model = load_causal_lm(testbed.policy, device=testbed.device)
    rows = [json.loads(line) for line in testbed.references.read_text().splitlines()]
    pairs = [
        ContrastPair(prompt.messages, sycophantic=row["sycophantic"], honest=row["honest"])
        for prompt, row in zip(lab_prompts("train"), rows, strict=True)
    ]
    if testbed.lab.steering_pairs:
        pairs = Random(testbed.lab.seed).sample(pairs, testbed.lab.steering_pairs)
    layer = testbed.lab.steering_layer
    vector = steering_vector(model, ChatTokenizer.load(testbed.policy), pairs, layer=layer)
    save_vector(testbed.vector, vector, layer=layer)


def _sampled(testbed: Testbed, asked: Sequence[LabPrompt], *, purpose: str) -> list[str]:
    config = testbed.config.sampling
    sampler = Sampler.load(testbed.policy, device=testbed.device, dtype=torch.float32)
    responses = sampler.sample(
        [prompt.messages for prompt in asked],
        temperature=1.0,
        max_new_tokens=config.max_new_tokens,
        seed=Random(f"{purpose} {testbed.lab.seed}").randrange(2**31),
        batch=config.batch,
    )
    return [response.text for response in responses]


def _run_stage(
    testbed: Testbed,
    stage: Any,
    name: str,
    models: dict[str, str],
    inputs: dict[str, list[dict[str, Any]]],
) -> None:
    """Run one of the loop's stages in this process, from its checkpoint if there is one."""
    path = testbed.folder / name
    again = RunDirectory(path).has_checkpoint()
    job = Job(
        run=name,
        stage=stage,
        iteration=0,
        config=testbed.config,
        seed=testbed.lab.seed,
        resume=again,
        models=models,
    )
    directory = RunDirectory.create(path, job)
    for file, rows in inputs.items():
        pd.DataFrame(rows).to_parquet(directory.inputs / f"{file}.parquet", index=False)
    run = {"sft": sft.run, "reward": reward_stage.run}[stage]
    with Report(directory) as report, _logged(directory):
        directory.write_result(to_json(run(job, report, directory)))


@contextmanager
def _logged(directory: RunDirectory) -> Iterator[None]:
    """Redirect standard output and error to the log, as in a worker."""
    directory.path.mkdir(parents=True, exist_ok=True)
    with directory.log.open("a") as log, redirect_stdout(log), redirect_stderr(log):
        yield


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))
