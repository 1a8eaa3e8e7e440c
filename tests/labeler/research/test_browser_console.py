"""What a researcher sees of iterations, methods and verdicts in a real browser, on one served world.

The world has four finished iterations, by PPO, DPO, RLOO and best-of-N.  The newest reward model is
not ready for PPO.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from labeler.app import create_app
from storage.engine.database import Database
from storage.records import Iteration, Metric, Run, Snapshot
from storage.reports import Evaluation, from_json
from storage.tables import iterations, models, settings, snapshots
from storage.tables.people import tokens
from storage.tables.runs import runs
from tests.helpers.browser import SLOW, chromium, find_chromium, new_page, wait_for_pair
from tests.helpers.desk_browser import press
from tests.helpers.desk_world import Server, serving
from tests.helpers.recording_loop import RecordingLoop, in_a_loop
from tests.helpers.research_seed import Seeding
from tests.helpers.reward_figures import quality, rate

expect.set_options(timeout=SLOW)
METHODS = ("ppo", "dpo", "rloo", "best-of-n")
NAMES = ("PPO", "DPO", "RLOO", "Best-of-N")
MAIN = (
    ["Mean reward", "KL to the reference"],
    ["Loss", "Reward margin", "Preference accuracy"],
    ["Mean reward", "KL to the reference"],
    ["Reward by N", "KL from SFT, upper bound"],
)


@dataclass(frozen=True)
class World:
    db: Database
    seeding: Seeding
    server: Server

    def cookie(self, who: str = "researcher") -> tuple[str, str, str]:
        secret = tokens.issue(self.db, who, "session", lifetime=None)
        return (self.server.url, self.server.app.state.auth.cookie, secret)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    find_chromium()  # skips before anything is served
    with Database.open(tmp_path_factory.mktemp("workspace") / "study") as db:
        seeding = Seeding(db)
        seeding.history(finished=4, labels=30, methods=METHODS)
        seeding.judge_policies(1, wins=0.3, judgments=40)
        seeding.judge_policies(4, wins=0.9, judgments=40)
        weak = quality(accuracy=rate(0.5, 0.4, 0.6))
        newest = models.get(db, "reward-4")
        models.add(db, replace(newest, summary=dict(newest.summary) | {"quality": weak}))
        bound = replace_kl_by_bound(iterations.get(db, 4))
        iterations.save(db, bound)
        retry_the_policy_of(db, 4)
        seeding.run(5, "sampling", "succeeded")
        # A repeated pair is no new label.
        settings.set_check_plan(db, settings.CheckPlan(gold_share=0, reask_share=0))
        app = in_a_loop(
            lambda: create_app(
                db,
                loop=RecordingLoop(db=db),
                admin=lambda *_: None,
                admin_token="t",
                accounts_required=False,
            )
        )
        with serving(app) as server:
            yield World(db, seeding, server)


def replace_kl_by_bound(iteration: Iteration) -> Iteration:
    found = dict(iteration.evaluation)
    return replace(
        iteration, evaluation=found | {"policy": found["policy"] | {"kl_is_bound": True}}
    )


def retry_the_policy_of(db: Database, number: int) -> None:
    """Its policy run failed after an hour, and succeeded at its second attempt."""
    second = runs.get(db, f"run-{number}-policy")
    first = replace(
        second, id=f"run-{number}-first", status="failed", reason="out of memory", seconds=3600.0,
        created_at=second.created_at - timedelta(hours=1), directory=f"runs/run-{number}-first",
    )  # fmt: skip
    runs.save(db, first)
    runs.save(db, replace(second, attempt=2, seconds=1740.0))


@pytest.fixture(scope="module")
def browser(world: World) -> Iterator[Browser]:
    assert world.server.url
    with chromium() as running:
        yield running


@contextmanager
def research(browser: Browser, world: World, query: str = "", **more) -> Iterator[Page]:
    with new_page(browser, cookie=world.cookie(), **more) as page:
        page.goto(f"{world.server.url}/research/{query}")
        expect(page.locator("#first-view")).to_have_count(0)
        yield page


def texts_of(row: Locator) -> dict[str, str]:
    """The cells of a table's row by column."""
    return {
        cell.get_attribute("data-label"): " ".join(cell.inner_text().split())
        for cell in row.locator("td").all()
    }


def test_runs_opens_on_the_policy_with_links_to_the_stages_of_its_iteration(browser, world):
    with research(browser, world, "?tab=runs") as page:
        card = page.locator("#run-card")
        expect(card).to_contain_text("run-4-policy")  # the sampling of iteration 5 is newer
        stages = page.get_by_role("navigation", name="Stages of iteration 4").get_by_role("link")
        expect(stages).to_have_text(["Policy", "Sampling", "Reward model", "Evaluation"])
        expect(stages.first).to_have_attribute("aria-current", "true")
        # A retry is a new run; the failed attempt stays.
        card.get_by_role("link", name="attempt 1, failed").click()
        expect(card).to_contain_text("out of memory")
        stages.filter(has_text="Evaluation").click()
        expect(card).to_contain_text("run-4-evaluate")
        expect(page.locator("#run input")).to_have_value(re.compile("^Evaluation · iteration 4"))


def test_an_evaluation_is_grouped_by_model_and_its_metrics_are_folded(browser, world):
    found = from_json(Evaluation, iterations.get(world.db, 4).evaluation)
    with research(browser, world, "?tab=runs&run=run-4-evaluate", width=1440) as page:
        charts = page.locator("#run-charts")
        expect(charts.locator(".ks-tile")).to_contain_text(f"{found.win_rate_reward_model:.0%}")
        rows = [texts_of(row) for row in charts.locator("tbody tr").filter(visible=True).all()]
        assert [(row["Model"], row["KL from SFT"]) for row in rows] == [
            ("New policy", "≤ 12.4"), ("Previous policy", "9.30"), ("SFT", "0"),
        ]  # fmt: skip
        expect(charts.get_by_text("evaluate/policy/kl")).to_be_hidden()
        charts.get_by_text("All 16 metrics").click()
        expect(charts.get_by_text("evaluate/policy/kl")).to_be_visible()


@pytest.mark.parametrize("number", range(1, len(METHODS) + 1), ids=METHODS)
def test_a_policy_run_names_its_method_and_has_its_main_charts(browser, world, number):
    name, main = NAMES[number - 1], MAIN[number - 1]
    with research(browser, world, f"?tab=runs&run=run-{number}-policy", width=1440) as page:
        expect(page.locator("#run-card")).to_contain_text(f"run-{number}-policy")
        expect(page.locator("#run input")).to_have_value(
            re.compile(f"^{name} · iteration {number}")
        )
        expect(page.locator("#run-card")).to_contain_text(f"{name} · iteration {number}", ignore_case=True)  # fmt: skip
        charts = page.locator("#run-charts .ks-charts").first
        expect(charts.locator(".uplot")).to_have_count(len(main))
        expect(charts.locator("figcaption b")).to_have_text(main)


def test_overview_tells_what_can_be_trusted_with_people_first(browser, world):
    with research(browser, world, width=1440) as page:
        tiles = page.locator("#loop-trust .ks-tile")
        expect(tiles).to_have_count(3)
        policy, reward_model = tiles.nth(0), tiles.nth(1)
        expect(policy).to_contain_text("Policy")
        expect(policy.locator(".ks-badge")).to_have_text("promoted")
        expect(reward_model.locator(".ks-badge")).to_have_text("keep labeling")
        told = policy.inner_text()
        assert told.index("people prefer policy-4") < told.index("reward model: wins")
        assert re.search(r"\n79% \d\d–\d\d%\n", told), told
        columns = page.locator("#loop-iterations th").all_inner_texts()
        people, by_model = (
            next(i for i, each in enumerate(columns) if each.startswith(name))
            for name in ("People", "Reward model")
        )
        assert people < by_model
        expect(page.locator(".ks-note", has_text="reward-4 is not ready for PPO")).to_be_visible()


def test_train_warns_of_a_reward_model_that_is_not_ready(browser, world):
    with research(browser, world) as page:
        page.locator("#train").click()
        caution = page.locator("#train-drawer .ks-caution")
        expect(caution).to_contain_text("reward-4 is not ready for PPO: keep labeling.")
        expect(caution).to_contain_text("50% (40% to 60%)")
        method = page.locator("#setting-optimize-method")
        method.select_option("dpo")  # learns from the judgments themselves
        expect(caution).to_be_hidden()
        method.select_option("best-of-n")
        expect(caution).to_contain_text("keep labeling")


def test_best_of_n_is_started_judged_and_traced_like_a_policy(browser, world):
    with research(browser, world) as page:
        page.locator("#train").click()
        page.locator("#setting-optimize-method").select_option("best-of-n")
        page.locator("#train-start").click()
        expect(page.locator("#loop-next, .ks-started").first).to_be_visible()
        expect(page.locator(".ks-started")).to_contain_text("Changed: Method best-of-n")
        page.goto(f"{world.server.url}/research/?tab=models")
        expect(page.locator("#standing")).to_contain_text("policy-4")
        expect(page.locator("#standing .ks-badge").first).to_have_text("promoted")
        expect(page.locator("#leaderboard")).to_contain_text("policy-4")
        page.goto(f"{world.server.url}/research/?tab=models&section=lineage")
        expect(page.locator("#tree")).to_contain_text("by best-of-N")


def test_the_history_has_verdicts_in_their_rows_and_joins_no_win_rates(browser, world):
    with research(browser, world, "?tab=overview&section=iterations", width=1440) as page:
        expect(page.locator("#iterations tbody tr")).to_have_count(5)
        rows = {
            cells["Iteration"].split()[0]: cells
            for row in page.locator("#iterations tbody tr").all()
            if (cells := texts_of(row))
        }
        assert rows["1"]["Verdict"].startswith("blocked people ")
        assert rows["4"]["Verdict"].startswith("promoted people ")
        assert [rows[each]["Verdict"] for each in ("2", "3", "5")] == ["–"] * 3
        assert rows["4"]["Iteration"] == "4 best-of-N"
        assert rows["4"]["KL"] == "≤ 12.4"
        assert "training 1 h 29 min, 3 attempts" in rows["4"]["Time"]
        # The whole table is on the screen, although its texts are the longest.
        table = page.locator("#iterations .ks-table").first
        assert table.evaluate("node => node.scrollWidth <= node.clientWidth")
        plots = page.locator(".ks-beside .ks-dotted")
        expect(plots).to_have_count(2)
        by_people, by_model = plots.nth(0), plots.nth(1)
        expect(by_people.locator("figcaption")).to_contain_text("by people")
        for plot, dots in ((by_people, 2), (by_model, 4)):
            expect(plot.locator(".ks-point")).to_have_count(dots)
            expect(plot.locator(".ks-whisker")).to_have_count(dots)
            expect(plot.locator(".ks-line")).to_have_count(0)


def start_the_policy(world: World, method: str, *, updates: int = 100) -> Run:
    """Iteration 5 trains its policy by this method."""
    db = world.db
    iterations.save(db, replace(iterations.get(db, 5), phase="policy", reward_model="reward-4"))
    config = {"optimize": {"method": method}, "ppo": {"updates": updates, "kl_budget": 8.0}}
    if any(run.id == "run-5-policy" for run in runs.listing(db)):
        found = runs.get(db, "run-5-policy")
        return runs.save(db, replace(found, config=config, status="running"))
    return world.seeding.run(
        5, "policy", "running", config=config, progress=0.3, message="update 30 of 100",
        finished_at=None,
    )  # fmt: skip


def test_annotators_go_on_while_a_stage_runs_and_the_next_training_uses_their_labels(
    browser, world
):
    start_the_policy(world, "dpo")
    db, kinds = world.db, settings.learn_from(world.db)
    ids = tuple(row["id"] for row in db.read("SELECT id FROM current_judgments"))
    db.write(lambda tx: tx.store(Snapshot(hash="s-5", iteration=5, judgments=ids)))
    assert snapshots.waiting(db, kinds) == 0
    with new_page(browser, cookie=world.cookie("annotator-0")) as page:
        page.goto(f"{world.server.url}/label/")
        wait_for_pair(page)
        press(page, "1", "2")
        for _ in range(SLOW // 100):
            if snapshots.waiting(db, kinds) == 2:
                break
            page.wait_for_timeout(100)
        assert snapshots.waiting(db, kinds) == 2
    with research(browser, world) as page:
        expect(page.locator("#top")).to_contain_text("Iteration 5 · DPO")
        expect(page.locator("#top")).not_to_contain_text("PPO")
        expect(page.locator(".ks-steps-row [aria-current=step]")).to_have_text("Policy (DPO)")
        told = page.locator("#loop-next")
        expect(told).to_contain_text("Annotators continue")
        expect(told).to_contain_text("The next training uses 2 new labels.")


def right_end(page: Page) -> list[str]:
    """What the first two charts say at the right end of their axes."""
    main = page.locator("#run-charts .ks-charts").first
    over = main.locator(".u-over").first
    box = over.bounding_box()
    assert box
    over.hover(position={"x": box["width"] - 1, "y": 20})
    return main.locator(".ks-at").all_inner_texts()


def test_the_axis_of_a_running_policy_reaches_to_its_last_update_from_the_start(browser, world):
    run = start_the_policy(world, "ppo")
    world.seeding.ppo_events(run.id, updates=30)
    with research(browser, world, "?tab=runs", width=1440) as page:
        expect(page.locator("#run-charts .uplot").first).to_be_visible()
        assert right_end(page) == ["update 100", "update 100"]
        page.mouse.move(5, 5)
        key = page.locator("#run-charts .ks-key em").first
        before = key.inner_text()
        more = [
            Metric(run=run.id, seq=step, step=step, name="reward/mean", value=5.0)
            for step in range(31, 41)
        ]
        runs.ingest(world.db, replace(runs.get(world.db, run.id), ingested_seq=40), more, [])
        expect(key).to_have_text("5")
        assert before != "5"
        assert right_end(page) == ["update 100", "update 100"]
        # The KL budget is far above the values; the axis has it all the same.
        ranges = page.evaluate(
            """() => [[{value: 8, always: true}], [{value: 8, always: false}]].map(
                (limits) => window.ksPlotting.yRange(limits)(null, 0, 3)[1])"""
        )
        assert ranges[0] > 8
        assert ranges[1] < 4
        beyond = page.evaluate(
            """() => window.ksPlotting.beyond(
                [10, 15, 0.5].map((value) => ({ value })), { min: 1, max: 3 })"""
        )
        assert beyond == {"above": {"value": 10}, "below": {"value": 0.5}}


@pytest.mark.parametrize("path", ["research", "label"])
@pytest.mark.parametrize("query", ["page=x", "page=", "tab=runs&page=x&run=run-1-policy"])
def test_a_page_in_the_query_is_no_page_of_gradios(browser, world, path, query):
    with new_page(browser, cookie=world.cookie()) as page:
        answer = page.goto(f"{world.server.url}/{path}/?{query}")
        assert answer is not None
        assert answer.status == 200
        if "run=" in query and path == "research":
            expect(page.locator("#run-card")).to_contain_text("run-1-policy")


def bottoms(page: Page, *selectors: str) -> list[float]:
    boxes = [page.locator(selector).bounding_box() for selector in selectors]
    return [box["y"] + box["height"] for box in boxes if box]


@pytest.mark.parametrize("width", [1440, 390])
def test_fields_beside_each_other_stand_on_one_line(browser, world, width):
    with research(browser, world, "?tab=data&section=prompts", width=width) as page:
        expect(page.locator("#prompt-add")).to_be_visible()
        frames = ("#prompt-role .wrap .wrap-inner", "#prompt-category input", "#prompt-add")
        role, category, add = bottoms(page, *frames)
        if width == 1440:
            assert category == pytest.approx(role, abs=8)
            assert add == pytest.approx(category, abs=3)
        page.goto(f"{world.server.url}/research/?tab=team")
        expect(page.locator("#gold-count input")).to_be_visible()
        box = page.locator("#gold-count input").bounding_box()
        assert box
        assert box["width"] < 200


QUIET = """
window.MutationObserver = class extends MutationObserver {
  constructor(heard) { super((...changes) => window.quiet || heard(...changes)); }
};
"""
"""A page that hears of no change of its elements while `quiet` is true."""


def test_a_box_that_only_now_has_a_size_can_be_scrolled_with_the_keyboard(browser, world):
    with new_page(browser, cookie=world.cookie()) as page:
        page.add_init_script(QUIET)
        page.goto(f"{world.server.url}/research/?tab=runs")
        expect(page.locator("#run-card")).to_contain_text(re.compile(r"run-\d-policy"))
        page.evaluate("""() => {
          const style = new CSSStyleSheet();
          style.replaceSync("#late { display: none; } #late.shown { display: block; height: 20px; }");
          document.adoptedStyleSheets.push(style);
          const box = Object.assign(document.createElement("pre"), { id: "late", className: "ks-pre" });
          box.textContent = "line\\n".repeat(40);
          document.getElementById("run-card").after(box);
        }""")
        page.wait_for_timeout(300)  # what the new element causes has happened
        page.evaluate("window.quiet = true")
        box = page.locator("#late")
        assert box.get_attribute("tabindex") is None
        box.evaluate("each => each.classList.add('shown')")
        expect(box).to_have_attribute("tabindex", "0", timeout=5000)


def test_a_workspace_without_runs_says_so_until_there_is_one(browser, world):
    with new_page(browser, cookie=world.cookie()) as page:
        page.route("**/research/api/runs", lambda route: route.fulfill(json={"runs": []}))
        page.goto(f"{world.server.url}/research/?tab=runs&section=compare")
        expect(page.locator("#compare .ks-empty")).to_contain_text("No runs yet")
        expect(page.locator("#compare .ks-runs [role=status]")).to_have_text("No runs yet.")
        page.unroute("**/research/api/runs")
        expect(page.locator("#compare figure").first).to_be_visible()
        expect(page.locator("#compare .ks-empty")).to_have_count(0)
