"""The "People" section: who is doing well, accounts, agreement, checks, and flagged pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast, get_args

import gradio as gr

from labeler.html.components import Markup, render
from labeler.research import reading
from labeler.research.tab import Cached, Tab, Updates, attempt, caller, heading_slot, html_slot, on
from labeler.research.team.people import gold_view, reliability_view
from labeler.research.team.people import view as people_view
from storage.analysis import reliability
from storage.analysis.agreement import agreement
from storage.analysis.checks import AnnotatorChecks, PracticeState, check_results, practice_state
from storage.analysis.pace import pace
from storage.engine.database import Database
from storage.labeling import flag_answers, gold, judgments
from storage.labeling.queue import midnight
from storage.records import Annotator, AnnotatorRole, check_choice, new_id, now
from storage.tables import settings
from storage.tables.people import annotators, tokens
from storage.wording import plural

ARTICLES: dict[AnnotatorRole, str] = {
    "annotator": "an annotator",
    "adjudicator": "an adjudicator",
    "viewer": "a viewer",
    "researcher": "a researcher",
}
CLEARED = "The flag is cleared. The pair returns to the queue if it needs judgments."
ACTIONS_JS = (Path(__file__).parent / "actions.js").read_text(encoding="utf-8")


class PeopleTab(Tab):
    every = 5

    def __init__(self, db: Database, accounts_changed: Callable[[], None]) -> None:
        self._db = db
        self._accounts_changed = accounts_changed
        self._agreement = Cached(lambda: agreement(db), at_most_every=30)
        self._figures = Cached(lambda: reliability.annotator_figures(db), at_most_every=30)
        self._pace = Cached(lambda: pace(db), at_most_every=30)
        self._checks = Cached(lambda: check_results(db), at_most_every=30)
        self._candidates = Cached(lambda: gold.candidates(db), at_most_every=30)
        self._lay_out()
        self.outputs = [
            self.people, self.reliability, self.agreement, self.gold, self.practice_pairs, self.flags,
        ]  # fmt: skip
        self.loaded = [self.practice]
        on(self.practice.input, self._ask, [self.practice], [self.practice_answer])
        answered = [self.answer, *self.outputs]
        on(self.add.click, self._add, [self.name, self.role], [*answered, self.name])
        on(
            self.make_gold.click,
            self._make_gold,
            [self.gold_count],
            [self.gold_answer, *self.outputs],
        )
        for table in (self.people, self.gold, self.practice_pairs, self.flags):
            on(table.act, self._act, outputs=answered)

    def _lay_out(self) -> None:
        with gr.Row(elem_classes="ks-panel ks-buttons ks-acts"):
            self.name = gr.Textbox(
                label="Name",
                placeholder="name of the new account",
                elem_id="annotator-name",
                max_lines=1,
                min_width=200,
                scale=2,
            )
            self.role = gr.Dropdown(
                list(get_args(AnnotatorRole)),
                value="annotator",
                label="Role",
                min_width=150,
                scale=1,
            )
            self.add = gr.Button("Add", variant="primary", elem_id="annotator-add")
        self.answer = html_slot(elem_id="annotator-answer", js_on_load=ACTIONS_JS)
        self.people = html_slot(elem_id="people", js_on_load=ACTIONS_JS)
        with gr.Accordion("How they judge: all figures", open=False, elem_id="all-figures"):
            self.reliability = html_slot(elem_id="reliability")
        heading_slot("Agreement", "on pairs that two or more people judged")
        self.agreement = html_slot(elem_id="agreement")
        heading_slot("Gold pairs", "pairs with a known answer, to check annotators")
        with gr.Row(elem_classes="ks-panel ks-buttons ks-acts"):
            self.gold_count = gr.Number(
                value=20, precision=0, minimum=1, maximum=1000, label="Pairs", min_width=120,
                scale=0, elem_id="gold-count",
            )  # fmt: skip
            self.make_gold = gr.Button("Make gold pairs", variant="primary", elem_id="gold-make")
        self.gold_answer = html_slot(elem_id="gold-answer")
        self.gold = html_slot(elem_id="gold", js_on_load=ACTIONS_JS)
        heading_slot(
            "Practice", "pairs that a new annotator judges first, each explained afterwards"
        )
        with gr.Column(elem_classes="ks-panel ks-acts"):
            self.practice = gr.Checkbox(label="Ask for practice", elem_id="practice-asked")
            self.practice_answer = html_slot(elem_id="practice-answer")
        self.practice_pairs = html_slot(elem_id="practice-pairs", js_on_load=ACTIONS_JS)
        heading_slot("Flags", "problems that annotators reported")
        self.flags = html_slot(elem_id="flags", js_on_load=ACTIONS_JS)

    def refresh(self) -> Updates:
        moment = now()
        work = reading.work(self._db, midnight=midnight(moment))
        version = reading.judging_version(self._db)
        figures, agreed = self._figures.get(version), self._agreement.get(version)
        fit, pairs = reliability.annotator_fit(self._db), gold.listing(self._db)
        practice = gold.listing(self._db, "practice")
        used = tuple(pair.id for pair in (*pairs, *practice) if pair.active)
        mark = settings.check_plan_of(self._db).practice_mark
        checks = self._checks.get(version, occasion=used)
        active = sum(pair.active for pair in practice)
        states: dict[str, PracticeState] = {
            id: practice_state(each.practice, pairs=active, mark=mark)
            for id, each in checks.items()
        }
        candidates = self._candidates.get(version, occasion=len(pairs))
        paces, ways = self._pace.get(version), tokens.ways(self._db)
        judged = [each for each in figures.values() if each.judgments]
        persons = [
            people_view.Person(
                work=each,
                figures=(own := figures.get(each.annotator.id)),
                per_hour=paces.get(each.annotator.id),
                gold=checks.get(each.annotator.id, AnnotatorChecks()).gold,
                practice=states.get(each.annotator.id) if active else None,
                estimate=fit.by_annotator.get(each.annotator.id) if fit else None,
                remarks=reliability_view.remarks(own, judged, fit, checks) if own in judged else (),
                ways=ways.get(each.annotator.id, tokens.Ways()),
            )
            for each in work
        ]
        return {
            self.people: render(people_view.people(persons, now=moment)),
            self.reliability: render(reliability_view.table(figures.values(), fit, checks, states)),
            self.agreement: render(reliability_view.agreement(agreed, fit)),
            self.gold: render(gold_view.gold(pairs, candidates)),
            self.practice_pairs: render(gold_view.practice(practice)),
            self.flags: render(people_view.flags(reading.flags(self._db), now=moment)),
        }

    def _add(self, name: str | None, role: AnnotatorRole | None, request: gr.Request) -> Updates:
        def add() -> Markup:
            if role is None:  # the page's button always sends a role
                raise ValueError("Choose a role.")
            person = Annotator(id=new_id("annotator"), name=(name or "").strip(), role=role)
            return self._invite(annotators.add(self._db, person), request)

        answer = attempt(add, "No account was added.")
        cleared: Updates = {} if answer.refusal else {self.name: ""}
        return {self.answer: answer.html} | cleared | self.refresh()

    def load(self) -> Updates:
        return {self.practice: settings.check_plan_of(self._db).practice}

    def _ask(self, asked: bool) -> str:
        def ask() -> str:
            settings.ask_for_practice(self._db, asked)
            if not asked:
                return "Annotators get no practice pairs."
            if not gold.listing(self._db, "practice"):
                return "There are no practice pairs yet. Import some on the Data page."
            return "Annotators judge the practice pairs first. They then get other pairs, passed or not."

        return attempt(ask, "The setting was not saved.").html

    def _make_gold(self, count: float | None) -> Updates:
        def make() -> str:
            made = gold.make(self._db, int(count or 0))
            return f"{plural(made, 'gold pair')} made. Annotators get them from now on."

        return {self.gold_answer: attempt(make, "No gold pair was made.").html} | self.refresh()

    def _act(self, event: gr.EventData, request: gr.Request) -> Updates:
        """Handle a click on a button in a table."""
        action, target = _pressed(event)

        def act() -> str | Markup:
            match action:
                case "invite":
                    return self._invite(annotators.get(self._db, target), request)
                case "token":
                    person = annotators.get(self._db, target)
                    secret = tokens.issue(self._db, target, "api", lifetime=None)
                    return people_view.token(person.name, secret)
                case "revoke":
                    person = annotators.get(self._db, target)
                    revoked = tokens.revoke_kinds(self._db, target, ("invite", "api"))
                    self._accounts_changed()
                    return f"{revoked} of {person.name}'s invites and API tokens revoked."
                case "disable":
                    person = self._set_disabled(target, disabled=True)
                    return f"{person.name} is signed out everywhere. Their judgments are kept."
                case "enable":
                    person = self._set_disabled(target, disabled=False)
                    return f"{person.name} can sign in again. Without a password, they need an invite link."
                case "role":
                    person = self._set_role(target, _text(event))
                    return f"{person.name} is now {ARTICLES[person.role]}."
                case "gold-retire":
                    gold.set_active(self._db, target, active=False)
                    return "Annotators no longer get the pair, and its judgments no longer count."
                case "gold-restore":
                    gold.set_active(self._db, target, active=True)
                    return "Annotators get the pair again, and its judgments count."
                case "clear":
                    who = caller(request).id
                    judgments.clear_flag(self._db, id=new_id(), flag=target, researcher=who)
                    return CLEARED
                case "answer" | "answer-and-clear":
                    clear = action == "answer-and-clear"
                    flag_answers.answer_flag(
                        self._db, id=new_id(), flag=target, researcher=caller(request).id,
                        text=_text(event), clear=clear,
                    )  # fmt: skip
                    answered = "The annotator finds the answer in My judgments."
                    return f"{answered} {CLEARED}" if clear else answered
                case _:
                    raise ValueError("The page has no such button. Reload the page.")

        return {self.answer: attempt(act).html} | self.refresh()

    def _invite(self, person: Annotator, request: gr.Request) -> Markup:
        # The page's own address is the one that people can reach, even behind a proxy.
        origin = request.headers.get("origin", "")
        link = tokens.issue_invite(self._db, person.id, address=origin)
        return people_view.invite(person.name, link)

    def _set_role(self, target: str, role: str) -> Annotator:
        check_choice("role", role, AnnotatorRole)
        person = annotators.set_role(self._db, target, cast("AnnotatorRole", role))
        self._accounts_changed()
        return person

    def _set_disabled(self, target: str, *, disabled: bool) -> Annotator:
        person = annotators.set_disabled(self._db, target, disabled=disabled)
        self._accounts_changed()
        return person


def _text(event: gr.EventData) -> str:
    """The text that a button sends with its action; "" if it sends none."""
    match event._data:
        case {"text": str(text)}:
            return text
    return ""


def _pressed(event: gr.EventData) -> tuple[str, str]:
    """The action and the target of a button in a table; ("", "") for any other data."""
    match event._data:
        case {"action": str(action), "id": str(target)}:
            return action, target
    return "", ""
