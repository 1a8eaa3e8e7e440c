"""Judgments as datasets: a file, a directory that `datasets.load_dataset` reads, or the hub.

`export` is the entry point; the command line and the download on the Data page both call it.  It
takes current judgments (`history`: revised and withdrawn ones too).  formats.py defines how each
format represents ties and both-bad; docs/data.md has examples.  writing.py writes the files,
dataset_card.py the dataset card of every export.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from storage.analysis.agreement import agreement
from storage.engine.database import Database
from storage.errors import writing_to
from storage.exporting.card_evidence import all_rulings
from storage.exporting.dataset_card import MARK, Contents, render_card
from storage.exporting.formats import (
    EDIT_FORMATS,
    DatasetRow,
    Format,
    Ties,
    judged_from,
    row_maker,
    schema,
)
from storage.exporting.hub import push
from storage.exporting.hub_calls import check_repository
from storage.exporting.writing import WRITABLE, open_writer
from storage.labeling import flag_answers
from storage.records import CHECKS, KEPT_APART, AnnotatorKind
from storage.tables import audit, settings
from storage.tables.people.pseudonyms import key_of, pseudonym

_HUB = "hf://"
_BATCH = 5_000
_TRIED = 200
"""Judgments that are read first to find out whether an export has rows."""

# External models are exported under their names, our own under their ids.  The id of an imported
# judgment is a digest of its annotator's name, so with pseudonyms ids are hashed with the key.
# Rows of the same time are ordered by the hashed id (the second column).
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
           j.criteria::VARCHAR AS criteria, j.reasons::VARCHAR AS reasons,
           j.safety::VARCHAR AS safety, j.marks::VARCHAR AS marks, j.comment, coalesce(j.edit, '') AS edit, j.milliseconds, j.guidelines,
           w.created_at AS withdrawn_at,
           CASE WHEN w.id IS NOT NULL THEN 'withdrawn'
                WHEN later.id IS NOT NULL THEN 'revised' ELSE 'current' END AS status,
           x.excluded IS TRUE AS excluded, CASE WHEN x.excluded THEN x.reason END AS exclusion_reason,
           r.outcome AS ruling, r.reason AS ruling_reason, c.iteration, c.arm, c.item, c.conversation, c.turn, k.answer AS expected,
           k.explanation,
           CASE WHEN $key IS NULL OR k.judgment IS NULL THEN k.judgment
                ELSE 'j-' || left(sha256($key || k.judgment), 16) END AS repeats
    FROM judgments AS j
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    JOIN annotators AS a ON a.id = j.annotator
    LEFT JOIN models AS fm ON fm.id = f.policy
    LEFT JOIN models AS sm ON sm.id = s.policy
    LEFT JOIN checks AS k ON k.comparison = j.comparison
    LEFT JOIN judgments AS later ON later.replaces = j.id
    LEFT JOIN withdrawals AS w ON w.replaces = j.id
    LEFT JOIN exclusions AS x ON x.judgment = j.id
    LEFT JOIN rulings AS r ON r.comparison = j.comparison
    WHERE $history OR (later.id IS NULL AND w.id IS NULL)
    ORDER BY 1, 2
"""
_ANNOTATORS = "SELECT id, name FROM annotators"


@dataclass(frozen=True)
class ExportReport:
    """The result of an export: `rows` from `judgments`, written to `out` with a dataset `card`.

    `outcomes` counts the judgments by outcome, `left_out` those without a row by reason.
    """

    out: str
    card: str
    rows: int
    judgments: int
    outcomes: dict[str, int]
    left_out: dict[str, int]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Destination:
    """Where an export goes; `target` is a path or, on the hub, OWNER/NAME.

    The card of a file is beside it.  A directory or hub repository holds data/train.parquet, which
    `load_dataset` reads, and README.md, which the hub shows.
    """

    kind: Literal["file", "folder", "hub"]
    target: str

    @classmethod
    def of(cls, out: str | Path) -> Destination:
        """Parse `--out`; ValueError if an export cannot be written there."""
        text = str(out)
        if text.startswith(_HUB):
            name = text.removeprefix(_HUB).removeprefix("datasets/").strip("/")
            if name.count("/") != 1:
                raise ValueError(f"{text} must be {_HUB}datasets/OWNER/NAME")
            check_repository(name)
            return cls("hub", name)
        if "://" in text:
            raise ValueError(f"{text} is not supported; the only remote destination is {_HUB}…")
        path = Path(text)
        if path.is_dir() or text.endswith("/") or not path.suffix:
            return cls("folder", str(path))
        if path.suffix.lower() not in WRITABLE:
            raise ValueError(
                f"{path.name} must end in {', '.join(WRITABLE)}, or be a directory or {_HUB}…"
            )
        return cls("file", str(path))

    @property
    def data_files(self) -> str | None:
        """The path of the rows relative to README.md; None for a file."""
        return None if self.kind == "file" else "data/train.parquet"

    def rows(self, root: Path) -> Path:
        """The file of rows; `root` is the target, or the folder that is pushed to the hub."""
        return root / self.data_files if self.data_files else root

    def card(self, root: Path) -> Path:
        return root / "README.md" if self.data_files else root.with_name(f"{root.name}.card.md")

    def require_free(self, workspace: Path) -> None:
        """Raise ValueError if an export would overwrite a file that is not an export."""
        path = Path(self.target)
        if self.kind == "hub":
            return
        if path.resolve().is_relative_to(workspace.resolve()):
            raise ValueError(f"{path} is in the workspace; export to a place outside {workspace}")
        if self.kind == "file" or not (card := self.card(path)).exists():
            return
        if MARK not in card.read_text(encoding="utf-8", errors="replace"):
            raise ValueError(f"{path} has a README.md that no export wrote; choose another path")


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
    """Write the current judgments (with `history`, raw only, also revised and withdrawn ones).

    `out` is FILE.jsonl, .parquet or .csv, a directory, or hf://[datasets/]OWNER/NAME.  Annotators
    get pseudonyms unless `names`; a pushed dataset is private unless `private` is False.
    Raises ``ValueError`` if there is nothing to write or the destination is not usable.
    """
    for name, value, choices in (("format", format, Format), ("ties", ties, Ties)):
        if value not in get_args(choices):
            allowed = ", ".join(get_args(choices))
            raise ValueError(f"--{name} is {value!r} and must be one of {allowed}")
    if history and format != "raw":
        raise ValueError("--history needs --format raw; the other formats have no status column")
    place = Destination.of(out)
    is_csv = place.target.lower().endswith(".csv")
    if csv_safe and not is_csv:
        raise ValueError(f"--csv-safe is for FILE.csv, and {out} is not one")
    place.require_free(db.workspace)
    key = None if names else key_of(db)  # before the snapshot: it may have to be stored
    with _folder_for(place) as root:
        # One snapshot: labeling continues meanwhile, and the card must describe these rows.
        with db.snapshot():
            dataset = _Dataset(db, format=format, ties=ties, key=key, history=history)
            _write_rows(dataset, place, root, csv_safe=csv_safe)
            card = dataset.card(place.data_files)
        place.card(root).write_text(card, encoding="utf-8")
        if place.kind == "hub":
            push(root, place.target, private=private)
    contents = dataset.contents
    where = place.target if place.kind == "hub" else Path(place.target).name
    audit.note(db, "export", format, out=where, rows=contents.rows, names=names)
    return ExportReport(
        out=place.target,
        card=str(place.card(Path(place.target))),
        rows=contents.rows,
        judgments=contents.outcomes.total(),
        outcomes=dict(contents.outcomes),
        left_out=dict(contents.left_out),
        notes=dataset.notes(formulas=is_csv and not csv_safe),
    )


@contextmanager
def _folder_for(place: Destination) -> Iterator[Path]:
    """Where to write: the target itself, or a temporary folder for the hub."""
    if place.kind != "hub":
        yield Path(place.target)
        return
    with tempfile.TemporaryDirectory(prefix="kitestring-export-") as folder:
        yield Path(folder)


def why_empty(db: Database, *, format: Format, ties: Ties) -> str | None:
    """Why an export would have no rows, as `export` reports it; None if it has rows."""
    # The oldest judgments have rows nearly always; sorting all of them takes time and memory.
    if any(_Dataset(db, format=format, ties=ties).batches(most=_TRIED)):
        return None
    dataset = _Dataset(db, format=format, ties=ties)
    return None if any(dataset.batches()) else dataset.why_empty()


class _Dataset:
    """The rows of an export, and counts of their contents.

    Without a `key` for pseudonyms, annotators appear under their names.  Only the raw format marks
    model judges and held-out prompts, so the others contain only judgments that reward models learn
    from.
    """

    def __init__(
        self,
        db: Database,
        *,
        format: Format,
        ties: Ties,
        key: bytes | None = None,
        history: bool = False,
    ) -> None:
        raw = format == "raw"
        self.contents = Contents()
        self._db = db
        self._format: Format = format
        self._ties: Ties = ties
        self._key = key
        self._history = history
        self._kinds = get_args(AnnotatorKind) if raw else settings.learn_from(db)
        self._excluded_roles = () if raw else KEPT_APART
        self.schema, self._rows_of = schema(format, ties), row_maker(format, ties)
        self._public = {
            row["id"]: row["name"] if key is None else pseudonym(key, row["id"])
            for row in db.read(_ANNOTATORS)
        }
        self._flags = self._flags_by_comparison() if raw else {}

    def batches(self, *, most: int | None = None) -> Iterator[list[DatasetRow]]:
        """Rows in order of time, in batches: an export need not fit into memory.

        With `most`, those of this many judgments.
        """
        key = self._key.hex() if self._key else None
        sql = _JUDGED if most is None else f"{_JUDGED} LIMIT {most}"
        found = self._db.cursor().execute(sql, {"history": self._history, "key": key})
        columns = [column[0] for column in found.description or ()]
        while batch := found.fetchmany(_BATCH):
            judged = (dict(zip(columns, values, strict=True)) for values in batch)
            yield [row for each in judged for row in self._rows(each)]

    def _flags_by_comparison(self) -> dict[str, list[dict[str, Any]]]:
        """Flags of each pair with the researchers' answers, who are not named."""
        found: dict[str, list[dict[str, Any]]] = {}
        for flag in flag_answers.flags(self._db, all=True):
            answers = [{"text": a.text, "created_at": a.created_at} for a in flag.answers]
            found.setdefault(flag.comparison, []).append(
                {
                    "annotator": self._public.get(flag.annotator_id),
                    "comment": flag.comment,
                    "state": flag.state,
                    "created_at": flag.created_at,
                    "answers": answers,
                }
            )
        return found

    def _rows(self, row: dict[str, Any]) -> list[DatasetRow]:
        flags = self._flags.get(row["comparison"], [])
        judged = judged_from(row, annotator=self._public[row["annotator"]], flags=flags)
        left_out = None
        if judged.excluded and self._format != "raw":
            left_out = "excluded"
        elif judged.arm in CHECKS and self._format != "raw":
            left_out = f"of {judged.arm} pairs"
        elif judged.prompt_role in self._excluded_roles:
            left_out = f"on {judged.prompt_role} prompts"
        elif judged.annotator_kind not in self._kinds:
            left_out = f"by {judged.annotator_kind}"
        rows = [] if left_out else self._rows_of(judged)
        self.contents.add(judged, rows, left_out=left_out)
        return rows

    def card(self, data_files: str | None) -> str:
        return render_card(
            self.contents,
            format=self._format,
            ties=self._ties,
            agreement=agreement(self._db, names=self._public),
            rulings=all_rulings(self._db),
            pseudonymized=self._key is not None,
            data_files=data_files,
        )

    def why_empty(self) -> str:
        if not self.contents.outcomes:
            return "there are no judgments to export yet"
        others = self._left_out()
        # Left out for their outcome, or because they have no edit.
        rest = sum(self.contents.left_out[name] for name in ("preference", "tie", "both_bad"))
        if rest and self._format in EDIT_FORMATS:
            edited = f"the other {rest} judgments have no edit"
            others.insert(0, edited if others else "nobody has edited a response")
        elif rest:
            others.insert(
                0,
                f"{'the other' if others else 'all'} {rest} judgments are ties or both bad, "
                "which this export drops; split or keep ties",
            )
        return f"nothing is left to export: {'; '.join(others)}"

    def _left_out(self) -> list[str]:
        """The judgments left out for a reason other than their outcome, one sentence per reason."""
        reasons = {
            "by ": "a kind that reward.learn_from does not name",
            "on ": "which are not trained on",
            "of ": "which measure annotators",
            "excluded": "by a researcher",
        }
        counted = sorted(self.contents.left_out.items())
        found = {
            why: [f"{n} {name}" for name, n in counted if name.startswith(start)]
            for start, why in reasons.items()
        }
        return [
            f"{', '.join(counts)} left out, {why}; the raw format contains all"
            for why, counts in found.items()
            if counts
        ]

    def notes(self, *, formulas: bool) -> list[str]:
        """Remarks for the report; `formulas`: count the cells that a spreadsheet would run."""
        notes = self._left_out()
        longer = sum(len(messages) > 1 for messages in self.contents.prompts)
        if longer and self._format in ("trl", "trl-unpaired"):
            notes.append(
                f"{longer} prompts of several turns were written as transcripts; "
                "trl-conversational keeps them as chats"
            )
        if self._format == "raw" and self._ties != "keep":
            notes.append("raw includes all judgments, ties and both-bad too, and ignores --ties")
        if formulas and self.contents.formulas:
            notes.append(
                f"{self.contents.formulas} cells begin like a formula (= + - @), which a spreadsheet "
                "runs when it opens the file; --csv-safe puts an apostrophe before them"
            )
        return notes


def _write_rows(dataset: _Dataset, place: Destination, root: Path, *, csv_safe: bool) -> None:
    """Write the rows to a temporary file and rename it when it is complete."""
    path = place.rows(root)
    partial = path.with_name(f".partial-{path.name}")
    with writing_to(Path(place.target), "name another place with --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
    try:
        with open_writer(partial, dataset.schema, csv_safe=csv_safe) as write:
            for batch in dataset.batches():
                write(batch)
        if not dataset.contents.rows:
            raise ValueError(dataset.why_empty())
        partial.replace(path)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
