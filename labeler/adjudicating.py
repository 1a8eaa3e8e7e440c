"""The adjudicators' page: a pair on which annotators disagree, and a form for the ruling.

A plain form without scripts.  Adjudicators may not read the research site, so the votes appear here,
after the ruling is stored.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from labeler.html.components import conversation, prose, render, sentence
from labeler.html.markdown import render_pair
from labeler.theme import attribute, theme_of
from storage.engine.database import Database
from storage.errors import Conflict
from storage.labeling import adjudication
from storage.labeling.adjudication import GivenRuling, WaitingPair
from storage.records import MAX_REASON_LENGTH, Annotator, ScreenOutcome, new_id
from storage.wording import plural

OUTCOMES: dict[ScreenOutcome, str] = {
    "a": "A is better",
    "b": "B is better",
    "tie": "Tie",
    "both_bad": "Both bad",
}
_PAGE = Markup("""<!doctype html>
<html lang="en"{theme}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Adjudication · Kitestring</title>
<link rel="icon" href="/static/kite.svg">
<link rel="stylesheet" href="/static/account.css">
<link rel="stylesheet" href="/static/adjudicate.css">
</head>
<body class="wide"><main>
<div class="brand"><img src="/static/kite.svg" alt="">Kitestring</div>
<h1>Adjudication</h1>
<p class="hint">{waiting}. Sides are random; models and votes are hidden until you have ruled.</p>
{notice}
{pair}
<p class="hint"><a href="/label/">Back to labeling</a></p>
</main></body>
</html>
""")
_PAIR = Markup("""<section class="prompt">{prompt}</section>
<div class="sides"><section><h2>A</h2><div dir="auto">{a}</div></section>
<section><h2>B</h2><div dir="auto">{b}</div></section></div>
<form method="post" action="/adjudicate">
<input type="hidden" name="id" value="{id}"><input type="hidden" name="comparison" value="{comparison}">
<label for="reason">Reason</label>
<textarea id="reason" name="reason" rows="3" maxlength="{most}" required dir="auto">{reason}</textarea>
<div class="outcomes">{buttons}</div>
</form>""")
_BUTTON = Markup('<button name="outcome" value="{}">{}</button>')
_RULED = Markup('<div class="stored" role="status"><b>Ruling stored: {}.</b> The votes: {}.</div>')
_PROBLEM = Markup('<p class="problem" role="alert">{}</p>')
_NOTHING = Markup("<p>No pair waits for you.</p>")


def adjudication_routes(db: Database) -> APIRouter:
    """``/adjudicate``; the access check allows adjudicators and researchers."""
    routes = APIRouter()

    @routes.get("/adjudicate")
    def show(request: Request) -> HTMLResponse:
        return _page(db, request)

    @routes.post("/adjudicate")
    def rule(
        request: Request,
        id: Annotated[str, Form(max_length=100)],
        comparison: Annotated[str, Form(max_length=200)],
        outcome: Annotated[ScreenOutcome, Form()],
        reason: Annotated[str, Form(max_length=2 * MAX_REASON_LENGTH)] = "",
    ) -> HTMLResponse:
        person: Annotator = request.state.identity.annotator
        try:
            given = adjudication.rule(
                db, id=id, comparison=comparison, outcome=outcome,
                reason=reason.replace("\r\n", "\n"), adjudicator=person.id,
            )  # fmt: skip
        except (ValueError, LookupError, Conflict) as error:
            notice = _PROBLEM.format(sentence(str(error)))
            return _page(db, request, notice, reason=reason, status=422)
        return _page(db, request, _ruled(given, person))

    return routes


def _page(
    db: Database,
    request: Request,
    notice: Markup | str = "",
    *,
    reason: str = "",
    status: int = 200,
) -> HTMLResponse:
    person: Annotator = request.state.identity.annotator
    found = adjudication.waiting(db, person.id, limit=1)
    count = adjudication.count_waiting(db, person.id)
    html = _PAGE.format(
        theme=attribute(theme_of(request.headers)),
        waiting=plural(count, "pair waits", "pairs wait"),
        notice=notice,
        pair=_pair(found[0], reason) if found else _NOTHING,
    )
    return HTMLResponse(render(html), status)


def _pair(pair: WaitingPair, reason: str) -> Markup:
    a, b, notice = render_pair(pair.a, pair.b)
    shown = _PAIR.format(
        prompt=conversation(pair.messages),
        # `render_pair` returns safe HTML for any Markdown.
        a=Markup(a),
        b=Markup(b),
        id=new_id("r"),
        comparison=pair.comparison,
        most=MAX_REASON_LENGTH,
        reason=reason,
        buttons=Markup("").join(_BUTTON.format(*each) for each in OUTCOMES.items()),
    )
    return (prose(notice) if notice else Markup("")) + shown


def _ruled(given: GivenRuling, person: Annotator) -> Markup:
    """The votes, with the sides of this adjudicator."""

    def said(outcome: adjudication.Outcome) -> str:
        return OUTCOMES[adjudication.on_screen(outcome, given.comparison, person.id)]

    votes = ", ".join(f"{vote.annotator}: {said(vote.outcome)}" for vote in given.votes)
    return _RULED.format(said(given.outcome), votes or "none")
