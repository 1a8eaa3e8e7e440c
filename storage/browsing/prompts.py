"""What researchers do with prompts: list them, add one, retire it, and set its category.

A role never changes.  Models that learned from a prompt cannot be measured on it, and a held-out or
audit prompt that models learn from later would measure their memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, get_args

from storage.browsing.judgments import MAX_PAGE, MAX_TEXT, SNIPPET, Value
from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.errors import NotFound
from storage.importing.imports import default_role
from storage.records import KEPT_APART, Prompt, PromptEdit, PromptRole, check_category

PAGE = 30
"""Prompts per page."""
MAX_PROMPT_LENGTH = 20_000
"""Characters of a prompt that is added by itself."""
AddedRole = Literal["train", "held-out", "audit"]
"""Roles of prompts that can be added by themselves: `sft` needs a demonstration, `live` a turn."""

# Normalized: a copy that differs in case or spaces only would leak a held-out prompt.
_SAME = """
    SELECT id, role FROM prompts
    WHERE list_contains($apart, role) <> list_contains($apart, $role)
      AND json_array_length(messages) = 1
      AND regexp_replace(lower(trim(json_extract_string(messages, '$[0].content'))), '\\s+', ' ', 'g')
        = regexp_replace(lower(trim($text)), '\\s+', ' ', 'g')
    LIMIT 1
"""
_STORED = "SELECT role FROM prompts WHERE id = $id"
_EDIT = "SELECT * FROM prompt_edits WHERE prompt = $prompt"
_BASE = """
    base AS MATERIALIZED (
        SELECT p.id, p.role, coalesce(p.category, '') AS category, p.created_at,
               p.id IN (FROM retired_prompts) AS retired
        FROM prompts AS p {found})
"""
_FOUND = """
    WHERE contains(lower(array_to_string(json_extract_string(p.messages, '$[*].content'), chr(10))),
                   $text)
"""
_PAGE = """
    SELECT 'page' AS facet, id AS value, row_number() OVER (ORDER BY created_at DESC, id) AS count
    FROM (SELECT * FROM base WHERE {all} AND ($before IS NULL OR (created_at, id) IN (
              SELECT (b.created_at, b.id) FROM base AS b, prompts AS q WHERE q.id = $before
              AND (b.created_at < q.created_at OR (b.created_at = q.created_at AND b.id > q.id))))
          ORDER BY created_at DESC, id LIMIT $n)
"""
_ROWS = """
    WITH chosen AS (FROM prompts WHERE id IN (SELECT unnest($ids))),
    pairs AS (
        SELECT prompt, count(*) AS n FROM comparisons ANTI JOIN checks ON checks.comparison = id
        WHERE prompt IN (SELECT unnest($ids)) GROUP BY prompt),
    judged AS (
        SELECT c.prompt, count(*) AS n FROM comparisons AS c
        JOIN current_judgments AS j ON j.comparison = c.id
        WHERE c.prompt IN (SELECT unnest($ids)) GROUP BY c.prompt)
    SELECT p.id, p.role, coalesce(p.category, '') AS category, coalesce(p.source, '') AS source,
           p.created_at, json_array_length(p.messages) AS turns,
           left(json_extract_string(p.messages, '$[#-1].content'), $snippet) AS text,
           p.id IN (FROM retired_prompts) AS retired, coalesce(c.n, 0) AS pairs,
           coalesce(j.n, 0) AS judgments
    FROM chosen AS p
    LEFT JOIN pairs AS c ON c.prompt = p.id
    LEFT JOIN judged AS j ON j.prompt = p.id
    ORDER BY p.created_at DESC, p.id
"""


@dataclass(frozen=True, kw_only=True)
class PromptFilter:
    """Which prompts to list; None does not filter.  `text` is a part of any message, in any case."""

    role: PromptRole | None = None
    category: str | None = None
    retired: bool | None = None
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class PromptRow:
    """A prompt in the list; `text` is the beginning of the last message."""

    id: str
    role: PromptRole
    category: str
    source: str
    created_at: datetime
    turns: int
    """Messages of the conversation."""
    text: str
    retired: bool
    pairs: int
    judgments: int
    """Current ones."""


@dataclass(frozen=True, kw_only=True)
class PromptListing:
    """One page of the matching prompts, the newest first; counts are as in `judgments.Listing`."""

    rows: Sequence[PromptRow]
    total: int
    after: str | None
    roles: Sequence[Value]
    categories: Sequence[Value]
    retired: int


def browse_prompts(
    db: Database,
    filter: PromptFilter | None = None,
    *,
    before: str | None = None,
    limit: int = PAGE,
) -> PromptListing:
    """A page of the prompts that match; `before` is the last id of the page before.

    Raises NotFound for an unknown `before`, ValueError for a limit or a text that is too long.
    """
    wanted = filter or PromptFilter()
    text = wanted.text.strip().lower()
    if not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit={limit} must be from 1 to {MAX_PAGE}")
    if len(text) > MAX_TEXT:
        raise ValueError(f"search for a text of at most {MAX_TEXT} characters")
    if before is not None and not db.read(_STORED, id=before):
        raise NotFound(f"there is no prompt {before!r}; list from the beginning")
    given: dict[str, Any] = {
        name: value
        for name in ("role", "category", "retired")
        if (value := getattr(wanted, name)) is not None
    }
    parameters = given | ({"text": text} if text else {})
    with db.snapshot():
        found = db.read(
            _query(list(given), searched=bool(text)), before=before, n=limit + 1, **parameters
        )
        page = sorted((r for r in found if r["facet"] == "page"), key=lambda row: row["count"])
        ids = [row["value"] for row in page][:limit]
        rows = db.read(_ROWS, ids=ids, snippet=SNIPPET) if ids else []
    counted = {facet: _values(found, facet) for facet in ("role", "category")}
    number = {row["facet"]: row["count"] for row in found if row["facet"] in ("total", "retired")}
    return PromptListing(
        rows=[PromptRow(**{**row, "text": row["text"] or ""}) for row in rows],
        total=number["total"],
        after=ids[-1] if len(page) > limit else None,
        roles=counted["role"],
        categories=counted["category"],
        retired=number["retired"],
    )


def _query(given: Sequence[str], *, searched: bool) -> str:
    def others(facet: str = "") -> str:
        return " AND ".join(f"{name} = ${name}" for name in given if name != facet) or "true"

    parts = [
        _PAGE.format(all=others()),
        f"SELECT 'total', '', count(*) FROM base WHERE {others()}",
        f"SELECT 'retired', '', count(*) FROM base WHERE {others('retired')} AND retired",
        *(
            f"SELECT '{name}', {name}, count(*) FROM base WHERE {others(name)} GROUP BY {name}"
            for name in ("role", "category")
        ),
    ]
    base = _BASE.format(found=_FOUND if searched else "")
    return f"WITH {base} " + " UNION ALL ".join(f"({part})" for part in parts)


def _values(found: Sequence[Mapping[str, Any]], facet: str) -> list[Value]:
    values = [
        Value(value=row["value"], label=row["value"], count=row["count"])
        for row in found
        if row["facet"] == facet
    ]
    return sorted(values, key=lambda each: (-each.count, each.label))


def add_prompt(
    db: Database, text: str, *, role: AddedRole | None = None, category: str = ""
) -> Prompt:
    """Store one prompt of a single message.

    Without a `role`, it gets the one that an import would give it.  Raises ValueError for a blank or
    too long text, an invalid category, a prompt that is stored already, and a text that is, but for
    case and spaces, a prompt of the other side: held-out or audit, or one that models learn from.
    """
    text, category = text.strip(), category.strip()
    check_category(category)
    if len(text) > MAX_PROMPT_LENGTH:
        raise ValueError(f"a prompt has at most {MAX_PROMPT_LENGTH:,} characters")
    if role is not None and role not in get_args(AddedRole):
        raise ValueError(f"role={role!r} must be one of {', '.join(get_args(AddedRole))}")
    made = Prompt.make(text, role=role or "train", category=category, source="researcher")
    if role is None:
        made = replace(made, role=default_role(made.id))

    def operation(tx: Transaction) -> None:
        stored = tx.rows(_STORED, id=made.id)
        if stored:
            raise ValueError(_stored_already(made.id, stored[0]["role"], made.role, chosen=role))
        same = tx.rows(_SAME, apart=list(KEPT_APART), role=made.role, text=text)
        if same:
            raise ValueError(
                f"apart from case and spaces, this is the {same[0]['role']} prompt {same[0]['id']}; a "
                f"{made.role} prompt with the same text would leak it"
            )
        tx.store(made)

    db.write(operation)
    return made


def _stored_already(id: str, known: str, wanted: str, *, chosen: str | None) -> str:
    if chosen is None or known == wanted:
        return f"this prompt is stored already, as {id} with the role {known}"
    return (
        f"this prompt is stored already, as {id} with the role {known}, and a role never changes: a "
        "model that learned from a prompt cannot be measured on it. Retire it, and add another prompt"
    )


def edit_prompt(
    db: Database,
    prompt: str,
    *,
    retired: bool | None = None,
    category: str | None = None,
    researcher: str = "",
) -> PromptEdit:
    """Retire a prompt or use it again (`retired`), and set its `category`; None changes nothing.

    What was judged stays.  Raises NotFound for an unknown prompt, ValueError for an invalid category.
    """

    def operation(tx: Transaction) -> PromptEdit:
        if not tx.rows(_STORED, id=prompt):
            raise NotFound(f"there is no prompt {prompt!r}")
        rows = tx.rows(_EDIT, prompt=prompt)
        known = from_row(PromptEdit, rows[0]) if rows else PromptEdit(prompt=prompt)
        made = replace(
            known,
            retired=known.retired if retired is None else retired,
            category=known.category if category is None else category.strip(),
            researcher=researcher,
            created_at=tx.now(),
        )
        tx.store(made)
        return made

    return db.write(operation)
