"""Judgments as datasets: a file, a directory that `datasets.load_dataset` reads, or the hub.

What each format makes of ties and both-bad stands in storage/exporting/formats.py; docs/data.md explains
it with examples.  A dataset card is written beside every export.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

from storage.analysis.agreement import agreement_by_id
from storage.engine.database import Database
from storage.errors import writing_to
from storage.exporting.dataset_card import MARK, CardFacts, render_card
from storage.exporting.formats import Format, Judged, Ties, judged_from, row_maker, schema
from storage.exporting.hub import push
from storage.importing.filetypes import WRITABLE, is_formula, open_writer
from storage.records import KEPT_APART, AnnotatorKind
from storage.tables import settings
from storage.tables.pseudonyms import key_of, pseudonym

_HUB = "hf://"
_BATCH = 5_000

# An imported model is known by its name only; ours have ids that are names.  An imported judgment's
# id follows from who gave it, so under pseudonyms ids are keyed, and rows of one time are in the
# order of the keyed ones (the second column).
_JUDGED = """
    SELECT j.created_at,
           CASE WHEN $key IS NULL THEN j.id ELSE 'j-' || left(sha256($key || j.id), 16) END AS id,
           CASE WHEN $key IS NULL OR j.replaces IS NULL THEN j.replaces
                ELSE 'j-' || left(sha256($key || j.replaces), 16) END AS replaces,
           j.comparison, p.messages::VARCHAR AS messages, p.role AS prompt_role,
           f.text AS first, s.text AS second,
           CASE WHEN fm.role = 'external' THEN fm.name ELSE f.policy END AS first_model,
           CASE WHEN sm.role = 'external' THEN sm.name ELSE s.policy END AS second_model,
           j.annotator, a.kind AS annotator_kind, j.outcome, j.shown_swapped, j.strength,
           j.criteria::VARCHAR AS criteria, j.comment, j.milliseconds,
           w.created_at AS withdrawn_at,
           CASE WHEN w.id IS NOT NULL THEN 'withdrawn'
                WHEN later.id IS NOT NULL THEN 'revised' ELSE 'current' END AS status,
           c.iteration, c.arm, c.item
    FROM judgments AS j
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    JOIN annotators AS a ON a.id = j.annotator
    LEFT JOIN models AS fm ON fm.id = f.policy
    LEFT JOIN models AS sm ON sm.id = s.policy
    LEFT JOIN judgments AS later ON later.replaces = j.id
    LEFT JOIN withdrawals AS w ON w.replaces = j.id
    WHERE $history OR (later.id IS NULL AND w.id IS NULL)
    ORDER BY 1, 2
"""
_ANNOTATORS = "SELECT id, name FROM annotators"


@dataclass(frozen=True)
class ExportReport:
    """What was written: `rows` of `judgments`, where, and its card.

    `outcomes` counts the judgments by what was said, `left_out` those that made no row.
    """

    out: str
    card: str
    rows: int
    judgments: int
    outcomes: dict[str, int]
    left_out: dict[str, int]
    notes: list[str] = field(default_factory=list)


def export(
    db: Database,
    *,
    format: Format,
    out: str | Path,
    ties: Ties = "drop",
    names: bool = False,
    private: bool = True,
    history: bool = False,
    csv_safe: bool = False,
) -> ExportReport:
    """Write the current judgments (with `history`, in raw, the revised and withdrawn too).

    `out` is FILE.jsonl, .parquet or .csv, a directory, or hf://[datasets/]OWNER/NAME.  Annotators
    get pseudonyms unless `names`; a pushed dataset is private unless `private` is False.
    Raises ``ValueError`` when there is nothing to write or the place cannot take it.
    """
    for name, value, choices in (("format", format, Format), ("ties", ties, Ties)):
        if value not in get_args(choices):
            allowed = ", ".join(get_args(choices))
            raise ValueError(f"--{name} is {value!r} and must be one of {allowed}")
    if history and format != "raw":
        raise ValueError("--history needs --format raw; the other formats have no status column")
    place = Destination.of(out)
    if csv_safe and not place.target.lower().endswith(".csv"):
        raise ValueError(f"--csv-safe is for FILE.csv; {out} is none")
    if place.kind != "hub" and _inside(Path(place.target), db.workspace):
        raise ValueError(f"{out} is in the workspace; export to a place outside {db.workspace}")
    key = None if names else key_of(db)  # first: it may have to be made

    def write(target: Path) -> ExportReport:
        # One moment for all: people go on judging, and the card must be of the rows beside it.
        with db.snapshot():
            source = _Source(db, key=key, history=history, everything=format == "raw")
            if place.kind == "file":
                return _write_file(source, target, format=format, ties=ties, csv_safe=csv_safe)
            return _write_folder(source, target, place.target, format=format, ties=ties)

    if place.kind != "hub":
        return write(Path(place.target))
    with tempfile.TemporaryDirectory(prefix="kitestring-export-") as folder:
        report = write(Path(folder))
        push(Path(folder), place.target, private=private)
    return report


def why_empty(db: Database, *, format: Format, ties: Ties) -> str | None:
    """Why an export would have no rows, as `export` says it; None where it has some."""
    source = _Source(db, key=None, history=False, everything=format == "raw")
    rows_of, tally = row_maker(format, ties), _Tally()
    for judged in source.judgments():
        left_out = source.leaves_out(judged)
        if not left_out and rows_of(judged):
            return None
        tally.add(judged, 0, left_out=left_out)
    return tally.nothing()


def _inside(path: Path, folder: Path) -> bool:
    """An export there could take the place of the workspace's own files."""
    return path.resolve().is_relative_to(folder.resolve())


@dataclass(frozen=True)
class Destination:
    """Where an export goes; `target` is a path or, on the hub, OWNER/NAME."""

    kind: Literal["file", "folder", "hub"]
    target: str

    @classmethod
    def of(cls, out: str | Path) -> Destination:
        text = str(out)
        if text.startswith(_HUB):
            name = text.removeprefix(_HUB).removeprefix("datasets/").strip("/")
            if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
                raise ValueError(f"{text} must be {_HUB}datasets/OWNER/NAME")
            return cls("hub", name)
        if "://" in text:
            raise ValueError(f"{text} is no place for an export; only {_HUB}… is known")
        path = Path(text)
        if path.is_dir() or text.endswith("/") or not path.suffix:
            return cls("folder", str(path))
        if path.suffix.lower() not in WRITABLE:
            raise ValueError(
                f"{path.name} must end in {', '.join(WRITABLE)}, or be a directory or {_HUB}…"
            )
        return cls("file", str(path))


class _Source:
    """The judgments to export and the facts about them, under the names to publish.

    Without a `key` for pseudonyms those are the real ones.  Raw rows say who is a model and which
    prompts are held out; the others cannot, so without `everything` they hold what is learned from.
    """

    def __init__(self, db: Database, *, key: bytes | None, history: bool, everything: bool) -> None:
        self._kinds = get_args(AnnotatorKind) if everything else settings.learn_from(db)
        self._apart = () if everything else KEPT_APART
        self._db = db
        self.pseudonymised = key is not None
        self._history = history
        self._key = None if key is None else key.hex()
        self._public = {
            row["id"]: row["name"] if key is None else pseudonym(key, row["id"])
            for row in db.read(_ANNOTATORS)
        }

    @cached_property
    def agreement(self) -> dict[str, Any]:
        return agreement_by_id(self._db)

    @property
    def kappas(self) -> list[Any]:
        return [
            k._replace(one=self._public[k.one], other=self._public[k.other])
            for k in self.agreement["kappas"]
        ]

    def judgments(self) -> Iterator[Judged]:
        """Judgments in order of time, in batches: an export need not fit into memory."""
        found = self._db.cursor().execute(_JUDGED, {"history": self._history, "key": self._key})
        columns = [column[0] for column in found.description or ()]
        while batch := found.fetchmany(_BATCH):
            for values in batch:
                row: dict[str, Any] = dict(zip(columns, values, strict=True))
                yield judged_from(row, annotator=self._public[row["annotator"]])

    def leaves_out(self, judged: Judged) -> str | None:
        """Why this judgment is to make no row, as `left_out` names it."""
        if judged.prompt_role in self._apart:
            return f"on {judged.prompt_role} prompts"
        return None if judged.annotator_kind in self._kinds else f"by {judged.annotator_kind}"


def _write_file(
    source: _Source, path: Path, *, format: Format, ties: Ties, csv_safe: bool
) -> ExportReport:
    card = path.with_name(f"{path.name}.card.md")
    shown = str(path)
    return _write(
        source, path, card, shown=shown, format=format, ties=ties, files=None, csv_safe=csv_safe
    )


def _write_folder(
    source: _Source, folder: Path, shown: str, *, format: Format, ties: Ties
) -> ExportReport:
    """data/train.parquet and README.md: what `load_dataset` reads and the hub shows."""
    card = folder / "README.md"
    if card.exists() and MARK not in card.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"{folder} has a README.md that is not an export's; choose another place")
    path = folder / "data" / "train.parquet"
    files = "data/train.parquet"
    return _write(source, path, card, shown=shown, format=format, ties=ties, files=files)


def _write(
    source: _Source,
    path: Path,
    card: Path,
    *,
    shown: str,
    format: Format,
    ties: Ties,
    files: str | None,
    csv_safe: bool = False,
) -> ExportReport:
    """Rows to a file that gets its name when it is complete, then the card."""
    tally = _Tally()
    partial = path.with_name(f".partial-{path.name}")
    with writing_to(Path(shown), "name another place with --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
    try:
        with open_writer(partial, schema(format, ties), csv_safe=csv_safe) as write:
            _write_rows(source, write, row_maker(format, ties), tally)
        if not tally.rows:
            raise ValueError(tally.nothing())
        partial.replace(path)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
    facts = CardFacts(
        format=format,
        ties=ties,
        columns=schema(format, ties).names,
        rows=tally.rows,
        outcomes=dict(tally.outcomes),
        left_out=dict(tally.left_out),
        annotators=dict(tally.annotators),
        comparisons=len(tally.comparisons),
        prompts=len(tally.prompts),
        models=sorted(tally.models),
        agreement=source.agreement,
        kappas=source.kappas,
        pseudonymised=source.pseudonymised,
        data_files=files,
    )
    card.write_text(render_card(facts), encoding="utf-8")
    return ExportReport(
        out=shown,
        card=str(card) if files is None else f"{shown}/README.md",
        rows=tally.rows,
        judgments=tally.outcomes.total(),
        outcomes=dict(tally.outcomes),
        left_out=dict(tally.left_out),
        notes=tally.notes(format, ties) + _formulas(path, csv_safe, tally.formulas),
    )


def _write_rows(
    source: _Source,
    write: Callable[[list[dict[str, Any]]], None],
    rows_of: Callable[[Judged], list[dict[str, Any]]],
    tally: _Tally,
) -> None:
    batch: list[dict[str, Any]] = []
    for judged in source.judgments():
        left_out = source.leaves_out(judged)
        rows = [] if left_out else rows_of(judged)
        tally.add(judged, len(rows), left_out=left_out)
        tally.formulas += sum(map(is_formula, chain.from_iterable(row.values() for row in rows)))
        batch += rows
        if len(batch) >= _BATCH:
            write(batch)
            batch = []
    if batch:
        write(batch)


class _Tally:
    """Counts for the card and the report."""

    def __init__(self) -> None:
        self.rows = 0
        self.outcomes: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.annotators: Counter[str] = Counter()
        self.comparisons: set[str] = set()
        self.prompts: set[tuple[Any, ...]] = set()
        self.models: set[str] = set()
        self.formulas = 0

    def add(self, judged: Judged, rows: int, *, left_out: str | None) -> None:
        said = "preference" if judged.decided else judged.outcome
        self.outcomes[said] += 1
        if not rows:
            self.left_out[left_out or said] += 1
            return
        self.rows += rows
        self.annotators[judged.annotator] += 1
        self.comparisons.add(judged.comparison)
        self.prompts.add(judged.messages)
        self.models |= {judged.first_model, judged.second_model}

    def nothing(self) -> str:
        if not self.outcomes:
            return "there are no judgments to export yet"
        if others := self._others():
            return f"nothing is left to export: {'; '.join(others)}"
        return (
            f"nothing is left to export: all {self.outcomes.total()} judgments are ties or both "
            "bad, which this export drops; split or keep ties"
        )

    def _others(self) -> list[str]:
        """What was left out for another reason than its outcome, in a sentence a reason."""
        reasons = {
            "by ": "a kind that reward.learn_from does not name",
            "on ": "which are not trained on",
        }
        counted = sorted(self.left_out.items())
        found = {
            why: [f"{n} {name}" for name, n in counted if name.startswith(start)]
            for start, why in reasons.items()
        }
        return [
            f"{', '.join(counts)} left out, {why}; the raw format has all"
            for why, counts in found.items()
            if counts
        ]

    def notes(self, format: Format, ties: Ties) -> list[str]:
        notes = self._others()
        longer = sum(len(messages) > 1 for messages in self.prompts)
        if longer and format in ("trl", "trl-unpaired"):
            notes.append(
                f"{longer} prompts of several turns were written as transcripts; "
                "trl-conversational keeps them as chats"
            )
        if format == "raw" and ties != "keep":
            notes.append("raw holds every judgment, ties and both-bad too, whatever --ties says")
        return notes


def _formulas(path: Path, csv_safe: bool, found: int) -> list[str]:
    """What whoever opens a CSV in a spreadsheet has to know."""
    if csv_safe or not found or path.suffix.lower() != ".csv":
        return []
    return [
        f"{found} cells begin like a formula (= + - @), which a spreadsheet runs when it opens the "
        "file; --csv-safe puts an apostrophe before them"
    ]
