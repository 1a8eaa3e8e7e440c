"""Random histories of labels, crashes, backups and restores against a model of twenty lines."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from storage.engine.backup import backup, finish_restore, rebuild, restore, undo_restore, verify
from storage.engine.codec import StoredSetting
from storage.engine.database import Database
from storage.engine.replacing import MARKER
from storage.engine.transaction import Transaction
from storage.engine.workspace import JOURNAL
from storage.errors import NotFound
from storage.importing.imports import import_judgments
from storage.labeling import judgments
from storage.labeling.queue_cache import QueueCache, grant
from storage.records import now
from tests.helpers.fault_world import Killed, stopping
from tests.helpers.storage_world import fill

PEOPLE = ("ann", "bob")
PAIRS = tuple(f"c1-{n}" for n in range(3))


@dataclass
class Model:
    """What was acknowledged: acts in order as (id, kind, who, comparison), and which are closed."""

    acts: list[tuple[str, str, str, str]] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    imported: set[int] = field(default_factory=set)

    def standing(self, kind: str) -> dict[tuple[str, str], str]:
        return {(w, c): i for i, k, w, c in self.acts if k == kind and i not in self.closed}

    def act(self, id: str, kind: str, who: str, comparison: str) -> None:
        if kind == "judgment":  # a second one revises the first
            self.closed.add(self.standing(kind).get((who, comparison), ""))
        self.acts.append((id, kind, who, comparison))

    def latest(self, who: str) -> str | None:
        mine = [i for i, _, w, _ in self.acts if w == who and i not in self.closed]
        return mine[-1] if mine else None


people, pairs = st.sampled_from(PEOPLE), st.sampled_from(PAIRS)
kinds = st.sampled_from(["judgment", "judgment", "skip", "flag"])
POINTS = ("journal written", "journal synced", "committed")


class Studio(RuleBasedStateMachine):
    """One workspace; each rule does the same to it and to the model."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.count = 0
        self.shift = timedelta()
        self.model = Model()
        self.backups: list[tuple[Path, Model]] = []
        self.open(self.folder / "w")
        fill(self.db, len(PAIRS), wanted=len(PEOPLE), people=PEOPLE)
        self.lease()

    def open(self, workspace: Path) -> None:
        self.db = Database.open(workspace)
        real = self.db.clock
        self.db.clock = lambda: real() + self.shift

    def lease(self) -> None:
        """Give every pair to everybody; leases are not in the journal."""

        def operation(tx: Transaction) -> None:
            for comparison in PAIRS:
                tx.observer(QueueCache).item(tx, comparison)
                for who in PEOPLE:
                    grant(tx, comparison, who, now(), now() + timedelta(hours=1))

        self.db.write(operation)

    def fresh(self, name: str) -> str:
        self.count += 1
        return f"{name}{self.count}"

    def perform(self, id: str, kind: str, who: str, comparison: str) -> None:
        about: dict[str, Any] = {"id": id, "comparison": comparison, "annotator": who}
        if kind == "judgment":
            judgments.judge(self.db, **about, outcome="a", comment="x" * 300)
        else:
            {"skip": judgments.skip, "flag": judgments.flag}[kind](self.db, **about)

    @rule(kind=kinds, who=people, comparison=pairs)
    def act(self, kind: str, who: str, comparison: str) -> None:
        id = self.fresh(kind[0])
        self.perform(id, kind, who, comparison)
        self.model.act(id, kind, who, comparison)

    @rule(who=people)
    def undo(self, who: str) -> None:
        expected = self.model.latest(who)
        if expected is None:
            with pytest.raises(NotFound):
                judgments.undo(self.db, id=self.fresh("w"), annotator=who)
        else:
            assert judgments.undo(self.db, id=self.fresh("w"), annotator=who).id == expected
            self.model.closed.add(expected)

    @rule(n=st.integers(0, 3))
    def bring_in(self, n: int) -> None:
        row = {"prompt": f"p{n}", "response_a": "a", "response_b": "b", "annotator": "crowd"}
        file = self.folder / "votes.jsonl"
        file.write_text(json.dumps(row | {"outcome": "a"}) + "\n")
        import_judgments(self.db, file)
        self.model.imported.add(n)

    @rule(hours=st.integers(-9, 9))
    def set_clock(self, hours: int) -> None:
        self.shift = timedelta(hours=hours)

    @rule()
    def reopen(self) -> None:
        self.db.close()
        self.open(self.db.workspace)
        self.lease()

    @rule(
        kind=kinds, who=people, comparison=pairs, point=st.sampled_from(POINTS), torn=st.floats(0, 1),
        zeroed=st.booleans(),
    )  # fmt: skip
    def crash(
        self, kind: str, who: str, comparison: str, point: str, torn: float, zeroed: bool
    ) -> None:
        """The files as they are at one point of an act; before the fsync its bytes may be lost."""
        id, committed = self.fresh("x"), self.db.journal.size
        after = self.stopped(lambda: self.perform(id, kind, who, comparison), point)
        if point == POINTS[0]:
            tear(after / JOURNAL, committed, torn, zeroed=zeroed)
        self.open(after)
        kept = self.db.read(f"SELECT id FROM {kind}s WHERE id = $id", id=id)
        assert kept or point == POINTS[0]
        if kept:
            self.model.act(id, kind, who, comparison)
        assert verify(self.db).differences == []
        self.lease()

    @rule(begin=st.floats(0, 1), length=st.floats(0, 1))
    def crash_with_a_hole(self, begin: float, length: float) -> None:
        """A power cut before the fsync of a group lost a page in its middle, and kept what follows."""
        committed, name = self.db.journal.size, self.fresh("group")
        group = [StoredSetting(key=f"{name}-{n}", value="x" * 200) for n in range(6)]
        after = self.stopped(lambda: self.db.write(lambda tx: tx.store(*group)), POINTS[0])
        content = bytearray((after / JOURNAL).read_bytes())
        start = committed + int(begin * (len(content) - committed))
        end = start + int(length * (len(content) - start))
        content[start:end] = bytes(end - start)
        (after / JOURNAL).write_bytes(content)
        self.open(after)
        rows = self.db.read("SELECT key FROM settings WHERE key LIKE $like", like=f"{name}-%")
        kept = sorted(row["key"] for row in rows)
        assert kept == [setting.key for setting in group][: len(kept)]  # none without those before
        assert len(kept) == 6 or start < end
        assert verify(self.db).differences == []
        self.lease()

    def stopped(self, act: Callable[[], Any], point: str) -> Path:
        """A copy of the workspace as it was at that point of an act; it is closed afterwards."""
        after = self.folder / self.fresh("after")
        sync, commit = self.db.journal.sync, self.db._commit

        def noted(step: Callable[..., None], *arguments: Any, before: str, behind: str) -> None:
            if point == before:
                shutil.copytree(self.db.workspace, after)
            step(*arguments)
            if point == behind:
                shutil.copytree(self.db.workspace, after)

        self.db.journal.sync = lambda: noted(sync, before=POINTS[0], behind=POINTS[1])
        self.db._commit = lambda c: noted(commit, c, before="", behind=POINTS[2])
        act()
        self.db.close()
        return after

    @rule()
    def back_up(self) -> None:
        target = self.folder / self.fresh("backup")
        backup(self.db, target)
        self.backups.append((target, copy.deepcopy(self.model)))

    @precondition(lambda self: self.backups)
    @rule(data=st.data(), killed_at=st.integers(0, 80), finishing=st.booleans())
    def restore(self, data: st.DataObject, killed_at: int, finishing: bool) -> None:
        target, model = data.draw(st.sampled_from(self.backups))
        workspace = self.db.workspace
        self.db.close()
        try:
            with stopping(killed_at) as steps:
                restore(target, workspace)
            done = True
        except Killed:
            if (workspace / MARKER).exists():
                (finish_restore if finishing else undo_restore)(workspace)
                done = finishing
            else:  # before the marker was written, or after it was removed
                named = [a[1] for name, a in steps.calls[:killed_at] if name == "rename"]
                done = str(workspace / MARKER) in named
        self.open(workspace)
        if done:
            self.model = copy.deepcopy(model)
        self.lease()

    @rule()
    def rebuild(self) -> None:
        self.db.close()
        rebuild(self.db.workspace)
        self.open(self.db.workspace)
        self.lease()

    @invariant()
    def says_what_the_model_says(self) -> None:
        if not hasattr(self, "db"):
            return
        rows = self.db.read("SELECT id, comparison, annotator FROM current_judgments")
        ours = {
            (r["annotator"], r["comparison"]): r["id"] for r in rows if r["annotator"] in PEOPLE
        }
        assert ours == self.model.standing("judgment")
        assert len(rows) - len(ours) == len(self.model.imported)
        for kind in ("skip", "flag"):
            found = {row["id"] for row in self.db.read(f"SELECT id FROM open_{kind}s")}
            of_kind = {i for i, k, *_ in self.model.acts if k == kind} - self.model.closed
            assert found == of_kind
        for who in PEOPLE:
            assert judgments.latest(self.db, who) == self.model.latest(who)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            try:
                if not self.db._closed:  # a rule failed between two openings
                    assert verify(self.db).differences == []
            finally:
                self.db.close()
                shutil.rmtree(self.folder)


def tear(journal: Path, committed: int, torn: float, *, zeroed: bool) -> None:
    """Lose some of what follows the committed length: cut it, or keep its length and zero it."""
    content = journal.read_bytes()
    end = committed + int(torn * (len(content) - committed))
    journal.write_bytes(content[:end] + bytes(len(content) - end) * zeroed)


ALL = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


def test_histories_agree_with_the_model():
    run(Studio, settings=settings(ALL, max_examples=5, stateful_step_count=16, derandomize=True))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_histories_agree_with_the_model():
    run(Studio, settings=settings(ALL, max_examples=200, stateful_step_count=40))
