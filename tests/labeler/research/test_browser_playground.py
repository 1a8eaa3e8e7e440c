"""The playground in a browser: three replies, their figures and colors, a pair, and a second turn."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from storage.generation_records import GenerationRefused, MeasuredToken, ReplyMeasures
from storage.records import ModelVersion
from storage.tables import models
from tests.helpers.browser import chromium, new_page
from tests.helpers.desk_world import add_person, make_app, serving, session_cookie, workspace
from tests.helpers.scripted_generation import Scripted

MEASURES = ReplyMeasures(
    reward=1.5, audit=-0.25,
    tokens=(
        MeasuredToken(text="Eight", logprob=-1.0, reference_logprob=-2.0, kl=0.25),
        MeasuredToken(text="", logprob=-0.5, reference_logprob=-0.5, kl=0.5),
        MeasuredToken(text=" é", logprob=-0.5, reference_logprob=-0.5, kl=1.5),
        MeasuredToken(text="", logprob=-0.001, reference_logprob=-0.5, kl=0.0),
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    script = Scripted()
    with workspace(tmp_path_factory.mktemp("playground-page")) as db:
        models.add(db, ModelVersion(id="sft-1", role="sft", name="SFT", path="demo"))
        models.add(db, ModelVersion(id="reward-1", role="reward", name="R", path="demo"))
        for n in (1, 2):
            summary = {"method": "ppo"}
            model = ModelVersion(
                id=f"policy-{n}", role="policy", name="P", path="demo", iteration=n, summary=summary
            )
            models.add(db, model)
        app = make_app(db, generation=script)
        with serving(app) as server, chromium() as browser:
            yield browser, db, app, server, script


@pytest.fixture
def script(studio):
    studio[4].reset()
    studio[4].measures = MEASURES
    return studio[4]


@pytest.fixture
def page(studio, script, request):  # noqa: ARG001 (a page of the new script)
    browser, db, app, server, _ = studio
    who = add_person(db, request.node.name, "researcher")
    name, value = session_cookie(app, db, who)["cookie"].split("=", 1)
    with new_page(browser, width=1440, cookie=(server.url, name, value)) as page:
        open_playground(page, server.url)
        expect(page.locator(".pg-models input")).to_have_count(4)
        yield page


def open_playground(page: Page, url: str) -> None:
    page.goto(f"{url}/research/?tab=models&section=playground")


def ask(page: Page, script: Scripted, *texts) -> None:
    script.texts = [*texts]
    page.locator(".pg [name=prompt]").fill("How long?")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".pg-heard")).to_have_text(re.compile("seed|lost|stopped"))


def test_replies_side_by_side_with_figures_and_colors(page, script):
    checked = page.locator(".pg-models input:checked")
    assert checked.evaluate_all("all => all.map((box) => box.value)") == [
        "sft-1",
        "policy-1",
        "policy-2",
    ]
    page.locator(".pg-system summary").click()
    page.locator(".pg [name=system]").fill("Be brief.")
    page.locator(".pg [name=temperature]").fill("0.7")
    page.locator(".pg [name=seed]").fill("5")
    ask(page, script, "Eight é", "Eight é", GenerationRefused("It stopped."))
    cards = page.locator(".pg-reply")
    expect(cards).to_have_count(3)
    expect(cards.nth(1).locator("h2")).to_have_text("policy-1PPO, iteration 1")
    expect(cards.nth(1).locator("dd")).to_have_text(["1.50", "−0.25", "2.25", re.compile("7")])
    expect(cards.nth(2).locator(".pg-error")).to_have_text("It stopped.")
    request = next(each for each in script.asked if each.max_tokens == 256)
    assert [(m.role, m.content) for m in request.messages] == [
        ("system", "Be brief."),
        ("user", "How long?"),
    ]
    assert (request.temperature, request.seed) == (0.7, 5)
    # A token inside a character is shown with the one that completes it; the end has no text.
    tokens = cards.nth(1).locator(".pg-token")
    expect(tokens).to_have_text(["Eight", " é", " end"])
    shades = tokens.evaluate_all("all => all.map((e) => e.style.getPropertyValue('--kl'))")
    assert shades == ["0.25", "1", "0"]
    colors = tokens.evaluate_all("all => all.map((e) => getComputedStyle(e).backgroundColor)")
    assert len(set(colors)) == 3
    tokens.nth(1).hover()
    tip = tokens.nth(1).evaluate("e => getComputedStyle(e, '::after').content")
    assert "KL 2.000 nats" in tip
    page.locator(".pg [name=colors]").uncheck()
    plain = tokens.evaluate_all("all => all.map((e) => getComputedStyle(e).backgroundColor)")
    assert set(plain) == {"rgba(0, 0, 0, 0)"}
    # In words: the largest KL, and a table.
    expect(cards.nth(1).locator("summary")).to_have_text(
        "Tokens as a table; the largest KL is 2.00 at “é”"
    )
    cards.nth(1).locator("summary").click()
    expect(cards.nth(1).locator("tbody tr, table tr").nth(2)).to_have_text(" é2.000−1.00−1.00")


def test_two_replies_are_sent_and_the_conversation_goes_on(studio, page, script):
    db = studio[1]
    ask(page, script, "One.", "Two.", "Three.")
    send = page.get_by_role("button", name="Send to annotators")
    expect(send).to_be_disabled()
    boxes = page.get_by_label("Choose for a pair")
    expect(boxes).to_have_count(3)
    boxes.nth(0).check()
    expect(send).to_be_disabled()
    boxes.nth(2).check()
    expect(boxes.nth(1)).to_be_disabled()
    send.click()
    expect(page.locator(".pg-sent")).to_have_text(re.compile("Sent to the annotators"))
    [pair] = db.read("SELECT first, second FROM comparisons WHERE arm = 'probe'")
    rows = db.read(
        "SELECT policy, text FROM completions WHERE id IN ($a, $b) ORDER BY policy",
        a=pair["first"], b=pair["second"],
    )  # fmt: skip
    assert [row["policy"] for row in rows] == ["policy-2", "sft-1"]
    page.get_by_role("button", name="Continue with this reply").nth(1).click()
    expect(page.locator(".pg-talk li")).to_have_text(["UserHow long?", re.compile("AssistantTwo")])
    before = len(script.asked)
    ask(page, script, "Four.", "Five.", "Six.")
    asked = [each for each in script.asked[before:] if each.max_tokens == 256]
    assert [m.role for m in asked[0].messages] == ["user", "assistant", "user"]
    assert asked[0].messages[1].content.strip() in ("One.", "Two.", "Three.")


def test_a_narrow_page_does_not_scroll_sideways_and_says_when_a_stage_runs(page, script):
    page.set_viewport_size({"width": 390, "height": 844})
    ask(page, script, "One " * 60, "Two.", "x" * 200)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    script.stage = "PPO"
    page.locator(".ks-page-links a", has_text="Data").click()
    page.locator(".ks-page-links a", has_text="Models").click()
    expect(page.locator(".pg-reason")).to_contain_text("The PPO stage uses the device.")
    expect(page.get_by_role("button", name="Ask")).to_be_disabled()
