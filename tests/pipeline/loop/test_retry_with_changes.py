"""A stage that stopped: what is offered, what is suggested, and another attempt from the page itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from playwright.sync_api import expect

from commands.studio import Studio
from labeler.app import create_app
from pipeline.config.sections import Config
from pipeline.loop.loop import Loop
from pipeline.loop.remedies import suggested
from pipeline.ppo.metrics import red_flags
from storage.engine.database import Database
from storage.records import Annotator, Run, Stage
from storage.tables import iterations
from storage.tables.people import annotators, tokens
from storage.tables.runs import runs
from storage.tables.runs.run_settings import READ_BY
from tests.helpers.browser import SLOW, chromium, find_chromium, new_page
from tests.helpers.desk_world import serving
from tests.helpers.policy_world import add_iteration, add_models, compare
from tests.helpers.recording_loop import in_a_loop
from tests.helpers.research_seed import kl_flag
from tests.pipeline.loop.test_retry import job, leave_a_checkpoint, stop

pytestmark = pytest.mark.usefixtures("dying_workers")
BASE = Config().override({"ppo.kl_weight": "0.02"})


@pytest.fixture
def world(db: Database) -> Database:
    """PPO of iteration 2 is due."""
    add_models(db, policies=2)
    add_iteration(db, 1)
    add_iteration(db, 2, phase="policy", policy_produced=None, reward_model="reward-2")
    return db


@pytest.fixture
def loop(world: Database) -> Iterator[Loop]:
    made = Loop(world, BASE)
    yield made
    made.advance()
    made.shut_down()


def raise_flag(db: Database, run: Run) -> None:
    """What PPO reports as it leaves the reference."""
    runs.ingest(db, run, [], [kl_flag(run.id, 40, 11.0), kl_flag(run.id, 41, 12.0)])


def test_the_first_thing_to_try_is_a_setting(loop: Loop, world: Database):
    assert loop.stopped_stage() is None
    failed = stop(loop)
    raise_flag(world, failed)
    seen = loop.stopped_stage()
    assert seen is not None
    assert (seen.run, seen.stage, seen.flag) == (failed.id, "policy", "kl_high")
    assert seen.suggestion == {"ppo.kl_weight": "0.04"}  # twice the 0.02 of the run
    assert (seen.resumable, seen.may_label) == (False, False)
    leave_a_checkpoint(world, failed)
    again = loop.stopped_stage()
    assert again is not None
    assert again.resumable
    loop.retry(failed.id, seen.suggestion)
    retried = runs.listing(world)[-1]
    assert job(world, retried).config.ppo.kl_weight == 0.04
    assert (retried.attempt, runs.get(world, failed.id).attempt) == (2, 1)


@pytest.mark.parametrize(
    ("flag", "settings", "suggestion"),
    [
        ("kl_high", {}, {"ppo.kl_weight": "0.1"}),
        ("kl_high", {"ppo.kl_weight": "0"}, {"ppo.kl_weight": "0.05"}),
        ("many_epochs", {"ppo.epochs": "9"}, {"ppo.epochs": "4"}),
        ("kl_negative", {"ppo.top_k": "5"}, {"ppo.top_k": "0"}),  # top_p is 1 already
        ("entropy_collapse", {"ppo.lr": "4e-6"}, {"ppo.lr": "2e-06"}),
        ("reference_changed", {}, {}),
        ("no_such_flag", {}, {}),
        ("kl_high", {"optimize.method": "rloo"}, {"ppo.kl_weight": "0.1"}),
        ("kl_high", {"optimize.method": "dpo"}, {}),  # which has a β of its own
    ],
)
def test_suggestions_are_worked_out_from_the_run(
    flag: str, settings: dict[str, str], suggestion: dict[str, str]
):
    ran = Config().override({"ppo.kl_weight": "0.05"} | settings)
    assert suggested(flag, ran=ran, now=ran) == suggestion


def test_what_the_gate_has_raised_is_what_is_doubled():
    raised = Config().override({"ppo.kl_weight": "0.15"})
    assert suggested("kl_high", ran=raised, now=BASE) == {"ppo.kl_weight": "0.3"}


def test_a_flag_that_is_raised_is_one_that_is_known():
    flags = red_flags([_healthy() | {"kl/reference": 20.0, "kl/coefficient": 0.0}])
    assert {flag.name for flag in flags} == {"kl_high", "no_kl_penalty"}
    assert all(suggested(flag.name, ran=BASE, now=BASE) for flag in flags)


def _healthy() -> dict[str, float]:
    """An update in which nothing is wrong: 0 is the best value of every other metric."""
    best = ("policy/entropy", "reward/std", "completion/unique", "completion/length_mean")
    return defaultdict(float, dict.fromkeys(best, 1.0))


@pytest.mark.parametrize("stage", get_args(Stage))
def test_every_stage_is_offered_settings_that_it_may_still_be_given(db: Database, stage: Stage):
    phase = {"sft": "sampling", "evaluate": "evaluating"}.get(stage, stage)
    add_models(db, policies=2)
    add_iteration(db, 1)
    add_iteration(db, 2, phase=phase, policy_produced=None, reward_model="reward-2")
    compare(db, "policy-1", "sft-1", ["first", "second"])
    if stage == "sft":
        assert READ_BY["sft"]
        return
    loop = Loop(db, BASE)
    failed = stop(loop)
    offered = {s.name: s for s in loop.settings() if s.offered}
    assert offered
    assert not [name for name, s in offered.items() if s.why_fixed]
    sections = {name.partition(".")[0] for name in offered}
    assert {"worker", "seed"} <= sections
    assert ("evaluate" in sections) == (stage == "evaluate")
    assert ("sampling.top_p" in offered) == (stage == "sampling")
    loop.retry(failed.id, {name: str(offered[name].value) for name in ("worker.nice", "seed")})
    loop.advance()
    loop.shut_down()


def test_page_command_line_and_http_go_one_way(world: Database):
    place = world.workspace
    world.close()
    studio = Studio(place, BASE)
    try:
        stop(studio.loop)
        with pytest.raises(ValueError, match="did you mean"):
            studio.call("retry", overrides={"ppo.kl_wait": "1"})
        studio.call("retry", overrides={"ppo.kl_weight": "0.5"})
        assert job(studio.db, runs.listing(studio.db)[-1]).config.ppo.kl_weight == 0.5
    finally:
        studio.loop.advance()
        studio.close()


def test_three_clicks_from_a_failed_run_to_another_attempt(loop: Loop, world: Database):
    """Sign-in is no click: the page is open, on whichever tab."""
    find_chromium()
    failed = stop(loop)
    raise_flag(world, failed)
    annotators.add(world, Annotator(id="researcher", name="Rosa", role="researcher"))
    secret = tokens.issue(world, "researcher", "session", lifetime=None)
    app = in_a_loop(
        lambda: create_app(
            world, loop=_as_port(loop), admin=lambda *_: None, admin_token="t",
            accounts_required=False,
        )
    )  # fmt: skip
    with serving(app) as server, chromium() as browser:
        cookie = (server.url, server.app.state.auth.cookie, secret)
        with new_page(browser, cookie=cookie) as page:
            page.set_default_timeout(SLOW)
            page.goto(f"{server.url}/research/")
            expect(page.locator("#loop-next")).to_contain_text("KL high: Raise kl_weight")
            expect(page.locator("#loop-next")).not_to_contain_text("resume")
            page.get_by_role("link", name="Runs", exact=True).click()  # 1
            page.locator("#go-retry").click()  # 2
            weight = page.locator("#setting-ppo-kl_weight")
            expect(weight).to_have_value("0.04")
            expect(page.locator("#setting-evaluate-prompts")).to_have_count(0)
            expect(page.locator("#train")).to_have_count(0)
            page.locator("#train-start").click()  # 3
            expect(page.locator("#train-answer")).to_contain_text("Changed: KL weight (β) 0.04.")
            expect(page.locator("#retry")).to_have_count(0)
            expect(page.locator("#train")).to_be_visible()
    again = runs.listing(world)[-1]
    assert again.attempt == 2
    assert again.config["ppo"]["kl_weight"] == 0.04
    assert iterations.get(world, 2).settings == {"ppo.kl_weight": "0.04"}


def _as_port(loop: Loop) -> Any:
    return loop
