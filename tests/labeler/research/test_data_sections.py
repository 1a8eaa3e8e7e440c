"""The sections Judgments, Adjudication and Prompts: what they show, and what their buttons do."""

from __future__ import annotations

from collections.abc import Iterator

import gradio as gr
import pytest

from labeler.research.data.adjudication.tab import AdjudicationTab
from labeler.research.data.judgments.tab import JudgmentsTab
from labeler.research.data.prompts.tab import PromptsTab
from storage.browsing.judgments import Filter, browse
from storage.browsing.pair import pair_in_full
from storage.browsing.prompts import browse_prompts
from storage.engine.database import Database
from storage.labeling import adjudication, flag_answers
from storage.records import Annotator, Comparison, Completion, Flag, Prompt
from storage.sides import shown_swapped
from storage.tables import completions, prompts
from storage.tables.people import annotators
from tests.helpers.browsed import fill
from tests.helpers.recording_loop import HOSTILE
from tests.helpers.research_tabs import asked_by, laid_out, pressed

NOTHING = ["", "", "", "", "", "", []]
"""No filter is set."""


@pytest.fixture
def db(tmp_path) -> Iterator[Database]:
    with Database.open(tmp_path / "w") as opened:
        fill(opened)
        yield opened


def judgments_tab(db: Database) -> JudgmentsTab:
    return laid_out(lambda: JudgmentsTab(db))


def listed(html: str) -> list[str]:
    """The ids of the judgments in the list, in their order."""
    return [piece.partition('"')[0] for piece in html.split('data-open="')[1:]]


def test_filters_choose_judgments_and_show_the_counts_of_their_values(db) -> None:
    tab = judgments_tab(db)
    seen = tab.refresh(*NOTHING, [], "")
    assert listed(seen[tab.list]) == [f"j-{n}" for n in range(7, 0, -1)]
    assert "7 judgments" in seen[tab.total]
    assert seen[tab.choices["annotator"]].choices[:2] == [("Any", ""), ("ann (4)", "id-ann")]
    assert ("1 is better (3)", "first") in seen[tab.choices["outcome"]].choices
    assert ("Disagreement (2)", "disagreement") in seen[tab.only].choices
    seen = tab._filter("", "id-ann", "", "", "facts", "", ["surprise"], "")
    assert listed(seen[tab.list]) == ["j-3"]
    assert seen[tab.choices["annotator"]].value == "id-ann"
    assert seen[tab.only].value == ["surprise"]
    seen = tab._filter("KETTLE", "", "", "second", "", "", [], "")
    assert listed(seen[tab.list]) == ["j-2"]
    seen = tab._filter("zebra", *NOTHING[1:], "")
    assert "No judgment matches" in seen[tab.list]
    assert listed(tab._clear("")[tab.list]) == [f"j-{n}" for n in range(7, 0, -1)]


def test_prompts_without_a_category_can_be_chosen(db) -> None:
    prompts.add(db, [Prompt.make("Bare?", role="train")])
    tab = laid_out(lambda: PromptsTab(db))
    seen = tab.refresh("", "", "", "", [])
    [(label, value)] = [each for each in seen[tab.category].choices if "none" in each[0]]
    assert label == "(none) (1)"
    assert "1 prompt<" in tab._filter("", "", value, "")[tab.total]


def test_pages_of_the_list_go_forth_and_back(db, monkeypatch) -> None:
    monkeypatch.setattr(
        "storage.browsing.judgments.browse.__kwdefaults__", {"before": None, "limit": 3}
    )
    tab = judgments_tab(db)
    first = tab.refresh(*NOTHING, [], "")
    assert (first[tab.back].interactive, first[tab.forth].interactive) == (False, True)
    second = tab._forth(*NOTHING, first[tab.befores], "")
    assert listed(second[tab.list]) == ["j-4", "j-3", "j-2"]
    third = tab._forth(*NOTHING, second[tab.befores], "")
    assert listed(third[tab.list]) == ["j-1"]
    assert (third[tab.back].interactive, third[tab.forth].interactive) == (True, False)
    again = tab._back(*NOTHING, third[tab.befores], "")
    assert listed(again[tab.list]) == ["j-4", "j-3", "j-2"]


def test_the_open_pair_shows_everything_about_it_and_escapes_it(db) -> None:
    annotators.add(db, Annotator(id="id-eve", name="eve"))
    tab = judgments_tab(db)
    seen = tab._open(pressed("open", "j-5"))
    assert seen[tab.opened] == "j-5"
    html = seen[tab.pair]
    for text in (
        "Write a haiku.", "Leaves fall on stone.", "Roses are red.", "iteration 2", "bald", "c-3",
        "70% by reward-1", "30% by reward-1", "Excluded by Rosa", "half asleep", "rude", ">Tie<",
    ):  # fmt: skip
        assert text in html, text
    assert "No pair open" in tab._open(pressed("open", "j-99"))[tab.pair]


def test_hostile_texts_are_escaped(db) -> None:
    from dataclasses import replace  # noqa: PLC0415

    from labeler.research.data.judgments import view  # noqa: PLC0415

    shown = pair_in_full(db, "c-2")
    judged = replace(shown.judgments[0], comment=HOSTILE, annotator=HOSTILE, edit=HOSTILE)
    html = str(view.pair(replace(shown, category=HOSTILE, first_model=HOSTILE, judgments=[judged])))
    assert "<img" not in html
    assert "&lt;img" in html


def test_a_judgment_is_excluded_with_a_reason_and_restored(db) -> None:
    tab, rosa = judgments_tab(db), asked_by(db)
    seen = tab._act(pressed("exclude", "j-1"), rosa, *NOTHING, [], "j-1")
    assert "give a reason" in seen[tab.answer].lower() or "reason" in seen[tab.answer]
    assert browse(db, Filter(excluded=True)).total == 1
    seen = tab._act(pressed("exclude", "j-1", text="too fast"), rosa, *NOTHING, [], "j-1")
    assert "is excluded" in seen[tab.answer]
    assert "too fast" in seen[tab.pair]
    [row] = db.read("SELECT * FROM exclusions WHERE judgment = 'j-1'")
    assert (row["excluded"], row["reason"], row["researcher"]) == (True, "too fast", "rosa")
    seen = tab._act(pressed("restore", "j-1"), rosa, *NOTHING, [], "j-1")
    assert "counts again" in seen[tab.answer]
    assert browse(db, Filter(excluded=True)).total == 1


def test_all_judgments_of_a_filter_are_excluded_and_restored(db) -> None:
    tab, rosa = judgments_tab(db), asked_by(db)
    bobs = ["", "id-bob", "", "", "", "", []]
    assert "Exclude all" not in tab.refresh(*NOTHING, [], "")[tab.total]
    assert "Exclude 2 judgments" in tab.refresh(*bobs, [], "")[tab.total]
    anns = tab.refresh("", "id-ann", *NOTHING[2:], [], "")[tab.total]
    assert "4 judgments" in anns  # of which one is excluded
    assert "Exclude 3 judgments" in anns
    seen = tab._act_on_all(pressed("exclude-all", "1", text="guesses"), rosa, *bobs, [], "")
    assert "2 judgments match now" in seen[tab.answer]
    seen = tab._act_on_all(pressed("exclude-all", "2"), rosa, *bobs, [], "")
    assert "reason" in seen[tab.answer]
    seen = tab._act_on_all(pressed("exclude-all", "2", text="guesses"), rosa, *bobs, [], "")
    assert "2 judgments excluded" in seen[tab.answer]
    assert "Exclude" not in seen[tab.total]
    stored = db.read("SELECT judgment, reason, researcher FROM exclusions ORDER BY judgment")
    assert [tuple(row.values()) for row in stored if row["judgment"] != "j-5"] == [
        ("j-2", "guesses", "rosa"),
        ("j-4", "guesses", "rosa"),
    ]
    only = [*bobs[:-1], ["excluded"]]
    assert "Restore 2 judgments" in tab.refresh(*only, [], "")[tab.total]
    seen = tab._act_on_all(pressed("restore-all", "2"), rosa, *only, [], "")
    assert "2 judgments restored" in seen[tab.answer]
    assert browse(db, Filter(annotator="id-bob", excluded=True)).total == 0
    # Without a filter, only a request that the page does not send asks for all.
    seen = tab._act_on_all(pressed("exclude-all", "6", text="x"), rosa, *NOTHING, [], "")
    assert "Set a filter first" in seen[tab.answer]


def test_flags_are_answered_and_cleared_from_the_pair(db) -> None:
    tab, rosa = judgments_tab(db), asked_by(db)
    tab._act(pressed("answer", "f-1", text="It is a haiku."), rosa, *NOTHING, [], "j-4")
    [flag] = pair_in_full(db, "c-3").flags
    assert (flag.state, [a.text for a in flag.answers]) == ("open", ["It is a haiku."])
    seen = tab._act(pressed("answer-and-clear", "f-1", text="Really."), rosa, *NOTHING, [], "j-4")
    assert "My judgments" in seen[tab.answer]
    assert pair_in_full(db, "c-3").flags[0].state == "cleared"
    refused = tab._act(pressed("clear", "f-9"), rosa, *NOTHING, [], "j-4")
    assert "flag &#39;f-9&#39;" in refused[tab.answer]


def test_a_flag_of_a_pair_that_nobody_judged_is_in_the_list(db) -> None:
    completions.add(
        db,
        [
            Completion(
                id=f"r-{n}",
                prompt=Prompt.make("Odd?", role="train").id,
                policy="policy-1",
                text=f"{n}",
            )
            for n in "ab"
        ],
    )
    prompt = Prompt.make("Odd?", role="train")
    prompts.add(db, [prompt])
    pair = Comparison(
        id="c-9", prompt=prompt.id, first="r-a", second="r-b", iteration=2, arm="random"
    )
    db.write(
        lambda tx: tx.store(
            pair, Flag(id="f-9", comparison="c-9", annotator="id-bob", comment="<b>cut</b> off")
        )
    )
    tab = judgments_tab(db)
    everything = ["c-9", *(f"j-{n}" for n in range(7, 0, -1))]
    assert listed(tab.refresh(*NOTHING, [], "")[tab.list]) == everything
    assert listed(tab._filter(*NOTHING[:-1], ["flagged"], "")[tab.list]) == ["c-9", "j-5", "j-4"]
    assert "c-9" not in listed(tab._filter("", "id-ann", *NOTHING[2:], "")[tab.list])
    opened = tab._open(pressed("open", "c-9"))[tab.pair]
    assert "&lt;b&gt;cut&lt;/b&gt; off" in opened
    said = tab._act(
        pressed("answer-and-clear", "f-9", text="Thank you."), asked_by(db), *NOTHING, [], "c-9"
    )
    assert "finds the answer" in said[tab.answer]
    assert listed(said[tab.list]) == everything[1:]
    assert [answer.text for answer in flag_answers.own_answers(db, "id-bob")] == ["Thank you."]


def test_a_pair_is_sent_and_ruled_on_without_sight_of_the_votes(db) -> None:
    rosa = annotators.get(db, "rosa")
    judgments_tab(db)._act(pressed("send", "c-2"), asked_by(db), *NOTHING, [], "j-3")
    tab = laid_out(lambda: AdjudicationTab(db))
    seen = tab.refresh_for(rosa)
    assert "What is a prime?" in seen[tab.pair]
    assert "2 pairs wait" in seen[tab.pair]
    for hidden in ("ann", "bob", "policy-1", "is better", "80%"):
        texts = seen[tab.pair].partition('class="ks-ruling"')[0]
        assert hidden not in texts.replace("annotator", ""), hidden
    left = seen[tab.pair].index("A number with two divisors.") < seen[tab.pair].index(
        "An odd number."
    )
    assert left is not shown_swapped("rosa", "c-2")
    refused = tab._act(pressed("a", "c-2"), asked_by(db))
    assert "needs a reason" in refused[tab.answer]
    assert tab.pair not in refused  # what was typed stays
    given = tab._act(pressed("a", "c-2", text="exact"), asked_by(db))
    assert "ann: 2 is better" in given[tab.answer]
    assert "How do I boil rice?" in given[tab.pair]  # the next one
    assert "exact" in given[tab.rulings]
    [ruling] = adjudication.rulings(db)
    assert ruling.outcome == ("first" if left else "second")
    assert ruling.adjudicator == "Rosa"


def test_a_viewer_sees_no_pair_that_waits(db) -> None:
    annotators.add(db, Annotator(id="vi", name="Vi", role="viewer"))
    tab = laid_out(lambda: AdjudicationTab(db))
    assert "No pair waits" in tab.refresh_for(annotators.get(db, "vi"))[tab.pair]


def test_prompts_are_added_retired_and_categorized(db) -> None:
    tab, rosa = laid_out(lambda: PromptsTab(db)), asked_by(db)
    filters = ["", "", "", ""]
    seen = tab._add("Why is the sky blue?", "held-out", "facts", *filters)
    assert "role held-out" in seen[tab.answer]
    assert seen[tab.new] == ""
    refused = tab._add("Why is the sky blue?", "train", "", *filters)
    assert "a role never changes" in refused[tab.answer]
    assert tab.new not in refused
    bird = Prompt.make("Name a bird.", role="train").id
    tab._act(pressed("retire", bird), rosa, *filters, [])
    tab._act(pressed("category", bird, text="animals"), rosa, *filters, [])
    [row] = [row for row in browse_prompts(db).rows if row.id == bird]
    assert (row.retired, row.category) == (True, "animals")
    shown = tab._filter("", "", "", "retired")
    assert "Name a bird." in shown[tab.table]
    assert "What is a prime?" not in shown[tab.table]
    assert "Restore" in shown[tab.table]
    tab._act(pressed("restore", bird), rosa, *filters, [])
    assert browse_prompts(db).retired == 0


@pytest.mark.parametrize("tab", [JudgmentsTab, PromptsTab])
def test_an_unknown_button_and_a_search_that_is_too_long_are_answered(db, tab) -> None:
    made = laid_out(lambda: tab(db))
    rest = [*NOTHING, [], ""] if tab is JudgmentsTab else ["", "", "", "", []]
    seen = made._act(pressed("burn", "j-1"), asked_by(db), *rest)
    assert "Reload the page" in seen[made.answer]
    seen = made.refresh("x" * 201, *rest[1:])
    shown = seen[made.list if tab is JudgmentsTab else made.table]
    assert "at most 200 characters" in shown


def test_a_call_that_sends_no_text_is_no_error(db) -> None:
    event = gr.EventData(None, None)
    tab = judgments_tab(db)
    assert "No pair open" in tab._open(event)[tab.pair]
