"""Functions of other people's in the settings: who may name them, and that they exist before training starts."""

from __future__ import annotations

import ast
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from commands.studio import Studio
from labeler.annotate.routes import explain_errors
from labeler.research.api.loop import loop_routes
from pipeline.config import plugins
from pipeline.config.sections import Config
from pipeline.config.shaping import ShapingConfig
from pipeline.loop.loop import Loop
from pipeline.shaping import require_available
from storage.commands import Commands
from storage.engine.database import Database
from storage.tables import iterations
from storage.tables.runs import runs
from tests.helpers.policy_world import add_iteration
from tests.pipeline.loop.test_retry import leave_a_checkpoint, stop

pytestmark = pytest.mark.usefixtures("dying_workers")

SHELL = '{"os:system" = 1.0}'
MINE = '{"my_rewards:shout" = 0.5}'
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules of the user's own, where the workers find them."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_rewards.py").write_text(
        "import pathlib\n"
        f"pathlib.Path({str(folder / 'imported')!r}).touch()\n"
        "print('a library that talks while it is imported')\n"
        "def shout(text): return float(text.isupper())\n"
        "def odd(a, b, c): return 0.0\n"
        "quiet = 3\n"
    )
    (folder / "my_slow.py").write_text("import time\ntime.sleep(60)\ndef shout(text): return 0.0\n")
    (folder / "my_broken.py").write_text("1 / 0\n")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    return folder


def unchanged(db: Database) -> bool:
    current = iterations.get(db, 2)
    return (current.phase, current.settings, runs.listing(db)) == ("labeling", {}, [])


def failed_ppo(loop: Loop, world: Database) -> str:
    add_iteration(world, 2, phase="policy", policy_produced=None, reward_model="reward-2")
    return stop(loop).id


# --- who may name one -------------------------------------------------------------------------


def test_a_researcher_names_no_function_that_the_operator_has_not(
    loop: Loop, world: Database, rewards: Path
):
    for weights in (SHELL, MINE):
        with pytest.raises(ValueError, match=r"plugins\.allowed"):
            loop.train({"shaping.weights": weights})
    with pytest.raises(ValueError, match=r"gate\.canary names my_rewards:quiet.*plugins\.allowed"):
        loop.train({"gate.canary": "my_rewards:quiet"})
    assert unchanged(world)
    run = failed_ppo(loop, world)
    with pytest.raises(ValueError, match=r"os:system.*plugins\.allowed"):
        loop.retry(run, {"shaping.weights": SHELL})
    assert iterations.get(world, 2).settings == {}
    assert not (rewards / "imported").exists()  # nor was it looked at


def test_the_train_form_says_so_and_starts_nothing(loop: Loop, world: Database):
    app = FastAPI()
    explain_errors(app)
    for router in loop_routes(world, loop, Commands(world)):  # type: ignore[arg-type]
        app.include_router(router)
    with TestClient(app) as client:
        answer = client.post(
            "/research/api/loop/train", json={"overrides": {"shaping.weights": SHELL}}
        )
    assert answer.status_code == 422
    assert "os:system" in answer.json()["error"]
    assert "plugins.allowed" in answer.json()["error"]
    assert unchanged(world)


@pytest.mark.parametrize(
    "named",
    [{"shaping.weights": MINE}, {"plugins.allowed": '["my_rewards:shout"]'}],
    ids=["in shaping.weights", "in plugins.allowed"],
)
def test_what_the_operator_has_named_may_be_used(world: Database, named: dict[str, str]):
    loop = Loop(world, Config().override(named))
    loop.train({"shaping.weights": '{"my_rewards:shout" = -2.0, length = -1}'})
    assert iterations.get(world, 2).phase == "reward"
    loop.shut_down()


def test_a_researcher_may_turn_the_canary_off_and_name_that_of_the_demo(
    loop: Loop, world: Database
):
    loop.train({"gate.canary": "pipeline.demo.canary:checks", "gate.canary_every": "5"})
    assert iterations.get(world, 2).settings["gate.canary"] == "pipeline.demo.canary:checks"
    loop.retry(failed_ppo(loop, world), {"gate.canary": ""})
    assert iterations.get(world, 2).settings["gate.canary"] == ""


def test_the_operators_command_line_may_name_any(world: Database):
    place = world.workspace
    world.close()
    studio = Studio(place, Config())
    try:
        studio.call("train", overrides={"shaping.weights": MINE})
        add_iteration(studio.db, 2, phase="policy", policy_produced=None, reward_model="reward-2")
        stop(studio.loop)
        studio.call("retry", overrides={"shaping.weights": MINE})
        assert iterations.get(studio.db, 2).settings["shaping.weights"] == MINE
    finally:
        studio.loop.advance()
        studio.close()


def test_nobody_allows_functions_while_the_studio_runs(loop: Loop, world: Database):
    allowed = {"plugins.allowed": '["os:system"]', "shaping.weights": SHELL}
    for by_operator in (False, True):
        with pytest.raises(ValueError, match=r"plugins\.allowed is read when the studio starts"):
            loop.train(allowed, by_operator=by_operator)
        with pytest.raises(ValueError, match=r"plugins\.allowed is read when the studio starts"):
            loop.retry(failed_ppo(loop, world), allowed, by_operator=by_operator)
        add_iteration(world, 2, phase="labeling", policy_produced=None, reward_model=None)
    fixed = {s.name for s in loop.settings() if s.why_fixed}
    assert "plugins.allowed" in fixed


def test_two_settings_take_functions_and_all_others_come_from_the_command_line():
    """Whoever adds a caller has to think of who may name what it loads."""
    callers = set()
    for package in ("commands", "labeler", "pipeline", "storage"):
        for path in (ROOT / package).rglob("*.py"):
            called = {
                node.func.id
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            if "load_function" in called:
                callers.add(str(path.relative_to(ROOT)))
    assert callers == {
        "pipeline/canary/checks.py",
        "pipeline/simulation/preference.py",
        "pipeline/simulation/judge.py",
        "pipeline/shaping/__init__.py",
    }


# --- that it exists ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("my_rewardz:shout", "there is no module 'my_rewardz'"),
        ("my_rewards:whisper", "my_rewards has no function 'whisper'"),
        ("my_rewards:quiet", "my_rewards has no function 'quiet'"),
        ("my_rewards:odd", "takes 3 arguments"),
        ("my_broken:shout", "ZeroDivisionError"),
    ],
)
def test_a_function_that_cannot_be_had_is_refused_before_anything_starts(
    loop: Loop, world: Database, name: str, says: str
):
    weights = {"shaping.weights": f'{{"{name}" = 1.0}}'}
    with pytest.raises(ValueError, match=says):
        loop.train(weights, by_operator=True)
    assert unchanged(world)
    run = runs.get(world, failed_ppo(loop, world))
    checkpoint = leave_a_checkpoint(world, run)
    with pytest.raises(ValueError, match=says):
        loop.retry(run.id, weights, by_operator=True)
    assert checkpoint.exists()
    assert iterations.get(world, 2).settings == {}


def test_a_canary_that_cannot_be_had_is_refused_before_anything_starts(loop: Loop, world: Database):
    for name, says in (
        ("my_rewards:whisper", "gate.canary 'my_rewards:whisper': my_rewards has no function"),
        ("my_rewards:odd", "gate.canary 'my_rewards:odd' raised TypeError"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            loop.train({"gate.canary": name}, by_operator=True)
    with pytest.raises(ValueError, match=r"gate\.canary=shout must be written module:function"):
        loop.train({"gate.canary": "shout"}, by_operator=True)
    assert unchanged(world)


def test_functions_are_looked_up_outside_the_web_process(rewards: Path):
    require_available(ShapingConfig(weights={"my_rewards:shout": 1.0}))
    assert (rewards / "imported").exists()
    assert "my_rewards" not in sys.modules


def test_a_function_that_is_slow_to_import_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plugins, "IMPORT_TIMEOUT", 1.0)
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"my_slow:shout.*1 s"):
        require_available(ShapingConfig(weights={"my_slow:shout": 1.0}))
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("setting", ["references", "classifier"])
def test_files_that_components_read_exist_before_anything_starts(
    loop: Loop, world: Database, tmp_path: Path, setting: str
):
    component = {"references": "contrast", "classifier": "sycophancy_classifier"}[setting]
    asked: dict[str, Any] = {
        "shaping.weights": f"{{{component} = 1.0}}",
        f"shaping.{setting}": str(tmp_path / "nowhere"),
    }
    with pytest.raises(ValueError, match=rf"shaping\.{setting}.*nowhere.*there is no such"):
        loop.train(asked, by_operator=True)
    assert unchanged(world)
