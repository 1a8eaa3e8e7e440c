"""Catalogs are complete, and the pages are in the language that a person chose."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from starlette.testclient import TestClient

from labeler.translation import LANGUAGES, accepted, catalog
from storage.tables.people import annotators
from tests.helpers.browser import new_page, wait_for_pair
from tests.helpers.desk_browser import cookie_of, desk_page
from tests.helpers.desk_world import add_person, make_app, plain_pairs, serving, workspace
from tests.helpers.texts import page_texts

# Plural categories of whole numbers: Unicode CLDR 47, "Language Plural Rules", column "cardinal".
CATEGORIES = {
    "de": {"one", "other"}, "hi": {"one", "other"}, "zh": {"other"}, "ja": {"other"},
    "es": {"one", "many", "other"}, "fr": {"one", "many", "other"}, "pt": {"one", "many", "other"},
    "ar": {"zero", "one", "two", "few", "many", "other"},
}  # fmt: skip
OTHERS = sorted(set(LANGUAGES) - {"en"})


def placeholders(text):
    return sorted(re.findall(r"\{\w+\}", text))


@pytest.mark.parametrize("language", OTHERS)
def test_a_catalog_has_every_text_and_no_other(language):
    texts, plurals = page_texts()
    assert set(catalog(language)) == texts | plurals
    for text in texts:
        assert placeholders(catalog(language)[text]) == placeholders(text), text
        assert catalog(language)[text] or text == "better", text
    for text in plurals:
        forms = catalog(language)[text]
        assert set(forms) == CATEGORIES[language], text
        for form in forms.values():
            assert set(placeholders(text)) - {"{count}"} <= set(placeholders(form)), text
            assert set(placeholders(form)) <= set(placeholders(text)), text
        assert "{count}" in forms["other"], text


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("de-AT,de;q=0.9,en;q=0.8", "de"),
        ("nl,fr;q=0.5,ja;q=0.7", "ja"),
        ("de;q=0,es", "es"),
        ("nl", "en"),
        ("", "en"),
        ("*;q=x,;;,", "en"),
    ],
)
def test_a_browser_asks_for_its_languages_in_order(header, language):
    assert accepted(header) == language


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with workspace(tmp_path_factory.mktemp("languages"), plain_pairs(200)) as db:
        app = make_app(db, accounts_required=True)
        with serving(app) as server:
            yield (db, app), server


def test_account_pages_are_in_the_language_of_the_browser_or_the_chosen_one(world):
    (_, app), _ = world
    client = TestClient(app, headers={"accept": "text/html", "accept-language": "fr"})
    french = client.get("/sign-in").text
    assert '<html lang="fr" dir="ltr">' in french
    assert catalog("fr")["Password"] in french
    arabic = client.get("/sign-in?language=ar&next=/label/").text
    assert '<html lang="ar" dir="rtl">' in arabic
    assert 'lang="ar" dir="auto" aria-current="true"' in arabic
    # The choice stays for the pages that follow, and for refusals.
    form = {"name": "nobody", "password": "wrong password"}
    refused = client.post("/sign-in", data=form, headers={"origin": "http://testserver"})
    assert catalog("ar")["The name or the password is wrong."] in refused.text
    # Who mistyped the password types it again; before that, the name comes first.
    assert re.search('id="name"[^>]* autofocus', french)
    assert re.search('id="password"[^>]* autofocus', refused.text)
    assert refused.text.count("autofocus") == 1
    assert catalog("ar")["Page not found"] in client.get("/nothing-here").text
    assert "[[" not in french + arabic + refused.text
    unknown = client.get('/sign-in?language="><b>')
    assert unknown.status_code == 200
    assert "<b>" not in unknown.text


def test_a_person_chooses_a_language_and_keeps_it_in_another_browser(browser, world):
    (db, _), server = world
    who = add_person(db, "Ann")
    arabic = catalog("ar")
    with desk_page(browser, world[0], server, who) as page:
        assert page.locator("html").get_attribute("lang") == "en"
        page.locator(".menu > summary").click()
        with page.expect_navigation():
            page.locator(".language select").select_option("ar")
        wait_for_pair(page)
        assert page.locator("html").get_attribute("dir") == "rtl"
        first, second = (page.locator(f".response.{side}").bounding_box()["x"] for side in "ab")
        assert first > second  # reading begins at the right
        expect(page.locator("[data-do=skip]")).to_contain_text(arabic["Skip"])
        page.keyboard.press("1")
        expect(page.locator(".announcer")).to_contain_text(arabic["A is better"])
        expect(page.locator(".status")).to_have_text(arabic["Saved"])
        # A reload needs no catalog from the server.
        page.route("**/label/api/texts/**", lambda route: route.abort())
        page.reload()
        wait_for_pair(page)
        expect(page.locator("[data-do=undo]")).to_contain_text(arabic["Undo"])
    assert annotators.language(db, who.id) == "ar"
    with new_page(browser, cookie=cookie_of(world[0], server.url, who)) as page:
        page.goto(f"{server.url}/label/")
        expect(page.locator("html")).to_have_attribute("lang", "ar")
        wait_for_pair(page)


@pytest.mark.parametrize("language", OTHERS)
def test_nothing_of_the_page_stays_english(browser, world, language):
    (db, _), server = world
    who = add_person(db, f"Ann {language}")
    with desk_page(browser, world[0], server, who, locale=language) as page:
        assert page.locator("html").get_attribute("lang") == language
        shown = page.evaluate(SHOWN)
    texts, _ = page_texts()
    same = {text for text in texts if catalog(language)[text] == text}
    assert len(shown) > 100
    assert (set(shown) & texts) - same == set()


# The texts and labels of the page, without those of the pair.
SHOWN = """() => {
    const found = [];
    const nodes = document.createTreeWalker(document.querySelector(".desk"), NodeFilter.SHOW_TEXT);
    while (nodes.nextNode()) {
        const { parentElement: parent, data } = nodes.currentNode;
        if (!parent.closest(".text, kbd, option, [data-person]")) found.push(data.trim());
    }
    for (const node of document.querySelectorAll(".desk [aria-label]")) found.push(node.ariaLabel);
    return found;
}"""
