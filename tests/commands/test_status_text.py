"""`status` as text: labels and values, without what is empty."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from commands import status_text
from storage.analysis.agreement import Agreement, Kappa
from storage.reports import LabelBudget
from storage.status import (
    AnnotatorCheckFigures,
    CheckFigures,
    ChecksStatus,
    IterationStatus,
    PolicyStatus,
    RewardModelStatus,
    RunState,
    Status,
)
from storage.tables.runs.run_resources import GpuUse, ResourceUse
from tests.helpers.command_line import run, told

NONE = CheckFigures(answered=0, matched=0, share=None, interval=None)
NO_CHECKS = ChecksStatus(
    gold_pairs=0, gold_candidates=4, practice_pairs=0, practice_asked=False, gold=NONE, reask=NONE,
    annotators=(),
)  # fmt: skip
EMPTY = Status(
    judgments=0, comparisons=0, annotators=0, judgments_by_kind={}, edits=0,
    agreement=Agreement(items=0), checks=NO_CHECKS, prompts={}, iteration=None, policy=None,
    reward_model=None, runs=(),
)  # fmt: skip
SEEN = CheckFigures(answered=10, matched=9, share=0.9, interval=(0.6, 0.98))
FULL = Status(
    judgments=1212, comparisons=300, annotators=3, edits=4,
    judgments_by_kind={"model": 12, "person": 1200},
    agreement=Agreement(
        items=53, percent=0.47, percent_interval=[0.37, 0.58], alpha=0.21, alpha_interval=[0.09, 0.32],
        kappas=[Kappa(annotators=["Ada", "Bo"], kappa=0.5, interval=None, items=9)],
    ),
    checks=replace(
        NO_CHECKS, gold_pairs=1, gold=SEEN,
        annotators=(
            AnnotatorCheckFigures(
                name="Ada", gold=SEEN, reask=NONE, practice=NONE, practice_state="not started"
            ),
        ),
    ),
    prompts={"held-out": 7, "train": 40},
    iteration=IterationStatus(
        number=4, phase="labeling", method="DPO", labels_wanted=60, labels=44,
        labels_by_arm={"bald": 4, "random": 40}, verdict="provisional",
    ),
    policy=PolicyStatus(id="sft-1", name="SFT", role="sft"),
    reward_model=RewardModelStatus(
        id="reward-3", iteration=3, accuracy=0.77, log_loss=0.5512, ece=0.05, held_out_preferences=54
    ),
    runs=(
        RunState(
            id="run-1", stage="policy", name="DPO", iteration=4, status="failed", attempt=1,
            progress=0.5, message="", reason="out of memory",
        ),
    ),
    trouble="the stage failed",
)  # fmt: skip


def test_the_running_stage_has_its_devices_and_memory() -> None:
    use = ResourceUse(
        samples=3, cpu=1.52, mean_cpu=1.26, memory=2 * 10**9, peak=35 * 10**8, gpus=(), cores=16,
        total=128 * 10**9, available=60 * 10**9,
    )  # fmt: skip
    shown = list(status_text.lines(replace(EMPTY, resources=use)))
    assert shown[shown.index("Running stage") :] == [
        "Running stage",
        "  CPU                 1.5 of 16 cores, 1.3 on average",
        "  Memory              2.0 GB, peak 3.5 GB; machine: 60.0 GB of 128.0 GB free",
        "  GPU                 none in use",
    ]
    gpu = GpuUse(name="H100", memory=30 * 10**9, total=80 * 10**9, peak=70 * 10**9, utilisation=0.5)
    old = replace(use, gpus=(gpu, replace(gpu, utilisation=None)), cores=None, total=None)
    assert list(status_text.lines(replace(EMPTY, resources=old)))[-4:] == [
        "  CPU                 1.5 cores, 1.3 on average",
        "  Memory              2.0 GB, peak 3.5 GB",
        "  GPU 0               H100: 30.0 GB of 80.0 GB, peak 70.0 GB, 50% busy",
        "  GPU 1               H100: 30.0 GB of 80.0 GB, peak 70.0 GB",
    ]


def test_a_full_status_is_labels_and_values_in_sections() -> None:
    assert list(status_text.lines(FULL)) == [
        "Needs attention: the stage failed",
        "",
        "Iteration 4",
        "  Phase               labeling",
        "  Method              DPO",
        "  Labels              44 of 60 (bald 4, random 40)",
        "  Verdict             provisional",
        "",
        "Data",
        "  Prompts             7 held-out, 40 train",
        "  Pairs               300",
        "  Judgments           12 by models, 1,200 by people",
        "  Edited responses    4",
        "  Have judged         3 annotators",
        "",
        "Agreement",
        "  Measured on         53 pairs judged by two or more people",
        "  Same answer         47% (37% to 58%)",
        "  Krippendorff's α    0.21 (0.09 to 0.32)",
        "  Cohen's κ of two annotators",
        "    annotators  κ     pairs",
        "    Ada, Bo     0.50  9",
        "",
        "Checks of annotators",
        "  Gold pairs          1",
        "  Gold answers        9 of 10 as expected, 90% (60% to 98%)",
        "    annotator  gold                                   re-asked  practice  practice round",
        "    Ada        9 of 10 as expected, 90% (60% to 98%)  –         –         not started",
        "",
        "Models",
        "  Policy              SFT (reference)",
        "  Reward model        reward-3: accuracy 77% on 54 held-out preferences, log-loss 0.551, "
        "calibration error 5%",
        "",
        "Runs of the iteration",
        "    run    stage  status  done  message",
        "    run-1  DPO    failed  50%   out of memory",
    ]


def test_the_label_budget_is_a_paragraph_while_labels_are_collected() -> None:
    said = (
        "About 120 more judgments until the test of policy-1 against SFT decides (90%: 80 to 190)."
    )
    budget = LabelBudget(
        phase="labeling", says=said, blocked="Training cannot start yet.",
        starts="Training starts by itself with 200 labels.",
    )  # fmt: skip
    assert list(status_text.lines(replace(EMPTY, label_budget=budget)))[-4:] == [
        "Labels needed",
        "  About 120 more judgments until the test of policy-1 against SFT decides (90%: 80 to 190).",
        "  Training cannot start yet.",
        "  Training starts by itself with 200 labels.",
    ]
    training = replace(budget, phase="policy")
    assert "Labels needed" not in list(status_text.lines(replace(EMPTY, label_budget=training)))


def test_agreement_on_few_pairs_says_so() -> None:
    one = replace(EMPTY, agreement=Agreement(items=1, percent=1.0))
    assert list(status_text.lines(one))[-2:] == [
        "  Measured on         1 pair judged by two or more people (too few for a reliable figure)",
        "  Same answer         100%",
    ]


def test_a_new_workspace_has_a_next_step_and_no_zeros(tmp_path: Path) -> None:
    place = tmp_path / "my place"
    told("init", "--workspace", place)
    assert run("status", "--workspace", place).splitlines() == [
        "No iteration yet",
        "  Next step           import prompts; for the demo, `serve` adds them",
    ]
    found = json.loads(run("status", "--workspace", place, "--json"))
    assert (found["judgments"], found["annotators"], found["iteration"]) == (0, 0, None)
    assert found["label_budget"]["says"] == "The loop has not started."
