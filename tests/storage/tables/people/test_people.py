"""Annotators, tokens and the other subjects: what is stored is what comes back."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from storage.engine import lookup
from storage.engine.database import Database
from storage.errors import Conflict, NotFound
from storage.records import (
    Annotator,
    Comparison,
    Completion,
    Iteration,
    Message,
    ModelVersion,
    Prompt,
    Run,
    now,
)
from storage.tables import comparisons, completions, iterations, models, prompts
from storage.tables.people import annotators, tokens
from storage.tables.runs import runs
from tests.helpers.storage_world import fill


def test_annotators_have_one_name_each(db):
    ann = annotators.add(db, Annotator(id="a", name="Ann", role="researcher", password_hash="h"))
    assert annotators.by_name(db, "Ann") == annotators.get(db, "a") == ann
    assert annotators.by_name(db, "ann") is None
    with pytest.raises(Conflict, match="'Ann' is taken"):
        annotators.add(db, Annotator(id="b", name="Ann"))
    with pytest.raises(Conflict, match="already an annotator 'a'"):
        annotators.add(db, Annotator(id="a", name="Other"))
    with pytest.raises(Conflict, match="'ANN' is too much like 'Ann', which is taken"):
        annotators.add(db, Annotator(id="b", name="ANN"))
    assert [person.id for person in annotators.listing(db)] == ["a"]


def test_an_imported_owner_in_another_case_does_not_keep_the_studio_from_starting(db: Database):
    db.write(lambda tx: annotators.ensure(tx, Annotator(id="imported", name="Owner")))
    db.write(lambda tx: annotators.ensure(tx, Annotator(id="too", name="OWNER")))
    found = annotators.owner(db)
    assert (found.name, found.role) == ("owner-2", "researcher")
    assert annotators.owner(db) == found


def test_closing_an_account_changes_nothing_else_of_it(db):
    seen = annotators.add(db, Annotator(id="a", name="Ann"))
    invite = tokens.issue(db, "a", "invite", lifetime=None)
    annotators.accept_invite(db, invite, password_hash="h")
    closed = annotators.set_disabled(db, seen.id, disabled=True)
    assert closed == annotators.get(db, "a") == replace(seen, password_hash="h", disabled=True)
    assert annotators.set_disabled(db, "a", disabled=False) == replace(seen, password_hash="h")
    with pytest.raises(NotFound, match="no annotator 'c'"):
        annotators.set_disabled(db, "c", disabled=True)


def test_another_role_keeps_the_rest_of_the_account_and_its_tokens(db):
    seen = annotators.add(db, Annotator(id="a", name="Ann", password_hash="h"))
    secret = tokens.issue(db, "a", "api", lifetime=None)
    for role in ("viewer", "adjudicator", "researcher"):
        changed = annotators.set_role(db, "a", role)
        assert changed == annotators.get(db, "a") == replace(seen, role=role)
        assert tokens.check(db, secret, ("api",)) == changed
    with pytest.raises(ValueError, match="Ann is the only researcher; add another one first"):
        annotators.set_role(db, "a", "viewer")
    annotators.add(db, Annotator(id="b", name="Ben", role="researcher", disabled=True))
    with pytest.raises(ValueError, match="only researcher"):  # Ben cannot sign in
        annotators.set_role(db, "a", "annotator")
    annotators.set_disabled(db, "b", disabled=False)
    assert annotators.set_role(db, "a", "annotator").role == "annotator"
    annotators.add(db, Annotator(id="m", name="judge", kind="model"))
    with pytest.raises(ValueError, match="judge is not a person"):
        annotators.set_role(db, "m", "viewer")
    with pytest.raises(NotFound, match="no annotator 'c'"):
        annotators.set_role(db, "c", "viewer")
    with pytest.raises(ValueError, match="must be one of"):
        annotators.set_role(db, "a", "admin")


def test_two_researchers_cannot_shut_each_other_out_at_once(db):
    for name in ("a", "b"):
        annotators.add(db, Annotator(id=name, name=name, role="researcher"))
    writing, both_wait = threading.Event(), threading.Event()

    def hold(_tx):
        writing.set()
        both_wait.wait(20)

    with ThreadPoolExecutor(3) as pool:
        pool.submit(db.write, hold)
        assert writing.wait(20)
        acts = [pool.submit(annotators.set_disabled, db, who, disabled=True) for who in "ab"]
        while db._waiting.qsize() < 2:
            time.sleep(0.001)
        both_wait.set()
    refused = [act for act in acts if act.exception()]
    assert [str(act.exception()) for act in refused] in (
        ["a is the only researcher; add another one first"],
        ["b is the only researcher; add another one first"],
    )
    assert sum(person.disabled for person in annotators.listing(db)) == 1


def test_an_invite_is_accepted_once(db):
    annotators.add(db, Annotator(id="a", name="Ann"))
    api = tokens.issue(db, "a", "api", lifetime=None)
    invite = tokens.issue(db, "a", "invite", lifetime=timedelta(days=1))
    assert annotators.accept_invite(db, api, password_hash="h") is None
    changed = annotators.accept_invite(db, invite, password_hash="h")
    assert (
        changed
        == annotators.get(db, "a")
        == Annotator(id="a", name="Ann", password_hash="h", created_at=changed.created_at)
    )
    assert annotators.accept_invite(db, invite, password_hash="other") is None
    assert annotators.get(db, "a").password_hash == "h"
    assert tokens.check(db, api, ("api",)) is None


def test_a_token_is_good_until_it_is_spent_revoked_or_its_owner_disabled(db):
    ann = annotators.add(db, Annotator(id="a", name="Ann"))
    session = tokens.issue(db, "a", "session", lifetime=timedelta(days=1))
    api = tokens.issue(db, "a", "api", lifetime=None)
    spent = tokens.issue(db, "a", "session", lifetime=timedelta(seconds=-1))
    assert tokens.check(db, session, ("session", "api")) == ann
    assert tokens.check(db, session, ("api",)) is None
    assert tokens.check(db, api, ("api",)) == ann
    assert tokens.check(db, spent, ("session",)) is None
    assert tokens.check(db, "guess", ("session", "api", "invite")) is None
    tokens.revoke(db, session)
    assert tokens.check(db, session, ("session",)) is None
    assert tokens.check(db, api, ("api",)) == ann
    annotators.set_disabled(db, "a", disabled=True)
    assert tokens.check(db, api, ("api",)) is None
    annotators.set_disabled(db, "a", disabled=False)
    assert tokens.check(db, api, ("api",)) is None
    with pytest.raises(NotFound):
        tokens.issue(db, "nobody", "api", lifetime=None)


@pytest.mark.parametrize("kind", ["invite", "api", "session"])
def test_nobody_gets_a_secret_while_they_are_disabled(db, kind):
    annotators.add(db, Annotator(id="a", name="Ann"))
    annotators.set_disabled(db, "a", disabled=True)
    with pytest.raises(Conflict, match="'Ann' is disabled; enable the account first"):
        tokens.issue(db, "a", kind, lifetime=None)
    assert db.read("SELECT * FROM tokens") == []
    annotators.set_disabled(db, "a", disabled=False)
    secret = tokens.issue(db, "a", kind, lifetime=None)
    annotators.set_disabled(db, "a", disabled=False)  # once more changes nothing
    assert tokens.check(db, secret, (kind,))


def test_a_secret_that_an_earlier_version_made_for_a_disabled_person_ends_with_that(db):
    annotators.add(db, Annotator(id="a", name="Ann"))
    secret = tokens.issue(db, "a", "invite", lifetime=None)
    db.write(lambda tx: tx.store(replace(annotators.get(db, "a"), disabled=True)))
    annotators.set_disabled(db, "a", disabled=False)
    assert tokens.check(db, secret, ("invite",)) is None


def test_no_secret_is_written_anywhere(db):
    annotators.add(db, Annotator(id="a", name="Ann"))
    secret = tokens.issue(db, "a", "api", lifetime=None)
    assert secret not in db.journal.path.read_text()
    assert secret not in str(db.read("SELECT * FROM tokens"))


def test_every_field_comes_back(db):
    prompt = Prompt(
        id="p",
        role="audit",
        messages=(Message("system", "be kind"), Message("user", "hi")),
        category="c",
        source="s",
    )
    answer = Completion(
        id="k", prompt="p", policy="m", text="t", tokens=3, finish_reason="stop",
        temperature=0.7, top_p=0.9, seed=2**40,
    )  # fmt: skip
    model = ModelVersion(
        id="m", role="policy", name="M", path="models/m", parent="sft", iteration=1, run="r",
        reward_model="rm", snapshot="s", summary={"kl": 1.5, "nested": {"a": [1, None]}},
    )  # fmt: skip
    iteration = Iteration(
        number=1, phase="done", policy_sampled="sft", reward_model="rm", policy_produced="m",
        labels_wanted=400, verdict="kept", settings={"ppo.kl_weight": "0.1"},
        evaluation={"kl": 1.0}, finished_at=now(),
    )  # fmt: skip
    run = Run(
        id="r", stage="policy", iteration=1, status="failed", directory="runs/r", attempt=2,
        reason="out of memory", config={"ppo": {"lr": 1e-5}}, progress=0.5, message="step 5",
        ingested_seq=9, finished_at=now(),
    )  # fmt: skip
    other = Completion(id="l", prompt="p", policy="m", text="u")
    comparison = Comparison(
        id="c", prompt="p", first="k", second="l", iteration=1, arm="previous", wanted=2,
        position=2**60, item="7",
    )  # fmt: skip
    prompts.add(db, [prompt])
    completions.add(db, [answer, other])
    comparisons.add(db, [comparison])
    models.add(db, model)
    iterations.save(db, iteration)
    runs.save(db, run)
    assert prompts.listing(db) == [prompt]
    assert lookup.by_key(db, Completion, "k") == answer
    assert comparisons.get(db, "c") == comparison
    assert models.get(db, "m") == model
    assert iterations.get(db, 1) == iterations.latest(db) == iteration
    assert runs.get(db, "r") == run
    assert prompts.listing(db, "audit") == [prompt]
    assert prompts.listing(db, "train") == []
    assert prompts.counts(db) == {"audit": 1}
    assert models.listing(db, "policy") == [model]
    assert runs.listing(db, iteration=2) == []


def test_progress_of_a_run_needs_no_journal(db):
    run = runs.save(db, Run(id="r", stage="sft", iteration=0, status="running", directory="runs/d"))
    size = db.journal.size
    runs.ingest(db, replace(run, progress=0.25, message="a quarter", ingested_seq=4), [], [])
    assert (runs.get(db, "r").progress, runs.get(db, "r").ingested_seq) == (0.25, 4)
    assert db.journal.size == size
    runs.save(db, replace(runs.get(db, "r"), status="failed"))
    assert db.journal.size > size


def test_a_comparison_needs_two_stored_answers_to_its_prompt(db):
    fill(db, 2)
    good = comparisons.get(db, "c1-0")
    for bad in (
        replace(good, id="x", first="nowhere"),
        replace(good, id="x", second="k1-1-second"),  # answers the other prompt
        replace(good, id="x", prompt="nowhere"),
    ):
        with pytest.raises(ValueError, match="is not a stored completion"):
            comparisons.add(db, [replace(good, id="y"), bad])
    stored = db.read("SELECT id FROM comparisons ORDER BY id")
    assert [row["id"] for row in stored] == ["c1-0", "c1-1"]


def test_what_is_not_there_is_named(db):
    for get in (comparisons.get, models.get, runs.get):
        with pytest.raises(NotFound, match="'ghost'"):
            get(db, "ghost")
    with pytest.raises(NotFound, match="7"):
        iterations.get(db, 7)
    assert iterations.latest(db) is None


def test_the_link_is_for_one_owner_who_is_a_researcher(db: Database):
    owner = annotators.owner(db)
    assert (owner.name, owner.role) == ("owner", "researcher")
    annotators.add(db, Annotator(id="ada", name="Ada", role="researcher"))
    assert annotators.owner(db) == owner


def test_an_imported_annotator_called_owner_does_not_get_the_link(db: Database):
    annotators.add(db, Annotator(id="imported", name="owner"))
    annotators.add(db, Annotator(id="too", name="owner-2"))
    found = annotators.owner(db)
    assert (found.name, found.role) == ("owner-3", "researcher")
    assert annotators.owner(db) == found


def test_where_the_owner_is_shut_out_the_link_is_for_the_researcher_there_is(db: Database):
    owner = annotators.owner(db)
    ada = annotators.add(db, Annotator(id="ada", name="Ada", role="researcher"))
    annotators.set_disabled(db, owner.id, disabled=True)
    assert annotators.owner(db) == ada
