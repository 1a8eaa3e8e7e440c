"""The list of judgments and the open pair as HTML.  Texts and names are untrusted.  Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from labeler.html import components
from labeler.html.components import Markup
from labeler.research.data.pair_view import OUTCOMES, asking, texts
from labeler.research.models.lineage.graph import of_model
from storage.browsing.judgments import SNIPPET, Listing, Row
from storage.browsing.pair import GivenJudgment, PairInFull, Predicted
from storage.labeling.adjudication import GivenRuling
from storage.labeling.flag_answers import ListedFlag
from storage.records import MAX_ANSWER_LENGTH, STRENGTHS, Mark
from storage.wording import plural

MARKS = {
    "disagreement": "Disagreement",
    "surprise": "Surprises the reward model",
    "flagged": "Open flag",
    "commented": "Comment",
    "excluded": "Excluded",
}
_BADGES: dict[str, tuple[str, components.Tone]] = {
    "disagreement": ("disagreement", "warn"),
    "surprise": ("surprise", "info"),
    "flagged": ("flag", "bad"),
    "commented": ("comment", "neutral"),
    "excluded": ("excluded", "neutral"),
}
NOTHING_OPEN = components.empty(
    "No pair open", "Choose a judgment to see its pair: texts, judgments, flags and predictions."
)
_NO_JUDGMENTS = components.empty(
    "No judgments yet", "Judgments appear here as soon as annotators have given some."
)
_NO_MATCH = components.empty("No judgment matches", "Change or clear the filters.")


def total(found: Listing, *, narrowed: bool, excluded: bool) -> Markup:
    """The number of judgments; if a filter is set, a button that excludes them all, or restores them
    if the list has only `excluded` ones."""
    number = components.detail(plural(found.total, "judgment"))
    count = found.total if excluded else found.total - found.marks["excluded"]
    if not narrowed or not count:
        return number
    some = plural(count, "judgment")
    if excluded:
        button = asking(
            "Restore all …", "restore-all", str(count), title=f"Restore {some}",
            note="They count again in figures and exports, and models learn from them.",
            ask="Reason (optional)", submit="Restore", optional=True,
        )  # fmt: skip
    else:
        button = asking(
            "Exclude all …", "exclude-all", str(count), title=f"Exclude {some}",
            note="All judgments that match the filters, on all pages. No model learns from them, and no "
            "figure or export uses them. Annotators see no difference. You can restore them.",
            ask="Reason", submit="Exclude", tone="bad",
        )  # fmt: skip
    return Markup('<div class="ks-total">{}{}</div>').format(number, button)


def listing(
    found: Listing,
    opened: str,
    *,
    filtered: bool,
    now: datetime,
    flagged: Sequence[ListedFlag] = (),
) -> Markup:
    """A page of the list, after `flagged` pairs that nobody has judged; what is `opened` is marked."""
    if not found.rows and not flagged:
        return _NO_MATCH if filtered else _NO_JUDGMENTS
    return Markup('<div class="ks-listed">{}</div>').format(
        components.lines(
            [
                *(_flagged(flag, flag.comparison == opened, now) for flag in flagged),
                *(_item(row, row.id == opened, now) for row in found.rows),
            ]
        )
    )


def _flagged(flag: ListedFlag, opened: bool, now: datetime) -> Markup:
    return Markup(
        '<button type="button" data-open="{}"{}><span class="ks-first" dir="auto">{}</span>'
        '<span class="ks-about"><b>No judgment</b><span dir="auto">{}</span><span>{}</span>{}</span></button>'
    ).format(
        flag.comparison,
        Markup(' aria-current="true"') if opened else "",
        " ".join(flag.prompt.split())[:SNIPPET] or "(no text)",
        flag.annotator or "unknown annotator",
        components.ago(flag.created_at, now),
        components.badge(*_BADGES["flagged"]),
    )


def _item(row: Row, opened: bool, now: datetime) -> Markup:
    badges = [
        components.badge(label, tone)
        for mark, (label, tone) in _BADGES.items()
        if getattr(row, mark)
    ]
    return Markup(
        '<button type="button" data-open="{}" class="{}"{}><span class="ks-first" dir="auto">{}</span>'
        '<span class="ks-about"><b>{}</b><span dir="auto">{}</span><span>{}</span>{}</span></button>'
    ).format(
        row.id,
        "ks-out" if row.excluded else "",
        Markup(' aria-current="true"') if opened else "",
        row.prompt or "(no text)",
        OUTCOMES[row.outcome],
        row.annotator_name,
        components.ago(row.created_at, now),
        components.lines(badges),
    )


def pair(shown: PairInFull) -> Markup:
    """A pair with everything about it."""
    about = " · ".join(
        each
        for each in (
            shown.category,
            shown.role,
            f"iteration {shown.iteration}",
            shown.arm,
            shown.comparison,
        )
        if each
    )
    expected = shown.predicted
    return Markup('<h2 class="ks-hidden">Pair</h2><article class="ks-pair">{}</article>').format(
        components.lines(
            [
                texts(
                    shown.messages,
                    shown.first,
                    shown.second,
                    about=about,
                    titles=(
                        _title(1, shown.first_model, expected, expected and expected.expected),
                        _title(2, shown.second_model, expected, expected and 1 - expected.expected),
                    ),
                ),
                _section("Judgments", [_given(each) for each in shown.judgments]),
                _section("Flags", [_flag(each) for each in shown.flags]),
                _section("Rulings", [_ruling(each) for each in shown.rulings]),
                Markup('<section class="ks-actions">{}</section>').format(
                    components.button("Send to adjudication", "send", shown.comparison)
                ),
            ]
        )
    )


def _title(number: int, model: str, by: Predicted | None, chance: float | None) -> Markup:
    score = (
        Markup('<span class="ks-score" title="Chance by {}">{} by {}</span>').format(
            by.reward_model, components.percent(chance), by.reward_model
        )
        if by
        else ""
    )
    return Markup("{} · {}{}").format(number, model, score)


def _section(title: str, pieces: Sequence[Markup]) -> Markup:
    if not pieces:
        return Markup("")
    return Markup("<section><h3>{}</h3>{}</section>").format(title, components.lines(pieces))


def _given(each: GivenJudgment) -> Markup:
    strength = f", {STRENGTHS[each.strength]}" if each.strength else ""
    head = [
        components.badge(f"{OUTCOMES[each.outcome]}{strength}", "info"),
        Markup('<b dir="auto">{}</b>').format(each.annotator),
        components.badge(each.annotator_kind) if each.annotator_kind != "person" else "",
        components.moment(each.created_at),
        components.detail(
            components.duration(each.milliseconds / 1000) if each.milliseconds is not None else ""
        ),
        Markup('<span class="ks-actions">{}</span>').format(_actions(each)),
    ]
    excluded = (
        components.note(
            "warn",
            f"Excluded by {each.excluded_by or 'the command line'}",
            components.prose(each.exclusion_reason),
        )
        if each.excluded
        else ""
    )
    return Markup('<div class="ks-given{}"><header>{}</header>{}{}{}{}</div>').format(
        " ks-out" if each.excluded else "",
        components.lines(piece for piece in head if piece),
        excluded,
        components.prose(each.comment) if each.comment else "",
        components.definitions(_details(each)),
        _edit(each),
    )


def _actions(each: GivenJudgment) -> Markup:
    if each.excluded:
        return components.button("Restore", "restore", each.id)
    return asking(
        "Exclude", "exclude", each.id,
        title=f"Exclude the judgment of {each.annotator}",
        note="No model learns from it, and no figure or export uses it. The annotator sees no "
        "difference. You can restore it.",
        ask="Reason", submit="Exclude", tone="bad",
    )  # fmt: skip


def _details(each: GivenJudgment) -> list[tuple[str, Any]]:
    sides = {"first": "1", "second": "2", "tie": "tie"}
    rows: list[tuple[str, Any]] = []
    if each.criteria:
        named = (f"{name} {sides.get(side, side)}" for name, side in each.criteria.items())
        rows.append(("Criteria", ", ".join(named)))
    rows += [("Reasons", _by_side(each.reasons))] if each.reasons else []
    if each.safety:
        rows.append(("Safety", _by_side({side: [label] for side, label in each.safety.items()})))
    rows += [("Marked", _passages(each.marks))] if each.marks else []
    if each.learned_by:
        rows.append(("Models trained on it", _models([*each.learned_by, *each.shaped])))
    return rows


def _models(names: Sequence[str]) -> Markup:
    """Links to the models in the graph of the lineage."""
    return Markup(", ").join(
        Markup('<a href="{}">{}</a>').format(of_model(name), name) for name in names
    )


def _by_side(values: Mapping[str, Iterable[str]]) -> str:
    numbers = {"first": 1, "second": 2}
    return "; ".join(f"{numbers[side]}: {', '.join(given)}" for side, given in values.items())


def _passages(marks: Mapping[str, Sequence[Mark]]) -> Markup:
    numbers = {"first": 1, "second": 2}
    return components.lines(
        Markup('<div dir="auto">{} ({}): <mark>{}</mark></div>').format(
            numbers[side], mark.reason, mark.quote
        )
        for side, given in marks.items()
        for mark in given
    )


def _edit(each: GivenJudgment) -> Markup:
    if not each.edit:
        return Markup("")
    return Markup("<details><summary>Edited response</summary>{}</details>").format(
        components.prose(each.edit)
    )


def _flag(flag: ListedFlag) -> Markup:
    who = flag.annotator or "unknown annotator"
    tone = "bad" if flag.state == "open" else "neutral"
    answer = asking(
        "Answer", "answer", flag.id,
        title=f"Answer to {who}", note=flag.comment, ask="Your answer", submit="Answer only",
        more="answer-and-clear|Answer and clear" if flag.state == "open" else "",
        most=MAX_ANSWER_LENGTH,
    )  # fmt: skip
    clear = components.button("Clear", "clear", flag.id) if flag.state == "open" else ""
    return Markup(
        '<div class="ks-given"><header>{}<b dir="auto">{}</b>{}<span class="ks-actions">{}{}</span>'
        "</header>{}{}</div>"
    ).format(
        components.badge(flag.state, tone),
        who,
        components.moment(flag.created_at),
        answer,
        clear,
        components.prose(flag.comment or "(no comment)"),
        components.lines(
            Markup('<div class="ks-answer"><span class="ks-role">Answer{}</span>{}</div>').format(
                f" by {given.researcher}" if given.researcher else "", components.prose(given.text)
            )
            for given in flag.answers
        ),
    )


def _ruling(ruling: GivenRuling) -> Markup:
    return Markup('<div class="ks-given"><header>{}<b dir="auto">{}</b>{}</header>{}</div>').format(
        components.badge(OUTCOMES[ruling.outcome], "good"),
        ruling.adjudicator or "command line",
        components.moment(ruling.created_at),
        components.prose(ruling.reason),
    )
