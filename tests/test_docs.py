"""What the documents say is what the code does."""

import ast
import inspect
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from commands.main import app
from pipeline.config import openrlhf
from pipeline.config.policy import OptimizeConfig
from pipeline.config.sections import Config
from pipeline.config.shaping import COMPONENTS
from pipeline.ppo import metrics
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.metrics import METRICS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PACKAGES = (
    "benchmarks",
    "commands",
    "docker",
    "docs",
    "kitestring",
    "labeler",
    "pipeline",
    "storage",
    "tests",
)
PRODUCT = ("commands", "kitestring", "labeler", "pipeline", "storage")
ELSEWHERE = {
    "limit_conn": "a directive of nginx",
    "member_1": "f'member_{number}'",
    "RAY_JOB_START_TIMEOUT_SECONDS": "an environment variable of Ray",
}
"""Identifiers on the pages that the source does not hold, and what they are."""
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
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
    rules = [(name, level == "stop" and not depends) for name, level, depends in levels]
    # The policy stage reports these: an update that diverges has no metrics, and the canary is not
    # the engine's.
    assert found == [*rules, ("diverged", True), ("canary_loss", False)]
    assert len(rules) == len(metrics._RULES)
    ends = {row[0].split("`")[1] for row in rows("Red flags") if row[2].startswith("yes")}
    assert ends == {metrics.SAMPLER_MISMATCH, "reference_changed", "diverged"}


def code_map_rows() -> list[list[str]]:
    text = (DOCS / "code_map.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    return [row for title in titles for row in rows(title, text)]


def test_the_code_map_names_functions_of_the_files_beside_them():
    listed = code_map_rows()
    assert len(listed) > 150
    missing = []
    for subject, *_, cell in listed:
        spans = re.findall(r"`([^`]+)`", cell)
        assert spans, subject
        source, before = "", []
        for span in spans:
            if "/" in span:
                path = ROOT / span
                source = path.read_text(encoding="utf-8") if path.is_file() else ""
                missing += [name for name in before if not re.search(rf"\b{name}\b", source)]
                before = []
            elif not source:
                before.append(span)
            elif not re.search(rf"\b{re.escape(span)}\b", source):
                missing.append((subject, span))
    assert missing == []


def unmapped(text: str) -> list[str]:
    """The modules of the product that the text does not name between backticks."""
    named = set(re.findall(r"`([^`]+)`", text))
    found = (path for package in PRODUCT for path in (ROOT / package).rglob("*.*"))
    return sorted(
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.suffix in (".py", ".js")
        and path.stem not in ("__init__", "__main__")
        and "static" not in path.parts
        and path.relative_to(ROOT).as_posix() not in named
    )


def test_the_code_map_names_every_module():
    text = (DOCS / "code_map.md").read_text(encoding="utf-8")
    assert unmapped(text) == []
    without = "\n".join(line for line in text.splitlines() if "`labeler/stubs.py`" not in line)
    assert unmapped(without) == ["labeler/stubs.py"]


def test_the_code_map_answers_in_fifteen_words():
    answers = [row[1] for row in code_map_rows() if len(row) == 3]
    assert len(answers) > 150
    assert [answer for answer in answers if not 0 < len(answer.split()) <= 15] == []


def stated_defaults(text: str) -> list[tuple[str, str]]:
    """(setting, value) of each `section.name=value` and each `section.name` (default value)."""
    spans = re.findall(r"`([a-z]+\.[a-z_]+)=([^`]+)`", text)
    return spans + re.findall(r"`([a-z]+\.[a-z_]+)` \(default ([^),]+)", text)


def is_default(name: str, value: str) -> bool:
    section, _, key = name.partition(".")
    default = Config().to_dict()[section][key]
    try:
        stated = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        stated = None if value == "none" and default is None else value
    default = list(default) if isinstance(default, tuple) else default
    return type(stated) is type(default) and stated == default


def test_the_defaults_on_the_code_map_are_those_of_the_code():
    stated = stated_defaults((DOCS / "code_map.md").read_text(encoding="utf-8"))
    assert len(stated) > 80
    assert [pair for pair in stated if not is_default(*pair)] == []


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("`ppo.lr=3e-6`", True),
        ("`ppo.lr=3e-5`", False),
        ("`ppo.schedule=linear`", True),
        ("`ppo.schedule=constant`", False),
        ("`sampling.temperatures=[1.0, 0.8]`", True),
        ("`sampling.temperatures=[1.0, 1.0]`", False),
        ("`shaping.floor=none`", True),
        ("`shaping.floor=0`", False),
        ("`labeling.auto_train` (default false)", True),
        ("`labeling.auto_train` (default true)", False),
    ],
)
def test_a_stated_default_is_compared_with_the_code(text: str, right: bool):
    [pair] = stated_defaults(text)
    assert is_default(*pair) is right


def test_every_shaping_component_is_described():
    table = rows("Reward shaping: additional components", REWARD)
    named = [name for row in table for name in re.findall(r"`([\w:]+)`", row[0])]
    assert sorted(named) == sorted([*COMPONENTS, "module:function"])


def test_the_settings_of_other_methods_stand_with_their_defaults():
    text = (DOCS / "compare.md").read_text(encoding="utf-8")
    found = dict(re.findall(r"^\| `optimize\.(\w+)` \| ([^|]+) \|", text, re.MULTILINE))
    expected = {f.name: f.default for f in fields(OptimizeConfig)}
    assert found == {
        name: "empty" if value in ("", ()) else str(value) for name, value in expected.items()
    }


def test_what_openrlhf_gets_of_each_setting_is_in_its_table():
    table = rows("Settings", (DOCS / "openrlhf.md").read_text(encoding="utf-8"))
    named = [name for row in table for name in re.findall(r"`ppo\.(\w+)`", row[0])]
    assert sorted(named) == sorted([*openrlhf.DIRECT, *openrlhf.DERIVED, *openrlhf.OWN])
    options = {name: own[0] for name, own in openrlhf.DIRECT.items()} | openrlhf.DERIVED
    for row in table:
        for name in re.findall(r"`ppo\.(\w+)`", row[0]):
            assert options.get(name, "reward function") in row[1], name


def test_the_readme_lists_every_command():
    table = rows("The command line", (ROOT / "README.md").read_text(encoding="utf-8"))
    named = {span.removeprefix("users ").split()[0] for span in spans_of(table)}
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    assert named == {*commands, *commands["users"].commands} - {"users"}


def spans_of(table: list[list[str]]) -> list[str]:
    """The text between backticks in a table's first column."""
    return [span for row in table for span in re.findall(r"`([^`]+)`", row[0])]


def code_spans(page: Path) -> list[str]:
    """The text between backticks, fenced blocks left out."""
    prose = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


@cache
def source_files() -> list[Path]:
    """The files of the packages and those beside them, without pages, pictures and models."""
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    text = {"", ".py", ".js", ".toml", ".html", ".css", ".sh", ".yaml", ".yml"}
    return [path for path in found if path.suffix in text and "__pycache__" not in path.parts]


@cache
def words() -> set[str]:
    """Every word of the source without the tests, in code, comments and strings."""
    paths = (path for path in source_files() if "tests" not in path.relative_to(ROOT).parts)
    files = (path.read_text(encoding="utf-8", errors="replace") for path in paths)
    return {word for text in files for word in re.findall(r"\w+", text)}


@cache
def quoted() -> set[str]:
    """The names with a dot that the source has in quotes, such as events."""
    files = (path.read_text(encoding="utf-8", errors="replace") for path in source_files())
    return {name for text in files for name in re.findall(r'"(\w+\.\w+)"', text)}


@cache
def members() -> dict[str, set[str]]:
    """What modules (by the last part of their name) define, and what classes hold."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in source_files():
        if path.suffix != ".py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        stem = path.parent.name if path.stem == "__init__" else path.stem
        found[stem] |= set(defined(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                held = {*defined(node), *(n for part in node.body for n in attributes(part))}
                found[node.name] |= held
                found[node.name.lower()] |= held  # a variable of the class
                found[stem] |= held
    return found


def defined(tree: ast.Module | ast.ClassDef) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.ImportFrom):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def attributes(node: ast.AST) -> Iterator[str]:
    """The names that a method assigns to `self`."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            yield part.attr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page):
    """Paths from the root exist; other `.py` and `.js` files are the end of a path that does."""
    ends = {f"/{path.relative_to(ROOT).as_posix()}" for path in source_files()}
    fenced = re.findall(r"^```.*?^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    missing = []
    for span in [*code_spans(page), *fenced]:
        for word in re.findall(r"[\w.{},*<>/-]+", span):
            if re.match(rf"(?:{'|'.join(PACKAGES)})/", word):
                found = any(any(ROOT.glob(name)) for name in expanded(word))
            else:
                found = not re.fullmatch(r"[\w/-]+\.(py|js)", word) or any(
                    end.endswith(f"/{word}") for end in ends
                )
            if not found:
                missing.append(word)
    assert missing == []


def expanded(path: str) -> list[str]:
    """The paths of braces, and any folder for the placeholder TAB."""
    head, brace, rest = path.replace("/TAB/", "/*/").rstrip("/.").partition("{")
    if not brace:
        return [head]
    inner, _, tail = rest.partition("}")
    return [f"{head}{name}{tail}" for name in inner.split(",")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_identifier_that_a_page_names_is_in_the_source(page):
    """`Class.member`, `module.function`, `section.setting` and tests exist; other names occur."""
    settings = Config().to_dict()
    missing = []
    for span in code_spans(page):
        name = re.sub(r"\(.*\)$", "", span)
        if re.fullmatch(r"(pipeline|storage|labeler|commands|benchmarks)(\.\w+)+", name):
            path = ROOT / name.replace(".", "/")
            if not path.is_dir() and not path.with_suffix(".py").exists():
                missing.append(span)
        elif dotted := re.fullmatch(r"(\w+)\.(\w+)", name):
            head, last = dotted.groups()
            known = {*settings.get(head, ()), *members().get(head, ())}
            if known and last not in known and not is_file_name(name) and name not in quoted():
                missing.append(span)
        elif re.fullmatch(r"test_\w+", name):
            if not any(name in held for held in members().values()):
                missing.append(span)
        elif re.fullmatch(r"\w*(_|[a-z][A-Z])\w*", name) and name not in {*words(), *ELSEWHERE}:
            missing.append(span)
    assert missing == []


def is_file_name(name: str) -> bool:
    suffixes = [
        "css",
        "duckdb",
        "html",
        "js",
        "json",
        "jsonl",
        "md",
        "parquet",
        "py",
        "svg",
        "toml",
        "torn",
    ]
    return name.rpartition(".")[2] in suffixes
