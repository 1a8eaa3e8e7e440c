"""Import of prompts, demonstrations, judgments, preference datasets, pairs to judge and gold pairs.

Files are JSON lines, a JSON array, CSV or parquet; docs/data.md lists the columns.  If a file has
bad rows, `BadFile` reports all of them and nothing is stored; with `skip_bad` the good rows are
stored.  Ids are digests of the content, so importing a file again adds nothing, or the rest after an
interruption.  A `LengthCheck` treats rows that are too long for the model as bad rows, or leaves
them out.  With `dry_run`, the report has the first rows as they were understood and what would be
added, and nothing is stored.  A file with more than `max_rows` rows is refused with ``ValueError``.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, cast, get_args

from storage.engine.database import Database
from storage.importing.files.cells import Cells
from storage.importing.files.long_rows import ANY_LENGTH, LengthCheck
from storage.importing.files.row_notes import BadFile, BadRow, RowNotes
from storage.importing.planning.gold_pairs import COLUMNS as GOLD_COLUMNS
from storage.importing.planning.gold_pairs import PRACTICE_COLUMNS, GoldRow, gold_row, plan_gold
from storage.importing.planning.marks import marks_of
from storage.importing.planning.plan import (
    DEMONSTRATIONS,
    Plan,
    plan_demonstrations,
    plan_prompts,
    plan_votes,
)
from storage.importing.planning.preferences import (
    UNKNOWN_ANNOTATOR,
    Labeled,
    labeled,
    pair_up,
    paired_vote,
    separate_voters,
)
from storage.importing.planning.votes import Answer, Vote, without_sides
from storage.importing.planning.written_pairs import COLUMNS as PAIR_COLUMNS
from storage.importing.planning.written_pairs import WrittenPair, plan_pairs, written_pair
from storage.importing.sheet import ImportInterrupted, ImportReport, Sheet
from storage.importing.sources.registry import Origin
from storage.importing.target import Target
from storage.labeling.gold import KnownKind
from storage.records import (
    CHECKS,
    LIVE,
    MAX_VIEW_MS,
    PROBE,
    AnnotatorKind,
    Completion,
    Prompt,
    PromptRole,
    ScreenOutcome,
    digest,
    now,
)

__all__ = [
    "BadFile",
    "BadRow",
    "ImportInterrupted",
    "ImportReport",
    "default_role",
    "import_gold",
    "import_judgments",
    "import_pairs",
    "import_practice",
    "import_preferences",
    "import_prompts",
    "import_sft",
]

_SHARES: tuple[tuple[PromptRole, int], ...] = (("train", 80), ("held-out", 95), ("audit", 100))
_PROMPT = ("prompt", "messages", "instruction")
_STRENGTH_WORDS = {"slightly": 1, "clearly": 2, "much": 3}
_ABOUT_PROMPTS = ("role", "category", "source")
_JUDGMENT_COLUMNS = (
    *("prompt", "messages", "instruction", "input", "response_a", "response_b", "annotator"),
    *("outcome", "strength", "comment", "created_at", "model_a", "model_b", "item", "id"),
    *("comparison", "shown_swapped", "criteria", "milliseconds", "replaces", "withdrawn_at"),
    *("excluded", "exclusion_reason"),
    *("prompt_role", "category", "annotator_kind", "guidelines", "arm", "expected", "repeats"),
    *("reasons", "safety", "marks", "edit", "explanation"),
    *("conversation", "turn"),
    # In raw exports; an import ignores them.
    *("status", "iteration", "flags", "ruling", "ruling_reason"),
)


def default_role(prompt: str) -> PromptRole:
    """The role of a prompt imported without one: 80% train, 15% held-out, 5% audit.

    It is a function of the prompt's id, a digest of its messages (`Prompt.make`), so an identical
    prompt always gets the same role.  Near-duplicates are not detected and may get different ones.
    """
    percentile = int(digest("role", prompt), 16) % 100
    return next(role for role, below in _SHARES if percentile < below)


def import_prompts(
    db: Database | Target,
    file: Path,
    *,
    role: PromptRole | None = None,
    skip_bad: bool = False,
    length: LengthCheck = ANY_LENGTH,
    dry_run: bool = False,
    max_rows: int | None = None,
) -> ImportReport:
    """Import prompts to sample from: `prompt` (text or chat messages) or `messages` in each row.

    A row without a `role` column gets `role`, or its `default_role`.  Raises `BadFile`.
    """
    sheet = Sheet(file, length, max_rows=max_rows)
    sheet.expect([_PROMPT], known=(*_PROMPT, "input", *_ABOUT_PROMPTS))

    def parse(cells: Cells) -> tuple[int, Prompt]:
        made = Prompt.make(cells.prompt(), role=role or "train")
        length.require_fit(made.messages)
        roles = [each for each in get_args(PromptRole) if each not in ("live", "probe")]
        chosen = cells.choice("role", roles, role or default_role(made.id))
        return cells.line, Prompt(
            id=made.id,
            role=cast(PromptRole, chosen),
            messages=made.messages,
            category=cells.text("category", ""),
            source=cells.text("source", "") or Path(file).name,
        )

    found = sheet.parse(parse)

    return sheet.store(
        db, lambda reader, _: plan_prompts(reader, found), skip_bad=skip_bad, dry_run=dry_run
    )


def import_sft(
    db: Database | Target,
    file: Path,
    *,
    skip_bad: bool = False,
    length: LengthCheck = ANY_LENGTH,
    dry_run: bool = False,
    max_rows: int | None = None,
) -> ImportReport:
    """Import demonstrations for SFT: a prompt and its answer in each row.

    A row has a prompt and `response`, `completion` or `output`, or only `messages`, whose last turn
    is the answer.  Prompts get the role sft, and answers belong to the model "demonstrations".
    Raises `BadFile`.
    """
    sheet = Sheet(file, length, max_rows=max_rows)
    answers = ("response", "completion", "output")
    sheet.expect([_PROMPT], known=(*_PROMPT, "input", *answers, "category", "source"))
    when = now()

    def parse(cells: Cells) -> tuple[int, Prompt, Completion]:
        column = next((name for name in answers if cells.present(name)), None)
        messages = cells.prompt()
        if column is not None:
            answer = cells.response(column)
        elif messages[-1].role == "assistant":
            messages, answer = messages[:-1], messages[-1].content
        else:
            raise ValueError(
                "the answer is missing: add a response, completion or output column, or messages "
                "that end with an assistant's turn"
            )
        length.require_fit(messages, answer)
        prompt = Prompt.make(
            messages,
            role="sft",
            category=cells.text("category", ""),
            source=cells.text("source", "") or Path(file).name,
        )
        completion = Completion(
            id=f"r-{digest(prompt.id, DEMONSTRATIONS, answer)}",
            prompt=prompt.id,
            policy=DEMONSTRATIONS,
            text=answer,
            created_at=when,
        )
        return cells.line, prompt, completion

    found = sheet.parse(parse)

    return sheet.store(
        db,
        lambda reader, when: plan_demonstrations(reader, found, when=when),
        skip_bad=skip_bad,
        dry_run=dry_run,
    )


def import_judgments(
    db: Database | Target,
    file: Path,
    *,
    role: PromptRole | None = None,
    skip_bad: bool = False,
    length: LengthCheck = ANY_LENGTH,
    dry_run: bool = False,
    max_rows: int | None = None,
    origin: Origin | None = None,
) -> ImportReport:
    """Import judgments: `prompt, response_a, response_b, annotator, outcome` in each row.

    response_a was on the left.  New prompts get `role` (default train); new annotators are people
    without a password.  Comparisons belong to iteration 0 and are not in the queue.  `origin` names
    another tool that wrote the file.  Raises `BadFile`.
    """
    sheet = Sheet(file, length, max_rows=max_rows, origin=origin)
    if origin is None:
        sheet.expect(
            [_PROMPT, ("response_a",), ("response_b",), ("annotator",), ("outcome",)],
            known=_JUDGMENT_COLUMNS,
        )
    source = Path(file).name

    def parse(cells: Cells) -> Vote:
        unknown = UNKNOWN_ANNOTATOR if origin else None
        vote = _judgment_vote(cells, role=role or "train", source=source, annotator=unknown)
        if origin and (not cells.has("annotator") or cells.has("sides")):
            vote = without_sides(vote)
        length.require_fit(vote.prompt.messages, vote.a.text, vote.b.text)
        return vote

    votes = sheet.parse(parse)

    def plan(reader: Target, when: datetime) -> Plan:
        # Only other tools' files have votes of unknown people.
        found = separate_voters(reader, votes) if origin else votes
        return plan_votes(reader, found, when=when)

    return sheet.store(db, plan, skip_bad=skip_bad, dry_run=dry_run)


def import_pairs(
    db: Database | Target,
    file: Path,
    *,
    role: PromptRole | None = None,
    skip_bad: bool = False,
    length: LengthCheck = ANY_LENGTH,
    dry_run: bool = False,
    max_rows: int | None = None,
    origin: Origin | None = None,
) -> ImportReport:
    """Import pairs to be judged here: `prompt, response_a, response_b` in each row.

    They are in the queue in every phase; new prompts get `role` (default train).  Empty texts,
    texts over `cells.LONG` characters, values other than text and equal responses make a row bad.
    `origin` names another tool that wrote the file, of which only the pairs that nobody has judged
    are read.  Raises `BadFile`.
    """
    sheet = Sheet(file, length, max_rows=max_rows, origin=origin, kind="pairs")
    sheet.expect([_PROMPT, ("response_a",), ("response_b",)], known=PAIR_COLUMNS)
    source = Path(file).name

    def parse(cells: Cells) -> WrittenPair:
        pair = written_pair(cells, role=role or "train", source=source)
        length.require_fit(pair.prompt.messages, pair.first.text, pair.second.text)
        return pair

    pairs = sheet.parse(parse, strict=True, key=lambda pair: pair.content)

    def plan(target: Target, when: datetime) -> Plan:
        return plan_pairs(target, pairs, when=when, key=target.pseudonym_key())

    return sheet.store(db, plan, skip_bad=skip_bad, dry_run=dry_run)


def import_gold(
    db: Database | Target,
    file: Path,
    *,
    role: PromptRole | None = None,
    skip_bad: bool = False,
    length: LengthCheck = ANY_LENGTH,
    dry_run: bool = False,
    max_rows: int | None = None,
    origin: Origin | None = None,
    kind: KnownKind = "gold",
) -> ImportReport:
    """Import gold pairs: `prompt, response_a, response_b, answer` (a or b) in each row; practice
    pairs have an `explanation` too.

    New prompts get `role`, by default audit: they are neither sampled nor learned from.  Rows are
    bad as in `import_pairs`.  `origin` names another tool that wrote the file, whose ground truths
    are the gold pairs.  Raises `BadFile`.
    """
    sheet = Sheet(file, length, max_rows=max_rows, origin=origin, kind="gold")
    practice = kind == "practice"
    needed = [_PROMPT, ("response_a",), ("response_b",), ("answer",)]
    needed += [("explanation",)] if practice else []
    sheet.expect(needed, known=PRACTICE_COLUMNS if practice else GOLD_COLUMNS)
    source = Path(file).name

    def parse(cells: Cells) -> GoldRow:
        row = gold_row(cells, role=role or "audit", source=source, kind=kind)
        length.require_fit(row.pair.prompt.messages, row.pair.first.text, row.pair.second.text)
        return row

    rows = sheet.parse(parse, strict=True, key=lambda row: row.content)

    def plan(target: Target, when: datetime) -> Plan:
        return plan_gold(target, rows, when=when, key=target.pseudonym_key(), kind=kind)

    return sheet.store(db, plan, skip_bad=skip_bad, dry_run=dry_run)


def import_practice(
    db: Database | Target,
    file: Path,
    *,
    role: PromptRole | None = None,
    skip_bad: bool = False,
    length: LengthCheck = ANY_LENGTH,
    dry_run: bool = False,
    max_rows: int | None = None,
) -> ImportReport:
    """Import practice pairs, as `import_gold` does."""
    return import_gold(
        db, file, role=role, skip_bad=skip_bad, length=length, dry_run=dry_run, max_rows=max_rows,
        kind="practice",
    )  # fmt: skip


def import_preferences(
    db: Database | Target,
    file: Path,
    *,
    role: PromptRole | None = None,
    skip_bad: bool = False,
    length: LengthCheck = ANY_LENGTH,
    dry_run: bool = False,
    max_rows: int | None = None,
) -> ImportReport:
    """Import a TRL preference dataset, each row a vote of an unknown annotator.

    Rows are prompt / chosen / rejected (the prompt may be implicit) or prompt / completion / label,
    in plain text or chat messages; an optional `annotator` column names the annotators.  Raises
    `BadFile`.
    """
    sheet = Sheet(file, length, max_rows=max_rows)
    source, role = Path(file).name, role or "train"
    if sheet.has("label") and not sheet.has("chosen"):
        sheet.expect(
            [_PROMPT, ("completion",), ("label",)],
            known=(*_PROMPT, "input", "completion", "label", "annotator"),
        )

        def parse_one(cells: Cells) -> Labeled:
            row = labeled(cells, role=role, source=source)
            length.require_fit(row.prompt.messages, row.text)
            return row

        votes, alone = pair_up(sheet.parse(parse_one))
        sheet.bad = RowNotes.of(sheet.bad, alone)
    else:
        sheet.expect(
            [("chosen",), ("rejected",)],
            known=(*_PROMPT, "input", "chosen", "rejected", "outcome", "annotator"),
        )

        def parse(cells: Cells) -> Vote:
            vote = paired_vote(cells, role=role, source=source)
            length.require_fit(vote.prompt.messages, vote.a.text, vote.b.text)
            return vote

        votes = sheet.parse(parse)

    def plan(reader: Target, when: datetime) -> Plan:
        return plan_votes(reader, separate_voters(reader, votes), when=when)

    return sheet.store(db, plan, skip_bad=skip_bad, dry_run=dry_run)


def _judgment_vote(
    cells: Cells, *, role: PromptRole, source: str, annotator: str | None = None
) -> Vote:
    """The vote in a row; `annotator` is who gave it if the row does not say."""
    a = Answer(cells.response("response_a"), cells.name("model_a", "imported"))
    b = Answer(cells.response("response_b"), cells.name("model_b", "imported"))
    return Vote(
        line=cells.line,
        prompt=Prompt.make(
            cells.prompt(),
            role=cast(PromptRole, cells.choice("prompt_role", get_args(PromptRole), role)),
            category=cells.text("category", ""),
            source=source,
        ),
        a=a,
        b=b,
        annotator=cells.name("annotator", annotator),
        kind=_kind(cells),
        outcome=cast(ScreenOutcome, cells.choice("outcome", get_args(ScreenOutcome))),
        strength=_strength(cells),
        criteria=cells.mapping("criteria"),
        reasons=cells.lists("reasons"),
        safety=cells.mapping("safety"),
        marks=marks_of(cells, {"a": a.text, "b": b.text}),
        comment=cells.text("comment", ""),
        edit=cells.text("edit", ""),
        milliseconds=cells.integer("milliseconds", low=0, high=MAX_VIEW_MS),
        guidelines=cells.name("guidelines", "") or None,
        created_at=cells.time("created_at"),
        item=cells.name("item", "") or None,
        id=cells.name("id", "") or None,
        comparison=cells.name("comparison", "") or None,
        swapped=cells.boolean("shown_swapped"),
        replaces=cells.name("replaces", "") or None,
        withdrawn_at=cells.time("withdrawn_at"),
        excluded=cells.boolean("excluded") or False,
        exclusion_reason=cells.text("exclusion_reason", ""),
        live_turn=_live_turn(cells),
        probe=cells.name("arm", "") == PROBE,
        **_check(cells),
    )


def _check(cells: Cells) -> dict[str, Any]:
    """What makes the row a check: its kind, and the known answer or the repeated judgment."""
    kind = cells.name("arm", "") if cells.has("arm") else ""
    if kind not in CHECKS:
        return {}
    if kind != "reask":
        expected = cells.choice("expected", ("a", "b"))
        explanation = cells.response("explanation") if kind == "practice" else ""
        return {"check": kind, "expected": expected, "explanation": explanation}
    return {"check": kind, "repeats": cells.name("repeats")}


def _live_turn(cells: Cells) -> tuple[str, int] | None:
    """The conversation and the turn of a pair of the arm `live`; other arms are not kept."""
    if cells.name("arm", "") != LIVE:
        return None
    turn = cells.integer("turn", low=1, high=1_000)
    if turn is None:
        raise ValueError("a pair of the arm live needs a conversation and a turn")
    return cells.name("conversation"), turn


def _kind(cells: Cells) -> AnnotatorKind | None:
    if not cells.has("annotator_kind"):
        return None
    return cast(AnnotatorKind, cells.choice("annotator_kind", get_args(AnnotatorKind)))


def _strength(cells: Cells) -> int | None:
    word = cells.name("strength", "").lower()
    return _STRENGTH_WORDS.get(word) or cells.integer("strength")
