"""Backup beside writing, restore, rebuild from the journal, and the proof that they agree."""

from __future__ import annotations

import random
import resource
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from storage.audit_records import Actor, acting
from storage.engine.backup import backup, rebuild, restore, verify
from storage.engine.codec import KINDS
from storage.engine.database import Database
from storage.engine.transaction import Tables
from storage.errors import NotFound, StorageDamaged, WorkspaceLocked
from storage.gate_records import Prediction
from storage.labeling import exclusions, flag_answers, judgments, queue
from storage.notification_records import Webhook
from storage.records import (
    Adjudication,
    AdjudicationRequest,
    Check,
    FollowUp,
    Mark,
    Metric,
    ModelVersion,
    PromptEdit,
    Run,
    RunLabel,
    RunNote,
    Snapshot,
    Study,
    StudyRun,
    Withdrawal,
)
from storage.tables import models, policy_judgments, settings
from storage.tables.people import annotators, identities, tokens
from storage.tables.runs import runs, studies, webhooks
from tests.helpers.storage_world import child, fill, outcome_of

# What other modules of the project open files for is none of this test's business.
_opened: list[str] = []
_watching = threading.Event()

MARK = Mark(reason="good", quote="🪁 text", prefix="a\n", start=2, end=8)


def _note_opens(event: str, arguments: tuple) -> None:
    if event == "open" and _watching.is_set():
        _opened.append(str(arguments[0]))


sys.addaudithook(_note_opens)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "workspace") as opened:
        yield opened


def live_through_everything(db: Database) -> None:
    """At least one record of every kind, some of them replaced."""
    fill(db, 6, wanted=2)
    for who in ("ann", "bob"):
        for n, pair in enumerate(queue.lease(db, who, 4).pairs):
            c = pair.comparison.id
            if n == 2:
                judgments.skip(db, id=f"s-{who}", comparison=c, annotator=who)
                continue
            judgments.judge(
                db,
                id=f"{who}-{n}",
                comparison=c,
                annotator=who,
                outcome="a",
                strength=2,
                criteria={"clear": "tie"},
                comment="ünï\0code 🪁",
            )
    judgments.judge(
        db, id="again", comparison="c1-0", annotator="ann", outcome="b", marks={"a": [MARK]}
    )
    judgments.undo(db, id="w", annotator="bob")
    judgments.flag(db, id="f", comparison="c1-3", annotator="ann", comment="?")
    flag_answers.answer_flag(db, id="fa", flag="f", researcher="bob", text="See the guidelines.")
    annotators.set_disabled(db, "cat", disabled=True)
    tokens.revoke(db, tokens.issue(db, "ann", "session", lifetime=None))
    models.add(db, ModelVersion(id="m", role="policy", name="M", summary={"loss": float("nan")}))
    run = Run(id="r", stage="policy", iteration=1, status="running", directory="runs/r")
    runs.save(db, run)
    runs.ingest(db, run, [Metric(run="r", seq=1, step=1, name="kl", value=0.1)], [])
    settings.put(db, "guidelines", "# Be kind")
    seen = {"comparison": "c1-0", "first": 0.7, "first_score": 1.0, "second_score": 0.2}
    db.write(lambda tx: tx.store(Prediction(reward_model="rm", **seen)))
    exclusions.exclude(db, "bob-0", reason="guessed")
    request = AdjudicationRequest(id="ar", comparison="c1-0")
    ruling = Adjudication(
        id="ad", comparison="c1-0", adjudicator="", outcome="tie", shown_swapped=True, reason="🪁"
    )
    edit = PromptEdit(prompt="p", retired=True, category="x")
    named = RunLabel(run="r", name="low β 🪁", note="two\nlines")
    db.write(lambda tx: tx.store(request, ruling, edit, named))
    study = Study(
        id="sweep-β", kind="sweep", name="β", status="running", repeats="r", iteration=1,
        plan={"kl_weight": [0.0, 0.05], "kl_budget": 5.0}, settings={"ppo.lr": "1e-5"},
    )  # fmt: skip
    part = StudyRun(
        id="sweep-β/kl_weight=0", study="sweep-β", title="β = 0", method="PPO", status="running",
        directory="sweeps/β/kl_weight=0", config={"ppo": {"kl_weight": 0.0}},
    )  # fmt: skip
    studies.save(db, study, part)
    studies.ingest(db, replace(part, ingested_seq=1, progress=0.5), [], [])
    db.write(lambda tx: tx.store(Check(comparison="c1-5", kind="gold", answer="first")))
    answer = FollowUp(
        id="u", iteration=1, prompt="p", policy="m", text="🪁", learned=("again",), tokens=1,
        finish_reason="stop", temperature=1.0, top_p=1.0, seed=0,
    )  # fmt: skip
    db.write(lambda tx: tx.store(answer))
    policy_judgments.override(db, "m", "promote", reason="read twenty samples", researcher="ann")
    db.write(lambda tx: tx.store(Snapshot(hash="s", iteration=1, judgments=("again", "bob-0"))))
    identities.create(db, "dee", "viewer", issuer="https://id.example", subject="7 🪁")
    hook = Webhook(id="wh", url="https://hooks.example/x", events=("stage.failed",))
    with acting(Actor("ann", "browser")):
        webhooks.ping(db, webhooks.add(db, hook).id)


def everything(path: Path) -> dict[str, dict]:
    """Every journaled table of a closed database file, without what a rebuild need not have."""
    with duckdb.connect(str(path), read_only=True) as connection:
        tables = Tables(connection)
        found = {name: tables.stored(kind) for name, kind in KINDS.items()}
    for name, kind in KINDS.items():
        for entry in found[name].values():
            for field in kind.volatile:
                del entry[field]
    return found


def test_the_history_here_has_every_kind_of_record(db):
    live_through_everything(db)
    assert all(db.read(f"SELECT 1 FROM {kind.table} LIMIT 1") for kind in KINDS.values())


def test_rebuilding_from_the_journal_alone_gives_the_same_tables(db):
    live_through_everything(db)
    current = {row["id"] for row in db.read("SELECT id FROM current_judgments")}
    db.close()
    before = everything(db.workspace / "workspace.duckdb")
    report = rebuild(db.workspace)
    assert repr(everything(db.workspace / "workspace.duckdb")) == repr(before)
    assert report.records["judgment"] == len(before["judgment"]) == 7
    old = Path(report.set_aside) / "workspace.duckdb"
    assert repr(everything(old)) == repr(before)
    with Database.open(db.workspace) as again:
        assert {row["id"] for row in again.read("SELECT id FROM current_judgments")} == current
        assert verify(again).same
        size = again.journal.size
        settings.put(again, "after", True)
        assert again.journal.size > size


def test_rebuild_needs_a_journal_and_an_idle_workspace(db, tmp_path):
    with pytest.raises(WorkspaceLocked):
        rebuild(db.workspace)
    with pytest.raises(NotFound, match="nothing to rebuild from"):
        rebuild(tmp_path)


def test_verify_names_what_differs(db):
    live_through_everything(db)
    assert verify(db).same
    db.write(lambda tx: tx.execute("UPDATE judgments SET comment = 'x' WHERE id = 'ann-0'"))
    db.write(lambda tx: tx.execute("DELETE FROM skips WHERE id = 's-ann'"))
    db.write(lambda tx: tx.execute("INSERT INTO settings VALUES ('smuggled', '1')"))
    db.write(lambda tx: tx.execute("UPDATE runs SET progress = 0.5"))  # not journaled: no matter
    report = verify(db)
    assert report.same is False
    assert report.differences == [
        "judgment 'ann-0': differs in comment",
        "skip 's-ann': only in the journal",
        "setting 'smuggled': only in the database",
    ]


def test_verify_names_a_damaged_block_of_whichever_table(tmp_path):
    """Also of tables without a journal: a block is read, and its checksum compared, when asked for."""
    with Database.open(tmp_path) as db:
        fill(db, 3)
        points = [
            {"run": "r", "seq": n, "step": n, "name": "kl", "value": n * 7919 % 10007 / 7}
            for n in range(100_000)
        ]
        db.write(lambda tx: tx.insert("metrics", points))
    file = tmp_path / "workspace.duckdb"
    whole = file.read_bytes()
    named = set()
    for at in range(12288 + 5000, len(whole), 262_144):  # a byte in each block, after the headers
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            db = Database.open(tmp_path)
        except StorageDamaged:
            continue
        with db:
            found = verify(db)
            assert found.same or "launch.py rebuild" in found.differences[0]
            for table in ("metrics", "items", "judgments", "leases", "prompts"):
                try:
                    db.read(f"SELECT * FROM {table}")
                except duckdb.Error:
                    assert not found.same, table
                    assert any(table in difference for difference in found.differences)
                    named.add(table)
    assert {"metrics", "items"} <= named


def test_a_backup_taken_while_labels_come_in_opens_and_is_consistent(db, tmp_path):
    fill(db, 60)
    stop = threading.Event()
    acknowledged: list[str] = []

    def label() -> None:
        while not stop.is_set():
            for pair in queue.lease(db, "ann", 2).pairs:
                id = str(uuid.uuid4())
                judgments.judge(
                    db, id=id, comparison=pair.comparison.id, annotator="ann", outcome="a"
                )
                acknowledged.append(id)

    writer = threading.Thread(target=label)
    writer.start()
    while len(acknowledged) < 5:
        pass
    before = list(acknowledged)
    made = backup(db, tmp_path / "copy")
    while len(acknowledged) < len(before) + 5 and writer.is_alive():
        pass
    stop.set()
    writer.join(30)
    assert len(acknowledged) >= len(before) + 5  # writing went on
    restore(made, tmp_path / "restored")
    with Database.open(tmp_path / "restored") as copy:
        found = {row["id"] for row in copy.read("SELECT id FROM judgments")}
        assert verify(copy).same
    assert set(before) <= found
    assert (made / "journal.jsonl").stat().st_mode & 0o777 == 0o600


ELSEWHERE = """
import sys, duckdb
try:
    duckdb.connect(sys.argv[1], read_only=True)
    print("opened")
except duckdb.IOException:
    print("locked")
"""


def test_neither_backup_nor_verify_opens_the_database_file_or_drops_its_lock(db, tmp_path):
    """Closing any handle to it in this process would let another process in."""
    live_through_everything(db)
    _opened.clear()
    _watching.set()
    try:
        backup(db, tmp_path / "copy")
        verify(db)
    finally:
        _watching.clear()
    assert any(name.endswith("journal.jsonl") for name in _opened)  # the watch works
    file = str(db.workspace / "workspace.duckdb")
    assert file not in _opened
    assert outcome_of(child(ELSEWHERE, file)) == (0, "locked\n")


def test_a_backup_never_overwrites_and_leaves_nothing_half_made(db, tmp_path, monkeypatch):
    fill(db)
    made = backup(db, tmp_path / "copy")
    with pytest.raises(ValueError, match="already exists"):
        backup(db, made)
    monkeypatch.setattr("storage.engine.backup.copy_file", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        backup(db, tmp_path / "broken")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "workspace"]
    assert backup_again(db, tmp_path, monkeypatch).exists()


def test_a_backup_that_does_not_fit_on_the_disk_says_so_and_is_gone(db, tmp_path):
    fill(db)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(ValueError, match=r"no backup was made at .*copy: .*size limit"):
            backup(db, tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("copy")]
    assert verify(db).same
    assert backup(db, tmp_path / "copy").exists()


def test_a_backup_of_a_damaged_journal_says_so_and_keeps_the_database(db, tmp_path):
    fill(db)
    journal = db.workspace / "journal.jsonl"
    content = bytearray(journal.read_bytes())
    content[content.index(b"\n") + 20] ^= 1  # one bit of the second line
    journal.write_bytes(content)
    with pytest.raises(StorageDamaged, match=r"copy is a complete backup.* damaged at line 2"):
        backup(db, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "restored")
    with Database.open(tmp_path / "restored") as copy:
        assert verify(copy).same
        assert verify(copy).records == verify(db).records


def backup_again(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.undo()
    return backup(db, tmp_path / "second")


def test_restoring_moves_what_was_there_aside(db, tmp_path):
    settings.put(db, "when", "before")
    made = backup(db, tmp_path / "copy")
    settings.put(db, "when", "after")
    with pytest.raises(WorkspaceLocked):
        restore(made, db.workspace)
    db.close()
    aside = restore(made, db.workspace)
    with Database.open(db.workspace) as restored:
        assert settings.get(restored, "when") == "before"
    assert aside is not None
    assert b'"after"' in (aside / "journal.jsonl").read_bytes()
    with pytest.raises(NotFound, match="not a backup"):
        restore(tmp_path, db.workspace)


@pytest.mark.parametrize("seed", range(2))
def test_random_histories_agree_with_a_plain_reference(tmp_path, seed):
    """A model of eight lines decides what stands; tables, desk, restart and rebuild must agree."""
    rng = random.Random(seed)
    standing: dict[tuple[str, str], str] = {}  # (comparison, annotator) -> judgment
    closed: set[str] = set()
    mine: dict[str, list[tuple[str, str]]] = {"ann": [], "bob": [], "cat": []}
    db = Database.open(tmp_path)
    everything = fill(db, 12, wanted=2)
    leased: dict[str, set[str]] = {who: set() for who in mine}
    for step in range(90):
        who = rng.choice(list(mine))
        move = rng.random()
        if move < 0.35 or not leased[who]:
            leased[who] |= {p.comparison.id for p in queue.lease(db, who, 2).pairs}
        elif move < 0.8:
            comparison, id = rng.choice(sorted(leased[who])), f"j{step}"
            judgments.judge(db, id=id, comparison=comparison, annotator=who, outcome="b")
            closed.add(standing.get((comparison, who), ""))
            standing[comparison, who] = id
            mine[who].append((id, comparison))
        elif move < 0.97:
            open_acts = [act for act in mine[who] if act[0] not in closed]
            if open_acts:
                undone = judgments.undo(db, id=f"w{step}", annotator=who)
                assert (undone.id, undone.comparison) == open_acts[-1]
                closed.add(undone.id)
                del standing[undone.comparison, who]
        else:
            db.close()
            db = Database.open(tmp_path)
    expected = set(standing.values())
    assert set(everything) >= {comparison for comparison, _ in standing}
    assert {r["id"] for r in db.read("SELECT id FROM current_judgments")} == expected
    assert verify(db).differences == []
    db.close()
    rebuild(tmp_path)
    with Database.open(tmp_path) as db:
        assert {r["id"] for r in db.read("SELECT id FROM current_judgments")} == expected


def test_a_large_journal_replays_in_bulk_whatever_its_order(tmp_path):
    """Kinds that alternate line by line (label, undo, label, …) must not cost a query each."""
    with Database.open(tmp_path) as db:
        for part in range(2):
            ids = [f"{part}-{i}" for i in range(2000)]
            db.write(
                lambda tx, ids=ids: [
                    tx.store(Withdrawal(id=f"w{i}", replaces=i, annotator="a"), fresh=True)
                    for i in ids
                ]
            )
    statements: list[str] = []
    original = Tables.insert

    def counted(self: Tables, table: str, *arguments, **named) -> None:
        statements.append(table)
        original(self, table, *arguments, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Tables, "insert", counted)
        assert rebuild(tmp_path).records["withdrawal"] == 4000
    assert len(statements) < 5


def test_metrics_and_notes_come_back_as_they_were_reported(db):
    run = Run(id="r", stage="policy", iteration=1, status="running", directory="runs/r")
    runs.save(db, run)
    told = [Metric(run="r", seq=s, step=s, name="kl", value=s / 10) for s in range(1, 7)]
    note = RunNote(run="r", seq=4, step=4, kind="flag", name="kl", message="hi", payload={"x": [1]})
    seen = Run(**{**run.__dict__, "ingested_seq": 6, "progress": 0.5, "message": "step 6"})
    for _ in range(2):  # repeating an ingestion changes nothing
        runs.ingest(db, seen, told, [note])
    assert runs.metrics(db, "r").to_dict("list") == {
        "step": [1, 2, 3, 4, 5, 6],
        "name": ["kl"] * 6,
        "value": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    }
    assert runs.notes(db, "r") == [note]
    assert runs.get(db, "r") == seen
    # Resumed from a checkpoint after event 3: what followed it is told anew.
    again = [Metric(run="r", seq=s, step=s, name="kl", value=9.0) for s in (4, 5)]
    resumed = Run(**{**seen.__dict__, "ingested_seq": 5, "attempt": 2})
    runs.ingest(db, resumed, again, [], replace_from=4)
    assert runs.metrics(db, "r")["value"].tolist() == [0.1, 0.2, 0.3, 9.0, 9.0]
    assert runs.notes(db, "r") == []
    assert runs.get(db, "r").ingested_seq == 5


def test_many_points_are_thinned_evenly_and_keep_the_last(db):
    run = Run(id="r", stage="policy", iteration=1, status="running", directory="runs/r")
    runs.save(db, run)
    told = [
        Metric(run="r", seq=s, step=s, name=name, value=float(s))
        for s in range(1000)
        for name in ("kl", "loss")
    ]
    runs.ingest(db, run, told, [])
    thinned = runs.metrics(db, "r", points=10)
    # Ten stretches of a hundred steps; the last step of each: 99, 199, … 999.
    for name in ("kl", "loss"):
        steps = thinned["step"][thinned["name"] == name]
        assert steps.tolist() == list(range(99, 1000, 100))


def test_a_restore_brings_the_settings_and_keeps_those_that_were_there(tmp_path: Path):
    for name in ("old", "new"):
        Database.open(tmp_path / name).close()
        (tmp_path / name / "config.toml").write_text(name)
    with Database.open(tmp_path / "old") as db:
        backup(db, tmp_path / "copy")
    aside = restore(tmp_path / "copy", tmp_path / "new")
    assert (tmp_path / "new" / "config.toml").read_text() == "old"
    assert aside
    assert (aside / "config.toml").read_text() == "new"
    (tmp_path / "old" / "config.toml").unlink()
    with Database.open(tmp_path / "old") as db:
        backup(db, tmp_path / "bare")
    restore(tmp_path / "bare", tmp_path / "new")
    assert (tmp_path / "new" / "config.toml").read_text() == "old"
