"""Every command that docs/benchmarks.md names runs: each at a size that shows nothing but that.

A command is run with the options it is documented with, and with those below after them, so that
an option that was renamed is found as well.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.powercuts import recording
from pipeline.runs.study_folder import busy

ROOT = Path(__file__).resolve().parents[2]
DOCS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def documented() -> list[str]:
    """The commands between backticks, with whitespace and what only the shell reads taken out."""
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", DOCS))
    found = (span.removeprefix("python ") if "launch.py" in span else span for span in spans)
    starts = ("python ", "launch.py ", "make ", "OMP_NUM_THREADS=1 python ")
    return sorted({span for span in found if span.startswith(starts)})


@dataclass(frozen=True)
class Smoke:
    """How a documented command is run at a tiny size."""

    command: str
    """Of the documentation, up to its options."""
    more: str = ""
    """Options after the documented ones; a later option takes the place of an earlier one.
    {tmp} is an empty folder, {workspace} one that a simulation has been through."""
    says: str = ""
    """What its output must hold."""
    swaps: tuple[tuple[str, str], ...] = ()
    """What else is put in the command, such as a file for the one that it names."""
    short: bool = False
    """Whether exit status 1, an expectation that figures of this size do not meet, will do."""


SMALL_LOOP = (
    "--set ppo.updates=2 --set ppo.rollouts=8 --set ppo.minibatch=4 --set evaluate.prompts=8"
)
POOL = "--pool 30 --seeds 0 --folder {tmp}"

SMOKES = [
    Smoke("python -m benchmarks.pandalm testset-v1.json --compare",
          "--seeds 0 --set members=1 --folder {tmp}", "joint − majority",
          (("testset-v1.json", "{tmp}/pandalm.json"),)),
    Smoke("python -m benchmarks.pandalm testset-v1.json", "", '"identical_after_re-import": true',
          (("testset-v1.json", "{tmp}/pandalm.json"),)),
    Smoke("python -m benchmarks.agreement", "--judgments 2000 --people 5 --repeat 1", '"alpha"'),
    Smoke("python -m benchmarks.browsing", "--judgments 2000 --repeat 1", '"surprise"'),
    Smoke("python -m pipeline.demo.judge", "--count 4", "good, held-out free-form"),
    Smoke("python -m benchmarks.recovery", "--seeds 1 --annotators 20 --each 30 --items 10",
          "| side bias | 20 |", short=True),
    Smoke("python -m benchmarks.reward_models ties",
          f"--arms drop ordinal --labels 24 --measured 10 --set members=1 {POOL}", "ordinal"),
    Smoke("python -m benchmarks.reward_models annotators",
          f"--arms pooled-30 joint-30 --labels 60 --measured 10 --set members=1 {POOL}", "joint-30"),
    Smoke("python -m benchmarks.reward_models times",
          f"--arms choices times --labels 30 --measured 10 --set members=1 {POOL}", "| times | 1 |"),
    Smoke("python -m benchmarks.reward_models judges",
          f"--arms people-100 verbose-routed --labels 40 --measured 10 --set members=1 {POOL}",
          "| verbose-routed | 1 |"),
    Smoke("python -m benchmarks.reward_models anchors",
          f"--labels 30 --measured 10 --set members=1 {POOL}", "| absolute | 1 |"),
    Smoke("python -m benchmarks.reward_models shift",
          f"--labels 45 --measured 10 --set members=1 {POOL}", "| weighted | 1 |"),
    Smoke("python -m benchmarks.reward_models pessimism",
          f"--arms further pessimistic --labels 30 --measured 10 --set members=1 {POOL}",
          "| pessimistic | 1 |"),
    Smoke("python -m benchmarks.canary",
          f"--arms demo --seeds 0 --labels 16 --folder {{tmp}} {SMALL_LOOP}", "| demo | 0 |"),
    Smoke("python -m benchmarks.ppo_settings",
          "--seeds 0 --labels 16 --arms demo --folder {tmp} --set ppo.updates=2", "| demo | 1 |"),
    Smoke("python -m benchmarks.kl_discount", "", "random, 160 labels | 2 | healthy | 14 |", short=True),
    Smoke("python -m benchmarks.calibration", f"--labels 24 {POOL}", "| 24-25% | 1 |"),
    # The networks that took hours: that what is stored can still be read, under today's settings.
    Smoke("python -m benchmarks.selection --trunk trained", "--report", "| random | 10 |", short=True),
    Smoke("python -m benchmarks.selection",
          f"--arms random hybrid --rounds 2 --labels 8 --prompts 30 {POOL}", "| hybrid | 1 |", short=True),
    Smoke("python -m benchmarks.selection_speed", "--prompts 20 --rounds 1", "bald", short=True),
    Smoke("python -m benchmarks.winrate", "--trials 8", "sequential test", short=True),
    Smoke("python -m benchmarks autopilot", "--runs 5", "probability of a decision within 60", short=True),
    Smoke("python -m benchmarks.reward_report", "--trials 2", "ceiling"),
    Smoke("python -m benchmarks simulation",
          "--seeds 0 --arms gold --iterations 1 --labels 24 --annotators 2 -- --tiny",
          "| gold | 0 | 1 |", swaps=(("-- --set sampling.selection=hybrid", ""),), short=True),
    Smoke("python -m benchmarks iteration-time",
          f"--rounds 1 --processes 2 --labels 16 {SMALL_LOOP} --set gate.canary= --set worker.nice=0", "| reward |"),
    Smoke("launch.py simulate",
          "--tiny --labels 24 --annotators 2 --iterations 1 --json --workspace {workspace}", '"gold"'),
    # As above: an hour of runs.
    Smoke("python -m benchmarks.whole_loop --arms naive", "--report", "| naive |", short=True),
    Smoke("python -m benchmarks.whole_loop",
          f"--arms naive --seeds 0 --iterations 1 --labels 16 --folder {{tmp}} {SMALL_LOOP}",
          "| naive | 1 |", short=True),
    Smoke("python -m benchmarks.label_efficiency --world exam", says="| random | 16 |"),  # stored runs
    Smoke("python -m benchmarks.label_efficiency",
          f"--arms naive --seeds 0 --labels 16 --folder {{tmp}} --plot {{tmp}}/curves.svg {SMALL_LOOP}",
          "| naive | 1 |"),
    Smoke("python -m benchmarks.learning",
          "--workspace {workspace} --seeds 0 --updates 2 --kl-weights 0.1 0", "| 0.1 | 0 |", short=True),
    Smoke("launch.py sweep", "--workspace {workspace} --kl-weight 0,0.05 --set ppo.updates=2 --json",
          '"kl_weight": 0.05'),
    Smoke("launch.py compare",
          "--workspace {workspace} --snapshots 1 --set ppo.updates=2 --json",
          "rloo"),
    Smoke("launch.py sycophancy", "--folder {tmp}/lab --tiny --set ppo.updates=1 --set ppo.rollouts=8 "
          "--set ppo.minibatch=8 --set reward.epochs=0.5 --kl 0.1 --json", '"rules + echo"'),
    Smoke("python -m benchmarks kl-grid", "--updates 1 --tokens 1 --samplers own transformers "
          "--methods rloo --most 1000", "| rloo |"),
    Smoke("python -m benchmarks console", "--tiny --rounds 1 --seconds 2", '"script_ms_per_frame"'),
    Smoke("python -m benchmarks clicks", "--labels 3", "p95"),
    Smoke("python -m benchmarks labels", "--clients 2 --seconds 1 --pairs 3000", '"errors": 0'),
    Smoke("python -m benchmarks labels-200", "--clients 2 --seconds 1 --pairs 3000", '"errors": 0'),
    Smoke("python -m benchmarks labels-beside", "--annotators 2 --seconds 3 --burners 0", "p95"),
    Smoke("python -m benchmarks first-pair", "--rounds 1", "pair"),
    Smoke("python -m benchmarks first-token", "--rounds 1", '"first_token_ms"'),
    Smoke("python -m benchmarks checks", "--seeds 2 --annotators 10 --each 10", "practice passed", short=True),
    Smoke("python -m benchmarks edits", f"--labels 24 --measured 10 --updates 1 --set members=1 {POOL}",
          "| learned − none | 1 |"),
    Smoke("python -m benchmarks.instructions instruction-data.json", "--tiny --labels 24", '"win_rate"',
          (("instruction-data.json", "{tmp}/instructions.json"),)),
    Smoke("python -m benchmarks kills", "--kills 2 --minutes 3 --out {tmp}/kills", "| none |"),
    Smoke("python -m benchmarks powercuts", "--points 8 --acts 8", "| none |"),
    # TRL 1.12 needs an environment of its own, which pip would fetch: our engine runs without it.
    Smoke("make bench-ppo", "--alone --sizes T --rounds 1 --variants separate-fp32 lora-bf16 --eos with",
          "| T | yes | lora-bf16 |", (("make bench-ppo", "python -m benchmarks.ppo"),)),
    Smoke("python -m benchmarks.ppo", "--alone --device cpu --sizes T --rounds 1", "| T | yes | shared-bf16 |"),
    Smoke("python -m benchmarks launchers", "--launchers local --rounds 1 --workspace {workspace}", "| policy |"),
    Smoke("python -m benchmarks token-balance", "--minibatches 2", "| 64 | 8 |", short=True),
    Smoke("python -m benchmarks.decoding", "--tiny", "| bf16 | 16 | compiled |"),
    Smoke("python -m benchmarks.large_vocabulary", "--alone --tiny", "| chunks |"),
    Smoke("python -m benchmarks.large_vocabulary --exact-kl", "--tiny", "| chunks |"),
    Smoke("python -m benchmarks.sharding", "--tiny", "__1_0.distcp"),
    Smoke("python -m benchmarks.half_billion", "--tiny --labels 16", "| policy |"),
    Smoke("python -m benchmarks.gpu_learning",
          "--out {tmp} --hidden 64 --layers 1 --rows 64 --batch 16 --prompts 64 --updates 2",
          '"seconds_per_update"', (("DIR", "{tmp}"),), short=True),
    Smoke("python -m benchmarks mutants", "--each 1 --only pipeline/statistics/sequential_test.py",
          "| `pipeline/statistics/sequential_test.py` | 1 |"),
    Smoke("OMP_NUM_THREADS=1 python -m pytest", "--collect-only -q", "tests collected"),
]  # fmt: skip

WITHOUT = {
    "make bench": "runs every `python -m benchmarks NAME` in turn",
    "python -m benchmarks NAME": "stands for those that are named",
    "make demo-model": "half an hour; tests/pipeline/demo/test_model.py and test_pairs.py run its parts",
}
"""Documented commands that have no run of their own, and why."""


def smoke_of(command: str) -> Smoke | None:
    """The entry that a documented command is run by: the longest that it begins with."""
    words = command.split()
    fitting = [s for s in SMOKES if words[: len(s.command.split())] == s.command.split()]
    return max(fitting, key=lambda smoke: len(smoke.command), default=None)


WANTED = [command for command in documented() if command not in WITHOUT]


def chosen() -> dict[str, str]:
    """Of the commands that share an entry the one with most options, by entry."""
    found: dict[str, str] = {}
    for command in WANTED:
        if smoke := smoke_of(command):
            found[smoke.command] = max(found.get(smoke.command, ""), command, key=len)
    return found


RUN = sorted(chosen().values())


def test_every_documented_command_has_a_smoke_run_and_every_run_a_command():
    assert len(WANTED) > 25
    assert [command for command in WANTED if smoke_of(command) is None] == []
    assert {smoke.command for smoke in SMOKES} == chosen().keys()
    assert WITHOUT.keys() <= set(documented())


def test_every_benchmark_is_documented():
    text = " ".join(documented())
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    parts = {"__main__", "common", "demo_world", "seeds", "pandalm_compare"}  # of other benchmarks
    short = dict(
        re.findall(r'"([\w-]+)": \["(\w+)"', (ROOT / "benchmarks/__main__.py").read_text())
    )
    by_name = {script for name, script in short.items() if f"-m benchmarks {name}" in text}
    bare = {name for name in names if f"benchmarks.{name}" in text}
    assert names - parts - by_name - bare == {
        "storage_commits"
    }  # its figures stand in the changelog


def test_every_test_file_that_a_command_names_exists():
    named = []
    for command in documented():
        for path in re.findall(r"tests/\S+\.py", command):
            head, _, tail = path.partition("{")
            middle, _, end = tail.partition("}")
            named += [f"{head}{name}{end}" for name in middle.split(",")] if tail else [path]
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).is_file()] == []


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up files of the schemas of PandaLM's test set and of rasbt's instructions."""
    folder = tmp_path_factory.mktemp("files")
    rows: list[dict[str, Any]] = []
    for n in range(24):
        better = n % 3
        rows.append({
            "idx": n, "cmp_key": "alpha_beta", "motivation_app": "", "input": "" if n % 2 else "a list",
            "instruction": f"Say something short about number {n % 12}.",
            "response1": f"Number {n} is a fine number.", "response2": f"{n} comes after {n - 1}.",
            "annotator1": better, "annotator2": better, "annotator3": (better + n % 2) % 3,
        })  # fmt: skip
    (folder / "pandalm.json").write_text(json.dumps(rows))
    asked = [
        {
            "instruction": f"Name a use of tool {n}.",
            "input": "",
            "output": f"Tool {n} drives nails.",
        }
        for n in range(60)
    ]
    (folder / "instructions.json").write_text(json.dumps(asked))
    return folder


SIMULATED = "launch.py simulate"


@pytest.fixture(scope="module")
def simulation(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A workspace, and how the tiny simulation ended that it has been through."""
    folder = tmp_path_factory.mktemp("simulated") / "workspace"
    line = f"{chosen()[SIMULATED]} {smoke_of(SIMULATED).more}"
    done = run_one(line, workspace=folder)
    deadline = time.monotonic() + 300
    while busy(folder) and time.monotonic() < deadline:
        time.sleep(0.5)  # the next iteration's pairs are sampled; no study starts before
    return folder, done


def run_one(command: str, **places: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a person would at the repository's root."""
    for name, place in places.items():
        command = command.replace(f"{{{name}}}", str(place))
    if command.startswith("launch.py"):
        command = f"python {command}"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    words = f"{shlex.quote(sys.executable)} ".join(re.split(r"\bpython ", command, maxsplit=1))
    return subprocess.run(
        ["bash", "-c", words],
        cwd=ROOT,
        env=environment,
        timeout=850,
        capture_output=True,
        text=True,
    )


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", RUN)
def test_a_documented_command_runs(command, files, tmp_path, request):
    smoke = smoke_of(command)
    assert smoke is not None
    if "powercuts" in command and recording.compiler() is None:
        pytest.skip("its recorder is compiled on the spot")
    tail = command
    for before, after in smoke.swaps:
        tail = tail.replace(before, after)
    line = f"{tail} {smoke.more}"
    for file in files.iterdir():
        shutil.copy(file, tmp_path)
    places, simulated = {"tmp": tmp_path}, None
    if "{workspace}" in line:
        places["workspace"], simulated = request.getfixturevalue("simulation")
    done = simulated if smoke.command == SIMULATED else run_one(line, **places)
    said = f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.returncode in ((0, 1) if smoke.short else (0,)), said
    assert "Traceback" not in done.stderr, said
    assert smoke.says in done.stdout, said
