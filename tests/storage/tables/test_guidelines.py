"""Versions of the guidelines, and the judgments given under them."""

from __future__ import annotations

from storage.engine.database import Database
from storage.labeling import judgments, queue
from storage.records import digest
from storage.tables import guidelines
from tests.helpers.desk_world import add_person, workspace

TWO = [("q0", "a", "b"), ("q1", "a", "b")]


def test_each_judgment_has_the_version_it_was_given_under(tmp_path):
    with workspace(tmp_path, TWO) as db:
        ann = add_person(db, "Ann")
        first, second = (pair.comparison.id for pair in queue.lease(db, ann.id, 2).pairs)
        assert guidelines.current(db, "default") == "default"

        guidelines.save(db, "Be kind.")
        judgments.judge(
            db, id="j0", comparison=first, annotator=ann.id, outcome="a",
            guidelines=digest("Be kind."),
        )  # fmt: skip
        guidelines.save(db, "Be brief.")
        judgments.judge(
            db, id="j1", comparison=second, annotator=ann.id, outcome="a", guidelines="f" * 16
        )
        judgments.judge(db, id="j2", comparison=second, annotator=ann.id, outcome="b")

    with Database.open(tmp_path) as again:
        assert guidelines.current(again, "default") == "Be brief."
        [version] = guidelines.versions(again)  # j1 was revised without a version
        assert (version.judgments, version.text) == (1, "Be kind.")
        assert version.version == "9ece155cb5ceb47f"


def test_texts_of_languages_share_a_version(tmp_path):
    with Database.open(tmp_path) as db:
        assert guidelines.version(db, "default") == digest("default")
        guidelines.save(db, "Seien Sie freundlich.", language="de", default="default")
        first = guidelines.version(db, "default")
        assert guidelines.current(db, "default", "de") == "Seien Sie freundlich."
        assert guidelines.current(db, "default", "fr") == "default"
        guidelines.save(db, "Be kind.")
        second = guidelines.version(db, "default")
        assert len({digest("default"), first, second}) == 3
        assert guidelines.current(db, "default", "de") == "Seien Sie freundlich."
        assert guidelines.current(db, "default", "fr") == "Be kind."
        guidelines.save(db, " ", language="de")
        assert guidelines.current(db, "default", "de") == "Be kind."
        assert guidelines.version(db, "default") == digest("Be kind.")
