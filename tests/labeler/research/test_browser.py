"""The research page in a real browser, against a real server and a real workspace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from labeler.app import create_app
from labeler.research.charts import CHARTS_JS, PLOTTING_JS, Chart, Series, group
from labeler.research.team.people import reliability_view
from labeler.security.accounts import STATIC
from storage.analysis.annotator_fit import AnnotatorEstimate, AnnotatorFit
from storage.analysis.checks import AnnotatorChecks, CheckResult
from storage.analysis.reliability import AnnotatorFigures
from storage.engine.database import Database
from storage.exporting import exports
from storage.records import Annotator, Flag
from storage.reports import Stopped
from storage.tables.people import annotators, tokens
from storage.tables.runs import run_labels
from tests.helpers.browser import SLOW, chromium, find_chromium, new_page
from tests.helpers.desk_world import Server, serving
from tests.helpers.recording_loop import RecordingLoop, in_a_loop
from tests.helpers.research_seed import Seeding

expect.set_options(timeout=SLOW)

SECTIONS = {
    ("Overview", "Iterations"): "#iterations",
    ("Overview", "Settings"): "#settings [data-group=PPO]",
    ("Overview", "Loop"): "#loop-trust",
    ("Runs", "Run"): "#run-card",
    ("Runs", "Compare"): "#compare .ks-table",
    ("Runs", "Studies"): "#studies .st-head",
    ("Models", "Verdicts"): "#standing",
    ("Models", "Samples"): "#samples",
    ("Models", "Lineage"): "#tree",
    ("Models", "Publish"): "#publish form",
    ("Data", "Export"): "#export-link",
    ("Data", "Import"): "#prompts",
    ("Data", "Marked passages"): "#marked-passages",
    ("Team", "People"): "#people",
    ("Team", "Guidelines"): "#guidelines-preview",
    ("Team", "Judgment form"): "#scale",
    ("Team", "Notifications"): "#notify-switch",
    ("Team", "Audit log"): "#audit-entries",
}
"""A visible part of each section."""


@dataclass(frozen=True)
class World:
    """A served workspace whose second iteration is being labeled."""

    db: Database
    seeding: Seeding
    loop: RecordingLoop
    server: Server

    def cookie(self) -> tuple[str, str, str]:
        secret = tokens.issue(self.db, "researcher", "session", lifetime=None)
        return (self.server.url, self.server.app.state.auth.cookie, secret)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    find_chromium()  # skips before anything is served
    with Database.open(tmp_path_factory.mktemp("workspace")) as db:
        seeding = Seeding(db)
        seeding.history(finished=1, labels=30)
        seeding.judge_policies(1, wins=0.7, judgments=5)
        loop = RecordingLoop(db=db)
        app = in_a_loop(
            lambda: create_app(
                db, loop=loop, admin=lambda *_: None, admin_token="t", accounts_required=False
            )
        )
        with serving(app) as server:
            yield World(db, seeding, loop, server)


@pytest.fixture(scope="module")
def browser(world: World) -> Iterator[Browser]:
    assert world.server.url
    with chromium() as running:
        yield running


@contextmanager
def research_page(browser: Browser, world: World, **settings) -> Iterator[Page]:
    """The page with the loop on the screen."""
    with new_page(browser, cookie=world.cookie(), **settings) as page:
        page.goto(f"{world.server.url}/research/")
        expect(page.locator(".ks-steps-row")).to_be_visible()
        yield page


def titled(name: str) -> re.Pattern[str]:
    """The title of a section; a stage that runs or has failed stands before it."""
    return re.compile(rf"^([^·]+ (running|failed|cancelled) · )?{re.escape(name)}$")


def open_section(page: Page, name: str, section: str = "") -> None:
    page.get_by_role("link", name=name, exact=True).click()
    if section:
        page.get_by_role("link", name=section, exact=True).click()


def test_the_judgment_form_shows_what_is_in_use_and_keeps_what_is_chosen(browser, world):
    with research_page(browser, world) as page:
        open_section(page, "Team", "Judgment form")
        scale, strength = (page.locator(f"#{each} input") for each in ("scale", "strength"))
        expect(scale).to_have_value("Two steps")
        expect(strength).to_have_value("Optional")
        scale.click()
        page.get_by_role("option", name="One press").click()
        page.locator("#criteria").get_by_label("Harmless").uncheck()
        page.locator("#reasons textarea").fill("too long\nwrong")
        page.locator("#safety input").click()
        page.get_by_role("option", name="Required", exact=True).click()
        page.locator("#marks input").check()
        page.locator("#form-save").click()
        expect(page.locator("#form-answer")).to_contain_text("Saved.")
        page.reload()
        open_section(page, "Team", "Judgment form")
        expect(scale).to_have_value("One press")
        expect(strength).to_have_value("Optional")
        expect(page.locator("#criteria").get_by_label("Harmless")).not_to_be_checked()
        expect(page.locator("#criteria").get_by_label("Clear")).to_be_checked()
        expect(page.locator("#reasons textarea")).to_have_value("too long\nwrong")
        expect(page.locator("#safety input")).to_have_value("Required")
        expect(page.locator("#marks input")).to_be_checked()


def test_the_preview_of_the_guidelines_typesets_formulas(browser, world):
    with research_page(browser, world) as page:
        open_section(page, "Team", "Guidelines")
        page.locator("#guidelines textarea").fill(r"Prefer $x^2$ to $\unknown$.")
        preview = page.locator("#guidelines-preview")
        expect(preview.locator(".math > math")).to_have_count(1)
        expect(preview.locator(".math > code")).to_have_text([r"\unknown"])
        page.locator("#guidelines textarea").fill("Prefer $y$ to $z$.")
        expect(preview.locator(".math > math")).to_have_count(2)


def test_a_researcher_overrides_a_verdict(browser, world):
    with research_page(browser, world) as page:
        open_section(page, "Models", "Verdicts")
        expect(page.locator("#standing")).to_contain_text("provisional")
        page.locator("#rule").click()
        expect(page.locator("#ruling-answer")).to_contain_text("needs a written reason")
        page.locator("#ruling-reason textarea").fill("read all five")
        page.locator("#rule").click()
        expect(page.locator("#ruling-answer")).to_contain_text("policy-1 is now promoted.")
        expect(page.locator("#standing")).to_contain_text("Rosa ruled “promote”: read all five")
        expect(page.locator("#leaderboard .ks-range").first).to_be_visible()


def test_train_is_pressed_then_the_run_fails_and_is_resumed(browser, world):
    with research_page(browser, world) as page:
        expect(page.locator("#loop-next")).to_contain_text("more labels to go")
        page.locator("#train").click()
        page.locator("#setting-ppo-kl_weight").fill("0.1")
        page.locator("#setting-ppo-lr").fill(" 0.00005 ")  # as before, written otherwise
        page.locator("#train-search").fill("center")
        page.keyboard.press("Enter")
        page.locator("#setting-reward-center").uncheck()
        page.locator("#train-start").click()
        expect(page.locator("#train-answer")).to_contain_text("Changed: KL weight (β) 0.1, Center")
        changed = {"ppo.kl_weight": "0.1", "reward.center": "false"}
        assert world.loop.asked == [("train", changed)]

        # From here on nothing is pressed: the open page must see the failure by itself.
        world.loop.reason = "Already training: PPO."
        failed = world.seeding.failed_ppo(2)
        world.loop.stopped = Stopped(
            run=failed.id, attempt=1, stage="policy", status="failed", reason=failed.reason or "",
            resumable=True, may_label=False,
        )  # fmt: skip
        expect(page.locator("#top")).to_contain_text("Iteration 2 · PPO failed")
        expect(page.locator("#loop-next")).to_contain_text("Out of memory at update 90")
        expect(page.locator("#retry")).to_be_visible()
        expect(page.locator("#train")).to_have_count(0)

        open_section(page, "Runs")
        expect(page.locator("#run-card")).to_contain_text("out of memory at update 90")
        expect(page.locator("#run-flags")).to_contain_text("Raise kl_weight")
        expect(page.locator("#cancel")).to_be_hidden()
        page.locator("#resume").click()
        expect(page.locator("#run-answer")).to_contain_text("Resumed")
        assert world.loop.asked[1:] == [("resume", "run-2-policy")]

        world.loop.stopped = None
        open_section(page, "Overview")
        expect(page.locator("#train")).to_be_visible()
        page.wait_for_timeout(1000)  # an answer that comes must be empty
        expect(page.locator("#loop-answer")).to_have_text("")


def show_first_run(page: Page) -> Locator:
    """The two main charts of the first PPO run: 100 updates."""
    open_section(page, "Runs")
    page.locator("#run").get_by_role("listbox").or_(page.locator("#run input")).first.click()
    page.get_by_role("option", name="PPO · iteration 1").click()
    main = page.locator("#run-charts .ks-charts").first
    expect(page.locator("#run-card")).to_contain_text("run-1-policy")
    expect(main.locator(".uplot")).to_have_count(2)
    return main


def ticks_of(main: Locator) -> list[tuple[float, float]]:
    """The visible x-range of each chart, read off by its first and last point under the cursor."""
    found = []
    for i in range(main.locator(".u-over").count()):
        over = main.locator(".u-over").nth(i)
        box = over.bounding_box()
        ends = []
        for x in (1, box["width"] - 1):
            over.hover(position={"x": x, "y": 20})
            told = main.locator(".ks-at").nth(i).inner_text()
            ends.append(float(told.removeprefix("update ")))
        found.append((ends[0], ends[1]))
    return found


def test_a_common_cursor_and_zoom_run_through_reward_and_kl(browser, world):
    with research_page(browser, world) as page:
        main = show_first_run(page)
        last = main.locator(".ks-key em").all_inner_texts()
        over = main.locator(".u-over").first
        box = over.bounding_box()
        over.hover(position={"x": box["width"] / 2, "y": 40})
        told = main.locator(".ks-at").all_inner_texts()
        assert told[0] == told[1]
        assert told[0].startswith("update 5")
        assert main.locator(".ks-key em").all_inner_texts() != last
        assert ticks_of(main) == [(1, 100), (1, 100)]

        # Drag over the left half of the first chart: both are zoomed, until a double click.
        page.mouse.move(box["x"] + 2, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40, steps=5)
        page.mouse.up()
        zoomed = ticks_of(main)
        assert zoomed[0] == zoomed[1]
        assert 45 < zoomed[0][1] < 55
        # New numbers replace the HTML; the zoom stays.
        main.evaluate(
            """node => {
                const fresh = node.cloneNode(true);
                fresh.querySelectorAll(".ks-uplot").forEach((box) => box.replaceChildren());
                node.replaceWith(fresh);
            }"""
        )
        expect(main.locator(".uplot")).to_have_count(2)
        assert ticks_of(main) == zoomed
        main.locator(".u-over").first.dblclick()
        assert ticks_of(main) == [(1, 100), (1, 100)]


def test_charts_are_read_and_zoomed_with_the_keyboard(browser, world):
    with research_page(browser, world) as page:
        main = show_first_run(page)
        chart, told = main.locator(".ks-uplot").first, main.locator("output").first
        chart.focus()
        page.keyboard.press("Home")
        expect(told).to_contain_text("update 1")
        page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("ArrowRight")
        expect(told).to_contain_text("update 12")
        assert main.locator(".ks-at").all_inner_texts() == ["update 12", "update 12"]
        reset = page.get_by_role("button", name="Reset zoom").first
        expect(reset).to_be_disabled()
        page.keyboard.press("+")
        expect(reset).to_be_enabled()
        reset.click()
        expect(reset).to_be_disabled()


def test_smoothing_and_log_scale_change_the_lines(browser, world):
    with research_page(browser, world) as page:
        main = show_first_run(page)
        tools = page.locator(".ks-tools:visible").first
        before = main.locator(".ks-key em").all_inner_texts()
        tools.locator("input[type=range]").fill("0.9")
        expect(tools.locator("output")).to_have_text("0.9")
        assert main.locator(".ks-key em").all_inner_texts() != before
        tools.get_by_label("Log scale").check()
        # The mean reward begins below 0: it keeps its scale, and says so.
        expect(main.locator(".ks-linear")).to_have_count(1)
        expect(main.locator(".uplot")).to_have_count(2)


def test_the_cursor_of_series_with_other_steps_tells_only_what_stands_there(browser):
    lines = [Series("PPO", [1, 3], [0.6, 0.7]), Series("DPO", [2], [0.5])]
    style = ".ks-uplot { width: 600px; height: 90px }"
    page = browser.new_page()
    page.set_content(f"<style>{style}</style><div id=charts>{group([Chart('Wins', lines)])}</div>")
    page.add_script_tag(path=STATIC / "uPlot.iife.min.js")
    page.add_style_tag(path=STATIC / "uPlot.min.css")
    page.add_script_tag(content=PLOTTING_JS)
    page.evaluate(f"() => {{ const element = document.getElementById('charts'); {CHARTS_JS} }}")
    over = page.locator(".u-over")
    width = over.bounding_box()["width"]
    for share, told in ((0.1, ["0.6", "–"]), (0.5, ["–", "0.5"]), (0.9, ["0.7", "–"])):
        over.hover(position={"x": share * width, "y": 20})
        assert page.locator(".ks-key em").all_inner_texts() == told
    page.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_no_tab_runs_or_loads_what_strangers_wrote_nor_scrolls_sideways(
    browser, world, width, scheme
):
    with research_page(browser, world, width=width, scheme=scheme) as page:
        for section, part in SECTIONS.items():
            open_section(page, *section)
            expect(page.locator(part)).to_be_visible()
            assert page.title().endswith(f"{section[0]} · Kitestring")
            assert page.locator("img[src='x']").count() == 0
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_flag_is_answered_in_a_dialog_that_a_refresh_leaves_alone(browser, world):
    [pair] = world.db.read("SELECT id FROM comparisons LIMIT 1")
    flag = Flag(id="flag", comparison=pair["id"], annotator="annotator-1", comment="Rude.")
    world.db.write(lambda tx: tx.store(flag))
    with research_page(browser, world, width=390) as page:
        open_section(page, "Team", "People")
        card = page.locator("#flags .ks-sample").first
        card.get_by_role("button", name="Answer").click()
        dialog = page.get_by_role("dialog")
        box = dialog.bounding_box()
        assert box
        assert 0 < box["x"] < box["x"] + box["width"] < 390
        dialog.get_by_role("button", name="Answer only").click()
        expect(dialog).to_be_visible()  # an answer needs a text
        dialog.get_by_role("textbox").fill("We have removed the text.")
        page.wait_for_event(
            "response", lambda found: "queue/data" in found.url
        )  # the tab is drawn again
        expect(dialog.get_by_role("textbox")).to_have_value("We have removed the text.")
        dialog.get_by_role("button", name="Answer only").click()
        expect(card.locator(".ks-answer")).to_contain_text("We have removed the text.")
        before = page.locator("#flags .ks-sample").count()
        card.get_by_role("button", name="Answer").click()
        dialog.get_by_role("textbox").fill("And now it is cleared.")
        dialog.get_by_role("button", name="Answer and clear").click()
        expect(page.locator("#flags .ks-sample")).to_have_count(before - 1)
    texts = [row["text"] for row in world.db.read("FROM flag_answers ORDER BY created_at")]
    assert texts == ["We have removed the text.", "And now it is cleared."]


@pytest.mark.parametrize("width", [1280, 1440])
def test_the_table_of_how_annotators_judge_fits_its_box(browser, world, width):
    """With all columns: gold pairs, re-asks, practice, and the estimates of a reward model."""
    person = Annotator(id="a", name="annotator with a name")
    figures = AnnotatorFigures(
        annotator=person, judgments=1000, decided=800, left_rate=0.93, left_interval=(0.88, 0.96),
        tie_rate=0.15, both_bad_rate=0.05, median_seconds=12.4, quick_seconds=10.3,
        shared_items=100, agreement=1.0, agreement_interval=(0.91, 1.0),
    )  # fmt: skip
    estimate = AnnotatorEstimate(
        annotator="a", slope=0.76, slope_sd=0.3, side_bias=-0.19, side_bias_sd=0.2, weight=0.57,
        decided=100, with_model=0.46, with_model_expected=0.54,
    )  # fmt: skip
    result = CheckResult(answered=100, matched=100)
    html = reliability_view.table(
        [figures],
        AnnotatorFit(annotators=(estimate,)),
        {"a": AnnotatorChecks(gold=result, reask=result, practice=result)},
        {"a": "below the mark"},
    )
    with research_page(browser, world, width=width) as page:
        open_section(page, "Team", "People")
        page.get_by_role("button", name="How they judge: all figures").click()
        box = page.locator("#reliability .ks-scroll")
        box.evaluate("(box, html) => { box.outerHTML = html; }", html)
        expect(box).to_contain_text("below the mark")
        assert box.evaluate("box => box.scrollWidth - box.clientWidth") <= 0


@pytest.mark.parametrize("width", [1280, 1366, 1440])
def test_the_history_fits_its_box(browser, world, width):
    with research_page(browser, world, width=width) as page:
        open_section(page, "Overview", "Iterations")
        box = page.locator("#iterations .ks-scroll")
        expect(box).to_contain_text("PPO")
        # As wide as they get: a whole day, four arms, a stopped reward model.
        box.evaluate(
            """box => {
              const cells = [...box.querySelectorAll("tbody tr:last-child td")];
              const put = (label, html) => cells.find((c) => c.dataset.label === label).innerHTML = html;
              const figure = (value, small) => `<span class="ks-figure">${value}<small>${small}</small></span>`;
              put("Phase", '<span class="ks-badge ks-warn">Reward model cancelled</span>');
              put("Labels", figure("1,000 of 1,000", "informative 500 · random 250 · reference 200 · written 50"));
              put("Verdict", figure('<span class="ks-badge">on probation</span>', "policy-12"));
              put("Time", figure("23 h 59 min", "training 59 min 59 s"));
            }"""
        )
        assert box.evaluate("box => box.scrollWidth - box.clientWidth") <= 0
        table = box.bounding_box()
        assert table["x"] + table["width"] <= width


def test_buttons_in_tables_reach_the_server_and_the_download_is_the_export(
    browser, world, tmp_path
):
    with research_page(browser, world) as page:
        open_section(page, "Team", "People")
        row = page.locator("#people tr", has_text="Divya")
        row.get_by_role("button", name="Manage Divya").click()
        page.get_by_role("button", name="Disable").click()
        expect(row.get_by_text("disabled")).to_be_visible()
        assert annotators.by_name(world.db, "Divya").disabled

        open_section(page, "Data", "Export")
        with page.expect_download() as download:
            page.get_by_role("link", name="Download").click()
        exports.export(world.db, format="trl", ties="drop", out=tmp_path / "own.jsonl")
        assert download.value.path().read_bytes() == (tmp_path / "own.jsonl").read_bytes()


def test_a_file_is_previewed_and_imported_and_its_rows_are_text(browser, world, tmp_path):
    pairs = tmp_path / "own <b>pairs.csv"
    markup = "<img src=x onerror=window.broken=1>"
    pairs.write_text(
        f"prompt,response_a,response_b,category\n{markup},Pear,=1+1,food\nx,red,red,\n"
    )

    def written():
        sql = "SELECT count(*) AS n FROM comparisons WHERE arm = 'written'"
        return world.db.read(sql)[0]["n"]

    with research_page(browser, world) as page:
        open_section(page, "Data", "Import")
        form = page.locator("#import-data form")
        form.get_by_role("button", name="Preview").click()
        expect(form.get_by_role("status")).to_contain_text("Choose a file or an address first")
        form.locator("input[type=file]").set_input_files(pairs)
        form.get_by_role("button", name="Preview").click()
        result = form.locator(".im-result")
        expect(result).to_contain_text("Pairs to judge here")
        row = result.locator("tbody tr")
        expect(row).to_contain_text([f"{markup}"])
        expect(row).to_contain_text(["=1+1"])
        assert page.evaluate("window.broken") is None
        expect(result).to_contain_text("Row 3 response_a and response_b are the same")
        with page.expect_download() as download:
            result.get_by_role("link", name="Download all 1").click()
        assert '3,bad,"response_a and response_b' in download.value.path().read_text()
        store = result.get_by_role("button", name="Import")
        expect(store).to_be_disabled()
        assert written() == 0
        result.get_by_label("Leave out 1 bad row").check()
        store.click()
        expect(form.get_by_role("status")).to_contain_text("Imported 1 prompt")
        assert written() == 1
        # A tool that the file is not from: the reason is told, and nothing can be imported.
        form.locator("input[type=file]").set_input_files(pairs)
        form.get_by_label("What it contains").select_option("judgments:arena")
        form.get_by_role("button", name="Preview").click()
        expect(form.get_by_role("status")).to_contain_text("can't be imported")
        expect(result).to_contain_text("as Arena or MT-Bench votes have")
        expect(result.get_by_role("button", name="Import")).to_have_count(0)


def test_the_nodes_of_the_lineage_open_their_pages(browser, world):
    with new_page(browser, cookie=world.cookie()) as page:
        page.goto(f"{world.server.url}/research/?tab=models&section=lineage&model=reward-1")
        graph = page.locator("#lineage-graph")
        expect(graph.locator("[aria-current]")).to_contain_text("reward-1")
        node = graph.get_by_role("link", name=re.compile("^reward-1, .*trained on Snapshot 1"))
        node.focus()
        expect(graph.locator("[data-node=policy-1]")).to_have_class(re.compile("lg-on"))
        page.keyboard.press("Enter")
        expect(page).to_have_title(titled("Reward model · Models · Kitestring"))
        expect(page).to_have_url(re.compile(r"section=reward-model&model=reward-1$"))
        page.go_back()
        graph.get_by_role("link", name=re.compile("^Pairs 1, ")).click()
        expect(page).to_have_title(titled("Data · Kitestring"))
        expect(page.locator("#judgments-iteration input")).to_have_value(re.compile(r"^1 "))
        page.locator("#judgments button").first.click()
        page.locator("#judgment-pair").get_by_role("link", name="policy-1").first.click()
        expect(graph.locator("[aria-current]")).to_contain_text("policy-1")
        graph.locator("[data-node=policy-1]").click()
        expect(page.locator("#standing")).to_contain_text("policy-1")
        open_section(page, "Data", "Import")
        expect(page).to_have_url(re.compile(r"\?tab=data&section=import$"))


def test_page_section_and_run_are_in_the_address_and_the_back_button_works(browser, world):
    with new_page(browser, cookie=world.cookie()) as page:
        page.goto(f"{world.server.url}/research/")
        expect(page).to_have_title(titled("Overview · Kitestring"))
        open_section(page, "Runs")
        expect(page).to_have_title(titled("Runs · Kitestring"))
        expect(page).to_have_url(re.compile(r"/research/\?tab=runs$"))
        page.locator("#run input").click()
        page.get_by_role("option", name="Sampling · iteration 1").click()
        with_run = re.compile(r"\?tab=runs&run=run-1-sampling$")
        expect(page).to_have_url(with_run)
        expect(page.locator("#run-card")).to_contain_text("run-1-sampling")
        open_section(page, "Models", "Reward model")
        expect(page).to_have_url(re.compile(r"\?tab=models&section=reward-model$"))
        expect(page).to_have_title(titled("Reward model · Models · Kitestring"))
        page.go_back()
        expect(page).to_have_title(titled("Models · Kitestring"))
        page.go_back()
        expect(page).to_have_title(titled("Runs · Kitestring"))
        expect(page).to_have_url(with_run)
        page.go_back()
        expect(page).to_have_title(titled("Overview · Kitestring"))
        page.go_forward()
        expect(page.get_by_role("link", name="Runs")).to_have_attribute("aria-current", "page")
        # Another person opens the address.
        address = page.url
        with new_page(browser, cookie=world.cookie()) as other:
            other.goto(address)
            expect(other).to_have_title(titled("Runs · Kitestring"))
            expect(other.locator("#run-card")).to_contain_text("run-1-sampling")
            other.goto(f"{world.server.url}/research/?tab=models&section=lineage")
            expect(other).to_have_title(titled("Lineage · Models · Kitestring"))
            expect(other.locator("#tree .ks-node").first).to_be_visible()
            other.goto(f"{world.server.url}/research/?tab=nonsense&section=none&run=none")
            expect(other).to_have_title(titled("Overview · Kitestring"))
            expect(other).to_have_url(f"{world.server.url}/research/")


def test_runs_are_compared_and_the_address_names_them(browser, world):
    for run, top in (("run-7-policy", 2.0), ("run-8-policy", 4.0)):
        number = int(run[4])
        world.seeding.run(number, "policy", "succeeded")
        world.seeding.metrics(
            run,
            [("reward/mean", step, top * step / 100) for step in range(1, 101)]
            + [("kl/reference", step, step / 10) for step in range(1, 101)],
        )
    with research_page(browser, world) as page:
        open_section(page, "Runs", "Compare")
        table = page.locator("#compare tbody")
        page.get_by_label("Search runs and settings").fill("run-7")
        expect(table.locator("tr")).to_have_count(1)
        page.get_by_label("Search runs and settings").fill("")
        while (checked := table.locator("input:checked")).count():
            checked.first.click()
        expect(page.locator("#compare .ks-empty")).to_contain_text("No runs chosen")
        for run in ("run-7-policy", "run-8-policy"):
            table.locator(f"tr[data-run={run}] input").check()
        charts = page.locator("#compare figure")
        expect(charts).to_have_count(3)
        titles = charts.locator("b").all_inner_texts()
        assert titles == [
            "Reward against KL",
            "Mean reward",
            "KL to the reference, nats per response",
        ]
        mean = charts.nth(1)
        expect(mean.locator(".ks-key em")).to_have_text(["2", "4"])
        names = mean.locator(".ks-key").all_inner_texts()
        assert ["iteration 7" in names[0], "iteration 8" in names[1]] == [True, True], names
        # Another node would cost 30 ms a frame: each `:has()` rule is matched anew in every row.
        told = mean.locator(".ks-key em").first.evaluate_handle("key => key.firstChild")
        expect(page).to_have_url(re.compile("section=compare&runs=run-7-policy%2Crun-8-policy$"))

        # The cursor tells the values of both runs at its update: 0.02 and 0.04 per update.
        over = mean.locator(".u-over")
        width = over.bounding_box()["width"]
        over.hover(position={"x": width / 2, "y": 40})
        expect(mean.locator(".ks-at")).to_contain_text("update 50")
        assert told.evaluate("text => text.isConnected && text.data !== '2'")
        values = [float(text) for text in mean.locator(".ks-key em").all_inner_texts()]
        assert values == pytest.approx([1.0, 2.0], abs=0.06)
        assert charts.nth(2).locator(".ks-key em").first.inner_text() in ("5", "5.1")

        # A drag zooms both charts over updates, and not the one over KL.
        page.mouse.move(over.bounding_box()["x"] + 0.1 * width, over.bounding_box()["y"] + 50)
        page.mouse.down()
        page.mouse.move(over.bounding_box()["x"] + 0.3 * width, over.bounding_box()["y"] + 50)
        page.mouse.up()
        reset = page.get_by_role("button", name="Reset zoom").and_(page.locator(":enabled"))
        expect(reset).to_be_visible()
        charts.nth(2).locator(".u-over").hover(position={"x": width - 1, "y": 40})
        at = float(charts.nth(2).locator(".ks-at").inner_text().removeprefix("update "))
        assert at == pytest.approx(1 + 0.3 * 99, abs=1.5)
        charts.nth(0).locator(".u-over").hover(position={"x": width - 1, "y": 40})
        expect(charts.nth(0).locator(".ks-at")).to_contain_text(re.compile("KL from SFT (9.9|10)"))

        # The row is written anew, and the keyboard stays where it was.
        table.locator("tr[data-run=run-8-policy] input").focus()
        for expected in (1, 2):
            page.keyboard.press("Space")
            expect(table.locator("input:checked")).to_have_count(expected)

        page.get_by_label("X-axis").select_option("time")
        expect(page.locator("#compare")).to_contain_text("report no times")
        page.reload()
        expect(page.locator("#compare tbody input:checked")).to_have_count(2)
        expect(charts).to_have_count(3)


def test_only_the_section_in_view_is_refreshed_whichever_was_selected_last(browser, world):
    """Gradio may select the first section as well when the address names another one, in any order."""
    world.seeding.run(27, "policy", "failed")
    with research_page(browser, world) as page:
        page.goto(f"{world.server.url}/research/?tab=runs")
        expect(page.locator("#run-card")).to_contain_text("iteration 27")
        switches = page.evaluate(
            """() => gradio_config.dependencies
              .filter((each) => each.js && each.targets.some(([, event]) => event === "select"))
              .map((each) => eval(each.js)().map((update) => update.active))"""
        )
        assert len(switches) > 12
        assert {tuple(each) for each in switches} == {(False, True, False, False, False, False)}
        world.seeding.run(28, "policy", "failed")
        expect(page.locator("#run-card")).to_contain_text("iteration 28")
        page.get_by_role("link", name="Studies").click()
        world.seeding.run(29, "policy", "failed")
        page.wait_for_timeout(5_000)  # two periods of the timer
        expect(page.locator("#run-card")).not_to_contain_text("iteration 29")


def test_a_run_gets_a_name_and_the_filters_are_in_the_address(browser, world):
    world.seeding.run(17, "policy", "failed")
    world.seeding.run(18, "policy", "succeeded")
    with research_page(browser, world) as page:
        page.goto(f"{world.server.url}/research/?tab=runs&run=run-17-policy")
        expect(page.locator("#run-card")).to_contain_text("run-17-policy")
        page.get_by_role("button", name="Name and note").click()
        page.get_by_label("Name", exact=True).fill("higher <b>β</b>")
        page.get_by_label("Note", exact=True).fill("diverged after 40 updates")
        page.get_by_role("button", name="Save name and note").click()
        expect(page.locator("#run-card")).to_contain_text("higher <b>β</b>")
        expect(page.locator("#run-card")).to_contain_text("diverged after 40 updates")
        described = run_labels.of(world.db, "run-17-policy")
        assert (described.name, described.researcher) == ("higher <b>β</b>", "researcher")
        page.reload()
        page.get_by_role("button", name="Name and note").click()
        expect(page.get_by_label("Name", exact=True)).to_have_value("higher <b>β</b>")
        expect(page.get_by_label("Note", exact=True)).to_have_value("diverged after 40 updates")

        page.goto(f"{world.server.url}/research/?tab=runs&section=compare")
        table = page.locator("#compare tbody tr")
        expect(table.first).to_be_visible()
        page.get_by_label("Search runs and settings").fill("HIGHER 40 updates")
        expect(table).to_have_count(1)
        expect(table).to_contain_text("higher <b>β</b>")
        page.get_by_label("Search runs and settings").fill("higher")
        page.get_by_label("Status").select_option("failed")
        expect(page).to_have_url(re.compile("find=higher&status=failed"))
        page.reload()
        expect(table).to_have_count(1)
        expect(page.get_by_label("Status")).to_have_value("failed")
        page.get_by_label("Status").select_option("succeeded")
        expect(table).to_have_count(0)
        expect(page.locator("#compare")).to_contain_text("No run matches.")
        page.get_by_label("Search runs and settings").fill("")
        page.get_by_role("link", name="Overview", exact=True).click()
        expect(page).not_to_have_url(re.compile("status="))


def test_no_dropdown_cuts_off_the_first_letter_of_its_text(browser, world):
    corner = "n => [parseFloat(getComputedStyle(n).borderRadius), n.getClientRects().length]"
    seen = 0
    with research_page(browser, world) as page:
        for section in SECTIONS:
            open_section(page, *section)
            page.wait_for_timeout(300)  # the other tab's fields leave the screen
            for field in page.locator(".wrap-inner input").all():
                radius, drawn = field.evaluate(corner)
                # Inputs clip what they hold; in a round corner lies the first letter.
                assert radius == 0
                seen += drawn
    assert seen >= 7  # form 1, run 1, samples 2, export 3, lineage 1, less what is being drawn
