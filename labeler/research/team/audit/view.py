"""The audit log as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from labeler.html import components
from labeler.html.components import Column, Markup
from storage.tables.audit import ListedEntry
from storage.wording import plural

_COLUMNS = (
    Column("Time"),
    Column("Who"),
    Column("Action"),
    Column("Subject"),
    Column("Details"),
)
FOR_RESEARCHERS = components.empty("For researchers", "Only researchers can read the audit log.")


def entries(listed: Sequence[ListedEntry], *, filtered: bool) -> Markup:
    """A row for each entry."""
    if not listed:
        if filtered:
            return components.empty("Nothing found", "No entry matches these filters.")
        return components.empty("No entries yet", "Actions of researchers appear here.")
    return components.table(_COLUMNS, map(_row, listed), caption="Audit log")


def _row(listed: ListedEntry) -> tuple[Markup | str, ...]:
    via = "" if listed.entry.via in ("browser", "studio") else f" · {listed.entry.via}"
    who = Markup("{}{}").format(listed.actor, components.detail(via))
    words = "; ".join(f"{name}: {_word(value)}" for name, value in listed.entry.details.items())
    moment = components.moment(listed.entry.created_at)
    return (moment, who, listed.entry.action, listed.subject or components.DASH, words)


def _word(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {_word(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def downloads(query: Mapping[str, str], count: int, *, more: bool) -> Markup:
    """Links to the file with all entries that match the filters."""
    chosen = {name: value for name, value in query.items() if value}
    links = Markup(" · ").join(
        Markup('<a class="ks-link" href="/research/download/audit?{}" download>{}</a>').format(
            urlencode(chosen | {"file": file}), label
        )
        for file, label in (("csv", "CSV"), ("jsonl", "JSON Lines"))
    )
    shown = f"The newest {count:,} entries." if more else plural(count, "entry", "entries")
    return Markup('<p class="ks-detail">{} Download all that match: {}</p>').format(
        components.sentence(shown), links
    )
