"""What the documents say is what the code does."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from pipeline.config.policy import OptimizeConfig
from pipeline.config.shaping import COMPONENTS
from pipeline.ppo import metrics
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.metrics import METRICS

DOCS = Path(__file__).parent.parent / "docs"
ALGORITHM, REWARD = (
    (DOCS / name).read_text(encoding="utf-8") for name in ("algorithm.md", "reward.md")
)
EXAMPLES = re.findall(r"^```python\n(.*?)^```", ALGORITHM, re.MULTILINE | re.DOTALL)


def section(title: str, text: str = ALGORITHM) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str, text: str = ALGORITHM) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in section(title, text).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_run_and_hold(number):
    exec(compile(EXAMPLES[number], f"algorithm.md, example {number + 1}", "exec"), {})


def test_there_are_examples_and_they_assert_something():
    assert len(EXAMPLES) == 4
    assert all("assert " in example for example in EXAMPLES)


def test_every_metric_is_defined_and_no_other():
    named = [
        name for row in rows("Metrics") for name in re.findall(r"`([a-z_]+/[a-z0-9_<>]+)`", row[0])
    ]
    assert sorted(named) == sorted(METRICS)


def test_every_setting_stands_with_its_default_and_a_use():
    found = {row[0].strip("`"): row[1] for row in rows("Settings")}
    expected = {f.name: str(f.default) for f in fields(PPOConfig)}
    assert found == {k: v.lower() if v in ("True", "False") else v for k, v in expected.items()}
    assert all(row[2] for row in rows("Settings"))


def test_every_red_flag_stands_with_what_raises_it():
    found = [(row[0].split("`")[1], "(stop)" in row[0]) for row in rows("Red flags")]
    source = inspect.getsource(metrics)
    levels = re.findall(r'name="(\w+)",\n +level="(\w+)"( if)?', source)
    assert found == [(name, level == "stop" and not depends) for name, level, depends in levels]
    assert len(found) == len(metrics._RULES)


def test_every_shaping_component_is_described():
    table = rows("What else is paid", REWARD)
    named = [name for row in table for name in re.findall(r"`([\w:]+)`", row[0])]
    assert sorted(named) == sorted([*COMPONENTS, "module:function"])


def test_the_settings_of_other_methods_stand_with_their_defaults():
    text = (DOCS / "compare.md").read_text(encoding="utf-8")
    found = dict(re.findall(r"^\| `optimize\.(\w+)` \| ([^|]+) \|", text, re.MULTILINE))
    assert found == {f.name: str(f.default) for f in fields(OptimizeConfig)}
